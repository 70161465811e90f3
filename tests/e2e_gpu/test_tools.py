"""What people look with, at a node with programs on it and at one whose daemon does not answer."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.installation import CONTROL, IN_AGENT, SYSTEM
from tests.e2e.machine import Machine
from tests.e2e.plugins import kubectl_mps
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually
from tests.e2e_gpu.installation import GpuInstallation


@pytest.fixture(scope="module", autouse=True)
def seen(mpsd: GpuInstallation, pods: Pods) -> str:
    pods.start("seen", 3, "alloc=1000")
    eventually(
        lambda: mpsd.granted_mib(pods.namespace).get("seen") == 3072,
        "its grant in the report of the node",
    )
    return "seen"


def test_top_shows_what_each_program_uses(
    cluster: Cluster, mpsd: GpuInstallation, pods: Pods, seen: str
) -> None:
    def top() -> str:
        said = cluster.do(*IN_AGENT, "mpsd", "top", "--once").out
        assert seen in said
        return said

    print(f"\n{eventually(top, 'its row')}")
    said = kubectl_mps(cluster, "top", "--once")
    assert said.code == 0, said
    assert seen in said.out
    print(f"\n{said.out}")


def test_the_doctors_find_nothing_on_a_healthy_node(
    cluster: Cluster, mpsd: GpuInstallation
) -> None:
    """But for notes, and for what is the rig's own doing: its pods were started again, or it has
    one webhook."""
    found = _node_doctor(cluster)
    print(f"\n{found}")
    assert not [one for one in found if one["severity"] != "note"], found
    said = kubectl_mps(cluster, "doctor")
    print(f"\n{said.out}{said.err}")
    assert "programs cannot start on MPS" not in said.out


def test_everybody_says_so_when_a_daemon_does_not_answer(
    cluster: Cluster, pods: Pods, stopped: int
) -> None:
    """Its programs go on, and once it answers all is well again."""

    def is_told() -> bool:
        said = kubectl_mps(cluster)
        assert said.code == 1, said
        assert "wedged" in said.out, said
        return True

    eventually(is_told, "wedged, in kubectl mps", within_s=40.0)
    ids = [one["id"] for one in _node_doctor(cluster)]
    said = kubectl_mps(cluster, "doctor")
    print(f"\n{ids}\n{said.out}")
    assert said.code == 1
    assert "wedged" in said.out
    assert ids
    pods.assert_holds("seen")
    os.kill(stopped, signal.SIGCONT)
    eventually(lambda: kubectl_mps(cluster).code == 0, "all is well", within_s=40.0)
    pods.assert_holds("seen")
    pods.start("after-wedge", 1)


@pytest.fixture
def stopped(mpsd: GpuInstallation, pods: Pods, machine: Machine) -> Iterator[int]:
    pid = mpsd.domain_of(pods.said("seen")[0]["uuid"])["daemonPid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _node_doctor(cluster: Cluster) -> list[dict[str, str]]:
    """What it found: check, severity, message, by `mpsd doctor` in the control pod, which sees the
    host's processes."""
    said = cluster.kubectl(
        "exec", f"daemonset/{CONTROL}", "-n", SYSTEM, "--", "mpsd", "doctor", "-o", "json"
    )
    assert said.out.startswith("{"), said
    return [check for check in json.loads(said.out)["checks"] if check["verdict"] == "found"]
