"""Static SM partitions: what a daemon that was started with -S answers, and what its clients get.

Documented, not observed: no driver at hand has them. On a real GPU they are skipped where the controller is too old.
"""

import os
from collections.abc import Iterator

import pytest

from mpsd.model.cuda_limit_parser import SM_PARTITION, THREAD_PERCENT
from mpsd.model.partitions import CONTROLLER, PartitionTable
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import NoPartition
from mpsd.simulator.mps.control_daemon import VERSION
from tests.contract.platforms import Simulated
from tests.contract.processes import Client, eventually
from tests.contract.world import FLAGS, Daemon, World

REFUSED = "915:CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"


@pytest.fixture(scope="class")
def daemon(world: World) -> Daemon:
    newer = {VERSION: str(CONTROLLER)} if isinstance(world.platform, Simulated) else {}
    found = world.control_version(newer)
    if found is None or found < CONTROLLER:
        pytest.skip(f"nvidia-cuda-mps-control is version {found}, and {CONTROLLER} is the first with partitions")
    daemon = world.daemon((*FLAGS, "-S"), newer)
    daemon.start_server()
    return daemon


@pytest.fixture
def gpu(world: World) -> str:
    return world.gpu.uuid


@pytest.fixture(autouse=True)
def _partitions_end_with_their_test(world: World, daemon: Daemon, _clients_end_with_their_test: None) -> Iterator[None]:
    yield
    world.end_clients()
    for partition in table(daemon, world.gpu.uuid).partitions:
        remove(daemon, partition.name)


def table(daemon: Daemon, gpu: str) -> PartitionTable:
    command = control_protocol.partitions(gpu)
    return command.answer(daemon.command(command.text).stdout)


def add(daemon: Daemon, gpu: str, chunks: int) -> str:
    command = control_protocol.add_partition(gpu, chunks)
    return command.answer(daemon.command(command.text).stdout)


def remove(daemon: Daemon, name: str) -> str:
    return daemon.command(control_protocol.remove_partition(name).text).stdout


def in_partition(daemon: Daemon, name: str, **more: str) -> Client:
    return daemon.ready_client("hold", environment={SM_PARTITION: name, **more})


class TestPartitions:
    def test_they_are_listed_with_chunks_and_sms(self, daemon: Daemon, gpu: str, world: World) -> None:
        whole = table(daemon, gpu).chunks
        assert 0 < whole <= world.gpu.capability.chunks(world.gpu.sms)
        name = add(daemon, gpu, 2)
        (found,) = table(daemon, gpu).of([name])
        assert (found.chunks, found.sms) == (2, 2 * world.gpu.capability.sms_per_chunk)
        assert not found.in_use
        assert table(daemon, gpu).chunks == whole

    def test_no_more_are_given_than_there_are_chunks(self, daemon: Daemon, gpu: str) -> None:
        whole = table(daemon, gpu).chunks
        add(daemon, gpu, whole - 1)
        with pytest.raises(NoPartition):
            add(daemon, gpu, 2)
        add(daemon, gpu, 1)
        with pytest.raises(NoPartition):
            add(daemon, gpu, 1)
        with pytest.raises(NoPartition):
            add(daemon, gpu, 0)

    def test_a_client_has_the_sms_of_its_partition_whatever_its_percentage(
        self, daemon: Daemon, gpu: str, world: World
    ) -> None:
        name = add(daemon, gpu, 3)
        expected = 3 * world.gpu.capability.sms_per_chunk
        assert in_partition(daemon, name).lines[0]["sms"] == expected
        assert in_partition(daemon, name, **{THREAD_PERCENT: "100"}).lines[0]["sms"] == expected
        assert in_partition(daemon, name, **{THREAD_PERCENT: "1"}).lines[0]["sms"] == expected

    @pytest.mark.parametrize("value", [None, "", "abc", "GPU-0/Dabc"])
    def test_a_client_without_one_gets_no_context(self, daemon: Daemon, gpu: str, value: str | None) -> None:
        add(daemon, gpu, 1)
        assert daemon.client(environment={SM_PARTITION: value}).finished().lines[0]["err"] == REFUSED

    def test_several_clients_may_be_in_one(self, daemon: Daemon, gpu: str) -> None:
        name = add(daemon, gpu, 1)
        assert in_partition(daemon, name).lines[0]["sms"] == in_partition(daemon, name).lines[0]["sms"]

    def test_one_in_use_cannot_be_removed_and_one_that_is_left_can(self, daemon: Daemon, gpu: str) -> None:
        name = add(daemon, gpu, 2)
        client = in_partition(daemon, name)
        assert "in use" in remove(daemon, name)
        assert table(daemon, gpu).of([name])[0].in_use
        client.close()
        eventually(lambda: not table(daemon, gpu).of([name])[0].in_use)
        remove(daemon, name)
        assert not table(daemon, gpu).partitions

    def test_they_outlive_the_server(self, daemon: Daemon, gpu: str, world: World) -> None:
        """What NVIDIA says nothing about: mpsd makes anew what it does not find."""
        name = add(daemon, gpu, 2)
        in_partition(daemon, name).close()
        old = daemon.server
        daemon.command(f"shutdown_server {old} -f")
        daemon.start_server()
        assert table(daemon, gpu).of([name])
        assert in_partition(daemon, name).lines[0]["sms"] == 2 * world.gpu.capability.sms_per_chunk


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
class TestWhoMayChangeThem:
    def test_another_user_may_not(self, daemon: Daemon, gpu: str, other_user: int) -> None:
        directory = daemon.directory_with("control")
        text = control_protocol.add_partition(gpu, 1).text
        daemon.command(text, directory=directory, uid=other_user)
        assert not table(daemon, gpu).partitions
