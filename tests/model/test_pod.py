"""A pod is read the same by its types and field by field, and every wrong field is named."""

from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from mpsd.model.container import Role
from mpsd.model.fields import MOST_FIELDS, FieldReader
from mpsd.model.pod import NO_BOUND, PRIORITY, ClaimName, Pod, pod_in, read_pod

_KEY = st.sampled_from(["a", "b/c", ""])
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    Any: st.none() | st.integers() | st.text(max_size=3),
    str: st.sampled_from(["", "main", "Always", "mpsd.io/claims"]),
    bool: st.booleans(),
    int: st.integers(-5, 5),
    type(None): st.none(),
}


def _of(kind: Any) -> st.SearchStrategy[Any]:
    """What the API may have in a field of this type."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if get_origin(kind) is dict:
        return st.dictionaries(_KEY, st.text(max_size=3), max_size=2)
    if get_origin(kind) is tuple:
        return st.lists(st.deferred(lambda: _of(get_args(kind)[0])), max_size=2)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        read = [one for one in structs.fields(kind) if not one.encode_name.startswith("/")]
        return st.fixed_dictionaries({}, optional={one.encode_name: _of(one.type) for one in read})
    return st.one_of(*map(_of, get_args(kind)))


@given(_of(Pod))
def test_both_ways_of_reading_say_the_same(thing: dict[str, Any]) -> None:
    shape = FieldReader(NO_BOUND)
    assert shape.struct(Pod, thing, "") == msgspec.convert(thing, Pod)
    assert shape.problems == []


CONTAINER: dict[str, Any] = {"name": "main"}


def pod(**more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": {"containers": [CONTAINER], **more}}


@pytest.mark.parametrize(
    ("thing", "where"),
    [
        (pod(hostIPC="true"), ["spec.hostIPC"]),
        (pod(terminationGracePeriodSeconds=True), ["spec.terminationGracePeriodSeconds"]),
        (pod(containers=[CONTAINER, 5]), ["spec.containers[1]"]),
        (pod(containers=[{"name": 5}]), ["spec.containers[0].name"]),
        (pod(containers=[CONTAINER | {"env": [{"value": 1}]}]), ["spec.containers[main].env[0].value"]),
        (pod(containers=[]), ["spec.containers"]),
        (pod(containers=None), ["spec.containers"]),
        ({"metadata": {}}, ["spec"]),
        ({"spec": [], "metadata": 5}, ["metadata", "spec"]),
        (pod(hostPID=1, nodeName=2, tolerations={}), ["spec.hostPID", "spec.nodeName", "spec.tolerations"]),
        (pod() | {"metadata": {"annotations": {PRIORITY: 1}}}, [f"metadata.annotations[{PRIORITY}]"]),
    ],
)
def test_every_wrong_field_is_named_by_its_path(thing: dict[str, Any], where: list[str]) -> None:
    shape = FieldReader()
    read_pod(shape, thing)
    assert [one.where for one in shape.problems] == where


def test_null_is_absent() -> None:
    shape = FieldReader()
    thing = pod(hostIPC=None, volumes=None, containers=[CONTAINER | {"env": None, "resources": None}])
    assert read_pod(shape, thing) == read_pod(shape, pod())
    assert shape.problems == []


def test_a_container_s_place_in_the_pod_is_no_field_of_it() -> None:
    lying = {"name": "x", "/role": "main", "/path": "elsewhere", "restartPolicy": "Always"}
    for liar in (lying, lying | {"/role": 5}):
        found = read_pod(FieldReader(), pod(initContainers=[liar])).containers[0]
        assert (found.role, found.path) == (Role.SIDECAR, "spec.initContainers[x]")


def test_a_pod_over_its_bound_is_not_read_to_its_end_where_nobody_has_taken_it_yet() -> None:
    many = pod(containers=[CONTAINER | {"env": [{"name": "A"}] * (MOST_FIELDS + 1)}])
    shape = FieldReader()
    read_pod(shape, many)
    assert shape.too_many
    taken = pod_in(many)
    assert taken
    assert len(taken.containers[0].env) == MOST_FIELDS + 1


def test_what_was_made_of_a_template_is_its_claim() -> None:
    entries = [
        {"name": "own", "resourceClaimName": "mine"},
        {"name": "made", "resourceClaimTemplateName": "template"},
        {"name": "to-come", "resourceClaimTemplateName": "template"},
    ]
    made = {"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "a-made-x"}]}
    found = read_pod(FieldReader(), pod(resourceClaims=entries) | {"status": made})
    assert found.claims_made == {
        "own": ClaimName("ResourceClaim", "mine"),
        "made": ClaimName("ResourceClaim", "a-made-x"),
        "to-come": ClaimName("ResourceClaimTemplate", "template"),
    }
