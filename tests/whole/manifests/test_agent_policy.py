"""From Kubernetes 1.30 on a token of mpsd-agent writes what the agent of its node writes, and
nothing else."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from mpsd.model.conditions import node_status_patch
from mpsd.model.events import Event, EventCount, Reason, event_object, event_patch, node_subject
from mpsd.simulator.api_server.bodies import merged
from mpsd.status.rules.mpsnode import UPGRADE_LABEL, belonging_patch, mpsnode_for
from tests.manifests.rendering import PLAIN, named, of_kind
from tests.whole.manifests.cel import Object, broken

_AGENT, _CLAIM = (
    "system:serviceaccount:mpsd-system:mpsd-agent",
    "authentication.kubernetes.io/node-name",
)
_POLICY = named(PLAIN, "ValidatingAdmissionPolicy", "mpsd-agent-writes")
_EVICTIONS = named(PLAIN, "ValidatingAdmissionPolicy", "mpsd-agent-evictions")
_POD: Object = {
    "kind": "Pod",
    "metadata": {"name": "train", "annotations": {"theirs": "1"}, "labels": {"app": "a"}},
    "spec": {"nodeName": "node1"},
    "status": {"phase": "Running", "podIP": "10.0.0.7"},
}
_NODE: Object = {
    "kind": "Node",
    "metadata": {"name": "node1", "labels": {"a": "b"}},
    "spec": {},
    "status": {},
}
_CORDONED: Object = {
    "kind": "MPSNode",
    "metadata": {"name": "node1"},
    "spec": {"cordoned": ["all"]},
}
_ANNOTATIONS = {
    "mpsd.io/gpu": "GPU-1",
    "ALIYUN_COM_GPU_MEM_IDX": "0",
    "scheduler.framework.gpushare.assigned": "true",
}
_LABELS = {
    "mpsd.io/gpu.product": "NVIDIA-H200",
    "mpsd.io/gpu.memory": "139",
    "mpsd.io/gpu.count": "8",
} | {"mpsd.io/sharing": "mps"}
_EVENT = event_object(
    EventCount(Event(node_subject("node1"), Reason.EVICTED, "x"), 1.0, 1.0, 1), "node1"
)
_OPTIONS = {"preconditions": {"uid": "1-2"}}
_EVICTION: Object = {"kind": "Eviction", "metadata": {"name": "train"}, "deleteOptions": _OPTIONS}


def _with(thing: Object, *path: str, value: object) -> Object:
    field, *rest = path
    return thing | {field: _with(thing.get(field, {}), *rest, value=value) if rest else value}


def _annotated(annotations: dict[str, str]) -> Object:
    return _with(_POD, "metadata", "annotations", value={"theirs": "1", **annotations})


def _denied(
    thing: Object,
    before: Object | None = None,
    *,
    node: str = "node1",
    namespace: str = "default",
    pods: Sequence[Object] = (_POD,),
) -> set[str]:
    """The rules that deny it. node: of the token; empty for one that names none. pods: of the
    namespace."""
    user: Object = {"username": _AGENT} | ({"extra": {_CLAIM: [node]}} if node else {})
    request = {"userInfo": user, "namespace": namespace, "name": thing["metadata"]["name"]}
    given = {"object": thing, "oldObject": before, "request": request}
    found = [*broken(_POLICY, **given)]
    if thing["kind"] == "Eviction":
        for pod in pods:
            found += broken(_EVICTIONS, **given, params=pod)
    return {message.partition(":")[0] for message in found}


# What the agent of node1 writes, as it is after the write, and as it was before.
_WRITES: dict[str, tuple[Object, Object | None]] = {
    "annotations of a pod": (_annotated(_ANNOTATIONS), _POD),
    "the status of a node": (
        merged(_NODE, node_status_patch({"type": "MPSReady"}, "a/b", 2, "now", "")),
        _NODE,
    ),
    "the labels of a node": (_with(_NODE, "metadata", "labels", value={"a": "b"} | _LABELS), _NODE),
    "fewer labels of a node": (
        _NODE,
        _with(_NODE, "metadata", "labels", value={"a": "b"} | _LABELS),
    ),
    "the label of a driver upgrade": (
        _with(_NODE, "metadata", "labels", value={"a": "b", UPGRADE_LABEL: "drained"}),
        _NODE,
    ),
    "the end of a driver upgrade": (
        _NODE,
        _with(_NODE, "metadata", "labels", value={"a": "b", UPGRADE_LABEL: "drained"}),
    ),
    "a new MPSNode": (mpsnode_for("node1", "uid"), None),
    "the owner of an MPSNode": (
        merged(_CORDONED, belonging_patch(_CORDONED, "node1", "uid") or {}),
        _CORDONED,
    ),
    "the status of an MPSNode": (_CORDONED | {"status": {"driver": "580"}}, _CORDONED),
    "a new event": (_EVENT, None),
    "an event that is counted": (
        _EVENT
        | event_patch(EventCount(Event(node_subject("node1"), Reason.EVICTED, "x"), 1.0, 2.0, 2)),
        _EVENT,
    ),
    "an eviction": (_EVICTION, None),
}


@pytest.mark.parametrize("write", _WRITES)
def test_the_agent_writes_on_its_own_node_what_it_has_to(write: str) -> None:
    assert _denied(*_WRITES[write]) == set()


@pytest.mark.parametrize("write", _WRITES)
def test_a_token_that_names_no_node_writes_nothing(write: str) -> None:
    assert "token-node" in _denied(*_WRITES[write], node="")


@pytest.mark.parametrize("write", _WRITES)
def test_a_token_of_another_node_writes_nothing_here(write: str) -> None:
    assert _denied(*_WRITES[write], node="node2") == {"own-node"}


def test_an_eviction_is_compared_with_the_pod_of_its_name_alone() -> None:
    other = _with(_POD, "metadata", "name", value="other") | {"spec": {"nodeName": "node2"}}
    assert _denied(_EVICTION, pods=(other, _POD)) == set()
    assert _denied(_EVICTION, pods=(_POD | {"spec": {}}, other)) == {"own-node"}
    binding = named(PLAIN, "ValidatingAdmissionPolicyBinding", "mpsd-agent-evictions")
    every = {"selector": {}, "parameterNotFoundAction": "Deny"}  # pod of the request's namespace
    assert binding["spec"]["paramRef"] == every


def _beyond() -> Iterator[tuple[str, Object, Object | None]]:
    """What a stolen token of node1 could want there, and the rule against it."""
    yield "own-node", _with(_POD, "metadata", "name", value="b") | {"spec": {}}, _POD | {"spec": {}}
    yield "own-annotations", _annotated({"cni.projectcalico.org/podIP": "10.0.0.1"}), _POD
    yield "own-annotations", _with(_POD, "metadata", "annotations", value={}), _POD
    yield "own-annotations", _with(_POD, "metadata", "labels", value={"app": "payments"}), _POD
    yield "own-annotations", _with(_POD, "metadata", "finalizers", value=["a/b"]), _POD
    yield "own-annotations", _with(_POD, "status", "podIP", value="10.0.0.1"), _POD
    yield "own-annotations", _with(_POD, "status", "phase", value="Succeeded"), _POD
    yield "own-node", _with(_NODE, "metadata", "labels", value={"a": "b", "pool": "system"}), _NODE
    yield "own-node", _with(_NODE, "metadata", "labels", value={"a": "c"} | _LABELS), _NODE
    yield "own-node", _with(_NODE, "metadata", "labels", value=_LABELS), _NODE
    yield (
        "own-node",
        _with(_NODE, "metadata", "labels", value={"a": "b", "mpsd.io/share": "mps"}),
        _NODE,
    )
    yield "own-node", _with(_NODE, "metadata", "labels", value={UPGRADE_LABEL: "drained"}), _NODE
    yield (
        "own-node",
        _with(_NODE, "metadata", "labels", value={"a": "c", UPGRADE_LABEL: "drained"}),
        _NODE,
    )
    yield "own-node", _with(_NODE, "metadata", "finalizers", value=["a/b"]), _NODE
    yield "own-node", _with(_NODE, "metadata", "annotations", value={"a": "b"}), _NODE
    yield "own-node", _with(_CORDONED, "spec", "cordoned", value=[]), _CORDONED
    yield (
        "own-node",
        _with(_CORDONED, "metadata", "annotations", value={"mpsd.io/reserved": "{}"}),
        _CORDONED,
    )
    yield "own-node", _CORDONED, None
    yield "own-node", _with(_EVENT, "source", value={"component": "kubelet", "host": "node1"}), None
    yield "own-node", _EVENT, _with(_EVENT, "source", "host", value="node2")
    yield "own-node", _with(_EVENT, "source", value={}), None
    yield "eviction", _EVICTION | {"deleteOptions": _OPTIONS | {"gracePeriodSeconds": 0}}, None
    yield "eviction", _EVICTION | {"deleteOptions": {}}, None
    yield "eviction", {"kind": "Eviction", "metadata": {"name": "train"}}, None


@pytest.mark.parametrize(("rule", "thing", "before"), [*_beyond()])
def test_a_stolen_token_changes_nothing_else_on_its_node(
    rule: str, thing: Object, before: Object | None
) -> None:
    assert _denied(thing, before) == {rule}


@pytest.mark.parametrize("namespace", ["kube-system", "mpsd-system"])
def test_no_pod_of_the_cluster_itself_is_evicted(namespace: str) -> None:
    assert _denied(_EVICTION, namespace=namespace) == {"eviction"}


# -- agent.startupTaint

_TAINTS = named("startup-taint", "ValidatingAdmissionPolicy", "mpsd-agent-taints")
_OTHERS, _OURS = (
    {"key": "a/b", "effect": "NoSchedule"},
    {"key": "mpsd.io/not-ready", "effect": "NoSchedule"},
)
_TAINTED = _with(_NODE, "spec", value={"taints": [_OTHERS, _OURS], "podCIDR": "10.0.0.0/24"})
_FREED = _with(_TAINTED, "spec", "taints", value=[_OTHERS])


def _refused(thing: Object, before: Object | None = _TAINTED, node: str = "node1") -> set[str]:
    user: Object = {"username": _AGENT} | ({"extra": {_CLAIM: [node]}} if node else {})
    found = broken(_TAINTS, object=thing, oldObject=before, request={"userInfo": user})
    return {message.partition(":")[0] for message in found}


def test_the_agent_removes_its_taint_from_its_own_node_alone() -> None:
    assert _refused(_FREED) == set()
    assert (
        _refused(
            _with(_FREED, "spec", "taints", value=[]),
            _with(_TAINTED, "spec", "taints", value=[_OURS]),
        )
        == set()
    )
    assert _refused(_FREED, node="node2") == {"own-node"}
    assert _refused(_FREED, node="") == {"own-node"}
    assert _refused(_FREED, None) == {"own-node", "own-taint"}


@pytest.mark.parametrize(
    "thing",
    [
        _with(_TAINTED, "spec", "taints", value=[_OURS]),
        _with(_TAINTED, "spec", "taints", value=[]),
        _with(
            _TAINTED,
            "spec",
            "taints",
            value=[_OTHERS, _OURS, {"key": "c/d", "effect": "NoExecute"}],
        ),
        _with(_FREED, "spec", "taints", value=[_OTHERS | {"effect": "PreferNoSchedule"}]),
        _with(_FREED, "spec", "unschedulable", value=True),
        _with(_FREED, "spec", "podCIDR", value="10.1.0.0/24"),
        _with(_FREED, "metadata", "labels", value={"a": "b", "pool": "system"}),
        _with(_FREED, "metadata", "ownerReferences", value=[{"uid": "1"}]),
    ],
)
def test_a_stolen_token_changes_nothing_else_of_its_node(thing: Object) -> None:
    assert _refused(thing) == {"own-taint"}


def test_whoever_else_writes_nodes_is_not_judged_by_it() -> None:
    request: Any = {"userInfo": {"username": "system:node:node1"}}
    assert not list(broken(_TAINTS, object=_NODE, oldObject=_TAINTED, request=request))
    assert _TAINTS["spec"]["failurePolicy"] == "Fail"


# -- both


def test_it_denies_also_where_it_cannot_be_evaluated_and_covers_every_right_to_write() -> None:
    bindings = of_kind(PLAIN, "ValidatingAdmissionPolicyBinding")
    assert {one["spec"]["policyName"]: one["spec"]["validationActions"] for one in bindings} == {
        policy["metadata"]["name"]: ["Deny"] for policy in (_POLICY, _EVICTIONS)
    }
    assert {one["spec"]["failurePolicy"] for one in (_POLICY, _EVICTIONS)} == {"Fail"}
    covered = {
        name
        for rule in _POLICY["spec"]["matchConstraints"]["resourceRules"]
        for name in rule["resources"]
    }
    writing = {
        resource
        for rule in named(PLAIN, "ClusterRole", "mpsd-agent")["rules"]
        if {"create", "patch"} & {*rule["verbs"]}
        for resource in rule["resources"]
    }
    assert writing - covered == {"tokenreviews", "subjectaccessreviews"}, "these are not stored"
    assert not of_kind("@29", "ValidatingAdmissionPolicy")
