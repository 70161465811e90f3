"""Forty connections send what they like to the scheduler's ports, by a new seed each time, which a
failure prints (MPSD_FUZZ_SEED repeats it)."""

from pathlib import Path

from tests.fuzz.control_socket import a_seed
from tests.fuzz.ports import most_memory_mib, speaking, status_of, tcp
from tests.simulated_api import SimulatedApi
from tests.whole.machine.machine import eventually
from tests.whole.scheduler.process import extender

_TALKS = 200
_MOST_MIB = 400


def test_whatever_is_sent_to_the_scheduler_others_are_answered(
    api: SimulatedApi, tmp_path: Path
) -> None:
    seed = a_seed()
    with extender(tmp_path, api.kubeconfig(tmp_path)) as running:
        listens = "its ports listen"
        eventually(lambda: running.public("/healthz").status == 200, listens)
        asked, plain = tcp(running.port), tcp(running.metrics_port)
        with speaking((asked, plain), seed) as speakers:
            while speakers.count < _TALKS:
                assert status_of(plain, "/metrics") == 200, f"seed {seed}"
                assert status_of(asked, "/inspect") == 200, f"seed {seed}"
        assert not running.log("request failed"), f"seed {seed}"
        assert most_memory_mib(running.process.pid) < _MOST_MIB, f"seed {seed}"
