"""With `dra.enabled` a claim says only what mpsd reads, and a token of mpsd-agent writes its node's
slices alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.kubelet.dra.rules.claims import read_claim
from mpsd.kubelet.dra.rules.config import config_problems
from mpsd.kubelet.dra.rules.slices import Pool, resource_slice
from mpsd.model.problem import InvalidInput
from tests.kubelet.dra.claims import APART, UID, claim_object, config, parameters, result
from tests.manifests.rendering import named, of_kind
from tests.model.worlds import POLICY
from tests.whole.manifests.cel import Object, broken

_PLACE = "dra"
_SLICES = named(_PLACE, "ValidatingAdmissionPolicy", "mpsd-agent-slices")
_CLAIMS = named(_PLACE, "ValidatingAdmissionPolicy", "mpsd-claims")
_TEMPLATES = named(_PLACE, "ValidatingAdmissionPolicy", "mpsd-webhook-templates")
_AGENT, _NODE = (
    "system:serviceaccount:mpsd-system:mpsd-agent",
    "authentication.kubernetes.io/node-name",
)
_SLICE = resource_slice(Pool("gpu.mpsd.io", "node1", "uid"), 1, [])


def _denied(
    policy: Object, thing: Object, before: Object | None = None, *, node: str = "node1"
) -> set[str]:
    request: Any = {"userInfo": {"username": _AGENT} | ({"extra": {_NODE: [node]}} if node else {})}
    found = broken(policy, object=thing, oldObject=before, request=request)
    return {message.partition(":")[0] for message in found}


def test_the_agent_writes_the_slice_of_its_own_node() -> None:
    assert _denied(_SLICES, _SLICE) == _denied(_SLICES, _SLICE, _SLICE) == set()


@pytest.mark.parametrize("node", ["node2", ""])
def test_a_token_of_another_node_or_of_none_writes_no_slice(node: str) -> None:
    assert _denied(_SLICES, _SLICE, node=node) == {"own-node"}


def test_a_token_makes_no_slice_by_the_name_of_another_nodes() -> None:
    other = _SLICE | {"metadata": _SLICE["metadata"] | {"name": "node2-gpu.mpsd.io"}}
    assert _denied(_SLICES, other) == {"own-node"}


@pytest.mark.parametrize(
    "field",
    [
        {"driver": "gpu.nvidia.com"},
        {"nodeName": "node2"},
        {"pool": _SLICE["spec"]["pool"] | {"name": "node2"}},
    ],
)
def test_a_token_neither_takes_nor_makes_the_slice_of_another(field: Object) -> None:
    other = _SLICE | {"spec": _SLICE["spec"] | field}
    assert _denied(_SLICES, other) == _denied(_SLICES, _SLICE, other) == {"own-node"}


def _claim(*configs: Object, template: bool = False, **exactly: object) -> Object:
    requests = [
        {"name": "gpu", "exactly": {"deviceClassName": "mps.mpsd.io", **exactly}},
        {"name": "any"},
    ]
    spec = {"devices": {"requests": requests, "config": [*configs]}}
    kind, spec = ("ResourceClaimTemplate", {"spec": spec}) if template else ("ResourceClaim", spec)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "a"},
        "spec": spec,
    }


@pytest.mark.parametrize("template", [False, True])
@pytest.mark.parametrize(
    ("found", "rule"),
    [
        (parameters(), ""),
        (parameters(threadCap=60), ""),
        (parameters(threadCap=4), "percent-range"),
        (parameters(speed=1), "field-unknown"),
        (parameters(priority="below-normal", threadCap=60), ""),
        (parameters(priority="low"), "priority-unknown"),
        (parameters() | {"apiVersion": "mpsd.io/v2"}, "config-version"),
        ({}, "config-version"),
    ],
)
def test_a_claim_is_refused_for_what_kubelet_would_refuse_it_for(
    found: Object, rule: str, template: bool
) -> None:
    assert _denied(_CLAIMS, _claim(config(found), template=template)) == ({rule} if rule else set())


@given(
    st.dictionaries(
        st.sampled_from(["apiVersion", "kind", "threadCap", "priority", "threads"]),
        st.sampled_from(["mpsd.io/v1alpha1", "MPSConfig", "60", "normal", "below-normal"])
        | st.integers(-10, 110),
    )
)
def test_policy_and_driver_take_the_same_parameters(found: Object) -> None:
    assert bool(_denied(_CLAIMS, _claim(config(found)))) is bool(config_problems(found, "", POLICY))


def test_nobody_has_admin_access_by_the_class_of_mpsd() -> None:
    assert _denied(_CLAIMS, _claim(adminAccess=True)) == {"admin-access"}
    assert _denied(_CLAIMS, _claim(adminAccess=True, deviceClassName="gpu.nvidia.com")) == set()


def _asking(*requests: Object, **devices: object) -> Object:
    """A claim with these requests, `r0` and so on, each of mpsd's class unless it names another."""
    ours = {"deviceClassName": "mps.mpsd.io"}
    named_requests = [{"name": f"r{n}", "exactly": ours | one} for n, one in enumerate(requests)]
    return _claim() | {"spec": {"devices": {"requests": named_requests, **devices}}}


def _amounts(**amounts: str) -> Object:
    return {"capacity": {"requests": amounts}}


@given(st.integers(0, 100), st.integers(5, 100))
def test_policy_and_driver_agree_on_a_cap_beside_the_threads_that_are_reserved(
    threads: int, cap: int
) -> None:
    parameters_of = config(parameters(threadCap=cap))
    denied = _denied(_CLAIMS, _asking(_amounts(threads=str(threads)), config=[parameters_of]))
    allocated = claim_object(result(threads=str(-(-threads // 5) * 5)), configs=(parameters_of,))
    refused = set[str]()
    try:
        read_claim(allocated, UID, APART, POLICY, 1.0)
    except InvalidInput as error:
        refused = {problem.rule for problem in error.problems}
    assert denied == refused
    assert refused <= {"cap-below-reservation"}


_SAME = {"matchAttribute": "gpu.mpsd.io/domain"}
_APART = {"distinctAttribute": "gpu.mpsd.io/uuid"}
_WHOLE = {"deviceClassName": "whole-gpu.mpsd.io"}


@pytest.mark.parametrize(
    ("thing", "rules"),
    [
        (_asking({"count": 2}), {"devices-of-domains"}),
        (_asking({"count": 2}, constraints=[_SAME]), set()),
        (_asking({"count": 2}, constraints=[_SAME | {"requests": ["r0"]}]), set()),
        (
            _asking({"count": 2}, constraints=[_SAME | {"requests": ["other"]}]),
            {"devices-of-domains"},
        ),
        (
            _asking({"count": 2}, constraints=[{"matchAttribute": "gpu.mpsd.io/uuid"}]),
            {"devices-of-domains"},
        ),
        (_asking({}, {"deviceClassName": "nic.example.com", "count": 2}), set()),
        (_asking({}, {}), {"devices-of-domains", "device-twice"}),
        (_asking({}, {}, constraints=[_SAME]), {"device-twice"}),
        (_asking({}, {}, constraints=[_SAME, _APART]), set()),
        (_asking({}, {}, constraints=[_SAME, _APART | {"requests": ["r1"]}]), {"device-twice"}),
        (_asking(_amounts(memory="4Gi"), {}, constraints=[_SAME, _APART]), {"devices-uneven"}),
        (
            _asking(_amounts(memory="4Gi"), _amounts(memory="4Gi"), constraints=[_SAME, _APART]),
            set(),
        ),
        (_asking(_WHOLE), set()),
        (_asking(_WHOLE | {"count": 2}), {"devices-of-domains"}),
        (_asking(_WHOLE | _amounts(clients="8")), set()),
        (_asking(_WHOLE | _amounts(memory="4Gi")), {"whole-gpu"}),
    ],
)
def test_gpus_that_no_grant_can_have_together_are_refused_before_they_are_allocated(
    thing: Object, rules: set[str]
) -> None:
    assert _denied(_CLAIMS, thing) == rules


def test_what_is_for_other_drivers_or_says_nothing_passes() -> None:
    assert (
        _denied(_CLAIMS, _claim(config({"kind": "NicConfig"}, driver="nic.example.com"))) == set()
    )
    assert _denied(_CLAIMS, _claim() | {"spec": {}}) == set()


def test_both_deny_also_where_they_cannot_be_evaluated() -> None:
    assert all(policy["spec"]["failurePolicy"] == "Fail" for policy in (_SLICES, _CLAIMS))
    bindings = [one["spec"] for one in of_kind(_PLACE, "ValidatingAdmissionPolicyBinding")]
    for name in ("mpsd-agent-slices", "mpsd-claims"):
        assert {"policyName": name, "validationActions": ["Deny"]} in bindings


@pytest.mark.parametrize(
    ("metadata", "is_own"),
    [
        (
            {"name": "mpsd-0123456789abcdef", "labels": {"app.kubernetes.io/name": "mpsd-webhook"}},
            True,
        ),
        ({"name": "mpsd-0123456789abcdef", "labels": {"app.kubernetes.io/name": "train"}}, False),
        ({"name": "mpsd-0123456789abcdef"}, False),
        ({"name": "share", "labels": {"app.kubernetes.io/name": "mpsd-webhook"}}, False),
    ],
)
def test_the_webhook_writes_and_deletes_templates_of_its_own_alone(
    metadata: Object, is_own: bool
) -> None:
    thing = _claim(template=True) | {"metadata": metadata}
    denied = set() if is_own else {"own-templates"}
    for now, before in ((thing, None), (thing, thing), (None, thing)):
        request: Any = {"userInfo": {"username": "system:serviceaccount:mpsd-system:mpsd-webhook"}}
        found = broken(_TEMPLATES, object=now, oldObject=before, request=request)
        assert {message.partition(":")[0] for message in found} == denied
