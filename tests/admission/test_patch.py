"""What is changed in a pod: only what is missing, once, and never so that a rule is broken by
it."""

from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.admission.rules.patch import HOST_IPC
from mpsd.admission.rules.review import AdmissionContext
from mpsd.model.policy import HostIPC, Policy
from tests.admission.cases import asking, broken
from tests.admission.reviews import mutated, patched, review_of
from tests.model.manifests import (
    COUNT,
    MEMORY,
    PERCENT,
    POLICY,
    STEPS,
    Fields,
    container,
    inside,
    pod,
    with_admission,
)

KINDS = ["containers", "initContainers"]
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
INJECT = with_admission(host_ipc=HostIPC.INJECT)


def after(thing: Fields) -> Fields:
    return patched(thing, mutated(review_of(thing)))


def environment(thing: Fields, kind: str = "containers", position: int = -1) -> Any:
    return thing["spec"][kind][position].get("env")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, [VOID]),
        ({"env": None}, [VOID]),
        ({"env": [{"name": "A", "value": "b"}]}, [{"name": "A", "value": "b"}, VOID]),
        ({"env": [VOID]}, [VOID]),
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES"}]}, [{"name": "NVIDIA_VISIBLE_DEVICES"}]),
    ],
)
def test_a_container_that_asks_for_no_gpu_sees_none_whatever_its_image_says(
    kind: str, env: Fields, expected: object
) -> None:
    thing = pod(
        container("first", {MEMORY: 7}),
        **{kind: [container("first", {MEMORY: 7}), container("x", **env)]},
    )
    assert environment(after(thing), kind) == expected
    assert environment(after(thing), kind, 0) is None


@pytest.mark.parametrize(
    "entry", [{"value": "GPU-1"}, {"valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}]
)
def test_a_variable_that_somebody_wrote_is_for_the_rules_and_is_left(entry: Fields) -> None:
    thing = pod(container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", **entry}]))
    assert mutated(review_of(thing)).patch == ()
    assert [rule for rule, _, _ in broken(thing)] == ["unasked-visible-devices"]


@pytest.mark.parametrize("key", ["limits", "requests"])
@pytest.mark.parametrize(
    ("resources", "is_void"),
    [
        ({MEMORY: 0}, False),
        ({PERCENT: 30}, False),
        ({COUNT: 1}, False),
        ({"aliyun.com/gpu": 1}, False),
        ({"nvidia.com/mig-1g.10gb": 1}, False),
        ({"nvidia.com/gpu": 0}, True),
        ({"amd.com/gpu": 1}, True),
    ],
)
def test_a_container_keeps_the_devices_that_a_plugin_gives_it(
    key: str, resources: Fields, is_void: bool
) -> None:
    thing = pod(container(resources={key: resources}))
    assert (environment(after(thing)) == [VOID]) is is_void


def test_a_resource_claim_that_may_be_empty_spares_no_container() -> None:
    """What a claim gives comes by CDI, whatever the variable says."""
    thing = pod(
        container("a", resources={"claims": [{"name": "gpu"}]}),
        container("b"),
        resourceClaims=[{"name": "x"}],
    )
    assert environment(after(thing), position=0) == environment(after(thing), position=1) == [VOID]


def test_a_container_keeps_the_devices_of_a_device_class_that_the_policy_names() -> None:
    name = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
    thing = pod(container("a", resources={"limits": {name: 1}}))
    assert mutated(review_of(thing)).patch
    assert mutated(review_of(thing), with_admission(visible_devices_kept_for=(name,))).patch == ()


def test_new_ephemeral_containers_are_changed_and_nothing_else() -> None:
    before = pod(container("main"), ephemeralContainers=[container("old")])
    now = pod(container("main"), ephemeralContainers=[container("old"), container("new")])
    answer = mutated(review_of(now, old=before, subResource="ephemeralcontainers"))
    assert [change["path"] for change in answer.patch] == ["/spec/ephemeralContainers/1/env"]


@pytest.mark.parametrize("subresource", ["", "status", "resize"])
def test_an_update_changes_nothing(subresource: str) -> None:
    thing = pod(container("main", image="new"))
    assert (
        mutated(review_of(thing, old=pod(container("main")), subResource=subresource)).patch == ()
    )


@pytest.mark.parametrize(("version", "kind"), [step for step in STEPS if step != ("v1", "Pod")])
def test_templates_are_left_as_they_were_written(version: str, kind: str) -> None:
    assert mutated(review_of(inside(version, kind, pod(container()))), INJECT).patch == ()


@pytest.mark.parametrize("host_ipc", [{}, {"hostIPC": False}])
def test_host_ipc_is_added_where_the_policy_says_so_and_the_user_is_told(host_ipc: Fields) -> None:
    thing = asking(**{"hostIPC": None, **host_ipc})
    answer = mutated(review_of(thing), INJECT)
    assert patched(thing, answer)["spec"]["hostIPC"] is True
    assert any("hostIPC: true is added" in warning for warning in answer.warnings)
    assert HOST_IPC not in mutated(review_of(thing), POLICY).patch
    assert mutated(review_of(pod(container(), hostIPC=None)), INJECT).patch == (
        {"op": "add", "path": "/spec/containers/0/env", "value": [VOID]},
    ), "a pod without a GPU needs none"


def draining(end_drain_s: float, *, pod_ends: bool = True) -> Policy:
    return replace(
        POLICY, graces=replace(POLICY.graces, end_drain_s=end_drain_s), pod_ends=pod_ends
    )


@pytest.mark.parametrize(
    ("grace_s", "policy", "expected"),
    [
        (None, POLICY, (34, "4")),
        (1, POLICY, (5, "4")),
        (600, draining(2.5), (603, "3")),
        (600, draining(2.6), (604, "4")),
        (600, draining(0.1), (601, "1")),
        (0, POLICY, (0, None)),
        (30, draining(0), (30, None)),
        (30, draining(3, pod_ends=False), (30, None)),
    ],
)
def test_the_grace_of_a_gpu_pod_is_lengthened_by_what_its_end_takes(
    grace_s: int | None, policy: Policy, expected: tuple[int, str | None]
) -> None:
    for annotations in ({}, {"annotations": None}, {"annotations": {"note": "x"}}):
        thing = asking(terminationGracePeriodSeconds=grace_s)
        thing["metadata"] |= annotations
        now = patched(thing, mutated(review_of(thing), policy))
        seen = now["metadata"].get("annotations") or {}
        assert (
            now["spec"]["terminationGracePeriodSeconds"],
            seen.get("mpsd.io/grace-added"),
        ) == expected
        assert seen.get("note") == (annotations.get("annotations") or {}).get("note")
        assert "lifecycle" not in now["spec"]["containers"][0], "an API server may not know it"
        has_hook = "lifecycle" in ended(thing, policy=policy)["spec"]["containers"][0]
        assert has_hook is (expected[1] is not None)
        assert patched(now, mutated(review_of(now), policy)) == now, (
            "a copy of it keeps its grace too"
        )


@pytest.mark.parametrize("annotation", ["mpsd.io/grace-added", "kubernetes.io/config.mirror"])
def test_a_grace_that_is_lengthened_or_kept_in_a_nodes_file_stays(annotation: str) -> None:
    thing = asking()
    thing["metadata"]["annotations"] = {annotation: "x"}
    assert mutated(review_of(thing), seen=NEW).patch == ()


HOOK = {"sleep": {"seconds": 1}}
NEW = AdmissionContext(has_sleep=True)  # Kubernetes 1.31 or newer
ASKING: Fields = {"limits": {MEMORY: 7}}
HOOKED = {"exec": {"command": ["save"]}}


def ended(thing: Fields, seen: AdmissionContext = NEW, policy: Policy = POLICY) -> Fields:
    return patched(thing, mutated(review_of(thing), policy, seen))


def graces(thing: Fields) -> tuple[int, str]:
    return (
        thing["spec"]["terminationGracePeriodSeconds"],
        thing["metadata"]["annotations"]["mpsd.io/grace-added"],
    )


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, {"preStop": HOOK}),
        ({"lifecycle": None}, {"preStop": HOOK}),
        ({"lifecycle": {"preStop": None}}, {"preStop": HOOK}),
        (
            {"lifecycle": {"postStart": HOOKED, "stopSignal": "SIGUSR1"}},
            {"postStart": HOOKED, "stopSignal": "SIGUSR1", "preStop": HOOK},
        ),
    ],
)
def test_a_hook_holds_kubelets_signal_back_and_the_grace_includes_it(
    own: Fields, expected: Fields
) -> None:
    thing = pod(container("main", image="i", resources=ASKING, **own))
    thing["spec"]["os"] = {"name": "linux"}  # which stopSignal needs
    once = ended(thing)
    assert once["spec"]["containers"][0]["lifecycle"] == expected
    assert graces(once) == (35, "5")
    assert mutated(review_of(once), seen=NEW).patch == ()
    kubernetes_validate.validate(once, kubernetes_validate.latest_version(), strict=True)


def test_a_hook_of_the_user_stays_and_takes_no_second_of_mpsds() -> None:
    own = {"preStop": HOOKED}
    thing = ended(pod(container("main", resources=ASKING, lifecycle=own)))
    assert thing["spec"]["containers"][0]["lifecycle"] == own
    assert graces(thing) == (34, "4")


def test_hooks_are_for_what_runs_with_a_gpu_beside_the_others() -> None:
    inits = [container("init", resources=ASKING)]
    inits += [container("sidecar", resources=ASKING, restartPolicy="Always")]
    mains = [container("main", resources=ASKING), container("other")]
    thing = ended(pod(*mains, initContainers=inits))
    hooked = [
        one["name"]
        for kind in ("initContainers", "containers")
        for one in thing["spec"][kind]
        if "lifecycle" in one
    ]
    assert hooked == ["sidecar", "main"]
    assert graces(ended(pod(container("main"), initContainers=inits[:1]))) == (34, "4")


@pytest.mark.parametrize("label", ["all", "default", "x"])
def test_pods_are_changed_in_every_namespace_but_where_nothing_is_enforced(label: str) -> None:
    review = review_of(pod(container()))
    assert mutated(review, seen=AdmissionContext({"mpsd.io/enforce": label})).patch
    assert mutated(review, seen=AdmissionContext({"mpsd.io/warn": "none"})).patch
    assert not mutated(review, seen=AdmissionContext({"mpsd.io/enforce": "none"})).patch
    assert not mutated(review_of(pod(container()), namespace="kube-system")).patch


ENVIRONMENTS = st.none() | st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["A", "NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_X"])},
        optional={
            "value": st.sampled_from(["all", "void", ""]),
            "valueFrom": st.just({"fieldRef": {}}),
        },
    ),
    max_size=3,
)
AMOUNTS = st.dictionaries(
    st.sampled_from([MEMORY, PERCENT, "cpu", "nvidia.com/gpu", "nvidia.com/hostdev"]),
    st.integers(0, 40),
    max_size=2,
)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from("abcdef")},
        optional={
            "env": ENVIRONMENTS,
            "resources": (
                st.none()
                | st.fixed_dictionaries({}, optional={"limits": AMOUNTS, "requests": AMOUNTS})
            ),
            "securityContext": st.just({"privileged": True}),
        },
    ),
    max_size=3,
)
PODS = st.builds(
    lambda spec: {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "a-"},
        "spec": spec,
    },
    st.fixed_dictionaries(
        {"containers": CONTAINERS},
        optional={
            "initContainers": CONTAINERS,
            "ephemeralContainers": CONTAINERS,
            "hostIPC": st.booleans(),
            "hostPID": st.booleans(),
            "terminationGracePeriodSeconds": st.integers(-1, 60),
        },
    ),
)
POLICIES = st.sampled_from([POLICY, INJECT, with_admission(host_ipc=HostIPC.OFF)])


@given(PODS, POLICIES)
def test_what_was_changed_once_is_not_changed_again(thing: Fields, policy: Any) -> None:
    once = patched(thing, mutated(review_of(thing), policy))
    assert mutated(review_of(once), policy).patch == ()


@given(PODS, POLICIES)
def test_a_change_breaks_no_rule(thing: Fields, policy: Any) -> None:
    once = patched(thing, mutated(review_of(thing), policy))
    assert set(broken(once, policy)) <= set(broken(thing, policy))
