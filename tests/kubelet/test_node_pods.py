"""Which pods of a node ask for GPUs, and which of them kubelet means when it names none."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.kubelet.rules.gpu_choice import read_shared_pod
from mpsd.kubelet.rules.node_pods import ContainerName, NodePod, expected, read_node_pod
from mpsd.model.container import Role
from mpsd.model.fields import MOST_FIELDS
from mpsd.model.identity import PodName
from mpsd.model.pod import PodDeletion, PodPriority
from tests.model.worlds import POLICY
from tests.status.node_worlds import COUNT, MEM, PERCENT, container, named, node_pod, pod_object


def test_a_pod_is_read_as_the_api_lists_it() -> None:
    pod = node_pod(
        "train-0",
        container(mem="7", percent=30),
        container("side"),
        annotations={"mpsd.io/gpu": "GPU-1", "ALIYUN_COM_GPU_MEM_IDX": 3, "other": "b"},
    )
    (request,) = pod.requests
    assert (request.container, request.role, request.memory_units, request.memory_mib) == (
        "main",
        Role.MAIN,
        7,
        7168,
    )
    assert (request.thread_percent, request.gpus) == (30, 1)
    assert (request.memory_units, request.percents) == (7, 30)
    assert pod.main_containers == ("main", "side")
    assert pod.annotations == {"mpsd.io/gpu": "GPU-1"}
    assert pod.request("main") is request
    assert pod.request("side") is None
    assert not pod.is_finished
    assert not pod.terminating


def test_init_containers_and_sidecars_come_first_as_kubelet_allocates() -> None:
    init = (container("one", mem=1), container("two", mem=2, restartPolicy="Always"))
    pod = node_pod("train-0", container(mem=3), init=init)
    assert [(one.container, one.role) for one in pod.requests] == [
        ("one", Role.INIT),
        ("two", Role.SIDECAR),
        ("main", Role.MAIN),
    ]


def test_the_label_divides_a_request_over_gpus() -> None:
    (request,) = node_pod("train-0", container(mem=8, percent=60), gpus=2).requests
    assert (request.memory_mib, request.thread_percent, request.gpus) == (4096, 30, 2)
    assert (request.memory_units, request.percents) == (8, 60)


@pytest.mark.parametrize("label", ["0", "two", "999", ""])
def test_a_label_that_is_no_number_of_gpus_counts_as_one_gpu(label: str) -> None:
    thing = pod_object(metadata={"labels": {COUNT: label}})
    pod = read_node_pod(thing, POLICY)
    assert pod
    assert pod.requests[0].gpus == 1


def test_what_admission_would_refuse_is_read_all_the_same() -> None:
    """kubelet has taken the pod and allocates what it says, whatever the policy is by now."""
    (request,) = node_pod("train-0", container(mem=1, percent=7)).requests
    assert (request.memory_units, request.thread_percent) == (1, 7)


@pytest.mark.parametrize(
    "thing",
    [
        None,
        {"kind": "Pod"},
        # a watch's bookmark
        {"kind": "Pod", "metadata": {"resourceVersion": "12"}, "spec": {"containers": None}},
        {**pod_object(), "kind": "Node"},
        pod_object(metadata={"name": ""}),
        pod_object(metadata={"uid": None}),
        pod_object("web", container(resources=[])),
        {"metadata": pod_object()["metadata"], "spec": {"ephemeralContainers": [container(mem=7)]}},
    ],
)
def test_what_is_no_pod_is_none(thing: object) -> None:
    assert read_node_pod(thing, POLICY) is None


@pytest.mark.parametrize("amount", [None, "40Gb"])
def test_of_a_pod_without_a_request_that_can_be_read_little_is_kept(amount: object) -> None:
    pod = read_node_pod(pod_object("web", container(mem=amount), annotations={"a": "b"}), POLICY)
    name = PodName("default", "web", "uid-of-web")
    asking = NodePod(name, asked=(MEM,), phase="Pending")
    assert pod == (asking if amount else NodePod(name))


def test_a_pod_is_read_whole_however_much_its_owner_writes_into_it() -> None:
    many = [{"name": f"V{n}"} for n in range(MOST_FIELDS)]
    pod = node_pod(
        "big",
        container("first", mem=1, env=many),
        container("last", mem=20)
        | {"resources": {"limits": {f"x/{n}": "0" for n in range(MOST_FIELDS)} | {MEM: 20}}},
        annotations={f"a{n}": "" for n in range(MOST_FIELDS)} | {"mpsd.io/gpu": "GPU-0"},
        metadata={"labels": {f"l{n}": "" for n in range(MOST_FIELDS)} | {COUNT: "2"}},
    )
    assert [(one.container, one.memory_units, one.gpus) for one in pod.requests] == [
        ("first", 1, 2),
        ("last", 20, 2),
    ]
    assert pod.annotations["mpsd.io/gpu"] == "GPU-0"


def ended(reason: str, code: int, at_s: int) -> dict[str, object]:
    end = {"reason": reason, "exitCode": code, "finishedAt": f"1970-01-01T00:00:{at_s:02}Z"}
    return {"terminated": end}


OOM = {"name": "main", "lastState": ended("OOMKilled", 137, 1), "state": {"running": {}}}
KILLED = {"name": "main", "lastState": ended("OOMKilled", 137, 1), "state": ended("Error", 137, 9)}
FAILED = {"name": "main", "lastState": ended("Error", 137, 1), "state": ended("Error", 1, 9)}
UNKNOWN = {"name": "main", "state": {"terminated": {"reason": "ContainerStatusUnknown"}}}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"containerStatuses": [OOM]}, [("OOMKilled", 1)]),
        ({"containerStatuses": [KILLED], "phase": "Failed"}, [("OOMKilled", 1), ("Error", 9)]),
        (
            {"containerStatuses": [KILLED], "phase": "Failed", "reason": "Evicted"},
            [("OOMKilled", 1), ("Evicted", 9)],
        ),
        (
            {"containerStatuses": [FAILED], "phase": "Failed", "reason": "Evicted"},
            [("Error", 1), ("Error", 9)],
        ),
        ({"containerStatuses": [UNKNOWN]}, []),
        (
            {"containerStatuses": [{"state": ended("Error", 1, at)} for at in range(20, 10, -1)]},
            [("Error", at) for at in range(13, 21)],
        ),
    ],
)
def test_of_a_pods_containers_the_last_ends_are_kept(
    status: dict[str, object], expected: list[tuple[str, int]]
) -> None:
    pod = read_node_pod(pod_object() | {"status": status}, POLICY)
    assert pod
    assert [*pod.ends] == expected
    plain = read_node_pod(pod_object("web", container()) | {"status": status}, POLICY)
    assert plain == NodePod(PodName("default", "web", "uid-of-web"))


DELETED = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
HOOK = {"lifecycle": {"preStop": {"exec": {"command": ["save"]}}}}
OWN_HOOK = {"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}  # mpsd's
LONG_SLEEP = {"lifecycle": {"preStop": {"sleep": {"seconds": 2}}}}
ODD_STOP = {"lifecycle": {"stopSignal": "SIGUSR1"}}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ((container(mem=1),), PodDeletion(30)),
        ((container(mem=1, **HOOK),), PodDeletion(30, has_pre_stop=True)),
        (
            (container(mem=1, **ODD_STOP), container("side")),
            PodDeletion(30, stop_signals=("SIGUSR1",)),
        ),
        ((container(mem=1), container("side", **HOOK)), PodDeletion(30)),
        ((container(mem=1, **OWN_HOOK),), PodDeletion(30)),
        ((container(mem=1, **LONG_SLEEP),), PodDeletion(30, has_pre_stop=True)),
        (
            (container(mem=1, **OWN_HOOK), container("other", mem=1, **HOOK)),
            PodDeletion(30, has_pre_stop=True),
        ),
    ],
)
def test_of_a_deleted_pod_the_hooks_of_what_has_devices_are_read(
    containers: tuple[dict[str, object], ...], expected: PodDeletion
) -> None:
    assert node_pod("train-0", *containers, metadata=DELETED).deletion == expected
    assert node_pod("train-0", *containers).deletion is None


def test_a_deleted_pod_with_a_claim_alone_is_read_by_the_container_that_has_it() -> None:
    claims = {"resources": {"claims": [{"name": "gpu"}]}}
    containers = (container("main") | claims, container("side", **HOOK))
    pod = read_node_pod(pod_object("train-0", *containers, metadata=DELETED), POLICY)
    assert pod
    assert pod.deletion == PodDeletion(30)


def test_a_deletion_without_a_grace_leaves_none() -> None:
    assert node_pod(
        metadata={"deletionTimestamp": DELETED["deletionTimestamp"]}
    ).deletion == PodDeletion(0)


def test_a_static_pod_is_known_to_kubelet_by_its_hash() -> None:
    mirrored = node_pod(
        annotations={"kubernetes.io/config.mirror": "46dac9a538838115821dfd9559149484"}
    )
    assert mirrored.static_uid == "46dac9a538838115821dfd9559149484"
    assert node_pod(annotations={"kubernetes.io/config.hash": "x"}).static_uid == ""


def found(
    pods: list[NodePod],
    count: int,
    *served: ContainerName,
    gpus: int | None = None,
    begun: tuple[ContainerName, ...] = (),
) -> str:
    """The container that memory is expected to be for, as `pod/container`; empty for none."""
    guess = expected(pods, served, "memory", count, gpus=gpus, begun=begun)
    return f"{guess[0].name}/{guess[1].container}" if guess else ""


YOUNG, OLD = node_pod("young"), node_pod("old", age=9)


def test_the_oldest_pod_that_asks_exactly_this_is_meant() -> None:
    for pods in permutations([YOUNG, OLD, node_pod("larger", container(mem=8), age=30)]):
        assert found(list(pods), 7) == "old/main"
        assert found(list(pods), 7, named("old")) == "young/main"
        assert found(list(pods), 7, named("old"), named("young")) == ""
        assert found(list(pods), 6) == ""


def test_of_pods_made_together_the_one_that_was_bound_first_is_meant() -> None:
    """kubelet hears of them in that order; a Job makes them all in one second."""

    def bound(name: str, at: str) -> NodePod:
        return node_pod(name, annotations={"ALIYUN_COM_GPU_MEM_ASSUME_TIME": at})

    for pods in permutations(
        [bound("a", "1795312065000000002"), bound("b", "1795312065000000001"), bound("c", "9x")]
    ):
        assert found(list(pods), 7) == "c/main", "what is no time is not read"
        assert found(list(pods), 7, named("c")) == "b/main"
        assert found(list(pods), 7, named("c"), named("b")) == "a/main"


def test_nobody_is_meant_who_has_ended_or_is_about_to() -> None:
    gone = [
        node_pod("failed", age=20, phase="Failed"),
        node_pod("leaving", age=20, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
    ]
    assert found([*gone, YOUNG], 7) == "young/main"
    assert found(gone, 7) == ""


def test_containers_of_a_pod_are_meant_in_kubelet_s_order() -> None:
    pod = node_pod(
        "a", container("x", mem=7), container("y", mem=7), init=(container("first", mem=7),)
    )
    served: list[ContainerName] = []
    order = []
    while guess := found([pod], 7, *served):
        order.append(guess)
        served.append(named("a", guess.removeprefix("a/")))
    assert order == ["a/first", "a/x", "a/y"]


def test_a_container_before_a_served_one_is_not_meant_again() -> None:
    """The agent began anew, and kubelet does not list init containers."""
    pod = node_pod("a", container("x", mem=7), init=(container("first", mem=7),))
    assert found([pod, YOUNG], 7, named("a", "x")) == "young/main"


def test_a_younger_pod_whose_turn_it_is_goes_before_an_older_one_whose_is_not() -> None:
    older = node_pod("older", container(mem=7), init=(container("first", mem=3),), age=9)
    assert found([older, YOUNG], 7) == "young/main"
    # the init container may have been served before the agent began
    assert found([older], 7) == "older/main"


def test_a_pod_that_kubelet_is_in_the_middle_of_is_meant() -> None:
    assert found([OLD, YOUNG], 7, begun=(named("young"),)) == "young/main"


def test_devices_of_two_gpus_are_for_a_pod_that_asks_for_two() -> None:
    two = node_pod("two", gpus=2)
    for pods in permutations([OLD, two]):
        assert found(list(pods), 7, gpus=2) == "two/main"
        assert found(list(pods), 7, gpus=1) == "old/main"
    assert found([two], 7, gpus=1) == "two/main"


def test_percents_are_counted_over_all_gpus() -> None:
    pods = [
        node_pod("a", container(mem=1, percent=30), age=5),
        node_pod("b", container(mem=1, percent=60), gpus=2),
    ]
    guess = expected(pods, (), "percent", 60)
    assert guess
    assert guess[0].name == "b"
    assert expected(pods, (), "percent", 45) is None


WORDS = (
    "kind metadata spec status containers initContainers resources limits name namespace uid"
    " creationTimestamp labels annotations phase"
)
KEYS = st.sampled_from([*WORDS.split(), MEM, PERCENT, COUNT]) | st.text(max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=30,
)


@given(JSON, JSON, JSON)
def test_no_json_whatever_raises(thing: object, spec: object, limits: object) -> None:
    read_node_pod(thing, POLICY)
    read_node_pod({**pod_object(), "spec": spec}, POLICY)
    pod = read_node_pod(pod_object("a", container(resources={"limits": limits})), POLICY)
    assert pod is None or all(
        request.memory_units + request.percents >= 0 for request in pod.requests
    )


@given(JSON, JSON)
def test_agent_and_scheduler_read_the_same_request(spec: object, limits: object) -> None:
    for thing in (
        {**pod_object(), "spec": spec},
        pod_object("a", container(resources={"limits": limits})),
    ):
        pod, shared = read_node_pod(thing, POLICY), read_shared_pod(thing, POLICY)
        assert (shared is not None) == bool(pod and pod.requests)


def test_a_pod_says_of_its_priority_what_kubernetes_and_its_annotation_say() -> None:
    thing = pod_object(annotations={"mpsd.io/gpu-priority": "below-normal"})
    spec = {"priority": -10, "priorityClassName": "batch"}
    thing["spec"] = {**thing["spec"], **spec}  # type: ignore[dict-item]
    pod = read_node_pod(thing, POLICY)
    assert pod
    assert pod.priority == PodPriority(-10, "batch", "below-normal")
    assert node_pod().priority == PodPriority()


def test_what_is_kept_of_a_pod_does_not_grow_with_what_a_tenant_writes() -> None:
    long = "x" * 250_000
    limits = {MEM: "1"} | {f"example.com/d{one}": "1" for one in range(5_000)}
    containers = [container(f"c{one}", mem=1) for one in range(5_000)]
    main = container("main", resources={"limits": limits})
    annotations = {"mpsd.io/gpu": long, "mpsd.io/gpu-priority": long, "other": long}
    thing = pod_object("large", main, *containers, annotations=annotations)
    pod, shared = read_node_pod(thing, POLICY), read_shared_pod(thing, POLICY)
    assert len(repr(pod)) < 100_000
    assert len(repr(shared)) < 10_000
