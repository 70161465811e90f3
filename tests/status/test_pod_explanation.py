"""Why a pod waits: one sentence, whatever the API says, and a true one."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from mpsd.grants.rules.placement import Placed, place
from mpsd.model.cluster_status import ClusterNode
from mpsd.model.grants import Request
from mpsd.model.policy import GpuPriority, RuleId, RuleMode, RuleModes
from mpsd.platform.rules.kubernetes_objects import KubernetesNode, kept_away, read_kubernetes_node
from mpsd.scheduler.rules.capacity import NodeCapacity, can_ever, node_capacity
from mpsd.status.rules.explanation import ExplanationNeeds, explanation_of, needs, wants_warning
from mpsd.status.rules.pods import (
    Explanation,
    ExplanationContext,
    PodSeen,
    Why,
    last_warning,
    named,
    owned_by,
    quoted,
    read_pod_seen,
)
from tests.model.worlds import POLICY
from tests.mpsnodes import anything
from tests.status.cluster_worlds import GIB, cluster_node, held, requests, uuid
from tests.status.cluster_worlds import ledger as any_ledger


def pod(gib: int = 7, percent: int = 0, gpus: int = 1, **fields: Any) -> Any:
    """fields: `spec`, `status` and `metadata`, added to what every pod has."""
    limits = {"aliyun.com/gpu-mem": gib * gpus} if gib else {}
    limits |= {"aliyun.com/gpu-core.percentage": percent * gpus} if percent else {}
    metadata = {
        "namespace": "default",
        "name": "train",
        "uid": "train-uid",
        "creationTimestamp": "2026-11-21T08:00:00Z",
    }
    labels = {"labels": {"aliyun.com/gpu-count": str(gpus)}} if gpus > 1 else {}
    return {
        "metadata": metadata | labels | fields.get("metadata", {}),
        "spec": (
            {"containers": [{"name": "main", "resources": {"limits": limits}}]}
            | fields.get("spec", {})
        ),
        "status": {"phase": "Pending"} | fields.get("status", {}),
    }


def machine(name: str, **spec: Any) -> KubernetesNode:
    labels = {"ack.node.gpu.schedule": "mps"}
    return read_kubernetes_node({"metadata": {"name": name, "labels": labels}, "spec": spec})


def scene(
    *nodes: ClusterNode | NodeCapacity, machines: tuple[KubernetesNode, ...] | None = None
) -> ExplanationContext:
    """machines: those of the nodes, none of them special, where not said."""
    told = {one.name: one for one in nodes if isinstance(one, ClusterNode)}
    ledger = {name: node_capacity(one, "", (), (), POLICY) for name, one in told.items()}
    ledger |= {one.node: one for one in nodes if isinstance(one, NodeCapacity)}
    known = [machine(name) for name in ledger] if machines is None else machines
    return ExplanationContext(POLICY, 100.0, told, ledger, {one.name: one for one in known})


def told(thing: Any, around: ExplanationContext, warning: str = "") -> Explanation:
    return explanation_of(read_pod_seen(thing, POLICY), around, warning)


def test_a_request_that_nobody_can_read_is_named_with_its_remedy() -> None:
    thing = pod()
    thing["spec"]["containers"].append(
        {"name": "b", "resources": {"limits": {"aliyun.com/gpu-mem": "7Gi"}}}
    )
    found = told(thing, scene(cluster_node("node1", (30,))))
    assert (found.why, found.node) == (Why.ASKS_UNREADABLY, "")
    assert "spec.containers[b].resources.limits[aliyun.com/gpu-mem]" in found.sentence
    assert needs(read_pod_seen(thing, POLICY)) is ExplanationNeeds.NOTHING
    del thing["spec"]["containers"][0]
    thing["spec"]["nodeName"] = "node1"
    again = told(thing, scene())
    assert (again.why, again.node) == (Why.ASKS_UNREADABLY, "node1")


def test_a_short_grace_is_no_warning_where_the_policy_only_records_it() -> None:
    thing = pod(spec={"terminationGracePeriodSeconds": 0})
    modes = RuleModes({RuleId.GRACE_ZERO: RuleMode.AUDIT})
    silent = replace(POLICY, admission=replace(POLICY.admission, rules=modes))
    assert [one.rule for one in read_pod_seen(thing, POLICY).warnings] == ["grace-zero"]
    assert read_pod_seen(thing, silent).warnings == ()


# -- without a node ------------------------------------------------------------------------------


def test_where_a_label_says_so_requests_do_not_count_the_gpus_that_are_served_by_claims() -> None:
    for_claims = read_kubernetes_node(
        {
            "metadata": {
                "name": "node2",
                "labels": {"ack.node.gpu.schedule": "mps", "mpsd.io/claims": "true"},
            }
        }
    )
    nodes = cluster_node("node1", (3,)), cluster_node("node2", (23,))
    everywhere = scene(*nodes, machines=(machine("node1"), for_claims))
    assert told(pod(), everywhere).room == ("gpu0 of node2",)
    by_label = replace(everywhere, policy=replace(POLICY, claim_nodes="labelled"))
    assert told(pod(), by_label).why is Why.TOO_LARGE


def test_a_request_over_the_largest_gpu_never_fits() -> None:
    found = told(pod(), scene(cluster_node("node1", (3, 4)), cluster_node("node2", (2,))))
    assert found.why is Why.TOO_LARGE
    assert "4, gpu1 of node1" in found.sentence


def test_the_node_with_the_most_free_is_named_first() -> None:
    full = [
        cluster_node(f"node{n}", (23,), held=(held("x", 16 + n, node=f"node{n}"),))
        for n in (3, 4, 5)
    ]
    found = told(pod(), scene(*full, cluster_node("node9", (23,), cordoned=(0,))))
    assert found.why is Why.NO_ROOM
    nearest = re.findall(r"(\w+) \(gpu0 has (\d)", found.sentence)
    assert nearest == [("node3", "4"), ("node4", "3"), ("node5", "2")]
    assert "and 1 more" in found.sentence


def test_several_gpus_must_be_of_one_domain() -> None:
    apart, beside = (
        cluster_node(gib=(23, 23)),
        cluster_node(gib=(23, 23), together=True, held=(held("a", 20),)),
    )
    never, later = told(pod(gpus=2), scene(apart)), told(pod(gpus=2), scene(beside))
    assert (never.why, later.why) == (Why.NO_ROOM, Why.NO_ROOM)
    assert "domain of 2 GPUs" in never.sentence
    assert "node1 (needs 2 GPUs of one domain: gpu0 has 3 of 7 GiB free)" in later.sentence
    joined = told(
        pod(gpus=2), scene(cluster_node(gib=(23, 23), held=(held("a", 2),), on_demand=True))
    )
    assert joined.why is Why.NO_ROOM
    assert "gpu1 is unused; gpu0 is in use by others" in joined.sentence


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
    machines = (
        *(machine(f"silent{n}") for n in range(5)),
        machine("full"),
        unready,
        machine("new"),
    )
    return scene(*silent, full, changed(cluster_node("unready"), gpus=()), machines=machines)


def test_silent_and_unready_nodes_are_counted_and_named_while_they_are_few() -> None:
    found = told(pod(), unready())
    assert found.why is Why.NO_ROOM
    assert re.findall(r"(\w+|\d nodes) \(", found.sentence) == ["full", "new", "5 nodes", "unready"]


def test_nodes_that_mpsd_shares_are_named_before_those_without_the_label() -> None:
    bare = read_kubernetes_node({"metadata": {"name": "a-bare"}})
    cordoned = machine("b-cordoned", unschedulable=True)
    found = told(
        pod(), scene(cluster_node("a-bare"), cluster_node("b-cordoned"), machines=(bare, cordoned))
    )
    assert found.why is Why.KEPT_AWAY
    assert found.sentence.index("b-cordoned") < found.sentence.index("a-bare")


def test_where_a_node_has_not_told_its_size_nothing_is_said_never_to_fit() -> None:
    never_told = changed(cluster_node("node2"), reported_at=None, gpus=())
    found = told(pod(30), scene(cluster_node("node1", (23,)), never_told))
    assert found.why is Why.NO_ROOM


def test_gates_schedulers_and_deletion_come_before_room() -> None:
    around = scene(cluster_node())
    gated = told(
        pod(spec={"schedulingGates": [{"name": "a.io/quota"}, {"name": "b.io/x"}]}), around
    )
    assert gated.why is Why.GATED
    assert "a.io/quota and b.io/x" in gated.sentence
    assert told(pod(spec={"schedulerName": "volcano"}), around).why is Why.OTHER_SCHEDULER
    assert told(pod(metadata={"deletionTimestamp": "2026-11-21T08:00:00Z"}), around).why is Why.ENDS


def test_nodes_that_are_labelled_and_tell_nothing_are_named() -> None:
    found = told(pod(), scene(machines=(machine("node1"), machine("node2"))))
    assert found.why is Why.NO_NODE
    assert "node1 and node2" in found.sentence


# -- with a node, and after ----------------------------------------------------------------------


def started(reason: str, message: str = "", **node: Any) -> Any:
    waiting = {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}
    return pod(spec={"nodeName": "node1"}, status={"containerStatuses": [waiting], **node})


def test_a_domain_that_does_not_serve_is_why_a_container_does_not_start() -> None:
    around = scene(cluster_node(held=(held("train", 7, 1),), states=("ready", "wedged")))
    found = told(started("CreateContainerConfigError", "gpu1 is wedged"), around)
    assert (found.why, found.node, found.gpus) == (Why.NOT_STARTED, "node1", ("gpu1",))
    assert "gpu1 is wedged for 100 s" in found.sentence


def test_a_container_that_crashes_is_no_pod_that_runs() -> None:
    found = told(
        started("CrashLoopBackOff", phase="Running"), scene(cluster_node(held=(held("train", 7),)))
    )
    assert (found.why, found.is_well) == (Why.RESTARTS, False)
    assert found.sentence.endswith("kubectl logs train -n default --previous")


def test_a_pod_that_kubelet_has_not_begun_says_so() -> None:
    found = told(pod(spec={"nodeName": "node1"}), scene(cluster_node()))
    warned = told(
        started("ContainerCreating"), scene(cluster_node()), "FailedMount: no such volume."
    )
    assert (found.why, warned.why) == (Why.NOT_STARTED, Why.NOT_STARTED)
    assert "FailedMount: no such volume;" in warned.sentence


def test_a_pod_whose_init_container_runs_is_not_said_to_have_begun_nothing() -> None:
    first = {
        "initContainerStatuses": [
            {"name": "fetch", "state": {"running": {"startedAt": "2026-11-21T08:00:09Z"}}}
        ]
    }
    plain = {
        "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}]
    }
    thing = pod(spec={"nodeName": "node1"}, status=first | plain)
    found = told(
        thing, scene(cluster_node("node1")), warning="StartHeldBack: it waited before that"
    )
    assert found.why is Why.NOT_STARTED
    assert found.sentence.endswith("kubectl logs train -n default -c fetch")
    assert "StartHeldBack" not in found.sentence


def test_a_silent_node_is_said_of_a_pod_that_runs() -> None:
    silent = changed(cluster_node(held=(held("train", 7),)), stale=True, reported_at=-900.0)
    found = told(pod(spec={"nodeName": "node1"}, status={"phase": "Running"}), scene(silent))
    assert (found.why, found.is_well, found.node, found.gpus) == (
        Why.RUNS,
        True,
        "node1",
        ("gpu0",),
    )
    assert "nothing for 16 min" in found.sentence


OWNED = {"ownerReferences": [{"kind": "Job", "name": "train", "controller": True}]}
_KILLED = {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}
ENDED: list[tuple[dict[str, Any], Why]] = [
    ({"phase": "Succeeded"}, Why.SUCCEEDED),
    ({"reason": "Evicted", "message": "mpsd: 20 GiB"}, Why.FAILED),
    ({"reason": "UnexpectedAdmissionError", "message": "no room"}, Why.REFUSED_BY_KUBELET),
    ({"reason": "OutOfaliyun.com/gpu-mem"}, Why.REFUSED_BY_KUBELET),
    ({"containerStatuses": [_KILLED]}, Why.FAILED),
    ({}, Why.FAILED),
]


@pytest.mark.parametrize(("status", "why"), ENDED)
def test_what_has_ended_says_how(status: dict[str, Any], why: Why) -> None:
    found = told(pod(metadata=OWNED, status={"phase": "Failed"} | status), scene())
    assert (found.why, found.is_well) == (why, why is Why.SUCCEEDED)
    assert ("Job train" in found.sentence) is not found.is_well


def test_a_pod_that_failed_after_a_fault_says_who_ended_before_it_and_quotes_no_other_warning() -> (
    None
):
    thing = pod(
        spec={"nodeName": "node1"}, status={"phase": "Failed", "containerStatuses": [_KILLED]}
    )
    assert wants_warning(read_pod_seen(thing, POLICY))
    fault = (
        "MPSFault: a fault; likely cause, ended just before it: default/other: killed by SIGKILL"
    )
    assert told(thing, scene(), fault).sentence.endswith(fault)
    assert "BackOff" not in told(thing, scene(), "BackOff: it restarts").sentence


def test_no_more_is_looked_at_than_a_sentence_takes() -> None:
    def wanted(thing: Any) -> ExplanationNeeds:
        return needs(read_pod_seen(thing, POLICY))

    assert wanted(pod()) is ExplanationNeeds.CLUSTER
    assert wanted(pod(spec={"nodeName": "node1"})) is ExplanationNeeds.ITS_NODE
    assert wanted(pod(0)) is ExplanationNeeds.NOTHING
    assert wanted(pod(status={"phase": "Failed"})) is ExplanationNeeds.NOTHING


# -- by what a person calls it -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("train", ("", "train")),
        ("po/train", ("Pod", "train")),
        ("Deployments.apps/web", ("Deployment", "web")),
        ("rayclusters.ray.io/a", ("rayclusters.ray.io", "a")),
    ],
)
def test_kinds_are_read_as_kubectl_writes_them(words: str, meant: tuple[str, str]) -> None:
    assert named(words) == meant


def test_a_cronjob_owns_the_pods_of_its_jobs_and_a_job_with_a_number_is_none() -> None:
    def of(job: str) -> PodSeen:
        owners = [{"kind": "Job", "name": job, "controller": True}]
        return read_pod_seen(pod(metadata={"ownerReferences": owners}), POLICY)

    found, owner = owned_by([of("night-29391840"), of("night-1")], "", "night")
    assert (len(found), str(owner)) == (1, "CronJob night")
    assert owned_by([of("night-1")], "", "night") == ((), None)


def test_the_newest_warning_counts_however_events_give_their_time() -> None:
    events = [
        {"type": "Warning", "reason": "Old", "lastTimestamp": "2026-11-21T08:00:00Z"},
        {"type": "Warning", "reason": "New", "message": "m", "eventTime": "2026-11-21T09:00:00.5Z"},
        {"type": "Normal", "reason": "Newest", "lastTimestamp": "2026-11-21T10:00:00Z"},
    ]
    assert (last_warning(events), last_warning([])) == ("New: m", "")


# -- always --------------------------------------------------------------------------------------


@given(anything, anything, st.text(max_size=20))
def test_any_pod_gets_one_sentence_on_one_line(thing: Any, inner: Any, warning: str) -> None:
    around = scene(cluster_node(held=(held("train", 7),)))
    broken = pod()
    for part in ("spec", "status", "metadata"):
        if isinstance(inner, dict):
            broken = {**broken, part: broken[part] | inner}
    for one in (thing, broken, {**broken, "spec": inner}, {**broken, "status": inner}):
        said = told(one, around, warning).sentence
        assert said.isprintable()
        assert not said.endswith(".")


@given(
    requests,
    st.tuples(any_ledger("node1"), any_ledger("node2"), any_ledger("node3")),
    st.tuples(*[st.sampled_from(["", "shut", "cordoned", "gone"])] * 3),
    st.booleans(),
)
def test_what_is_said_of_room_is_what_place_finds(
    request: Request, nodes: tuple[NodeCapacity, ...], states: tuple[str, ...], unscheduled: bool
) -> None:
    pairs = list(zip(nodes, states, strict=True))
    ledger = [
        replace(one, shut="its agent ..", rooms=()) if state == "shut" else one
        for one, state in pairs
    ]
    machines = [
        machine(one.node, unschedulable=state == "cordoned")
        for one, state in pairs
        if state != "gone"
    ]
    around = scene(*ledger, machines=tuple(machines))
    conditions = (
        [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes."}]
        if unscheduled
        else []
    )
    thing = pod(
        request.memory_mib // GIB,
        request.thread_percent or 0,
        request.gpus,
        status={"conditions": conditions},
    )
    seen = read_pod_seen(thing, POLICY)
    assert seen.shared
    assert seen.shared.request == request
    found = explanation_of(seen, around)
    fitting = {
        one.node for one in ledger if isinstance(place(request, one.rooms, one.policy), Placed)
    }
    known = around.machines or {}
    free = {name for name in fitting if name in known and not kept_away(seen.wishes, known[name])}
    assert (
        found.why
        in {
            (True, True): (Why.SCHEDULER_SAYS, Why.NOT_LOOKED_AT),
            (True, False): (Why.KEPT_AWAY,),
            (False, False): (Why.NO_ROOM, Why.TOO_LARGE),
        }[bool(fitting), bool(free)]
    )
    if found.why is Why.TOO_LARGE:
        assert not any(can_ever(request, one) for one in ledger)
    named_nodes = {words.rpartition(" of ")[2] for words in found.room}
    assert named_nodes == (free or fitting)


def test_what_others_wrote_is_quoted_on_one_line() -> None:
    assert quoted("a\n b\x1b[31m.") == "a b\\x1b[31m"
    assert len(quoted("x" * 10_000)) <= 400
    assert uuid("node1", 0) not in quoted("")


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (GpuPriority("annotation"), "its annotation mpsd.io/gpu-priority is"),
        (GpuPriority("priority-class", 0), "its priority -1 is under 0"),
        (GpuPriority("priority-class", -5), "the policy said so when it was given its GPU"),
        (GpuPriority(), "the policy said so when it was given its GPU"),
    ],
)
def test_a_pod_that_is_below_normal_says_so_and_why(policy: GpuPriority, why: str) -> None:
    annotated = {"annotations": {"mpsd.io/gpu-priority": "below-normal"}}
    on_node = {"nodeName": "node1", "priority": -1, **pod()["spec"]}
    thing = pod(spec=on_node, status={"phase": "Running"}, metadata=annotated)
    below, normal = changed(held("train", 7), priority=1), held("train", 7)
    around = replace(
        scene(cluster_node(held=(below,))), policy=replace(POLICY, gpu_priority=policy)
    )
    assert f", below normal there: {why}" in told(thing, around).sentence
    assert "below normal" not in told(thing, scene(cluster_node(held=(normal,)))).sentence
