"""Static SM partitions: how many chunks a share takes, and what is free beside others."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.grants.rules.placement import InsufficientResources, Placed, place, place_there
from mpsd.model.grants import CardsRequest, GpuShare, Grant, Request, rooms
from mpsd.model.identity import PodName
from mpsd.model.partitions import ChunkRoom, HeldPartition, Partition, PartitionTable, chunks_for
from mpsd.platform.limits_files import load_limits
from tests.model.worlds import GPUS, POLICY

FACTS = load_limits(None).facts
GPU = GPUS[0]
PERCENTS = st.integers(1, 100)
CHUNKS = st.integers(1, 60)


@given(PERCENTS, CHUNKS)
def test_a_share_is_never_less_than_was_asked_and_never_a_whole_chunk_more(percent: int, chunks: int) -> None:
    own = chunks_for(percent, chunks)
    assert 1 <= own <= chunks
    assert own * 100 >= percent * chunks
    assert own == 1 or (own - 1) * 100 < percent * chunks


@given(st.lists(PERCENTS, max_size=60), CHUNKS)
def test_what_is_granted_is_never_more_than_the_gpu_has(asked: list[int], chunks: int) -> None:
    free = chunks
    for percent in asked:
        if ChunkRoom(free, chunks).holds(percent):
            free -= chunks_for(percent, chunks)
    assert 0 <= free <= chunks


@pytest.mark.parametrize(("percent", "chunks"), [(1, 1), (6, 1), (7, 2), (30, 5), (50, 8), (60, 10), (100, 16)])
def test_a_share_of_an_h200_is_so_many_chunks(percent: int, chunks: int) -> None:
    capability = FACTS.capability("9.0")
    assert capability
    assert chunks_for(percent, capability.chunks(132)) == chunks


@pytest.mark.parametrize("compute_capability", ["7.0", "7.5"])
def test_before_ampere_there_are_no_chunks(compute_capability: str) -> None:
    capability = FACTS.capability(compute_capability)
    assert capability
    assert capability.chunks(80) == 0


def grant(name: str, percent: int, *partitions: HeldPartition) -> Grant:
    parts = (GpuShare(GPU.uuid, 1024, percent),)
    return Grant(name, "gpu0", parts, percent, 2, PodName("a", name, name), name, partitions=partitions)


def room(table: PartitionTable, *grants: Grant) -> ChunkRoom | None:
    (found,) = rooms([GPU], {GPU.uuid: "gpu0"}, grants, POLICY, (), {GPU.uuid: table})
    return found.chunks


def in_daemon(name: str, chunks: int, *, in_use: bool = True) -> Partition:
    return Partition(name, chunks, 8 * chunks, in_use)


class TestWhatIsFree:
    def test_partitions_of_grants_are_not(self) -> None:
        table = PartitionTable(16, (in_daemon("a", 5),))
        assert room(table, grant("g", 30, HeldPartition("a", 5))) == ChunkRoom(11, 16)

    def test_those_that_are_still_to_be_made_are_not(self) -> None:
        assert room(PartitionTable(16), grant("g", 30, HeldPartition("old", 5))) == ChunkRoom(11, 16)
        assert room(PartitionTable(16), grant("g", 30)) == ChunkRoom(11, 16)

    def test_those_that_are_lost_are(self) -> None:
        table = PartitionTable(16, lost=frozenset({"old"}))
        assert room(table, grant("g", 30, HeldPartition("old", 5))) == ChunkRoom(16, 16)

    def test_those_of_nobody_are_unless_a_client_is_in_them(self) -> None:
        assert room(PartitionTable(16, (in_daemon("a", 5, in_use=False),))) == ChunkRoom(16, 16)
        assert room(PartitionTable(16, (in_daemon("a", 5),))) == ChunkRoom(11, 16)


def placed(request: Request, table: PartitionTable, *grants: Grant) -> Placed | InsufficientResources:
    return place(request, rooms([GPU], {GPU.uuid: "gpu0"}, grants, POLICY, (), {GPU.uuid: table}), POLICY)


class TestARequest:
    ASKED = Request(1024, 20, 1)

    def test_that_fits_is_placed(self) -> None:
        assert placed(self.ASKED, PartitionTable(16)) == Placed("gpu0", (GPU.uuid,))

    def test_waits_for_chunks_though_its_percentage_would_fit(self) -> None:
        held = grant("g", 80, HeldPartition("a", 13))
        found = placed(self.ASKED, PartitionTable(16, (in_daemon("a", 13),)), held)
        assert isinstance(found, InsufficientResources)
        assert found.ever
        assert "20 % of the threads (4 chunks)" in found.reason
        assert "3 of 16 chunks of its SMs" in found.reason

    @pytest.mark.parametrize("request_", [replace(ASKED, thread_percent=None), replace(ASKED, gpus=2)])
    def test_without_a_share_or_over_several_gpus_never_fits(self, request_: Request) -> None:
        found = placed(request_, PartitionTable(16))
        assert isinstance(found, InsufficientResources)
        assert not found.ever


class TestAContainerThatNamesItsGpu:
    def placed(self, percent: int, table: PartitionTable) -> Placed | InsufficientResources:
        asked = CardsRequest((GpuShare(GPU.uuid, 1024, percent),), percent or 100)
        return place_there(asked, rooms([GPU], {GPU.uuid: "gpu0"}, (), POLICY, (), {GPU.uuid: table}), POLICY, {})

    def test_gets_chunks_for_its_share(self) -> None:
        assert self.placed(30, PartitionTable(16)) == Placed("gpu0", (GPU.uuid,))

    def test_waits_for_chunks(self) -> None:
        found = self.placed(30, PartitionTable(16, (in_daemon("a", 12),)))
        assert isinstance(found, InsufficientResources)
        assert found.ever
        assert "30 % of its threads take 5 of the 16 chunks of its SMs, and 4 are free" in found.reason

    def test_without_a_share_never_fits(self) -> None:
        found = self.placed(0, PartitionTable(16))
        assert isinstance(found, InsufficientResources)
        assert not found.ever
