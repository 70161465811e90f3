"""Who may run on a node by Kubernetes' own rules, as far as they are read to explain them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.fields import FieldReader
from mpsd.model.pod import read_pod
from mpsd.platform.rules.kubernetes_objects import (
    KubernetesNode,
    Taint,
    kept_away,
    read_kubernetes_node,
    taint_removal,
)
from mpsd.simulator.api_server.bodies import edited
from mpsd.simulator.api_server.kinds import ApiRefusal
from tests.mpsnodes import anything

MPS = {"ack.node.gpu.schedule": "mps"}


def why(spec: Any, labels: dict[str, str] | None = None, ready: str = "True", **node: Any) -> str:
    """spec: of the pod; node: of the node."""
    thing = {
        "metadata": {"name": "node1", "labels": MPS | (labels or {})},
        "spec": node,
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }
    return kept_away(
        read_pod(FieldReader(), {"spec": spec}).spec.wishes, read_kubernetes_node(thing)
    )


TAINT = {"key": "gpu", "value": "a", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "kept"),
    [
        ({}, True),
        ({"operator": "Exists"}, False),
        ({"key": "gpu", "operator": "Exists"}, False),
        ({"key": "gpu", "value": "a"}, False),
        ({"key": "gpu", "value": "b"}, True),
        ({"key": "gpu", "value": "a", "effect": "NoExecute"}, True),
    ],
)
def test_a_taint_keeps_away_whoever_does_not_tolerate_it(
    toleration: dict[str, str], kept: bool
) -> None:
    said = why({"tolerations": [toleration] if toleration else []}, taints=[TAINT])
    assert ("gpu=a:NoSchedule" in said) is kept


def test_a_taint_that_only_prefers_keeps_nobody_away() -> None:
    assert why({}, taints=[TAINT | {"effect": "PreferNoSchedule"}]) == ""


def test_a_cordoned_node_is_called_so_and_not_tainted() -> None:
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    assert why({}, unschedulable=True, taints=[cordon]) == "cordoned"
    assert why({"tolerations": [{"operator": "Exists"}]}, unschedulable=True, taints=[cordon]) == ""


def test_a_node_that_is_not_ready_or_not_known_to_be_takes_nobody() -> None:
    assert [why({}, ready=status) for status in ("False", "Unknown")] == ["not ready"] * 2


@pytest.mark.parametrize(
    ("key", "operator", "values", "fits"),
    [
        ("zone", "In", ["a", "b"], True),
        ("zone", "In", ["b"], False),
        ("zone", "NotIn", ["a"], False),
        ("other", "NotIn", ["a"], True),
        ("zone", "Exists", [], True),
        ("zone", "DoesNotExist", [], False),
        ("size", "Gt", ["3"], True),
        ("size", "Lt", ["3"], False),
        ("zone", "Gt", ["3"], False),
        ("size", "Gt", [], False),
    ],
)
def test_node_affinity_is_read_as_the_scheduler_reads_it(
    key: str, operator: str, values: list[str], fits: bool
) -> None:
    terms = [{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    said = why({"affinity": {"nodeAffinity": required}}, {"zone": "a", "size": "4"})
    assert (said == "") is fits


def test_one_term_is_enough_and_a_field_is_the_node_s_name() -> None:
    terms = [
        {"matchExpressions": [{"key": "zone", "operator": "Exists"}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node1"]}]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    assert why({"affinity": {"nodeAffinity": required}}) == ""
    required["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms[:1]}
    assert why({"affinity": {"nodeAffinity": required}}) != ""


@given(anything, anything)
def test_whatever_stands_in_a_node_or_a_pod_is_read(node: Any, spec: Any) -> None:
    thing = {"metadata": node, "spec": node, "status": node}
    kept_away(read_pod(FieldReader(), {"spec": spec}).spec.wishes, read_kubernetes_node(thing))
    read_kubernetes_node(node)


_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
_NOT_BEGUN_OR_OVER = {"", "upgrade-required", "uncordon-required", "upgrade-done"}


def _upgraded(state: str, validator: str = "true") -> KubernetesNode:
    labels = {_UPGRADE: state, "nvidia.com/gpu.deploy.operator-validator": validator}
    return read_kubernetes_node({"metadata": {"name": "node1", "labels": labels}})


@given(
    st.text()
    | st.sampled_from(
        ["upgrade-failed", "validation-required", "drain-required", *_NOT_BEGUN_OR_OVER]
    )
)
def test_a_state_of_a_driver_upgrade_that_nobody_knows_is_not_its_end(state: str) -> None:
    expected = "" if state in _NOT_BEGUN_OR_OVER else f"{_UPGRADE}={state}"
    assert _upgraded(state).driver_upgrade == expected
    assert bool(_upgraded(state).upgrade_state) is bool(expected)
    assert not (_upgraded(state).is_upgrade_waiting and not expected)
    assert read_kubernetes_node({"metadata": {"name": "node1"}}).driver_upgrade == ""


def test_where_the_validator_is_kept_away_an_upgrade_that_waits_for_it_is_over() -> None:
    assert _upgraded("validation-required").driver_upgrade
    assert not _upgraded("validation-required", "false").driver_upgrade
    assert _upgraded("validation-required", "false").upgrade_state == "validation-required"
    assert _upgraded("validation-required", "false").is_never_validated
    assert _upgraded("validation-required", "paused-for-driver-upgrade").driver_upgrade
    assert _upgraded("pod-restart-required", "false").driver_upgrade
    assert not _upgraded("upgrade-done", "false").is_never_validated


def test_pods_are_evicted_only_while_the_operator_waits_for_them() -> None:
    waiting = ["wait-for-jobs-required", "pod-deletion-required", "drain-required"]
    others = ["cordon-required", "pod-restart-required", "unheard-of"]
    assert [
        state
        for state in (*waiting, *others, *_NOT_BEGUN_OR_OVER)
        if _upgraded(state).is_upgrade_waiting
    ] == waiting


@given(st.lists(st.sampled_from(["mpsd.io/not-ready", "a/b", "c"])))
def test_the_patch_that_removes_a_taint_removes_every_one_of_its_key(keys: list[str]) -> None:
    written = [{"key": key, "effect": "NoSchedule"} for key in keys]
    patch = taint_removal([Taint(key, "", "NoSchedule") for key in keys], "mpsd.io/not-ready")
    found = edited({"spec": {"taints": written}}, patch)
    assert found == {
        "spec": {"taints": [one for one in written if one["key"] != "mpsd.io/not-ready"]}
    }


def test_the_patch_that_removes_a_taint_fails_where_another_has_its_place_by_now() -> None:
    patch = taint_removal([Taint("mpsd.io/not-ready", "", "NoSchedule")], "mpsd.io/not-ready")
    with pytest.raises(ApiRefusal, match="testing value"):
        edited({"spec": {"taints": [{"key": "a/b", "effect": "NoSchedule"}]}}, patch)
