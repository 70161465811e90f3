"""Helm takes over what kubectl applied, and upgrades it, under a program on a GPU."""

import json
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.helm import Helm
from tests.e2e.installation import SYSTEM, Installation
from tests.e2e.shares import CLIENT, Pods, assert_fills
from tests.e2e.waiting import eventually


@pytest.fixture
def helm(cluster: Cluster, mpsd: Installation) -> Iterator[Helm]:
    """The installation is kubectl's again afterwards."""
    yield Helm(cluster.kubeconfig)
    cluster.do("delete", "secret", "-n", SYSTEM, "-l", "owner=helm")
    cluster.do("delete", "job", "mps-sample", "-n", SYSTEM, "--ignore-not-found")
    mpsd.apply()
    mpsd.wait_until_ready()


def _pods(mpsd: Installation, name: str) -> list[str]:
    return [pod["metadata"]["uid"] for pod in mpsd.pods(name)]


def test_a_program_runs_on_while_helm_takes_over_and_upgrades_and_helms_test_has_its_share(
    cluster: Cluster, mpsd: Installation, pods: Pods, helm: Helm
) -> None:
    pods.start("runs-on", 2)
    before = (pods.status("runs-on")["containerID"], _pods(mpsd, "control"), _pods(mpsd, "agent"))
    command = [*CLIENT, "alloc=9000"]
    values = {**mpsd.values, "test": {"command": command}}
    helm.install(values, take_ownership=True, force_conflicts=True)
    assert (
        pods.status("runs-on")["containerID"],
        _pods(mpsd, "control"),
        _pods(mpsd, "agent"),
    ) == before
    more = {"resources": {"limits": {"memory": "320Mi"}}}
    helm.upgrade({**values, "agent": {**values["agent"], **more}}, force_conflicts=True)
    eventually(lambda: _pods(mpsd, "agent") not in ([], before[2]), "a new agent", within_s=120.0)
    mpsd.wait_until_ready()
    assert _pods(mpsd, "control") == before[1], "an upgrade replaces no control pod"
    helm.test(timeout=200)
    logs = cluster.do("logs", "job/mps-sample", "-n", SYSTEM).out
    said = [json.loads(line) for line in logs.splitlines() if line.startswith("{")]
    assert_fills(said, 7)
    assert pods.status("runs-on")["containerID"] == before[0]
    assert "running" in pods.status("runs-on")["state"]
