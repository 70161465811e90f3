"""MPSNode: its status has the shape of its definition, says nothing that is not known, and is
written seldom."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.conditions import condition_object, mps_ready
from mpsd.model.domain import State
from mpsd.model.mpsnode import MPSNode, as_object
from mpsd.model.node_report import (
    GrantViolations,
    SeenViolations,
    ViolationCount,
    ViolationReport,
    ViolationsReport,
)
from mpsd.model.node_view import Canary, Client, Fault, FaultCause, HeldGrant, NodeView
from mpsd.model.times import utc
from mpsd.status.rules.mpsnode import (
    CHANGE_S,
    HEARTBEAT_S,
    USE_S,
    USE_STEP_MIB,
    WrittenStatus,
    belonging_patch,
    gave_back,
    mpsnode_for,
    mpsnode_status,
    write_due,
)
from mpsd.status.rules.node_report import node_report
from tests.model.worlds import NOW, POLICY, UUIDS, blind, grant, identity
from tests.model.worlds import view as local_view
from tests.status.pod_worlds import client, held, held_claim, node, pod

_FILE = Path(__file__).parents[2] / "manifests/chart/templates/crd/mpsnode.yaml"
_CRD = yaml.safe_load(_FILE.read_text())
(_VERSION,) = _CRD["spec"]["versions"]


def status(
    view: NodeView, seen: SeenViolations | None = None, version: str = "0.1.0"
) -> dict[str, Any]:
    condition = condition_object(mps_ready(view), None, "2026-01-01T00:00:00Z")
    return mpsnode_status(node_report(view, POLICY, seen, version), condition)


def strict(schema: Any) -> Any:
    """The schema as the API server prunes by it: a field that it does not name is lost."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: strict(value) for key, value in schema.items()}
    return inner | (
        {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    )


SCHEMA = strict(_VERSION["schema"]["openAPIV3Schema"]["properties"]["status"])

CAUSES = (
    FaultCause(identity(1), "python", pod("a").uid, "killed by SIGKILL"),
    FaultCause(identity(2), "python", None, "exit code 1"),
)
BELOW = held("a")
VIEWS = {
    "pods and clients": node(
        grants=(held("a"), held("b", 2, 1)), clients=(client("a", 1), client("b", 2, None, 1))
    ),
    "nothing": node(),
    "nobody knows": blind(node(grants_known=False, unknown=("kubelet does not answer",))),
    "one GPU is lost": blind(node(), UUIDS[0]),
    "a daemon down": node(state=State.DOWN, daemon=None, reason="killed by signal 9"),
    "no domains": replace(node(), domains=()),
    "no GPUs": replace(node(), domains=(), gpus=()),
    "a canary that failed": node(
        canary=Canary("a-boot", "580.1", 1.0, "it does not obey", None, None)
    ),
    "a fault and its causes": node(
        grants=(held("a"),), faults=(Fault(NOW, (), causes=CAUSES),), faults_total=1
    ),
    "below normal, and held by a cgroup": replace(
        node(grants=(replace(BELOW, grant=replace(BELOW.grant, priority=1)), held("b"))),
        capped=frozenset({"uid-of-a"}),
        uncapped={"uid-of-b": "why"},
    ),
    "a claim of two pods": node(grants=(held_claim("share", pod("a"), pod("b")),)),
    "a dear context": node(canary=Canary("a-boot", "580.1", 1.0, "", 172, 12, "it costs more")),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_every_field_of_a_status_is_kept_by_the_api_server_and_read_back(view: NodeView) -> None:
    told = status(view)
    jsonschema.validate(told, SCHEMA)
    found = msgspec.convert({"metadata": {"name": "node1"}, "status": told}, MPSNode)
    assert as_object(found.status) == told


def test_a_grant_says_that_it_is_below_normal_or_capped_and_nothing_where_it_is_not() -> None:
    told = status(VIEWS["below normal, and held by a cgroup"])["grants"]
    assert [(one.get("priority"), one.get("memoryCap")) for one in told] == [
        (1, "cgroup"),
        (None, None),
    ]


def test_who_ended_just_before_the_last_fault_is_told() -> None:
    domain, *_others = status(VIEWS["a fault and its causes"])["domains"]
    assert domain["faults"]["causes"] == [
        {
            "pod": "default/a",
            "uid": "uid-of-a",
            "program": "pid 1 (python)",
            "how": "killed by SIGKILL",
        },
        {"program": "pid 2 (python)", "how": "exit code 1"},
    ]


def test_every_column_shows_something_that_is_told() -> None:
    told = status(VIEWS["pods and clients"], SeenViolations(ViolationsReport(since=utc(0.0)), {}))
    whole = {"spec": {"cordoned": ["all"]}, "status": told}
    for column in _VERSION["additionalPrinterColumns"]:
        found: Any = whole
        for step in (
            column["jsonPath"]
            .replace('conditions[?(@.type=="MPSReady")]', "conditions")
            .split(".")[1:]
        ):
            found = found[step]
            found = found[0] if isinstance(found, list) else found
        assert found not in (None, ""), column["name"]


def test_what_each_pod_got_and_uses_is_told() -> None:
    told = status(node(grants=(held("a"),), clients=(client("a", 1, 500), client("a", 2, 300))))
    (pod,) = told["grants"]
    said = pod["pod"], pod["memoryMiB"], pod["usedMiB"], pod["clients"]
    assert said == ("default/a", 7168, 800, 2)
    first, second = told["gpus"]
    assert (first["grantedMiB"], first["usedMiB"], second["usedMiB"]) == (7168, 800, 0)
    assert [told["summary"][name] for name in ("granted", "used", "pods")] == ["7/46Gi", "0Gi", 1]


def test_room_is_what_a_gpu_has_given_away_less_of_and_never_what_is_not_known() -> None:
    none, one, two = (
        status(node(grants=tuple(held(pod) for pod in pods))) for pods in ("", "a", "ab")
    )
    unknown = status(replace(node(), grants_known=False))
    assert [gave_back(now, one) for now in (none, one, two, unknown)] == [True, False, False, False]
    assert gave_back(two, unknown), "it says again what it has"


def test_a_domain_that_serves_again_has_room_for_whoever_waits() -> None:
    ready = status(node())
    without = {name: value for name, value in ready.items() if name not in {"domains", "gpus"}}
    for before in (status(node(state=State.FAULT)), without):
        assert gave_back(ready, before)
        assert not gave_back(before, ready)
    assert write_due(without, WrittenStatus(without, 0.0)) > 0


def test_a_program_of_the_machine_is_counted_and_not_named() -> None:
    told = status(local_view(grants=(HeldGrant(grant("local", 3), holder_alive=True),)))
    assert told["grants"] == []
    assert told["gpus"][0]["grantedMiB"] == 3072


def test_what_is_not_known_is_left_out_and_never_zero() -> None:
    told = status(VIEWS["nobody knows"])
    assert "grants" not in told
    assert {"usedMiB", "clients", "grantedMiB"}.isdisjoint(told["gpus"][0])
    summary = [told["summary"][name] for name in ("used", "clients", "granted")]
    assert summary == ["?", "?", "?/46Gi"]


def test_the_versions_of_agent_and_control_are_told_each_for_itself() -> None:
    told = status(node(written_by="0.0.9"))
    assert (told["version"], told["domains"][0]["version"]) == ("0.1.0", "0.0.9")


def due_after(before: NodeView, now: NodeView) -> float:
    return write_due(status(now), WrittenStatus(status(before), 0.0))


def test_a_first_status_is_due_at_once() -> None:
    assert write_due(status(node()), None) < 0


def test_a_change_is_due_after_a_second_use_after_half_a_minute_and_nothing_after_five() -> None:
    one = node(grants=(held("a"),), clients=(client("a", 1, 500),))
    assert due_after(one, replace(one, grants=())) == CHANGE_S
    assert due_after(one, replace(one, clients=(client("a", 1, 500 + USE_STEP_MIB),))) == USE_S
    assert due_after(one, blind(one)) == CHANGE_S
    assert (
        due_after(one, replace(one, clients=(client("a", 1, 499 + USE_STEP_MIB),))) == HEARTBEAT_S
    )
    assert due_after(one, replace(one, now=one.now + 100)) == HEARTBEAT_S


ROUNDING = 1e-6  # of seconds that are added up

looks = st.lists(
    st.tuples(
        st.floats(0.1, 40.0),  # seconds since the look before
        st.integers(0, 2),  # which pods hold something
        st.integers(0, 20_000),  # MiB that the first uses
        st.sampled_from([State.READY, State.DOWN]),
    ),
    min_size=1,
    max_size=60,
)


def seen(pods: int, used_mib: int, state: State) -> NodeView:
    clients: tuple[Client, ...] = (client("pod0", 1, used_mib),) if pods else ()
    return node(
        grants=tuple(held(f"pod{number}") for number in range(pods)), clients=clients, state=state
    )


@given(looks)
def test_no_sequence_of_looks_writes_more_than_once_a_second_and_the_last_is_told_in_the_end(
    sequence: list[tuple[float, int, int, State]],
) -> None:
    now, written = 0.0, None
    writes: list[tuple[float, dict[str, Any], bool]] = []
    told: dict[str, Any] = {}

    def look(view: NodeView) -> None:
        nonlocal written, told
        told = status(view)
        if write_due(told, written) <= now:
            firm = written is None or firmly(told) != firmly(written.status)
            written = WrittenStatus(told, now)
            writes.append((now, told, firm))

    for pause_s, pods, used_mib, state in sequence:
        now += pause_s
        look(seen(pods, used_mib, state))
    last = seen(*sequence[-1][1:])
    for pause_s in (CHANGE_S, USE_S, HEARTBEAT_S):
        now += pause_s
        look(last)
    times = [at for at, _told, _firm in writes]
    assert all(later - earlier >= CHANGE_S - ROUNDING for earlier, later in pairwise(times))
    soft = [(earlier, later) for (earlier, *_), (later, _, firm) in pairwise(writes) if not firm]
    assert all(later - earlier >= USE_S - ROUNDING for earlier, later in soft)
    assert writes[-1][1] == told


def firmly(told: dict[str, Any]) -> Any:
    return (
        told["grants"] and [one["pod"] for one in told["grants"]],
        told["domains"],
        told["conditions"],
    )


def test_a_new_one_goes_with_its_node() -> None:
    made = mpsnode_for("node1", "uid-1")
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "node1", "uid-1")
    assert "blockOwnerDeletion" not in owner  # that would need a right over the Node's finalizers
    assert belonging_patch(made, "node1", "uid-1") is None


def test_one_that_an_operator_made_is_taken_over_with_its_other_owners_and_labels() -> None:
    other = {"kind": "Fleet", "uid": "f", "name": "fleet", "apiVersion": "example.com/v1"}
    metadata = {
        "name": "node1",
        "resourceVersion": "7",
        "labels": {"team": "a"},
        "ownerReferences": [other],
    }
    patch = belonging_patch({"metadata": metadata}, "node1", "uid-1")
    assert patch
    assert patch["metadata"]["resourceVersion"] == "7"
    assert [owner["kind"] for owner in patch["metadata"]["ownerReferences"]] == ["Fleet", "Node"]
    assert "team" not in patch["metadata"]["labels"]  # a merge patch leaves what it does not name


def test_one_of_a_node_that_was_made_anew_changes_its_owner() -> None:
    patch = belonging_patch(mpsnode_for("node1", "uid-1"), "node1", "uid-2")
    assert patch
    assert [owner["uid"] for owner in patch["metadata"]["ownerReferences"]] == ["uid-2"]


def test_uuids_of_this_tests_world_can_be_cordoned() -> None:
    items = _VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["cordoned"][
        "items"
    ]
    for text in (*UUIDS, "all"):
        jsonschema.validate(text, items)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate("gpu0", items)


def test_a_claim_is_one_grant_with_all_its_pods_and_every_field_of_it_is_kept() -> None:
    told = status(node(grants=(held_claim("share", pod("a"), pod("b")), held("c"))))
    shared, plain = told["grants"]
    assert (shared["pod"], shared["uid"]) == ("default/a", "uid-of-a")
    assert (shared["claim"], shared["id"]) == ("default/share", "uid-of-share")
    assert shared["sharedWith"] == [{"pod": "default/b", "uid": "uid-of-b"}]
    assert {"claim", "sharedWith"}.isdisjoint(plain)
    assert told["summary"]["pods"] == 3


def test_a_pod_of_two_claims_is_one_pod() -> None:
    told = status(
        node(grants=(held_claim("share", pod("a"), pod("b")), held_claim("own", pod("a"))))
    )
    assert (len(told["grants"]), told["summary"]["pods"]) == (2, 2)


def test_what_a_pod_of_a_claim_did_is_told_at_its_grant_and_of_that_pod() -> None:
    view = node(grants=(held_claim("share", pod("a"), pod("b")),))
    last = ViolationReport(at=utc(0.0), kind="memory_over_grant", action="kill", pod="default/b")
    counts = (ViolationCount(kind="memory_over_grant", count=2),)
    grants = {"uid-of-share": GrantViolations(counts, last)}
    told = status(
        view, SeenViolations(ViolationsReport(utc(0.0), counts=counts, last=(last,)), grants)
    )
    jsonschema.validate(told, SCHEMA)
    (own,) = [one["violations"] for one in told["grants"]]
    assert (own["counts"][0]["count"], own["last"]["pod"]) == (2, "default/b")
