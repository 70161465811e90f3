"""What `mpsd scheduler` tells readers, and whom."""

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.simulator.programs import wait_until
from tests.served import DEADLINE_S, ask
from tests.simulated_api import SimulatedApi
from tests.whole.scheduler.process import Extender, extender
from tests.world.asking import answers
from tests.world.readers import over_tls, reader


@pytest.fixture
def running(api: SimulatedApi, tmp_path: Path) -> Iterator[Extender]:
    kubeconfig = api.kubeconfig(tmp_path)
    with extender(tmp_path / "scheduler", kubeconfig, listen="127.0.0.1:0,0.0.0.0:0") as made:
        yield made


def ports(running: Extender) -> tuple[int, int]:
    """On loopback, and for others."""
    wait_until(
        lambda: len(running.log("serving readers")) == 2,
        DEADLINE_S,
        f"readers are served:\n{running.log_text}",
    )
    home, others = running.log("serving readers")
    assert (home["tls"], others["tls"]) == (False, True)
    return home["port"], others["port"]


def test_this_machine_reads_without_a_token_and_others_with_one(
    running: Extender, tmp_path: Path
) -> None:
    home, others = ports(running)
    here = ask(http.client.HTTPConnection("127.0.0.1", home, timeout=DEADLINE_S), "GET", "/metrics")
    assert "mpsd_scheduler_nodes" in here.text
    assert over_tls(others, "/metrics").status == 401
    assert over_tls(others, "/metrics", "made-up").status == 401
    token = answers(tmp_path / "kubeconfig", reader)
    assert "mpsd_scheduler_nodes" in over_tls(others, "/metrics", token).text
    assert token not in running.log_text
    for path in ("/bind", "/filter", "/gpushare-scheduler/bind"):
        connection = http.client.HTTPConnection("127.0.0.1", home, timeout=DEADLINE_S)
        assert ask(connection, "POST", path, b"{}").status == 404
