"""Everything that may be restarted is, while a program holds memory on a real GPU: the same one
through all of it."""

from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.installation import AGENT, SYSTEM
from tests.e2e.machine import Machine, mps_processes
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually
from tests.e2e_gpu.installation import GpuInstallation

_WITNESS, _GIB = "witness", 5


@pytest.fixture(scope="module", autouse=True)
def witness(pods: Pods) -> None:
    """Its kubelet would start it again."""
    pods.start(_WITNESS, _GIB, "alloc=4000", restartPolicy="Always")


def _assert_noticed_nothing(pods: Pods, mpsd: GpuInstallation) -> None:
    pods.assert_holds(_WITNESS)
    assert pods.status(_WITNESS)["restartCount"] == 0
    eventually(lambda: mpsd.granted_mib(pods.namespace).get(_WITNESS) == _GIB * 1024, "its grant")


def test_the_agent_rolled_costs_no_program_anything(
    cluster: Cluster, mpsd: GpuInstallation, pods: Pods
) -> None:
    agent = mpsd.agent()
    cluster.do("rollout", "restart", f"daemonset/{AGENT}", "-n", SYSTEM)
    mpsd.wait_for_another_agent(agent)
    pods.start("after-roll", 2)
    _assert_noticed_nothing(pods, mpsd)


def test_the_control_container_killed_costs_no_program_anything(
    mpsd: GpuInstallation, pods: Pods
) -> None:
    """Its daemons are in no cgroup of the container, and the next one adopts them."""
    daemons = mpsd.daemons()
    mpsd.kill_control()
    pods.start("after-control", 2)
    assert mpsd.daemons() == daemons
    _assert_noticed_nothing(pods, mpsd)


def test_daemons_and_servers_are_in_cgroups_of_their_own(
    mpsd: GpuInstallation, machine: Machine
) -> None:
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        pytest.skip("cgroup v1: each controller has a hierarchy of its own")
    wanted = {f"/mpsd/{domain['name']}" for domain in mpsd.status()["domains"]}
    found = {
        pid: Path(f"/proc/{pid}/cgroup").read_text().strip().removeprefix("0::")
        for pid in mps_processes()
    }
    print(f"\n{found}")
    assert {*mpsd.daemons().values()} <= found.keys()
    assert {*found.values()} == wanted


def test_kubelet_restarted_costs_no_program_anything(
    mpsd: GpuInstallation, pods: Pods, machine: Machine
) -> None:
    agent = mpsd.agent()
    mpsd.restart_kubelet(machine)
    pods.start("after-kubelet", 2)
    _assert_noticed_nothing(pods, mpsd)
    assert mpsd.agent() == agent
