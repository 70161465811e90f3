"""What pods hold, by kubelet's word and by the journal's: never the same device twice."""

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from mpsd.kubelet.rules.allocation import gpu_of, memory_devices
from mpsd.kubelet.rules.ledger import (
    ContainerDevices,
    JournalEntry,
    by_cgroup,
    corrected,
    pod_grants,
    served,
    still_needed,
)
from mpsd.kubelet.rules.node_pods import ContainerName, NodePod
from mpsd.model.domain import Domain
from mpsd.model.grants import Grant, evenly, promised_mib
from mpsd.model.identity import PodName
from mpsd.model.policy import GpuPriority, Policy
from tests.model.worlds import GPUS, POLICY, UUIDS
from tests.status.node_worlds import (
    container,
    devices,
    entry,
    mem_ids,
    named,
    node_pod,
    percent_ids,
)

APART = (Domain("gpu0", UUIDS[:1]), Domain("gpu1", UUIDS[1:]))
TOGETHER = (Domain("gpu0-1", UUIDS),)
UID = "uid-of-train-0"


def grants(
    *held: ContainerDevices,
    journal: tuple[JournalEntry, ...] = (),
    pods: tuple[NodePod, ...] = (),
    domains: tuple[Domain, ...] = APART,
) -> tuple[Grant, ...]:
    return pod_grants(held, journal, pods, domains, POLICY)


def test_a_pod_s_containers_have_one_grant_together() -> None:
    pods = (
        node_pod("train-0", container("a", mem=2, percent=30), container("b", mem=3, percent=20)),
    )
    (grant,) = grants(
        devices(named(container_name="a"), mem_ids(2), percent_ids(30)),
        devices(named(container_name="b"), mem_ids(3, first=2), percent_ids(20, first=30)),
        pods=pods,
    )
    assert grant == Grant(
        id=UID,
        domain="gpu0",
        parts=evenly(UUIDS[:1], 5 * 1024, 50),
        thread_percent=30,
        clients=8,
        holder=PodName("default", "train-0", UID),
        command="default/train-0",
    )


BELOW = {"mpsd.io/gpu-priority": "below-normal"}
BY_ANNOTATION = replace(POLICY, gpu_priority=GpuPriority("annotation"))
SMALL = replace(POLICY, resources=replace(POLICY.resources, memory_unit_mib=128))


def priority(
    *held: ContainerDevices, journal: tuple[JournalEntry, ...], policy: Policy = BY_ANNOTATION
) -> int:
    """Of a pod that says below-normal."""
    (grant,) = pod_grants(held, journal, (node_pod(annotations=BELOW),), APART, policy)
    return grant.priority


def test_a_grant_has_the_priority_that_was_answered_whatever_its_pod_says_by_now() -> None:
    held = devices(named(), mem_ids(7))
    for answered in (0, 1):
        noted = replace(entry(mem_ids(7), named(), 100, 1.0, UID), priority=answered)
        for policy in (BY_ANNOTATION, POLICY):
            assert priority(held, journal=(noted,), policy=policy) == answered
            assert priority(journal=(noted,), policy=policy) == answered, "before kubelet lists it"
    assert priority(held, journal=(entry(mem_ids(7), named(), 100, 1.0, UID),)) == 0, (
        "nothing was answered"
    )


def test_a_grant_without_an_answer_has_the_priority_that_the_policy_says() -> None:
    held = devices(named(), mem_ids(7))
    assert priority(held, journal=()) == 1
    assert priority(held, journal=(), policy=POLICY) == 0
    (unknown,) = pod_grants((held,), (), (), APART, BY_ANNOTATION)
    assert unknown.priority == 0


def test_a_pod_one_of_whose_containers_is_normal_is_normal() -> None:
    first = replace(entry(mem_ids(7), named(), 100, 1.0, UID), priority=1)
    second = replace(
        entry(mem_ids(2, first=7), named(container_name="b"), 100, 2.0, UID), priority=0
    )
    both = devices(named(), mem_ids(7)), devices(named(container_name="b"), mem_ids(2, first=7))
    assert priority(*both, journal=(first, second)) == 0
    assert priority(*both, journal=(first, replace(second, priority=1))) == 1


def test_an_init_container_holds_its_devices_as_long_as_its_pod_lives() -> None:
    """kubelet gives them to later containers, keeps what is over, and lists only what those
    have."""
    pods = (node_pod("train-0", container(mem=3, percent=20), init=(container("first", mem=8),)),)
    first = entry(mem_ids(8), named(container_name="first"), 100, 1.0, UID)
    main = entry(mem_ids(3), named(), None, 2.0, UID)
    (grant,) = grants(
        devices(named(), mem_ids(3), percent_ids(20)), journal=(first, main), pods=pods
    )
    assert (grant.memory_mib, grant.thread_percent, grant.reserved_percent) == (8 * 1024, 100, 20)


def test_before_kubelet_lists_a_pod_its_threads_are_reserved_as_answered() -> None:
    answers = (
        entry(mem_ids(7), named(), None, 1.0, UID),
        entry(percent_ids(20), named(), 20, 2.0, UID),
    )
    (grant,) = grants(journal=answers, pods=(node_pod(),))
    assert (grant.memory_mib, grant.thread_percent, grant.reserved_percent) == (7 * 1024, 20, 20)


def test_what_a_pod_that_ended_was_given_counts_no_more() -> None:
    stale = entry(mem_ids(7), named(), 100, 1.0, UID)
    again = node_pod(metadata={"uid": "another"})
    for pods in ((), (node_pod(phase="Failed"),), (again,)):
        assert grants(journal=(stale,), pods=pods) == ()
    (grant,) = grants(devices(named(), mem_ids(2)), journal=(stale,), pods=(again,))
    assert (grant.id, grant.memory_mib) == ("another", 2 * 1024)


def test_kubelet_s_word_goes_before_a_wrong_guess() -> None:
    """Two pods that ask for the same were taken for each other; one of them has an init
    container."""
    pods = (node_pod("a"), node_pod("b", container(mem=2), init=(container("first", mem=7),)))
    journal = (
        entry(mem_ids(7), named("a"), 100, 1.0, "uid-of-a"),  # in truth b's first
        entry(mem_ids(2), named("b"), 100, 2.0, "uid-of-b"),
        entry(mem_ids(7, first=7), named("b", "first"), 100, 3.0, "uid-of-b"),  # in truth a's
    )
    held = (devices(named("b"), mem_ids(2)), devices(named("a"), mem_ids(7, first=7)))
    assert [
        (grant.id, grant.memory_mib) for grant in grants(*held, journal=journal, pods=pods)
    ] == [
        ("uid-of-a", 7 * 1024),
        ("uid-of-b", 7 * 1024),
    ]


def test_an_answer_that_went_to_nobody_known_is_whose_kubelet_says() -> None:
    journal = (entry(mem_ids(8), None, 100, 1.0),)
    (grant,) = grants(devices(named(), mem_ids(3)), journal=journal)
    assert grant.memory_mib == 8 * 1024
    assert grants(journal=journal) == ()
    assert grants(journal=(entry((), named(), 100, 1.0),), pods=(node_pod(),)) == ()


def test_a_wrong_guess_adds_nothing_to_a_pod_that_has_its_own() -> None:
    """The devices went to a pod that failed meanwhile, and the guess named one that was served
    later."""
    journal = (
        entry(mem_ids(7), named(), 100, 1.0, UID),
        entry(mem_ids(7, gpu=1), named(), 100, 2.0, UID),
    )
    for held in ((), (devices(named(), mem_ids(7, gpu=1)),)):
        (grant,) = grants(*held, journal=journal, pods=(node_pod(),))
        assert (grant.gpus, grant.memory_mib) == (UUIDS[1:], 7 * 1024)


def test_whose_grant_it_is_outlives_the_api_where_the_journal_agrees_with_kubelet() -> None:
    """An agent that starts while the API is away knows the uid that a pod's processes carry."""
    held = (devices(named(), mem_ids(3), percent_ids(20)),)
    right = entry(mem_ids(3), named(), None, 1.0, UID)
    (grant,) = grants(*held, journal=(right,))
    assert (grant.id, grant.holder) == (UID, PodName("default", "train-0", UID))
    other = entry(mem_ids(3), named("b"), None, 2.0, "uid-of-b")  # the same devices, given anew
    twice = entry(percent_ids(20), named(), 20, 2.0, "uid-of-an-earlier-one")
    elsewhere = entry(mem_ids(2), named(), None, 1.0, UID)
    for journal in ((), (right, other), (right, twice), (elsewhere,)):
        (grant,) = grants(*held, journal=journal)
        assert grant.id == "default/train-0"


HASH = "46dac9a538838115821dfd9559149484"


def test_processes_find_their_grant_by_the_uid_of_their_pod() -> None:
    mirror = {"kubernetes.io/config.mirror": HASH}
    pods = (node_pod("a"), node_pod("static", annotations=mirror), node_pod("waits"))
    made = grants(
        devices(named("a"), mem_ids(7)), devices(named("static"), mem_ids(7, first=7)), pods=pods
    )
    expected = {"uid-of-a": "uid-of-a", "uid-of-static": "uid-of-static", HASH: "uid-of-static"}
    assert by_cgroup(made, pods) == expected
    liar = node_pod("liar", annotations=mirror)
    made = grants(
        devices(named("liar"), mem_ids(7)),
        devices(named("static"), mem_ids(7, first=7)),
        pods=(*pods, liar),
    )
    assert HASH not in by_cgroup(made, (*pods, liar))
    liar = node_pod("liar", annotations={"kubernetes.io/config.mirror": "uid-of-a"})
    made = grants(devices(named("liar"), mem_ids(7)), pods=(liar,))
    assert by_cgroup(made, (liar,)) == {"uid-of-liar": "uid-of-liar"}


def test_a_grant_whose_pod_has_no_uid_is_no_process_s() -> None:
    """Else it were that of every process that is in no pod."""
    assert by_cgroup(grants(devices(named(), mem_ids(3))), ()) == {}


def test_an_answer_that_was_guessed_wrongly_is_put_right_once_kubelet_says_whose_it_is() -> None:
    """A kubelet that starts again lists nobody for a while, and then the journal alone says what a
    pod holds."""
    pods = (node_pod("a"), node_pod("b"))
    wrong = entry(mem_ids(7), named("a"), 100, 1.0, "uid-of-a")
    unknown = entry(mem_ids(7, first=7), None, 100, 2.0)
    held = (devices(named("b"), mem_ids(7)), devices(named("a"), mem_ids(7, first=7)))
    right = corrected((wrong, unknown), (wrong, unknown), held, pods)
    assert [(one.pod, one.uid) for one in right] == [
        (named("b"), "uid-of-b"),
        (named("a"), "uid-of-a"),
    ]
    assert [grant.id for grant in grants(journal=right, pods=pods)] == ["uid-of-a", "uid-of-b"]
    assert corrected(right, right, held, pods) == right


def test_what_kubelet_said_before_an_answer_says_nothing_of_it() -> None:
    pods = (node_pod("a"), node_pod("b"))
    old, new = (
        entry(mem_ids(7), named("a"), 100, 1.0, "uid-of-a"),
        entry(mem_ids(7), named("b"), 100, 2.0, "uid-of-b"),
    )
    held = (devices(named("a"), mem_ids(7)),)
    assert corrected((old, new), (old,), held, pods) == (old, new)
    assert corrected((old,), (old,), (devices(named("gone"), mem_ids(7)),), pods) == (old,)


def test_what_was_given_in_another_unit_is_worth_what_it_was() -> None:
    """Else a smaller unit in the policy would make everybody who runs take too much."""
    old = replace(entry(mem_ids(7), named("a"), 100, 1.0, "uid-of-a"), unit_mib=1024)
    new = replace(entry(mem_ids(8, first=7), named("b"), 100, 2.0, "uid-of-b"), unit_mib=128)
    held = (
        devices(named("a"), mem_ids(7)),
        devices(named("b"), mem_ids(8, first=7)),
        devices(named("c"), mem_ids(1, 1)),
    )
    made = pod_grants(held, (old, new), [node_pod("a"), node_pod("b")], APART, SMALL)
    assert {one.command: one.memory_mib for one in made} == {
        "default/a": 7168,
        "default/b": 1024,
        "default/c": 128,
    }


def test_two_gpus_of_a_domain_are_one_grant_of_each() -> None:
    ids = (*mem_ids(4), *mem_ids(4, gpu=1))
    pods = (node_pod("train-0", container(mem=8, percent=60), gpus=2),)
    (grant,) = grants(devices(named(), ids, percent_ids(60)), pods=pods, domains=TOGETHER)
    assert (grant.gpus, grant.memory_mib, grant.thread_percent, grant.reserved_percent) == (
        UUIDS,
        4096,
        30,
        30,
    )


def test_percents_alone_are_no_grant_and_neither_is_a_gpu_that_is_gone() -> None:
    assert grants(devices(named(), (), percent_ids(30))) == ()
    assert grants(devices(named(), ("GPU-gone/1",))) == ()
    assert grants(devices(named(), mem_ids(3)), domains=()) == ()


def test_who_is_listed_or_noted_has_been_served() -> None:
    pods = (node_pod("a"), node_pod("b"), node_pod("c"), node_pod("d", phase="Failed"))
    pods += (node_pod("e"),)
    journal = (
        entry(mem_ids(1, first=2), named("e"), uid="uid-of-e"),
        entry(mem_ids(1), named("b"), uid="uid-of-b"),
        entry(percent_ids(1), named("b"), 1, uid="uid-of-b"),
        entry(mem_ids(1), named("c"), uid="an-earlier-c"),
        entry(mem_ids(1), named("d"), uid="uid-of-d"),
        entry(mem_ids(1), None),
    )
    held = [devices(named("a"), mem_ids(1, first=1))]
    assert served("memory", held, journal, pods) == {named("a"), named("b"), named("e")}
    assert served("percent", held, journal, pods) == {named("b")}


def test_a_pod_that_was_guessed_wrongly_has_not_been_served() -> None:
    """Else nobody would be left to guess at the second of two pods that came together and ask for
    the same."""
    pods = (node_pod("a", age=2), node_pod("b", age=1))
    noted = (entry(mem_ids(7), named("a"), 100, 1.0),)
    assert served("memory", (), noted, pods) == {named("a")}
    assert served("memory", (devices(named("b"), mem_ids(7)),), noted, pods) == {named("b")}


def test_the_journal_forgets_what_says_nothing_any_more() -> None:
    pods = [node_pod("a")]
    there = entry(mem_ids(2), named("a"), at=1.0, uid="uid-of-a")
    ended = entry(mem_ids(2, first=5), named("z"), at=1.0, uid="uid-of-z")
    in_use = entry(mem_ids(2, first=9), None, at=2.0)
    replaced = entry(mem_ids(1, first=9), None, at=0.5)
    young = entry(mem_ids(2, gpu=1), None, at=9.0)
    held = [devices(named("x"), mem_ids(2, first=9))]
    journal = [replaced, there, ended, in_use, young]
    assert still_needed(journal, held, pods, not_before=8.0) == (there, in_use, young)


IDS = memory_devices(GPUS, POLICY)


@dataclass
class Kubelet:
    """Hands out devices as kubelet does: any that are free, those of a pod's init containers again
    to that pod.

    It lists main containers only, and the journal is as good as guesses are.
    """

    random: Random
    pods: dict[str, NodePod] = field(default_factory=dict)
    true: dict[str, set[str]] = field(default_factory=dict)
    held: list[ContainerDevices] = field(default_factory=list)
    journal: list[JournalEntry] = field(default_factory=list)

    def admit(self, name: str, init: int, main: int, guess: str) -> None:
        free = [one for one in IDS if not any(one in ids for ids in self.true.values())]
        if len(free) < max(init, main):
            return
        self.true[name] = set()
        self.random.shuffle(free)
        first, again, rest = tuple(free[:init]), tuple(free[: min(init, main)]), tuple(free[init:])
        second = (*again, *rest)[:main]
        uid = f"{name}-{len(self.journal)}"
        containers = (container("first", mem=init),) if init else ()
        self.pods[name] = node_pod(
            name, container(mem=main), init=containers, phase="Running", metadata={"uid": uid}
        )
        for ids, which in ((first, "first"), (second, "main")):
            if ids:
                self.true[name].update(ids)
                said = name if guess == "right" else self.random.choice(sorted(self.pods))
                self.note(ids, None if guess == "none" else named(said, which))
        self.held.append(devices(named(name), second))

    def note(self, ids: tuple[str, ...], pod: ContainerName | None) -> None:
        uid = self.pods[pod.pod].uid if pod else ""
        self.journal.append(entry(ids, pod, 100, float(len(self.journal)), uid))

    def end(self, name: str) -> None:
        self.true.pop(name, None)
        self.held = [one for one in self.held if one.container.pod != name]
        self.pods.pop(name, None)


STEPS = st.tuples(
    st.sampled_from("abcdef"),
    st.integers(0, 20),
    st.integers(1, 20),
    st.sampled_from(["right", "none", "wrong"]),
)


@given(st.randoms(), st.lists(STEPS, max_size=8), st.sampled_from([APART, TOGETHER]))
def test_grants_never_add_up_to_more_than_a_card(
    random: Random, steps: list[tuple[str, int, int, str]], domains: tuple[Domain, ...]
) -> None:
    kubelet = Kubelet(random)
    for name, init, main, guess in steps:
        if name in kubelet.pods:
            kubelet.end(name)
        else:
            kubelet.admit(name, init, main, guess)
        pods = list(kubelet.pods.values()) if random.random() < 0.5 else []
        made = pod_grants(kubelet.held, kubelet.journal, pods, domains, POLICY)
        for gpu in GPUS:
            assert sum(one.memory_mib for one in made if gpu.uuid in one.gpus) <= promised_mib(
                gpu, POLICY
            )
        assert len({one.id for one in made}) == len(made)


@given(st.randoms(), st.lists(STEPS, max_size=8))
def test_with_right_guesses_every_pod_has_exactly_what_kubelet_gave_it(
    random: Random, steps: list[tuple[str, int, int, str]]
) -> None:
    kubelet = Kubelet(random)
    for name, init, main, _guess in steps:
        if name in kubelet.pods:
            kubelet.end(name)
        else:
            kubelet.admit(name, init, main, "right")
    made = pod_grants(kubelet.held, kubelet.journal, list(kubelet.pods.values()), TOGETHER, POLICY)
    least = {}
    for name, ids in kubelet.true.items():
        units = Counter(gpu_of(one) for one in ids)
        least[f"default/{name}"] = (len(units), min(units.values()) * 1024)
    assert {one.command: (len(one.gpus), one.memory_mib) for one in made} == least


def test_after_a_reboot_a_pod_that_has_not_begun_may_need_what_its_init_container_asks() -> None:
    """kubelet lists no init container, and the journal is gone."""
    pod = node_pod("a", container(mem=3), init=(container("first", mem=5),))
    (grant,) = pod_grants([devices(named("a"), mem_ids(3))], (), [pod], APART, POLICY)
    assert grant.memory_mib == 5 * 1024
    begun = node_pod("a", container(mem=3), init=(container("first", mem=5),), phase="Running")
    (grant,) = pod_grants([devices(named("a"), mem_ids(3))], (), [begun], APART, POLICY)
    assert grant.memory_mib == 3 * 1024


@dataclass
class Restarting:
    """A kubelet that gives devices to containers, is restarted, and lists then only the pods that
    it has heard of yet.

    The ledger is kept as the agent keeps them; the guess at whom an answer is for may be anything.
    """

    pods: dict[str, NodePod] = field(default_factory=dict)
    given: dict[str, list[ContainerDevices]] = field(default_factory=dict)
    journal: tuple[JournalEntry, ...] = ()
    held: tuple[ContainerDevices, ...] = ()
    started: set[str] = field(default_factory=set)
    now: float = 1.0

    def admit(self, name: str, units: tuple[int, ...], guess: str) -> None:
        """Devices that nobody has, a container after the other; then kubelet is asked, and the
        first starts."""
        taken = {
            one_id
            for containers in self.given.values()
            for one in containers
            for one_id in one.memory
        }
        free = [one_id for one_id in IDS if gpu_of(one_id) == UUIDS[0] and one_id not in taken]
        if name in self.pods or len(free) < sum(units):
            return
        names = [f"c{n}" for n in range(len(units))]
        asked = [container(which, mem=mem) for which, mem in zip(names, units, strict=True)]
        uid = f"{name}-{self.now:g}"
        self.pods[name] = node_pod(name, *asked, phase="Running", metadata={"uid": uid})
        self.given[name] = []
        for which, mem in zip(names, units, strict=True):
            ids, free = tuple(free[:mem]), free[mem:]
            said = {"right": name, "none": ""}.get(guess, guess)
            self.now += 1
            whose = named(said, which) if said in self.pods else None
            by = self.pods[said].uid if said in self.pods else ""
            self.journal = (*self.journal, entry(ids, whose, 100, self.now, by))
            self.given[name].append(devices(named(name, which), ids))
        self.says(set(self.pods))
        self.started.add(name)

    def end(self, name: str) -> None:
        self.pods.pop(name, None)
        self.given.pop(name, None)
        self.started.discard(name)

    def says(self, heard_of: set[str]) -> None:
        self.held = tuple(
            one for name in sorted(heard_of & self.given.keys()) for one in self.given[name]
        )
        pods = tuple(self.pods.values())
        right = corrected(self.journal, self.journal, self.held, pods)
        self.journal = still_needed(right, self.held, pods, self.now)


RESTARTS = st.one_of(
    st.tuples(
        st.just("admit"),
        st.sampled_from("abcd"),
        st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple),
        st.sampled_from(["right", "none", "a", "b", "c"]),
    ),
    st.tuples(st.just("end"), st.sampled_from("abcd")),
    st.tuples(st.just("says"), st.sets(st.sampled_from("abcd"))),
)


@example(  # kubelet still lists the second c, and what the first one had is partly a's
    [
        ("admit", "b", (1,), "right"),
        ("admit", "c", (2,), "right"),
        ("end", "c"),
        ("admit", "a", (1,), "right"),
        ("end", "b"),
        ("admit", "c", (1,), "right"),
        ("end", "c"),
    ]
)
@given(st.lists(RESTARTS, min_size=4, max_size=15))
def test_a_pod_that_runs_has_all_of_its_grant_or_none_that_is_known(
    steps: list[tuple[str, Any, Any, Any]],
) -> None:
    """A part of it would make its processes take too much, and they would be ended for nothing."""
    kubelet = Restarting()
    for step in steps:
        getattr(kubelet, step[0])(*step[1:])
        made = pod_grants(
            kubelet.held, kubelet.journal, tuple(kubelet.pods.values()), APART, POLICY
        )
        known = {grant.command.partition("/")[2]: grant.memory_mib for grant in made}
        for name in kubelet.started & known.keys():
            assert known[name] == sum(len(one.memory) for one in kubelet.given[name]) * 1024
