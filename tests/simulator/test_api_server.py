"""The simulated API server as a program, and what only it can be asked to do."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpsd.platform.kube import Kube, Object, Resource, Unavailable
from mpsd.simulator.programs import wait_until
from tests.simulated_api import simulated_api
from tests.world.asking import answers

DEADLINE_S = 20.0
NAMESPACES = Resource("v1", "namespaces")
MANIFESTS = Path(__file__).parents[2] / "manifests"


def kubectl(kubeconfig: Path, *arguments: str, given: str = "") -> str:
    program = Path(sys.executable).parent / "kubectl"
    command = [str(program), "--kubeconfig", str(kubeconfig), *arguments]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def program(folder: Path) -> Iterator[Path]:
    """The kubeconfig of one that runs."""
    with subprocess.Popen(
        [sys.executable, "-m", "mpsd.simulator.api_server.server", "--dir", str(folder)]
    ) as process:
        try:
            kubeconfig = folder / "kubeconfig"
            wait_until(kubeconfig.exists, DEADLINE_S, "the kubeconfig written", 0.02)
            yield kubeconfig
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


def test_the_program_takes_our_manifests_from_kubectl_and_shows_an_mpsnode_in_columns(
    tmp_path: Path,
) -> None:
    with program(tmp_path) as kubeconfig:
        assert kubeconfig.stat().st_mode & 0o077 == 0
        for words in ("created", "unchanged"):
            lines = kubectl(
                kubeconfig, "apply", "--validate=false", "-f", str(MANIFESTS / "install.yaml")
            ).splitlines()
            assert len(lines) > 10
            others = [line for line in lines if not line.endswith(words)]
            # kubectl replaces the selector of a budget each time.
            assert [line for line in others if not line.startswith("poddisruptionbudget")] == []
        made = {"apiVersion": "mpsd.io/v1alpha1", "kind": "MPSNode", "metadata": {"name": "node1"}}
        kubectl(kubeconfig, "apply", "--validate=false", "-f", "-", given=json.dumps(made))
        condition = {"type": "MPSReady", "status": "True", "reason": "AllServe", "message": "m"}
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        status = {
            "status": {
                "conditions": [condition],
                "summary": {"gpus": "8x NVIDIA H200", "domains": "8/8"},
            }
        }
        patch = (
            "patch",
            "mps",
            "node1",
            "--subresource=status",
            "--type=merge",
            "-p",
            json.dumps(status),
        )
        kubectl(kubeconfig, *patch)
        header, row = kubectl(kubeconfig, "get", "mps").splitlines()
        assert header.split()[:5] == ["NAME", "READY", "REASON", "GPUS", "DOMAINS"]
        assert row.split()[:7] == ["node1", "True", "AllServe", "8x", "NVIDIA", "H200", "8/8"]


# -- what a test may do to it


async def look(kube: Kube) -> Object:
    return await kube.get(NAMESPACES, "kept")


def test_what_is_stored_outlives_a_server_that_is_stopped_and_started(tmp_path: Path) -> None:
    with simulated_api() as api:
        kubeconfig = api.kubeconfig(tmp_path)
        answers(kubeconfig, lambda kube: kube.create(NAMESPACES, {"metadata": {"name": "kept"}}))
        api.stop()
        with pytest.raises(Unavailable):
            answers(kubeconfig, look)
        api.start()
        assert answers(kubeconfig, look)["metadata"]["name"] == "kept"


def test_a_stranger_is_not_let_in(tmp_path: Path) -> None:
    with simulated_api() as api:
        kubeconfig = api.kubeconfig(tmp_path)
        kubeconfig.write_text(kubeconfig.read_text().replace("token: ", "token: not-"))
        with pytest.raises(Exception, match="does not know mpsd's credentials"):
            answers(kubeconfig, look)


def test_the_program_says_what_it_needs() -> None:
    command = [sys.executable, "-m", "mpsd.simulator.api_server.server"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=dict(os.environ), timeout=30, check=False
    )
    assert done.returncode == 2
    assert "--dir" in done.stderr
