"""A fault, a daemon that is killed and a reboot: who loses what, and that nobody starts before
limits hold again."""

import os
import signal

import pytest

from tests.e2e.cluster import Object
from tests.e2e.machine import Machine
from tests.e2e.restarts import Witness
from tests.e2e.shares import Pods, assert_fills, share
from tests.e2e.waiting import eventually
from tests.e2e_gpu.installation import CONTEXT_MIB, GpuInstallation

_GIB = 5


def _assert_has_its_share(said: list[Object]) -> None:
    assert_fills(said, _GIB, CONTEXT_MIB)


def test_a_fault_ends_who_is_on_its_gpu_and_the_next_one_runs(pods: Pods) -> None:
    pods.create(share("faulty", pods.asks(2, "alloc=100", "fault", "linger")))
    eventually(lambda: any("bad" in line for line in pods.said("faulty")), "a fault", within_s=60.0)
    pods.exit_code("faulty", within_s=60.0)
    print(f"\n{pods.event('faulty', 'MPSFault')}")
    pods.create(
        share("after-fault", pods.asks(_GIB, "alloc=9000", "hold"), restartPolicy="OnFailure")
    )
    _assert_has_its_share(pods.wait_until_holding("after-fault"))
    pods.delete("after-fault")


def test_a_fault_on_one_gpu_leaves_the_other_alone(mpsd: GpuInstallation, pods: Pods) -> None:
    gpus = mpsd.gpus()
    if len(gpus) < 2:
        pytest.skip("one GPU")
    gib = gpus[0]["memoryMiB"] // 1024 - 8  # so much that another of this size goes elsewhere
    pods.start("other", gib, "alloc=1000")
    pods.create(share("faulty-too", pods.asks(gib, "alloc=100", "fault", "linger")))
    eventually(
        lambda: any("bad" in line for line in pods.said("faulty-too")), "a fault", within_s=60.0
    )
    pods.exit_code("faulty-too", within_s=60.0)
    assert pods.said("faulty-too")[0]["uuid"] != pods.said("other")[0]["uuid"]
    pods.assert_holds("other")
    pods.delete("other")


def test_a_killed_daemon_ends_its_programs_and_the_next_one_waits_at_the_gate_and_runs(
    mpsd: GpuInstallation, pods: Pods, machine: Machine
) -> None:
    pods.start("lost", 3, "alloc=1000")
    eventually(lambda: mpsd.clients_of("lost") == 1, "mpsd has seen it on the GPU")
    domain = mpsd.domain_of(pods.said("lost")[0]["uuid"])
    os.kill(domain["daemonPid"], signal.SIGKILL)
    pods.create(
        share("after-kill", pods.asks(_GIB, "alloc=9000", "hold"), restartPolicy="OnFailure")
    )
    assert pods.exit_code("lost", within_s=60.0) in {4, 137}
    print(f"\n{pods.said('lost')[-1]}\n{pods.event('lost', 'MPSDaemonDown')}")
    _assert_has_its_share(pods.wait_until_holding("after-kill"))
    assert mpsd.daemons()[domain["name"]] != domain["daemonPid"]


def test_after_a_reboot_no_container_starts_before_its_domain_serves(
    mpsd: GpuInstallation, pods: Pods, machine: Machine
) -> None:
    before = Witness(mpsd, pods, _GIB)
    before.begin("alloc=1000")
    before.is_held_back_after_a_reboot(machine)
    mpsd.wait_until_offered()
    pods.create(share("after-reboot", pods.asks(_GIB, "alloc=9000", "hold")))
    _assert_has_its_share(pods.wait_until_holding("after-reboot"))
