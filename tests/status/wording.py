"""The sentences of a status, as people read them: `wording.txt` has them all."""

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as changed

from mpsd.model.cluster_status import ClusterNode
from mpsd.model.domain import State
from mpsd.model.mpsnode import cluster_status
from mpsd.model.node_report import CauseReport, FaultsReport
from mpsd.model.node_view import Canary, Fault, FaultHit, HeldGrant, NodeView, Queue
from mpsd.model.pod import CLAIM_TEMPLATE, ClaimName
from mpsd.model.policy import GpuPriority
from mpsd.model.problem import InvalidInput
from mpsd.model.times import utc
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node
from mpsd.scheduler.rules.capacity import node_capacity
from mpsd.status.cluster_answers import cluster_parts
from mpsd.status.grant_options import the_one
from mpsd.status.rules.claims import ClaimsServed, with_claim
from mpsd.status.rules.cordon import cordon_change, effects
from mpsd.status.rules.explanation import explanation_of
from mpsd.status.rules.node_report import node_report
from mpsd.status.rules.pods import (
    Explanation,
    ExplanationContext,
    PodSeen,
    SeenClaim,
    read_pod_seen,
)
from mpsd.status.rules.top import cluster_top, node_top
from mpsd.status.tables import causes_lines
from mpsd.watchdog.watchdog import ViolationHistory
from tests.model.worlds import NOW, POLICY, grant, identity, waiting
from tests.mpsnodes import NAMES, mpsnode
from tests.mpsnodes import NOW as THEN
from tests.status import test_cordon_change, test_grant_named, test_violation_lines
from tests.status.cluster_worlds import cluster_node, held, reserved
from tests.status.pod_worlds import client, node
from tests.status.pod_worlds import held as held_by
from tests.status.test_mpsnode import CAUSES
from tests.status.test_pod_explanation import KILLED, machine, pod, scene, told
from tests.status.test_tables import shown

ON = {"nodeName": "node1"}
RUNS = {"phase": "Running"}
OWNED = {"ownerReferences": [{"kind": "Job", "name": "train", "controller": True}]}
ENDED: tuple[dict[str, Any], ...] = (
    {"phase": "Succeeded"},
    {"reason": "Evicted", "message": "mpsd: 20 GiB"},
    {"reason": "UnexpectedAdmissionError", "message": "no room"},
    {"reason": "OutOfaliyun.com/gpu-mem"},
    {"containerStatuses": [KILLED]},
    {},
)


def started(reason: str, message: str = "", **status: Any) -> Any:
    waiting = {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}
    return pod(spec=ON, status={"containerStatuses": [waiting], **status})


def unready() -> ExplanationContext:
    """A node without room, and seven others that are not counted, for three reasons."""
    silent = [changed(cluster_node(f"silent{n}"), stale=True) for n in range(5)]
    full = cluster_node("full", (23,), held=(held("x", 20, node="full"),))
    unready = read_kubernetes_node(
        {
            "metadata": {"name": "unready", "labels": {"ack.node.gpu.schedule": "mps"}},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
        }
    )
    names = (*(one.name for one in silent), "full", "new")
    machines = (*map(machine, names), unready)
    return scene(*silent, full, changed(cluster_node("unready"), gpus=()), machines=machines)


def below_normal() -> Iterator[Explanation]:
    """Pods of low priority, for each reason that makes it so."""
    annotated = {"annotations": {"mpsd.io/gpu-priority": "below-normal"}}
    on_node = {"nodeName": "node1", "priority": -1, **pod()["spec"]}
    thing = pod(spec=on_node, status=RUNS, metadata=annotated)
    around = scene(cluster_node(held=(changed(held("train", 7), priority=1),)))
    for priority in (
        GpuPriority("annotation"),
        GpuPriority("priority-class", 0),
        GpuPriority("priority-class", -5),
        GpuPriority(),
    ):
        yield told(thing, replace(around, policy=replace(POLICY, gpu_priority=priority)))


def with_impossible_claims() -> Iterator[PodSeen]:
    """One that asks for what no GPU has, and two of one template."""
    exactly = {"deviceClassName": "mps.mpsd.io", "capacity": {"requests": {"mem": "4Gi"}}}
    thing = {"spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}}
    share, served = ClaimName(CLAIM_TEMPLATE, "share"), ClaimsServed(None, None, 0)
    for claims in ((share,), (share, share)):
        seen = replace(read_pod_seen(pod(0), POLICY), claims=claims)
        yield with_claim(seen, {("default", share): thing}, (), served, POLICY)


def without_a_node() -> Iterator[Explanation]:
    """What keeps a pod out by itself, then what the nodes lack."""
    usual, many = scene(cluster_node()), tuple(held(f"p{n}", 1) for n in range(6))
    unreadable = pod()
    unreadable["spec"]["containers"].append(
        {"name": "b", "resources": {"limits": {"aliyun.com/gpu-mem": "7Gi"}}}
    )
    unscheduled = {
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes."}]
    }
    yield from (
        told(unreadable, usual),
        told(pod(0), usual),
        told(pod(0, status=unscheduled), usual),
    )
    yield told(pod(metadata={"deletionTimestamp": "2026-11-21T08:00:00Z"}), usual)
    for gates in ([{"name": "a.io/quota"}], [{"name": "a.io/quota"}, {"name": "b.io/x"}]):
        yield told(pod(spec={"schedulingGates": gates}), usual)
    yield told(pod(spec={"schedulerName": "volcano"}), usual)
    lacking = (
        "its ResourceClaimTemplate default/share does not exist; create it, or correct the name in"
        " spec.resourceClaims"
    )
    yield explanation_of(
        replace(read_pod_seen(pod(), POLICY), claim=SeenClaim("", None, lacking)), usual
    )
    yield from (explanation_of(one, usual) for one in with_impossible_claims())
    yield told(pod(), scene(node_capacity(cluster_node(), "", (), (reserved("train", 7),), POLICY)))
    yield from (told(pod(), usual), told(pod(status=unscheduled), usual))
    for names in ((), ("node1",), ("node1", "node2")):
        yield told(pod(), scene(machines=tuple(map(machine, names))))
    yield told(pod(), replace(scene(), machines=None))
    yield told(pod(30), scene(cluster_node("node1"), cluster_node("node2", (24,))))
    yield told(pod(7, gpus=2), scene(cluster_node(gib=(23, 4), together=True)))
    yield told(pod(), scene(cluster_node(), machines=(machine("node1", unschedulable=True),)))
    yield told(
        pod(30), scene(cluster_node(), changed(cluster_node("node2"), reported_at=None, gpus=()))
    )
    full = [
        cluster_node(f"node{n}", (23,), held=(held("x", 16 + n, node=f"node{n}"),))
        for n in (3, 4, 5)
    ]
    yield told(pod(), scene(*full, cluster_node("node9", (23,), cordoned=(0,))))
    yield told(
        pod(percent=30), scene(cluster_node(held=(held("a", 1, 0, percent=80), held("b", 20, 1))))
    )
    yield told(pod(), scene(cluster_node(gib=(23,), held=many)))
    yield told(pod(gpus=2), scene(cluster_node(gib=(23, 23))))
    yield told(pod(gpus=2), scene(cluster_node(gib=(23, 23), together=True, held=(held("a", 20),))))
    joined = cluster_node(gib=(23, 23), held=(held("a", 2),), on_demand=True)
    yield told(pod(gpus=2), scene(joined))
    yield told(pod(), unready())
    bare = read_kubernetes_node({"metadata": {"name": "a-bare"}})
    cordoned = machine("b-cordoned", unschedulable=True)
    nodes = cluster_node("a-bare"), cluster_node("b-cordoned")
    yield told(pod(), scene(*nodes, machines=(bare, cordoned)))


def with_a_node() -> Iterator[Explanation]:
    usual, has = scene(cluster_node("node1")), scene(cluster_node(held=(held("train", 7),)))
    silent = scene(changed(cluster_node(held=(held("train", 7),)), stale=True, reported_at=-900.0))
    unreadable = pod(
        spec=ON
        | {"containers": [{"name": "b", "resources": {"limits": {"aliyun.com/gpu-mem": "7Gi"}}}]}
    )
    runs = {"name": "fetch", "state": {"running": {"startedAt": "2026-11-21"}}}
    waits = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
    fetching = {"initContainerStatuses": [runs], "containerStatuses": [waits]}
    yield from (
        told(unreadable, usual),
        told(pod(spec=ON), usual),
        told(pod(spec=ON, status=fetching), usual, "StartHeldBack: it waited before that"),
    )
    yield told(started("ContainerCreating"), usual, "FailedMount: no such volume.")
    yield told(started("ImagePullBackOff", "no such image"), usual, "Failed: no such image")
    yield told(
        started("CreateContainerConfigError", "gpu0 is wedged"),
        scene(cluster_node(states=("wedged", "ready"))),
    )
    for state in ("wedged", None):
        around = scene(cluster_node(held=(held("train", 7),), states=(state, "ready")))
        yield told(started("CreateContainerConfigError", "gpu0 is wedged"), around)
    yield told(started("CrashLoopBackOff", **RUNS), has)
    yield from (told(pod(spec=ON, status=RUNS), around) for around in (has, usual, silent))
    yield from (
        told(pod(metadata=OWNED, status={"phase": "Failed"} | status), scene()) for status in ENDED
    )
    yield told(pod(status={"phase": "Failed", "reason": "OutOfcpu"}), scene())
    yield from below_normal()


def cordons() -> Iterator[str]:
    """What each change does, and what is said of a GPU that is not there."""
    a1, a2 = (
        test_cordon_change.node("gpu-a1", "gpu0"),
        test_cordon_change.node("gpu-a2", "gpu2", "gpu3"),
    )
    untold = changed(test_cordon_change.node(), pods=None)
    cases: list[tuple[ClusterNode, str, bool]] = [
        (test_cordon_change.node(), "gpu2", True),
        (untold, "gpu0", True),
        (a1, "gpu1", True),
        (a1, "gpu0", True),
        (a1, "gpu0", False),
        (a1, "gpu1", False),
        (a2, "gpu2", False),
    ]
    for of, name, cordon in cases:
        yield from effects(of, cordon_change(of, [name], cordon=cordon))
    try:
        cordon_change(a1, ["gpu7"], cordon=True)
    except InvalidInput as error:
        yield from (f"{one.rule}: {one}" for one in error.problems)


def nodes() -> Iterator[NodeView]:
    """Machines of which `mpsd status` says something beside its tables."""
    yield from (node(state=state, reason=reason) for state in State for reason in ("because", ""))
    hit = (FaultHit(identity(1), "train", "uid-of-a"), FaultHit(identity(2), "train", None))
    twice = (*CAUSES, replace(CAUSES[0], process=identity(9)))
    for faults in (
        [Fault(NOW - 60, hit, (4,), NOW - 57.9)],
        [Fault(NOW - 90, hit), Fault(NOW, hit)],
        [Fault(NOW - 60, hit, healed_at=NOW - 57.9, causes=twice)],
    ):
        yield node(grants=(held_by("a"),), faults=tuple(faults), faults_total=len(faults))
    yield node(canary=Canary("boot", "580.1", NOW, "", 1, 1, "a context costs 600 MiB"))
    foreign = replace(client("x", 7), grant=None, on_mps=True)
    yield node(
        clients=(foreign, replace(foreign, on_mps=False, used_mib=None)),
        unknown=("kubelet does not answer",),
    )
    yield replace(
        node(grants=(HeldGrant(grant("local", 3), holder_alive=True),)), waiting=(waiting("w", 3),)
    )


def sentences() -> Iterator[str]:
    for of in nodes():
        # a table's begin with a space
        yield from (line for line in shown(of).splitlines() if line[:1].strip())
        yield from node_top(node_report(of, POLICY)).notes
    book = ViolationHistory(NOW)
    book.ended(book.add(test_violation_lines.violation(1), NOW), 0.06, Queue.IN_USE)
    book.add(test_violation_lines.violation(2), NOW)
    said = test_violation_lines.shown(book.whole(0.0, "kubelet has not said yet who holds what"))
    yield from (line for line in said.splitlines() if line[:1].strip())
    cluster = cluster_status([mpsnode(name) for name in NAMES], THEN)
    yield from (one for one in cluster_parts(cluster, wide=False) if isinstance(one, str))
    yield from cluster_top(cluster, None).notes
    (had,) = cluster_status([mpsnode(NAMES[0])], THEN).nodes
    causes = (
        CauseReport(pod="default/a", how="killed by SIGKILL"),
        CauseReport(program="pid 7 (python)", how="exit code 1"),
    )
    faults = FaultsReport(1, utc(THEN - 60), causes=causes)
    yield from causes_lines(changed(had.domains[0], faults=faults), THEN)
    for word in ("nobody", "3f"):
        with redirect_stderr(io.StringIO()) as complaint, suppress(SystemExit):
            the_one("mpsd smi", test_grant_named.ALL, word)
        yield complaint.getvalue().rstrip()


def wording() -> str:
    """Times of day are another in each time zone."""
    explained = [f"{one.why}: {one.sentence}" for one in (*without_a_node(), *with_a_node())]
    lines = dict.fromkeys([*explained, *cordons(), *sentences()])
    return re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", "\n".join(lines)) + "\n"
