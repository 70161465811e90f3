# ruff: noqa: N802  the names are pynvml's
"""NVML, on the simulator's library: what it cannot say is an error."""

import json
import os
import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mpsd.model.gpu_health import GpuHealth
from mpsd.model.grants import MigInstance
from mpsd.mps.node_gpus import NodeGpus
from mpsd.platform.limits_files import load_limits
from mpsd.platform.nvml import EXCLUSIVE_PROCESS, Nvml, NvmlFailed
from mpsd.simulator.card import (
    GRAPHICS,
    MPS_CLIENT,
    OUTSIDE_MPS,
    CardView,
    ContextClaim,
    Quirk,
    create_card,
)
from mpsd.simulator.gpus import MIB, card_path
from mpsd.simulator.kernel_queue import KernelQueue
from mpsd.simulator.node import SimulatedNode, cards_asked, create_node
from mpsd.simulator.nvml import Handle, ProcessUtilization, SimulatedNvml
from mpsd.simulator.nvml_health import FieldValue

FACTS = load_limits(None).facts
FOR_LONG = KernelQueue(ends_ns=2**62)


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return create_node(tmp_path / "node", cards_asked("A30,V100", FACTS), FACTS.capabilities)


@pytest.fixture
def nvml(node: SimulatedNode) -> Iterator[Nvml]:
    opened = Nvml(SimulatedNvml(node.folder))
    opened.open()
    yield opened
    opened.close()


@pytest.fixture
def card(node: SimulatedNode) -> Iterator[CardView]:
    opened = node.card(0)
    yield opened
    opened.close()


def test_gpus_are_told_as_cuda_sees_them(nvml: Nvml) -> None:
    """The driver's own reserve is not memory that can be granted, and cores are counted in
    multiprocessors."""
    shown = [
        (gpu.label, gpu.name, gpu.memory_mib, gpu.sms) for gpu in NodeGpus(nvml, FACTS).now.gpus
    ]
    wanted = [FACTS.card("A30"), FACTS.card("V100")]
    assert shown == [
        (f"gpu{n}", card.name, card.memory_mib, card.sms) for n, card in enumerate(wanted) if card
    ]


def test_a_well_gpu_tells_no_cause_and_what_it_does_not_have_is_none(nvml: Nvml) -> None:
    first, _second = NodeGpus(nvml, FACTS).now.gpus
    assert nvml.health(first.uuid) == GpuHealth(
        uncorrected=0, remapped_rows=0, remap_pending=0, remap_failed=0, brakes=(), recovery=""
    )


def test_each_xid_is_told_once_and_of_its_gpu_alone(nvml: Nvml, card: CardView) -> None:
    first, second = NodeGpus(nvml, FACTS).now.gpus
    card.post_xid(31)  # before anybody asked
    assert nvml.health(first.uuid).xids == ()
    assert nvml.health(second.uuid).xids == ()
    card.post_xid(13)
    card.post_xid(79)
    assert nvml.health(first.uuid).xids == (13, 79)
    assert nvml.health(first.uuid).xids == ()
    assert nvml.health(second.uuid).xids == ()


def test_what_is_wrong_with_a_gpu_is_told_in_words(nvml: Nvml, card: CardView) -> None:
    first, _second = NodeGpus(nvml, FACTS).now.gpus
    card.brakes = 0x40 | 0x4  # the second is of a power cap, which is no trouble
    card.uncorrected = 3
    card.remap_pending = 1
    card.recovery = 2
    seen = nvml.health(first.uuid)
    assert (seen.uncorrected, seen.remap_pending, seen.remapped_rows) == (3, 1, 1)
    assert seen.brakes == ("thermal slowdown by its hardware",)
    assert seen.recovery == "a reboot of the node"


def test_a_gpu_without_any_such_figures_is_none_of_them(nvml: Nvml, node: SimulatedNode) -> None:
    class Old(SimulatedNvml):
        def nvmlDeviceRegisterEvents(self, *_arguments: object) -> None:
            raise self.NVMLError_NotSupported

        def nvmlDeviceGetCurrentClocksEventReasons(self, _handle: object) -> int:
            raise self.NVMLError_NotSupported

        def nvmlDeviceGetFieldValues(self, *_arguments: object) -> list[FieldValue]:
            raise self.NVMLError_NotSupported

        def nvmlDeviceGetTotalEccErrors(self, *_arguments: object) -> int:
            raise self.NVMLError_NotSupported

        def nvmlDeviceGetRemappedRows(self, _device: object) -> tuple[int, int, int, int]:
            raise self.NVMLError_NotSupported

    old = Nvml(Old(node.folder))
    old.open()
    first, _second = NodeGpus(old, FACTS).now.gpus
    assert old.health(first.uuid) == GpuHealth()
    old.close()


def test_the_health_of_a_lost_gpu_is_an_error_of_its_own(nvml: Nvml, card: CardView) -> None:
    first, second = NodeGpus(nvml, FACTS).now.gpus
    card.lost = True
    with pytest.raises(NvmlFailed, match="GPU is lost"):
        nvml.health(first.uuid)
    assert nvml.health(second.uuid).uncorrected == 0


def test_where_a_gpu_is_is_said_as_the_kernel_writes_it(
    node: SimulatedNode, tmp_path: Path
) -> None:
    devices = tmp_path / "bus/pci/devices"
    for bus, numa in (("0000:00:06.0", "1\n"), ("0000:00:07.0", "-1\n")):
        (devices / bus).mkdir(parents=True)
        (devices / bus / "numa_node").write_text(numa)
    nvml = Nvml(SimulatedNvml(node.folder), tmp_path)
    nvml.open()
    assert [(gpu.pci_bus, gpu.numa_node) for gpu in NodeGpus(nvml, FACTS).now.gpus] == [
        ("0000:00:06.0", 1),
        ("0000:00:07.0", None),
    ]
    nvml.close()


def test_what_one_gpu_does_not_say_is_its_own(node: SimulatedNode, nvml: Nvml) -> None:
    with closing(node.card(0)) as card:
        card.quirks = Quirk.TELLS_NO_MEMORY
        assert nvml.at(0).memory_mib is None
        card.lost = True
        with pytest.raises(NvmlFailed) as lost:
            nvml.at(0)
    assert lost.value.is_loss
    assert pickle.loads(pickle.dumps(lost.value)).code == lost.value.code
    assert nvml.at(1) == pickle.loads(pickle.dumps(nvml.at(1)))
    assert nvml.at(1).memory_mib == 32494


def test_a_library_of_another_version_than_the_module_s_has_a_remedy(node: SimulatedNode) -> None:
    (node.folder / "mismatch").touch()
    with pytest.raises(NvmlFailed, match="reboot, or reload the module") as raised:
        Nvml(SimulatedNvml(node.folder)).open()
    assert raised.value.code == 18


def test_a_gpu_too_old_for_mig_has_none(nvml: Nvml, card: CardView) -> None:
    a30, v100 = NodeGpus(nvml, FACTS).now.gpus
    assert not nvml.mig_enabled(v100.uuid)
    card.mig = True
    assert nvml.mig_enabled(a30.uuid)


def test_a_gpu_that_is_lost_is_an_error_and_not_idle(nvml: Nvml, card: CardView) -> None:
    gpu = NodeGpus(nvml, FACTS).now.gpus[0]
    assert nvml.uses(gpu.uuid) == ()
    card.lost = True
    with pytest.raises(NvmlFailed, match="GPU is lost"):
        nvml.uses(gpu.uuid)
    with pytest.raises(NvmlFailed, match="GPU is lost"):
        nvml.mps_pids(gpu.uuid)
    with pytest.raises(NvmlFailed, match="GPU is lost"):
        nvml.mig_enabled(gpu.uuid)


def test_a_process_beside_mps_is_told_from_a_client_and_from_one_that_draws(
    nvml: Nvml, card: CardView
) -> None:
    gpu = NodeGpus(nvml, FACTS).now.gpus[0]
    beside, client, draws = os.getpid(), os.getppid(), 1
    for pid, kind in ((beside, OUTSIDE_MPS), (client, MPS_CLIENT), (draws, GRAPHICS)):
        card.claim(ContextClaim(pid, kind, 300 * MIB))
    assert dict(nvml.uses(gpu.uuid)) == {beside: 300 * MIB, client: 300 * MIB}
    assert nvml.mps_pids(gpu.uuid) == {client}
    assert [nvml.draws(gpu.uuid, pid) for pid in (beside, client, draws)] == [False, False, True]


def test_who_computes_has_a_percentage_who_only_holds_memory_none_and_nobody_is_no_error(
    nvml: Nvml, card: CardView
) -> None:
    gpu = NodeGpus(nvml, FACTS).now.gpus[0]
    busy = card.claim(ContextClaim(os.getpid(), OUTSIDE_MPS, 300 * MIB))
    card.claim(ContextClaim(os.getppid(), OUTSIDE_MPS, 300 * MIB))
    assert (nvml.sm_percents(gpu.uuid, 0), nvml.busy_percent(gpu.uuid)) == ({}, 0)
    card.be_busy(busy, os.getpid(), gpu.sms // 2, FOR_LONG)
    assert (nvml.sm_percents(gpu.uuid, 0), nvml.busy_percent(gpu.uuid)) == ({os.getpid(): 100}, 100)


class _Samples(SimulatedNvml):
    """A driver with several samples of a process, and with what some drivers give of processes that
    ended."""

    def nvmlDeviceGetProcessUtilization(
        self,
        handle: Handle,
        timeStamp: int,  # noqa: N803
    ) -> list[ProcessUtilization]:
        return [
            ProcessUtilization(pid, at, percent)
            for pid, at, percent in ((1, 30, 70), (1, 20, 10), (2, 20, 2147483632), (3, 10, 40))
        ]


def test_the_newest_sample_counts_and_one_that_cannot_be_is_no_number(node: SimulatedNode) -> None:
    nvml = Nvml(_Samples(node.folder))
    nvml.open()
    gpu = NodeGpus(nvml, FACTS).now.gpus[0]
    assert nvml.sm_percents(gpu.uuid, 10) == {1: 70, 2: None}
    nvml.close()


# -- MIG


@pytest.fixture
def divided(tmp_path: Path) -> SimulatedNode:
    return create_node(
        tmp_path / "divided", cards_asked("A100:3g.40gb+1g.10gb,H200", FACTS), FACTS.capabilities
    )


@pytest.fixture
def parts(divided: SimulatedNode) -> Iterator[Nvml]:
    opened = Nvml(SimulatedNvml(divided.folder))
    opened.open()
    yield opened
    opened.close()


def relaid(node: SimulatedNode, *profiles: str) -> SimulatedNode:
    rows, capability = (
        {row.profile: row for row in FACTS.mig if row.card == "A100"},
        FACTS.capability("8.0"),
    )
    assert capability
    return node.divide(0, [rows[profile] for profile in profiles], capability)


def test_instances_are_gpus_in_the_place_of_the_one_that_they_are_of(
    divided: SimulatedNode, parts: Nvml
) -> None:
    large, small, whole = NodeGpus(parts, FACTS).now.gpus
    parent = divided.gpus[0]
    assert (large.mig, small.mig, whole.mig) == (
        MigInstance(parent.uuid, "3g.40gb", 1, 0),
        MigInstance(parent.uuid, "1g.10gb", 7, 0),
        None,
    )
    assert [gpu.label for gpu in (large, small, whole)] == ["gpu0-mig1", "gpu0-mig7", "gpu1"]
    assert (small.name, small.product) == (f"{parent.name} MIG 1g.10gb", parent.name)
    assert [(gpu.memory_mib, gpu.sms) for gpu in (large, small)] == [(40192, 42), (9728, 14)]
    assert [gpu.capability.clients for gpu in (large, small, whole)] == [20, 6, 48]
    assert large.pci_bus == small.pci_bus == "0000:00:06.0"
    assert [one.uuid for one in parts.at(0).instances] == [large.uuid, small.uuid]
    assert not parts.mig_enabled(small.uuid)


def test_compute_instances_that_share_memory_have_a_part_of_it_each(
    divided: SimulatedNode, parts: Nvml
) -> None:
    """Two compute instances of one GPU instance: the ledger promises its memory once."""
    path = divided.folder / "gpus.json"
    rows = json.loads(path.read_text())
    large = next(row for row in rows if row["profile"] == "3g.40gb")
    shared = [
        large
        | {
            "uuid": f"MIG-{n}",
            "compute_instance": n,
            "slices": slices,
            "name": "MIG",
            "sms": 14 * slices,
        }
        for n, slices in enumerate((1, 2))
    ]
    for row in shared:
        create_card(divided.folder / f"card0-{row['uuid']}", 40192 * MIB)
    path.write_text(json.dumps([*rows[:2], *shared]))

    one, two, _whole = NodeGpus(parts, FACTS).now.gpus

    assert [(gpu.label, gpu.memory_mib, gpu.capability.clients) for gpu in (one, two)] == [
        ("gpu0-mig1", 40192 // 3, 6),
        ("gpu0-mig1-1", 40192 * 2 // 3, 13),
    ]
    assert one.mig
    assert one.mig.profile == "1c.3g.40gb", "made of its slices where the name has none"


def test_a_gpu_with_mig_on_and_no_instance_is_itself(divided: SimulatedNode, parts: Nvml) -> None:
    relaid(divided)
    with closing(divided.card(0)) as card:
        card.mig = True
        first, _second = NodeGpus(parts, FACTS).now.gpus
        assert (first.uuid, first.mig, first.label) == (divided.gpus[0].uuid, None, "gpu0")
        assert parts.mig_enabled(first.uuid)


def test_a_change_of_the_layout_shows_at_the_next_look(divided: SimulatedNode, parts: Nvml) -> None:
    before = NodeGpus(parts, FACTS).now.gpus
    relaid(divided, "3g.40gb", "2g.20gb")
    after = [one.uuid for one in parts.at(0).instances]
    assert after[0] == before[0].uuid, "an instance that stays is the same"
    assert before[1].uuid not in after
    with pytest.raises(NvmlFailed):
        parts.uses(before[1].uuid)


def test_the_processes_of_an_instance_are_its_own(divided: SimulatedNode, parts: Nvml) -> None:
    large, small, _whole = NodeGpus(parts, FACTS).now.gpus
    with closing(CardView(card_path(divided.folder, divided.gpus[3]))) as card:
        card.claim(ContextClaim(os.getpid(), MPS_CLIENT, 100 * MIB))
        assert parts.uses(small.uuid) == ((os.getpid(), 100 * MIB),)
        assert parts.mps_pids(small.uuid) == {os.getpid()}
        assert (parts.uses(large.uuid), parts.used_mib(large.uuid), parts.used_mib(small.uuid)) == (
            (),
            0,
            100,
        )
        assert parts.uses(divided.gpus[0].uuid) == parts.uses(small.uuid), (
            "its GPU has those of all"
        )


def test_a_compute_mode_is_the_whole_gpu_s_and_only_default_where_mig_is_on(
    divided: SimulatedNode, parts: Nvml
) -> None:
    large, *_others = NodeGpus(parts, FACTS).now.gpus
    assert parts.compute_mode(large.uuid) == parts.compute_mode(divided.gpus[0].uuid) == 0
    with pytest.raises(NvmlFailed, match="Not Supported"):
        parts.set_compute_mode(divided.gpus[0].uuid, EXCLUSIVE_PROCESS)


def test_how_busy_an_instance_is_nvml_does_not_say(parts: Nvml) -> None:
    large, *_others = NodeGpus(parts, FACTS).now.gpus
    for question in (parts.busy_percent, lambda uuid: parts.sm_percents(uuid, 0)):
        with pytest.raises(NvmlFailed, match="Not Supported"):
            question(large.uuid)
