"""What the client measures: its works follow the SMs as they should, and it sees at once when they
break."""

from collections.abc import Sequence

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT, THREAD_PERCENT
from tests.contract.gpus import NVML_NEAR_MIB, near
from tests.contract.processes import Client, Line
from tests.contract.results import OUT_OF_MEMORY, TERMINATED
from tests.contract.world import Daemon, World

SECONDS = 0.4
FIGURES = {
    "work",
    "seconds",
    "launches",
    "launches_per_s",
    "sample_launches",
    "p50_ms",
    "p99_ms",
    "gpu_ms",
}
COPIES_MIB = 2 * 512


def together(daemon: Daemon, work: str, percents: Sequence[str]) -> list[Line]:
    clients = [
        daemon.ready_client(
            f"prepare={work}", "step", f"measure={SECONDS}", environment={THREAD_PERCENT: percent}
        )
        for percent in percents
    ]
    for client in clients:
        client.go_on()
    return [client.next_line("launches_per_s") for client in clients]


def sms_of(daemon: Daemon, percent: str) -> int:
    return int(daemon.client(environment={THREAD_PERCENT: percent}).finished().line("pid")["sms"])


class TestMeasuring:
    @pytest.mark.parametrize(
        ("work", "launches"), [("arithmetic", 16), ("small", 10), ("bandwidth", 4)]
    )
    def test_every_work_gives_the_same_figures(
        self, daemon: Daemon, work: str, launches: int
    ) -> None:
        client = daemon.client(f"prepare={work}", "measure=0.1", "measure=0.1").finished()
        _, prepared, figures, again, end = client.lines
        assert prepared == {"prepared": work}
        assert figures.keys() == again.keys() == FIGURES
        assert (figures["work"], figures["sample_launches"]) == (work, launches)
        assert figures["seconds"] >= 0.1
        assert figures["launches_per_s"] == pytest.approx(
            figures["launches"] / figures["seconds"], rel=0.02
        )
        assert 0 < figures["gpu_ms"] <= figures["p50_ms"] <= figures["p99_ms"]
        assert end == {"end": "0:CUDA_SUCCESS"}

    def test_two_clients_compute_as_their_sms_are(self, daemon: Daemon) -> None:
        """20 and 40 %: one to two where the card's SMs divide so, as an H200's 26 and 52 do."""
        one, two = together(daemon, "arithmetic", ["20", "40"])
        sms = sms_of(daemon, "40") / sms_of(daemon, "20")
        assert two["launches_per_s"] / one["launches_per_s"] == pytest.approx(sms, rel=0.05)
        assert one["gpu_ms"] / two["gpu_ms"] == pytest.approx(sms, rel=0.05)

    def test_a_copys_memory_is_taken_when_it_is_prepared(
        self, daemon: Daemon, world: World
    ) -> None:
        client = daemon.ready_client("prepare=bandwidth", "step", "prepare=small", "step")
        gpu = world.gpu
        cost_mib = gpu.context_mib()
        assert world.mib_on_mps(gpu)[client.pid] == near(
            COPIES_MIB + cost_mib, within=NVML_NEAR_MIB
        )
        client.go_on()
        client.next_line("ready")
        assert world.mib_on_mps(gpu)[client.pid] == near(cost_mib, within=NVML_NEAR_MIB)

    def test_copies_that_the_limit_does_not_hold_cannot_be_prepared(self, daemon: Daemon) -> None:
        client = daemon.client(
            "prepare=bandwidth", "measure=1", environment={MEMORY_LIMIT: "0=1200M"}
        )
        assert client.exit_code() == 3
        assert client.lines[-1] == {"fail": "prepare", "err": OUT_OF_MEMORY}

    def test_it_ends_where_its_context_breaks(self, daemon: Daemon) -> None:
        client: Client = daemon.ready_client("prepare=arithmetic", "step", "measure=30")
        client.go_on()
        daemon.command(f"terminate_client {daemon.server} {client.pid}")
        assert client.broke(TERMINATED)
