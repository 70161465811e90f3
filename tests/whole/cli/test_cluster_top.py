"""`kubectl mps top`: the GPUs of a cluster and the pods that use them."""

import os
import sys
from pathlib import Path

import pytest

from mpsd.cli import kubectl_mps
from mpsd.status.rules.top import NO_SM_USE
from tests.cli.cluster_world import ClusterWorld
from tests.mpsnodes import NAMES
from tests.whole.cli.screens import on_screen

BIN = Path(sys.executable).parent


@pytest.fixture(params=["by kubectl", "without kubectl"])
def environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    path = f"{BIN}:{os.environ['PATH']}" if request.param == "by kubectl" else str(BIN / "nothing")
    monkeypatch.setenv("PATH", path)
    return dict(os.environ)


def test_one_look_shows_gpus_and_pods_and_says_what_is_left_out(
    world: ClusterWorld, environment: dict[str, str]
) -> None:
    world.put(*NAMES)
    said = world.run(kubectl_mps.main, "kubectl-mps", "top", "--once")
    assert (said.code, said.errors) == (0, "")
    assert "\x1b" not in said.output
    assert said.row("gpu-a2", "gpu0", "A30")[3:6] == ["draining", "11/23", "GiB"]
    assert said.row("gpu-a2", "gpu1", "A30")[6] == "?"
    assert said.row("gpu-a1", "gpu0", "default/mps-sample-7xk2p")[3:5] == ["4.5", "GiB"]
    assert NO_SM_USE in said.output
    assert "gpu-b2: nothing reported yet\n" in said.output
    missing = world.kubectl_mps("top", "gpu-a9", "--once")
    assert (missing.code, missing.output) == (2, "")


def test_live_it_outlives_the_api_server_and_leaves_the_terminal_as_it_was(
    world: ClusterWorld, environment: dict[str, str]
) -> None:
    world.put("gpu-a1")
    argv = [BIN / "kubectl-mps", "top", "--interval", "1"]
    with on_screen(argv, environment, 120) as screen:
        screen.shows("default/mps-sample-7xk2p")
        world.api.stop()
        screen.shows("nothing newer is known since")
        assert "default/mps-sample-7xk2p" in screen.text
        world.api.start()
        screen.until(lambda seen: "nothing newer" not in seen.text, "it goes on")
        screen.press("q")
        assert screen.ended() == 0
        assert screen.is_as_it_was()
