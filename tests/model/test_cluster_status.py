"""What a cluster tells of its GPUs: the numbers of its nodes, nothing that is not known, and any
JSON is read."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from mpsd.model.cluster_status import (
    ClusterNode,
    placed,
    served_gpus,
    silence,
    troubles,
)
from mpsd.model.conditions import condition_object, mps_ready
from mpsd.model.domain import State
from mpsd.model.mpsnode import cluster_status, read_mpsnode
from mpsd.model.names import STALE_S
from mpsd.model.node_report import (
    NO_VIOLATIONS,
    GrantViolations,
    SeenViolations,
    ViolationCount,
    ViolationReport,
    ViolationsReport,
    total,
)
from mpsd.model.node_view import Canary, Fault, FaultHit, NodeView
from mpsd.model.times import DAY_S, HOUR_S, stamp, utc
from mpsd.status.rules.mpsnode import mpsnode_status
from mpsd.status.rules.node_report import node_report
from mpsd.status.tables import POD_COLUMNS
from tests.model.worlds import LOST, POLICY, UUIDS, blind, identity
from tests.model.worlds import NOW as VIEW_NOW
from tests.mpsnodes import NOW, damaged, mpsnode
from tests.status.pod_worlds import client, held, node, pod


def read(name: str, now: float = NOW) -> ClusterNode:
    return read_mpsnode(mpsnode(name), now)


def told(view: NodeView, seen: SeenViolations | None = None) -> dict[str, Any]:
    """As the API server has it after an agent has told of this view."""
    condition = condition_object(mps_ready(view), None, stamp(VIEW_NOW))
    status = mpsnode_status(node_report(view, POLICY, seen), condition)
    return {"metadata": {"name": "node1"}, "spec": {}, "status": status}


FAULTS = tuple(
    Fault(VIEW_NOW + number, (FaultHit(identity(number), "train", pod("a").uid),))
    for number in range(2)
)
VIEWS = {
    "pods and clients": node(
        grants=(held("a"), held("b", 2, 1)), clients=(client("a", 1), client("b", 2, None, 1))
    ),
    "nothing": node(),
    "clients unknown": blind(node()),
    "one fault after the other": node(grants=(held("a"),), faults=FAULTS, faults_total=2),
    "a daemon down": node(state=State.DOWN, daemon=None, reason="killed by signal 9"),
    "a canary that failed": node(
        canary=Canary("a-boot", "580.1", VIEW_NOW, "it does not obey", None, None)
    ),
    "a dear context": node(
        canary=Canary("a-boot", "580.1", VIEW_NOW, "", 172, 12, "it costs more")
    ),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_the_cluster_shows_the_rows_that_the_node_shows(view: NodeView) -> None:
    there, here = read_mpsnode(told(view), VIEW_NOW), node_report(view, POLICY)
    shown = [changed(gpu, sms=None, unexplained_mib=None, xids=()) for gpu in here.gpus]
    assert [changed(row, node="") for row in there.gpus] == [
        *served_gpus(changed(here, gpus=tuple(shown)))
    ]
    assert [domain.state for domain in there.domains] == [domain.state for domain in here.domains]
    assert [domain.doubt for domain in there.domains] == [domain.doubt for domain in here.domains]
    pods = [*placed(there.pods or (), there)]
    for row, own in zip(pods, placed(here.grants or (), here), strict=True):
        assert [str(column.cell(row)) for column in POD_COLUMNS] == [
            str(column.cell(own)) for column in POD_COLUMNS
        ]


def test_a_node_that_serves_is_ready_and_one_whose_daemon_is_down_is_not() -> None:
    assert read_mpsnode(told(node()), VIEW_NOW).ready
    assert not read_mpsnode(told(VIEWS["a daemon down"]), VIEW_NOW).ready
    assert not read_mpsnode(told(replace(node(), gpus=(), domains=())), VIEW_NOW).ready
    assert not read_mpsnode(told(VIEWS["clients unknown"]), VIEW_NOW).ready  # MPSReady is Unknown


def test_a_cluster_without_nodes_is_not_ready() -> None:
    assert not cluster_status([], NOW).ready
    assert cluster_status([mpsnode("gpu-a1")], NOW).ready


def test_two_heartbeats_of_silence_are_said_and_are_not_ready() -> None:
    last = read("gpu-a1").reported_at
    assert last
    in_time, late = read("gpu-a1", last + STALE_S), read("gpu-a1", last + STALE_S + 1)
    assert (in_time.ready, in_time.stale, silence(in_time, last + STALE_S)) == (True, False, None)
    assert (late.ready, late.stale) == (False, True)
    (sentence,) = troubles(late, last + STALE_S + 1)
    assert sentence == silence(late, last + STALE_S + 1)


@pytest.mark.parametrize("ahead_s", [-2 * DAY_S, -HOUR_S, HOUR_S, 2 * DAY_S])
def test_how_long_a_node_is_silent_does_not_depend_on_its_clock(ahead_s: float) -> None:
    thing = mpsnode("gpu-a1")
    thing["status"]["reportedAt"] = stamp(NOW + ahead_s)
    by_others = {"time": stamp(NOW + 60), "fieldsV1": {"f:spec": {}}}
    written = {"time": stamp(NOW), "fieldsV1": {"f:status": {}}}
    thing["metadata"]["managedFields"] = [written, by_others]
    in_time, late = (read_mpsnode(thing, NOW + STALE_S + late_s) for late_s in (0, 1))
    assert (in_time.stale, late.stale) == (False, True)


@pytest.mark.parametrize(
    "managed", [None, 7, [None, {}], [{"time": 7, "fieldsV1": {"f:status": 1}}]]
)
def test_what_the_server_says_of_writes_may_be_anything(managed: object) -> None:
    thing = mpsnode("gpu-a1")
    reported_at = read_mpsnode(thing, NOW).reported_at
    thing["metadata"]["managedFields"] = managed
    assert read_mpsnode(thing, NOW).reported_at == reported_at


def test_what_is_cordoned_is_said_by_label_and_marked_on_every_gpu_of_the_domain() -> None:
    drains = read("gpu-a2")
    assert drains.cordoned_labels == "gpu0"
    assert [gpu.cordoned for gpu in drains.gpus] == [True, False, False, False]
    half = mpsnode("gpu-a2")
    half["spec"]["cordoned"] = [drains.gpus[3].uuid]
    assert [gpu.cordoned for gpu in read_mpsnode(half, NOW).gpus] == [False, False, True, True]
    assert read("gpu-b2").cordoned_labels == "all"


def test_a_cordoned_gpu_that_is_not_there_is_said() -> None:
    mistyped = mpsnode("gpu-a1")
    mistyped["spec"]["cordoned"] = ["GPU-0"]
    (sentence,) = troubles(read_mpsnode(mistyped, NOW), NOW)
    assert "GPU-0" in sentence


def test_a_condition_that_no_domain_explains_is_said_with_its_reason_and_age() -> None:
    assert list(troubles(read("gpu-a2"), NOW)) == []  # DomainDown: the domain says it
    (sentence,) = troubles(read_mpsnode(told(blind(node(), UUIDS[1])), VIEW_NOW), VIEW_NOW)
    assert sentence == f"node1: it is not known which processes use gpu1: {LOST}"
    unseen = told(replace(node(), grants_known=False, unknown=("kubelet does not answer",)))
    (sentence,) = troubles(read_mpsnode(unseen, VIEW_NOW + 180), VIEW_NOW + 180)
    assert sentence == "node1: MPSReady is Unknown for 3 min, NotSeen: kubelet does not answer"


def test_what_is_not_told_is_none_and_never_zero() -> None:
    gpu = read("gpu-a2").gpus[1]
    assert (gpu.used_mib, gpu.clients, gpu.granted_mib) == (None, None, 0)
    without = mpsnode("gpu-a1")
    del without["status"]["grants"]
    assert read_mpsnode(without, NOW).pods is None


def test_what_a_pod_did_is_read_as_its_agent_saw_it() -> None:
    last = ViolationReport(at=utc(VIEW_NOW), kind="outside_mps", action="kill", pod=str(pod("a")))
    counts = (ViolationCount(kind="outside_mps", count=2),)
    node_seen = ViolationsReport(since=utc(VIEW_NOW - 60), counts=counts, last=(last,))
    seen = SeenViolations(node_seen, {pod("a").uid: GrantViolations(counts, last)})
    thing = told(VIEWS["pods and clients"], seen)
    found = read_mpsnode(thing, VIEW_NOW)
    assert not found.unreadable
    assert found.violations
    assert (found.violations.since, found.violations.pods) == (utc(VIEW_NOW - 60), 1)
    assert [one.count for one in found.violations.counts] == [2]
    own, other = (one.violations for one in found.pods or ())
    assert own
    assert own.last == changed(found.violations.last[0], pod="")
    assert found.violations.last[0] == ViolationReport(
        at=utc(VIEW_NOW), kind="outside_mps", action="kill", pod="default/a"
    )
    assert own.counts == found.violations.counts
    assert other == NO_VIOLATIONS, "of the other it is known that it did nothing"


def test_of_whom_a_node_does_not_tell_it_is_not_known_what_he_did() -> None:
    by_an_older_agent = read("gpu-a1")
    assert by_an_older_agent.violations is None
    assert {one.violations for one in by_an_older_agent.pods or ()} == {None}
    more = mpsnode("gpu-a2")
    more["status"]["violations"]["pods"] = 33  # and one of them is told of
    own, other = (one.violations for one in read_mpsnode(more, NOW).pods or ())
    assert own
    assert other is None
    damaged_count = mpsnode("gpu-a2")
    damaged_count["status"]["violations"]["counts"][0]["count"] = -1
    found = read_mpsnode(damaged_count, NOW).violations
    assert found
    assert total(one.count for one in found.counts) is None


def test_an_object_of_endless_fields_is_not_believed() -> None:
    endless = mpsnode("gpu-a1")
    endless["status"]["grants"] *= 4000
    unread = read_mpsnode(endless, NOW)
    assert (unread.name, unread.ready, unread.gpus) == ("gpu-a1", False, ())
    assert "10000 fields" in unread.unreadable[0]


@given(st.lists(damaged(), max_size=3), st.floats(allow_nan=False, allow_infinity=False))
def test_any_json_is_a_node_and_nothing_raises(things: list[Any], now: float) -> None:
    status = cluster_status(things, now)
    assert len(status.nodes) == len(things)
    for one in status.nodes:
        assert all(len(row.labels) == len(row.grant.gpus) for row in placed(one.pods or (), one))
        assert all(isinstance(sentence, str) for sentence in troubles(one, now))
        assert isinstance(one.cordoned_labels, str)
        if one.ready:
            assert one.gpus
            assert one.reported_at is not None
            assert not one.stale
