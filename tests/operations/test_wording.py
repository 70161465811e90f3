"""The sentences of the doctor's checks of a node and of a cluster, as people read them: `wording.txt` has them all.

Renew it with: python -m tests.operations.test_wording
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpsd.model.domain import GONE, State
from mpsd.model.names import SCHEDULER
from mpsd.model.node_status import ClientStatus, DomainStatus, GpuStatus, GrantStatus, NodeStatus
from mpsd.model.node_view import Canary
from mpsd.mps.rules.memory_caps import CANARY_FOUND
from mpsd.operations.doctor.rules.checks import Check, CheckVerdict, diagnose
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.operations.doctor.rules.components import RIGHTS
from mpsd.operations.doctor.rules.machine_checks import (
    AgentSilent,
    DaemonSeen,
    DomainSeen,
    GpuSeen,
    LauncherSeen,
    RunDirectorySeen,
)
from mpsd.operations.doctor.rules.node_checks import NODE_CHECKS
from tests.model.worlds import POLICY
from tests.operations import broken_clusters
from tests.operations.test_doctor import RECORD, UUID, WELL

WORDING = Path(__file__).with_name("wording.txt")
GPU = GpuSeen(0, UUID, "NVIDIA A30", "", "8.0", False, 3)
INSTANCES = ("MIG-1", "MIG-2")
OLD = GpuSeen(1, "GPU-1", "NVIDIA P4", "", "6.1", False, 0)
NEW = GpuSeen(1, "GPU-1", "NVIDIA X1", "", "99.0", False, 0)
FOREIGN = DaemonSeen(99, "/tmp/nvidia-mps")
REMOVED = DaemonSeen(99, "/run/mpsd/gpu9/pipe", pipe_is_there=False)
RUN = RunDirectorySeen("/run/mpsd", 0, 0, "", "tmpfs")
CLIENTS = tuple(
    ClientStatus(pid, UUID, 100, pid % 2 == 0, None, "python train.py")  # as many as are not all named
    for pid in range(201, 206)
)


def domain(lives: bool = True, **changes: Any) -> tuple[DomainSeen, ...]:
    return (DomainSeen(replace(RECORD, **changes), daemon_lives=lives),)


CLAIMED = GrantStatus("2", (UUID,), 7168, 30, 0, 0, None, holder_alive=True, command="", namespace="default", pod="a")
CLAIMED = replace(CLAIMED, claim="default/share", shared_with=("default/b", "default/c"))


def agent(control: str = "0.1.0", clients: Any = (), unknown: tuple[str, ...] = (), **more: Any) -> NodeStatus:
    served = DomainStatus("gpu0", (UUID,), State.READY, 0.0, "", 0, 70, (71,), version=control)
    gpu = GpuStatus(UUID, "gpu0", "NVIDIA A30", "gpu0", 24576, 56, 24576, 0, 0, 0, 0)
    status = NodeStatus(0.0, "580.1", (gpu,), (served,), (), clients, (), unknown, version="0.1.0")
    return replace(status, **more)


def canary(problem: str, warning: str = "") -> Canary:
    return Canary("boot", "580.1", 0, problem, 1, 1, warning)


BREAKS: dict[str, list[dict[str, Any]]] = {
    "limits-unsound": [{"limits_faults": ("limits/policy.yaml: placement is 1: is not known; write binpack",)}],
    "driver-silent": [
        {"nvml": "NVML: nvmlInit failed: Driver Not Loaded"},
        {"nvml": "no libnvidia-ml.so.1; install it"},
    ],
    "gpu-lost": [{"gpus": ()}, {"gpus": (replace(GPU, lost="GPU is lost"),)}],
    "driver-old": [{"driver": "470.57"}],
    "driver-untested": [{"driver": "610.1"}],
    "capability-old": [{"gpus": (OLD,)}],
    "capability-unlisted": [{"gpus": (NEW,)}],
    "mig-on": [{"gpus": (replace(GPU, mig=True),)}],
    "mig-instances": [{"gpus": (replace(GPU, mig=True, instances=INSTANCES[:number]),)} for number in (1, 2)],
    "no-control-program": [{"control_program": False}],
    "no-uvm": [{"uvm": False}],
    "run-directory": [
        {"run_directory": replace(RUN, owner=7)},
        {"run_directory": replace(RUN, unwritable="it is full")},
    ],
    "run-not-tmpfs": [{"run_directory": replace(RUN, filesystem="ext4")}],
    "other-daemon": [
        {"daemons": (FOREIGN,)},
        {"daemons": (replace(FOREIGN, pipe=""),)},
        {"daemons": (REMOVED,), "holder": None},
    ],
    "compute-mode-left": [
        {"gpus": (replace(GPU, compute_mode=2),)},
        {"holder": None, "domains": domain(lives=False, compute_modes={UUID: 0})},
    ],
    "compute-mode-lost": [{"gpus": (replace(GPU, compute_mode=0),)}],
    "canary-failed": [{"domains": domain(canary=canary("a client got 900 MiB of 500"))}],
    "canary-doubt": [{"domains": domain(canary=canary("", "a context costs 90 MiB, not 57"))}],
    "record-strange": [{"domains": domain(version=2)}, {"unreadable": ("gpu0/record.json: cut off",)}],
    "not-running": [{"holder": None}, {"holder": None, "domains": ()}],
    "domain-stopped": [
        {"domains": domain(lives=False)},
        {"domains": domain(state=State.WEDGED, reason="no answer")},
        {"domains": domain(state=State.STARTING, restarts=1)},
        {"domains": domain(state=State.STARTING, restarts=4)},
    ],
    "draining": [
        {"domains": domain(state=State.DRAINED, reason="asked by ops")},
        {"domains": domain(state=State.DRAINING, reason=GONE)},
    ],
    "sm-partitions": [
        {"domains": domain(partitioned=True)},
        {"policy": replace(POLICY, threads="exclusive"), "domains": domain()},
    ],
    "agent-silent": [{"agent": AgentSilent("mpsd does not answer; see its log")}],
    "outside-books": [{"agent": agent(clients=CLIENTS)}],
    "agent-blind": [{"agent": agent(unknown=("NVML: GPU is lost",))}],
    "memory-caps": [
        {"agent": agent(grants=(replace(CLAIMED, memory_cap="cgroup"),))},
        {"agent": agent(grants=(replace(CLAIMED, memory_cap="cgroup"), replace(CLAIMED, memory_cap="cgroup")))},
        {"agent": agent(grants=(replace(CLAIMED, memory_cap="mps", memory_cap_why=f"{CANARY_FOUND}: gpu0: …"),))},
    ],
    "version-skew": [{"agent": agent("0.2.0")}],
    "version-behind": [{"agent": agent("0.0.9")}, {"ours": "0.0.9"}, {"ours": "0.2.0"}],
    "claims-unserved": [{"agent": agent(claim_driver="gpu.mpsd.io", claims_trouble="not registered with kubelet")}],
    "claims-left": [{"agent": agent(grants=(CLAIMED,))}],
    "launcher-broken": [
        {"launcher": None},
        {"launcher": LauncherSeen(("/opt/python",), ("runc",), "usr/bin/runc")},
        {"launcher": LauncherSeen((), ("nvidia-container-runtime", "runc"), "")},
    ],
    "no-toolkit": [{"toolkit": False}],
    "kubelet-folder": [{"kubelet": "/var/lib/kubelet/device-plugins"}],
    "selinux": [{"selinux": {"/run/mpsd/gpu0/client": "var_run_t"}}],
    "default-pipe": [{"default_pipe": True}],
}


def sentences(check: Check[Any], broken: Iterable[object]) -> Iterator[str]:
    """What it finds where nothing is wrong but what it is about."""
    yield check.id
    for facts in broken:
        found = list(check.find(facts))
        assert found, check.id
        yield from dict.fromkeys(f"  {one.what}; {one.remedy}" for one in found)


def wording() -> str:
    lines = ["# mpsd doctor"]
    for check in NODE_CHECKS:
        lines += sentences(check, [replace(WELL, **changes) for changes in BREAKS[check.id]])
    lines += ["", "# kubectl mps doctor"]
    for one in CLUSTER_CHECKS:
        lines += sentences(one, broken_clusters.broken(one.id))
    return "\n".join(lines) + "\n"


def test_a_cluster_in_which_nothing_is_wrong_is_well() -> None:
    outcomes = diagnose(broken_clusters.WELL, CLUSTER_CHECKS).outcomes
    assert [one for one in outcomes if one.verdict not in (CheckVerdict.WELL, CheckVerdict.NOT_APPLICABLE)] == []


def test_rights_that_an_installation_does_without_are_not_missing() -> None:
    """Those of a scheduler that is not installed, and those for certificates that cert-manager serves."""
    injected = {"metadata": {"annotations": {"cert-manager.io/inject-ca-from": "mpsd-system/mpsd-webhook"}}}
    facts = replace(
        broken_clusters.WELL,
        missing_rights=[one for one in RIGHTS if one.component == SCHEDULER or one.is_for_registration],
        deployments=broken_clusters.WELL.deployments[:1],  # type: ignore[index]  # known here
        validating=[broken_clusters.configuration("validate.mpsd.io") | injected],
    )
    verdicts = {one.check.id: one.verdict for one in diagnose(facts, CLUSTER_CHECKS).outcomes}
    assert verdicts["rights-missing"] is CheckVerdict.WELL
    assert verdicts["webhook-serving"] is CheckVerdict.NOT_APPLICABLE


def test_no_remedy_applies_a_folder_that_would_replace_the_reader_s_own() -> None:
    assert "apply -k manifests" not in wording()


def test_the_sentences_of_the_checks_are_those_in_the_file() -> None:
    assert wording() == WORDING.read_text(), "renew it with: python -m tests.operations.test_wording"


if __name__ == "__main__":
    WORDING.write_text(wording())
