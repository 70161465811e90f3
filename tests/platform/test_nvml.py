"""NVML, on the simulator's library: what it cannot say is an error."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mpsd.platform.limits_files import load_limits
from mpsd.platform.nvml import Nvml, NvmlFailed
from mpsd.simulator.card import GRAPHICS, MPS_CLIENT, MPS_SERVER, OUTSIDE_MPS, CardView, ContextClaim
from mpsd.simulator.gpus import MIB
from mpsd.simulator.node import SimulatedNode, cards_asked, create_node
from mpsd.simulator.nvml import Handle, PciInfo, ProcessUtilization, SimulatedNvml

FACTS = load_limits(None).facts


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
    """The driver's own reserve is not memory that can be granted, and cores are counted in multiprocessors."""
    shown = [(gpu.label, gpu.name, gpu.memory_mib, gpu.sms) for gpu in nvml.gpus(FACTS)]
    wanted = [FACTS.card("A30"), FACTS.card("V100")]
    assert shown == [(f"gpu{n}", card.name, card.memory_mib, card.sms) for n, card in enumerate(wanted) if card]


def test_where_a_gpu_is_is_said_as_the_kernel_writes_it(node: SimulatedNode, tmp_path: Path) -> None:
    devices = tmp_path / "bus/pci/devices"
    for bus, numa in (("0000:00:06.0", "1\n"), ("0000:00:07.0", "-1\n")):
        (devices / bus).mkdir(parents=True)
        (devices / bus / "numa_node").write_text(numa)
    nvml = Nvml(SimulatedNvml(node.folder), tmp_path)
    nvml.open()
    assert [(gpu.pci_bus, gpu.numa_node) for gpu in nvml.gpus(FACTS)] == [("0000:00:06.0", 1), ("0000:00:07.0", None)]
    nvml.close()


def test_where_a_gpu_is_that_nvml_does_not_say_is_unknown(node: SimulatedNode, tmp_path: Path) -> None:
    class Silent(SimulatedNvml):
        def nvmlDeviceGetPciInfo(self, handle: Handle) -> PciInfo:  # noqa: N802
            raise self.NVMLError_NotSupported

    nvml = Nvml(Silent(node.folder), tmp_path)
    nvml.open()
    assert {(gpu.pci_bus, gpu.numa_node) for gpu in nvml.gpus(FACTS)} == {("", None)}
    nvml.close()


def test_the_driver_and_its_cuda_are_told_as_people_write_them(nvml: Nvml) -> None:
    assert (nvml.driver(), nvml.cuda()) == ("580.159.04", "13.0")


def test_a_gpu_of_which_nothing_is_known_is_refused_with_the_remedy(nvml: Nvml) -> None:
    fewer = replace(
        FACTS,
        capabilities=[row for row in FACTS.capabilities if row.compute_capability != "7.0"],
        cards=[card for card in FACTS.cards if card.compute_capability != "7.0"],
    )
    with pytest.raises(NvmlFailed, match=r"compute capability 7.0, which limits/gpus.yaml does not list; add a row"):
        nvml.gpus(fewer)


def test_a_gpu_too_old_for_mig_has_none(nvml: Nvml, card: CardView) -> None:
    a30, v100 = nvml.gpus(FACTS)
    assert not nvml.mig_enabled(v100.uuid)
    card.mig = True
    assert nvml.mig_enabled(a30.uuid)


def test_a_gpu_that_is_lost_is_an_error_and_not_idle(nvml: Nvml, card: CardView) -> None:
    gpu = nvml.gpus(FACTS)[0]
    assert nvml.uses(gpu.uuid) == ()
    card.lost = True
    with pytest.raises(NvmlFailed, match="GPU is lost"):
        nvml.uses(gpu.uuid)
    with pytest.raises(NvmlFailed, match="GPU is lost"):
        nvml.mps_pids(gpu.uuid)
    with pytest.raises(NvmlFailed, match="GPU is lost"):
        nvml.mig_enabled(gpu.uuid)


def test_a_process_beside_mps_is_told_from_a_client_and_from_one_that_draws(nvml: Nvml, card: CardView) -> None:
    gpu = nvml.gpus(FACTS)[0]
    beside, client, draws = os.getpid(), os.getppid(), 1
    for pid, kind in ((beside, OUTSIDE_MPS), (client, MPS_CLIENT), (draws, GRAPHICS)):
        card.claim(ContextClaim(pid, kind, 300 * MIB))
    assert dict(nvml.uses(gpu.uuid)) == {beside: 300 * MIB, client: 300 * MIB}
    assert nvml.mps_pids(gpu.uuid) == {client}
    assert [nvml.draws(gpu.uuid, pid) for pid in (beside, client, draws)] == [False, False, True]


def test_who_computes_has_a_percentage_who_only_holds_memory_none_and_nobody_is_no_error(
    nvml: Nvml, card: CardView
) -> None:
    gpu = nvml.gpus(FACTS)[0]
    busy = card.claim(ContextClaim(os.getpid(), OUTSIDE_MPS, 300 * MIB))
    card.claim(ContextClaim(os.getppid(), OUTSIDE_MPS, 300 * MIB))
    assert (nvml.sm_percents(gpu.uuid, 0), nvml.busy_percent(gpu.uuid)) == ({}, 0)
    card.be_busy(busy, gpu.sms // 2)
    assert (nvml.sm_percents(gpu.uuid, 0), nvml.busy_percent(gpu.uuid)) == ({os.getpid(): 100}, 100)


def test_what_clients_of_mps_compute_is_their_servers(nvml: Nvml, card: CardView) -> None:
    gpu = nvml.gpus(FACTS)[0]
    card.claim(ContextClaim(os.getppid(), MPS_SERVER, 66 * MIB))
    card.be_busy(card.claim(ContextClaim(os.getpid(), MPS_CLIENT, 300 * MIB)), 1)
    assert nvml.sm_percents(gpu.uuid, 0) == {os.getppid(): 100}


def test_percentages_of_before_the_time_that_is_asked_for_are_left_out(nvml: Nvml, card: CardView) -> None:
    gpu = nvml.gpus(FACTS)[0]
    card.be_busy(card.claim(ContextClaim(os.getpid(), OUTSIDE_MPS, 300 * MIB)), gpu.sms)
    in_an_hour_us = (time.time_ns() + 3600 * 10**9) // 1000
    assert nvml.sm_percents(gpu.uuid, in_an_hour_us) == {}


def test_on_a_lost_gpu_nobody_is_idle(nvml: Nvml, card: CardView) -> None:
    gpu = nvml.gpus(FACTS)[0]
    card.lost = True
    with pytest.raises(NvmlFailed, match="nvmlDeviceGetProcessUtilization failed: GPU is lost"):
        nvml.sm_percents(gpu.uuid, 0)


class _Samples(SimulatedNvml):
    """A driver with several samples of a process, and with what some drivers give of processes that ended."""

    def nvmlDeviceGetProcessUtilization(self, handle: Handle, timeStamp: int) -> list[ProcessUtilization]:  # noqa: N802, N803
        return [
            ProcessUtilization(pid, at, percent)
            for pid, at, percent in ((1, 30, 70), (1, 20, 10), (2, 20, 2147483632), (3, 10, 40))
        ]


def test_the_newest_sample_counts_and_one_that_cannot_be_is_no_number(node: SimulatedNode) -> None:
    nvml = Nvml(_Samples(node.folder))
    nvml.open()
    gpu = nvml.gpus(FACTS)[0]
    assert nvml.sm_percents(gpu.uuid, 10) == {1: 70, 2: None}
    nvml.close()
