"""What a program that holds memory on a real GPU does not notice: every restart."""

from pathlib import Path

import pytest

from tests.e2e.machine import Machine, mps_processes
from tests.e2e.restarts import Witness
from tests.e2e.shares import Pods
from tests.e2e_gpu.installation import GpuInstallation


@pytest.fixture(scope="module")
def witness(mpsd: GpuInstallation, pods: Pods) -> Witness:
    made = Witness(mpsd, pods)
    made.begin("alloc=4000")
    return made


def test_the_agent_rolled_costs_no_program_anything(witness: Witness) -> None:
    witness.sees_the_agent_rolled()


def test_the_control_container_killed_costs_no_program_anything(witness: Witness) -> None:
    witness.sees_control_killed()


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


def test_kubelet_restarted_costs_no_program_anything(machine: Machine, witness: Witness) -> None:
    witness.sees_kubelet_restarted(machine)
