"""Why a container may not start: what kubelet gave it is not what it asks for, or its domain does
not serve."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.kubelet.rules.ledger import ContainerDevices, JournalEntry
from mpsd.kubelet.rules.node_pods import NodePod
from mpsd.kubelet.rules.start_checks import (
    StartContext,
    StartProblem,
    start_problems,
    starting_container,
)
from mpsd.model.domain import State, after_is
from mpsd.model.node_view import DomainRecord
from mpsd.model.policy import GpuPriority, Policy
from tests.model.worlds import GPUS, POLICY, UUIDS, record
from tests.status.node_worlds import (
    container,
    devices,
    entry,
    mem_ids,
    named,
    node_pod,
    percent_ids,
)

READY = (record(0), record(1))
PAIR = (replace(record(0), domain="gpu0-1", gpus=UUIDS),)
MAIN = devices(named(), mem_ids(7))


def holdings(
    *held: ContainerDevices,
    pods: tuple[NodePod, ...] = (node_pod(),),
    journal: tuple[JournalEntry, ...] = (),
    records: tuple[DomainRecord, ...] = READY,
) -> StartContext:
    return StartContext(GPUS, records, held, journal, pods)


def problems(starting: ContainerDevices, node: StartContext) -> tuple[StartProblem, ...]:
    return start_problems(starting, node, POLICY)


def rules(starting: ContainerDevices, node: StartContext) -> list[str]:
    return [problem.rule for problem in problems(starting, node)]


def test_a_container_that_has_what_it_asks_for_starts() -> None:
    asking = (
        node_pod("train-0", container(mem=7, percent=30), annotations={"mpsd.io/gpu": UUIDS[0]}),
    )
    starting = devices(named(), mem_ids(7), percent_ids(30))
    journal = (entry(mem_ids(7), named(), None), entry(percent_ids(30), named(), 30))
    assert problems(starting, holdings(starting, pods=asking, journal=journal)) == ()


def test_a_container_that_nobody_but_kubelet_knows_starts() -> None:
    """The API is away, or the node has been rebooted: kubelet keeps its word, the journal is
    gone."""
    assert problems(MAIN, holdings(MAIN, pods=())) == ()
    asking = (node_pod("train-0", container(mem=7, percent=30)),)
    starting = devices(named(), mem_ids(7), percent_ids(30))
    assert problems(starting, holdings(starting, pods=asking)) == ()


NOT_READY = sorted(set(State) - {State.READY})


@pytest.mark.parametrize("state", NOT_READY)
def test_a_container_waits_for_its_domain(state: State) -> None:
    node = holdings(MAIN, records=(record(0, state, reason="no answer for 6 s"), record(1)))
    (problem,) = problems(MAIN, node)
    assert (problem.rule, problem.waits) == ("domain-not-ready", True)
    assert f"gpu0 is {after_is(state)} (no answer for 6 s)" in problem.sentence


def test_a_container_waits_for_a_control_daemon() -> None:
    (problem,) = problems(MAIN, holdings(MAIN, records=READY[1:]))
    assert (problem.rule, problem.waits) == ("domain-not-ready", True)


def test_another_domain_s_state_does_not_matter() -> None:
    assert problems(MAIN, holdings(MAIN, records=(record(0), record(1, State.WEDGED)))) == ()


def wrong(rule: str, starting: ContainerDevices, node: StartContext, *words: str) -> None:
    """The start is refused for good by this rule alone, in a sentence that names the container and
    has these words."""
    found = problems(starting, node)
    assert [problem.rule for problem in found] == [rule]
    assert not found[0].waits
    assert found[0].sentence.startswith("pod default/")
    for word in (*words, "the pod must be recreated"):
        assert word in found[0].sentence


@pytest.mark.parametrize("chosen", [UUIDS[1], ",".join(UUIDS)])
def test_a_gpu_other_than_the_scheduler_chose_is_no_reason(chosen: str) -> None:
    assert (
        problems(MAIN, holdings(MAIN, pods=(node_pod(annotations={"mpsd.io/gpu": chosen}),))) == ()
    )


@pytest.mark.parametrize("count", [2, 7])
def test_of_two_pods_with_the_same_devices_the_last_is_made_anew(count: int) -> None:
    """As it does where a pod ends while another is being given its devices, and somebody asks who
    holds what."""
    late = devices(named("late"), mem_ids(count))
    pods = (node_pod(), node_pod("late", container(mem=count)))
    journal = (
        entry(mem_ids(7), named(), 100, at=1.0),
        entry(mem_ids(count), named("late"), 100, at=2.0),
    )
    node = holdings(MAIN, late, pods=pods, journal=journal)
    assert starting_container(mem_ids(count), node) == late
    wrong("devices-given-twice", late, node, f"{count} of its devices to pod default/train-0")
    if count != 7:
        assert problems(MAIN, node) == ()


def test_a_gpu_that_is_gone_ends_the_pod() -> None:
    starting = devices(named(), tuple(f"GPU-gone/{n}" for n in range(7)))
    wrong("device-gone", starting, holdings(starting), "GPU-gone")


def test_the_number_of_gpus_is_the_label_s() -> None:
    two = (node_pod("train-0", container(mem=8), gpus=2),)
    starting = devices(named(), mem_ids(8))
    node = holdings(starting, pods=two)
    wrong("gpu-count", starting, node, "requests 2 GPUs", "devices of 1", "aliyun.com/gpu-count")
    even = devices(named(), (*mem_ids(4), *mem_ids(4, gpu=1)))
    assert problems(even, holdings(even, pods=two, records=PAIR)) == ()
    assert rules(even, holdings(even, pods=two)) == ["devices-of-domains"]
    uneven = devices(named(), (*mem_ids(5), *mem_ids(3, gpu=1)))
    assert rules(uneven, holdings(uneven, pods=two, records=PAIR)) == ["devices-uneven"]


def test_the_memory_is_what_the_container_asks_for() -> None:
    starting = devices(named(), mem_ids(8))
    wrong(
        "memory-amount",
        starting,
        holdings(starting),
        "it holds 8 of aliyun.com/gpu-mem but requests 7",
    )


def test_all_containers_of_a_pod_are_on_one_gpu() -> None:
    pods = (node_pod("train-0", container(mem=7), container("b", mem=2)),)
    beside = devices(named(container_name="b"), mem_ids(2, gpu=1))
    wrong(
        "pod-on-two-gpus",
        MAIN,
        holdings(MAIN, beside, pods=pods),
        "it is on gpu0",
        "container b of its pod on gpu1",
    )
    assert (
        problems(MAIN, holdings(MAIN, devices(named("other", "b"), mem_ids(2, gpu=1)), pods=pods))
        == ()
    )


def sharing(*asked: int) -> tuple[list[ContainerDevices], tuple[NodePod, ...]]:
    """Pods p0, p1, … on one GPU, the first the oldest, that ask for so many percent each; 0 asks
    for none."""
    pods, held = [], []
    for n, percent in enumerate(asked):
        pods.append(node_pod(f"p{n}", container(mem=2, percent=percent or None), age=9 - n))
        held.append(
            devices(named(f"p{n}"), mem_ids(2, first=2 * n), percent_ids(percent, first=100 * n))
        )
    return held, tuple(pods)


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        ((60, 40), []),
        ((60, 60), [1]),
        ((60, 60, 40), [1, 2]),
        ((60, 0, 60), [2]),
        ((100,), []),
        ((0, 0), []),
    ],
)
def test_of_too_many_threads_those_that_came_last_are_refused(
    asked: tuple[int, ...], refused: list[int]
) -> None:
    held, pods = sharing(*asked)
    node = holdings(*held, pods=pods)
    assert [n for n, one in enumerate(held) if rules(one, node) == ["percent-over-gpu"]] == refused
    assert all(rules(one, node) in ([], ["percent-over-gpu"]) for one in held)


def test_who_came_last_is_who_was_allocated_last() -> None:
    held, pods = sharing(60, 60)
    journal = (
        entry(held[0].memory, named("p0"), None, 9.0),
        entry(held[1].memory, named("p1"), None, 5.0),
    )
    node = holdings(*held, pods=pods, journal=journal)
    wrong(
        "percent-over-gpu",
        held[0],
        node,
        "its pod's 60 percent, 120 percent of the threads of gpu0",
        "are reserved, more than 100 percent",
    )
    assert problems(held[1], node) == ()


def test_an_init_container_s_percent_counts_and_is_not_counted_twice() -> None:
    held, pods = sharing(60)
    late = node_pod(
        "late", container(mem=1, percent=40), init=(container("first", mem=1, percent=40),)
    )
    starting = devices(named("late"), mem_ids(1, first=9), percent_ids(40, first=500))
    journal = (
        entry(starting.memory, named("late", "first"), None, 1.0, late.uid),
        entry(starting.percent, named("late", "first"), 40, 1.0, late.uid),
    )
    assert problems(starting, holdings(*held, starting, pods=(*pods, late), journal=journal)) == ()


def test_the_limit_is_what_this_container_asks_for_and_not_another_s() -> None:
    asking = (node_pod("train-0", container(mem=7, percent=30)),)
    starting = devices(named(), mem_ids(7), percent_ids(30))
    for answered in (
        (entry(mem_ids(7), None, 100), entry(percent_ids(30), named(), 30)),
        (entry(mem_ids(7), named("b"), 100), entry(percent_ids(30), named(), 30)),
        (entry(mem_ids(7), None, 100),),
    ):
        node = holdings(starting, pods=asking, journal=answered)
        wrong("percent-of-another", starting, node, "limited to 100 percent", "requests 30 percent")
    half = (entry(percent_ids(30), named("b"), 15),)
    wrong(
        "percent-of-another",
        starting,
        holdings(starting, pods=asking, journal=half),
        "15 percent",
        "30 percent",
    )


def test_a_container_without_any_limit_does_not_start() -> None:
    node = holdings(MAIN, journal=(entry(mem_ids(7), named("b"), None),))
    wrong("percent-of-another", MAIN, node, "were not limited", "requests 100 percent")


def test_only_the_newest_answer_for_its_devices_counts() -> None:
    journal = (entry(mem_ids(7), named(), 100, 5.0), entry(mem_ids(7), named("gone"), 30, 1.0))
    assert problems(MAIN, holdings(MAIN, journal=journal)) == ()


def test_every_reason_is_given_at_once() -> None:
    pods = (
        node_pod(
            "train-0", container(mem=9, percent=30), gpus=2, annotations={"mpsd.io/gpu": UUIDS[1]}
        ),
    )
    node = holdings(
        MAIN,
        pods=pods,
        journal=(entry(mem_ids(7), None, 100),),
        records=(record(0, State.FAULT), record(1)),
    )
    assert rules(MAIN, node) == [
        "gpu-count",
        "memory-amount",
        "percent-of-another",
        "domain-not-ready",
    ]
    assert rules(devices(named(), ("x",)), node) == ["device-unknown"]


def test_the_container_that_starts_is_the_one_that_holds_the_devices() -> None:
    one, two = (
        devices(named(), mem_ids(7), percent_ids(30)),
        devices(named("b"), mem_ids(7, first=7)),
    )
    node = holdings(one, two)
    assert starting_container(mem_ids(7), node) == one
    assert starting_container(percent_ids(30), node) == one
    assert starting_container(mem_ids(7, first=7), node) == two
    assert starting_container(mem_ids(7, gpu=1), node) is None
    assert starting_container((), node) is None


def test_an_init_container_that_starts_is_known_by_journal_or_amount() -> None:
    pod = node_pod("train-0", container(mem=3), init=(container("first", mem=8, percent=20),))
    later = devices(named(), mem_ids(3))
    noted = (
        entry(mem_ids(8), named(container_name="first"), None, 1.0, pod.uid),
        entry(percent_ids(20), named(container_name="first"), 20, 1.0, pod.uid),
    )
    first = devices(named(container_name="first"), mem_ids(8), percent_ids(20))
    for held in ((), (later,)):
        node = holdings(*held, pods=(pod,), journal=noted)
        assert starting_container(mem_ids(8), node) == first
        assert starting_container(percent_ids(20), node) == first
        assert problems(first, node) == ()
    by_amount = holdings(later, pods=(pod,))
    assert starting_container(mem_ids(8), by_amount) == devices(
        named(container_name="first"), mem_ids(8)
    )
    misnamed = holdings(later, pods=(pod,), journal=(entry(mem_ids(8), named("another"), 100),))
    assert starting_container(mem_ids(8), misnamed) == devices(
        named(container_name="first"), mem_ids(8)
    )


IDS = st.builds("{}/{}".format, st.sampled_from([*UUIDS, "percent", "x"]), st.integers(0, 3))
SETS = st.lists(IDS, unique=True, max_size=5).map(tuple)
NAMES = st.builds(named, st.sampled_from(["a", "b"]), st.sampled_from(["main", "first"]))
PODS = [
    node_pod("a", container(mem=2, percent=3), init=(container("first", mem=4),)),
    node_pod("b", gpus=2),
]


@given(
    st.lists(st.builds(ContainerDevices, NAMES, SETS, SETS), max_size=4),
    st.lists(
        st.builds(entry, SETS, st.none() | NAMES, st.none() | st.integers(1, 100), st.floats(0, 9)),
        max_size=4,
    ),
    st.sampled_from([(), *combinations(PODS, 1), tuple(PODS)]),
    SETS,
)
def test_whatever_kubelet_and_the_journal_say_there_is_an_answer(
    held: list[ContainerDevices],
    journal: list[JournalEntry],
    pods: tuple[NodePod, ...],
    ids: tuple[str, ...],
) -> None:
    node = holdings(*held, pods=pods, journal=tuple(journal))
    starting = starting_container(ids, node)
    for one in [*held, *([starting] if starting else [])]:
        for problem in problems(one, node):
            assert problem.sentence.startswith(str(one.container))


BELOW = {"mpsd.io/gpu-priority": "below-normal"}
BY_ANNOTATION = replace(POLICY, gpu_priority=GpuPriority("annotation"))


@pytest.mark.parametrize("given", [0, 1])
@pytest.mark.parametrize("wanted", [0, 1])
@pytest.mark.parametrize("answered_for", ["", "uid-of-another"])
def test_a_priority_that_was_answered_for_another_pod_must_be_its_own(
    given: int, wanted: int, answered_for: str
) -> None:
    noted = replace(entry(mem_ids(7), named(), 100), priority=given, answered_for=answered_for)
    node = holdings(MAIN, pods=(node_pod(annotations=BELOW if wanted else {}),), journal=(noted,))
    found = [(one.rule, one.waits) for one in start_problems(MAIN, node, BY_ANNOTATION)]
    assert found == ([] if given == wanted else [("priority-of-another", False)])


@pytest.mark.parametrize("priority", [0, 1, None])
@pytest.mark.parametrize(
    "policy",
    [POLICY, BY_ANNOTATION, replace(POLICY, gpu_priority=GpuPriority("priority-class", 9))],
)
def test_what_was_answered_for_this_very_pod_stays(priority: int | None, policy: Policy) -> None:
    pods = (node_pod(annotations=BELOW),)
    noted = replace(
        entry(mem_ids(7), named(), 100), priority=priority, answered_for="uid-of-train-0"
    )
    assert start_problems(MAIN, holdings(MAIN, pods=pods, journal=(noted,)), policy) == ()
    # by an mpsd without priorities, or by a policy that gives none
    older = entry(mem_ids(7), named(), 100)
    assert start_problems(MAIN, holdings(MAIN, pods=pods, journal=(older,)), policy) == ()
