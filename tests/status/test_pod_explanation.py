"""Why a pod waits: one sentence, whatever the API says, and a true one."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.grants.rules.placement import Placed, place
from mpsd.model.cluster_status import ClusterNode
from mpsd.model.grants import Request
from mpsd.model.policy import RuleId, RuleMode, RuleModes
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


def test_a_short_grace_is_no_warning_where_the_policy_only_records_it() -> None:
    thing = pod(spec={"terminationGracePeriodSeconds": 0})
    modes = RuleModes({RuleId.GRACE_ZERO: RuleMode.AUDIT})
    silent = replace(POLICY, admission=replace(POLICY.admission, rules=modes))
    assert [one.rule for one in read_pod_seen(thing, POLICY).warnings] == ["grace-zero"]
    assert read_pod_seen(thing, silent).warnings == ()


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


KILLED = {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}


def test_a_pod_that_failed_after_a_fault_says_who_ended_before_it_and_quotes_no_other_warning() -> (
    None
):
    thing = pod(
        spec={"nodeName": "node1"}, status={"phase": "Failed", "containerStatuses": [KILLED]}
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
    unreadable = {"name": "b", "resources": {"limits": {"aliyun.com/gpu-mem": "7Gi"}}}
    assert wanted(pod(spec={"containers": [unreadable]})) is ExplanationNeeds.NOTHING
    assert wanted(pod(status={"phase": "Failed"})) is ExplanationNeeds.NOTHING


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


def test_a_pod_that_failed_or_restarts_is_not_well() -> None:
    around = scene(cluster_node(held=(held("train", 7),)))
    waiting = {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    on_node = {"nodeName": "node1"}
    crashes = pod(spec=on_node, status={"phase": "Running", "containerStatuses": [waiting]})
    runs = pod(spec=on_node, status={"phase": "Running"})
    ended = [pod(status={"phase": phase}) for phase in ("Failed", "Succeeded")]
    well = [told(one, around).is_well for one in (crashes, runs, *ended)]
    assert well == [False, True, False, True]
    found = told(runs, around)
    assert (found.node, found.gpus) == ("node1", ("gpu0",))
