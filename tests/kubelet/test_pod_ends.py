"""The clients of a deleted pod are stopped before a signal of kubelet's can end them, and nobody
else's ever are."""

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.kubelet.rules.pod_ends import (
    REMOVED_S,
    PodEnd,
    deleted,
    due_clients,
    is_over,
    removed,
    stop_at_s,
)
from mpsd.model.identity import PodName, ProcessIdentity
from mpsd.model.node_view import Client
from mpsd.model.pod import PodDeletion

POD_END_S = 3.5
POD = PodName("default", "train-0", "uid-0")
SEEN_S = 100.0
END = deleted(None, POD, PodDeletion(30), SEEN_S, was_running=True)
BEFORE_KILL_S = SEEN_S + 30 - POD_END_S


def client(pid: int, pod: str | None = POD.uid, *, on_mps: bool = True) -> Client:
    process = ProcessIdentity(pid, pid * 10, "boot")
    return Client(process, "GPU-0", 100, on_mps, "python", None, pod)


def due(
    now_s: float,
    *clients: Client,
    end: PodEnd = END,
    mortal: Iterable[Client] = (),
    pod_end_s: float = POD_END_S,
) -> tuple[list[int], float]:
    """The pids that are to be stopped, and when others are."""
    processes = {one.process for one in mortal}
    found = due_clients({end.pod.uid: end}, clients, processes, now_s, pod_end_s)
    return [one.pid for one in found.clients], found.next_s


def test_whoever_dies_of_the_first_signal_is_stopped_at_first_sight() -> None:
    dies, lasts = client(1), client(2)
    assert due(SEEN_S, dies, lasts, mortal=[dies]) == ([1], BEFORE_KILL_S)


def test_with_a_hook_before_the_first_signal_nobody_is_stopped_at_first_sight() -> None:
    dies = client(1)
    end = deleted(None, POD, PodDeletion(30, has_pre_stop=True), SEEN_S, was_running=True)
    assert due(SEEN_S, dies, end=end, mortal=[dies]) == ([], BEFORE_KILL_S)
    assert due(BEFORE_KILL_S, dies, end=end, mortal=[dies])[0] == [1]


def test_the_others_are_stopped_a_drain_and_a_margin_before_the_end() -> None:
    assert due(BEFORE_KILL_S - 0.001, client(1)) == ([], BEFORE_KILL_S)
    assert due(BEFORE_KILL_S, client(1))[0] == [1]
    assert due(BEFORE_KILL_S + 1, client(1), client(2))[0] == [
        1,
        2,
    ], "one that starts late is stopped on sight"


@pytest.mark.parametrize(("grace_s", "at_once"), [(0, True), (3, True), (4, False)])
def test_a_grace_that_is_shorter_than_a_drain_is_none(grace_s: int, at_once: bool) -> None:
    end = deleted(None, POD, PodDeletion(grace_s), SEEN_S, was_running=True)
    assert (due(SEEN_S, client(1), end=end)[0] == [1]) is at_once


def test_of_a_pod_that_nobody_saw_running_no_grace_is_known_to_be_left() -> None:
    end = deleted(None, POD, PodDeletion(30), SEEN_S, was_running=False)
    assert due(SEEN_S, client(1), end=end)[0] == [1]


@pytest.mark.parametrize("known", [None, END])
def test_a_removed_pod_has_no_grace_left(known: PodEnd | None) -> None:
    end = removed(known, POD, SEEN_S + 1)
    assert due(SEEN_S + 1, client(1), end=end)[0] == [1]
    assert removed(end, POD, SEEN_S + 2) == end


def test_an_end_is_over_some_time_after_its_pod_was_removed() -> None:
    assert not is_over(END, SEEN_S + 3600), "a pod that is there may have processes"
    end = removed(END, POD, SEEN_S)
    assert not is_over(end, SEEN_S + REMOVED_S - 0.001)
    assert is_over(end, SEEN_S + REMOVED_S)


# -- any order of events

_PODS = tuple(PodName("default", f"pod-{n}", f"uid-{n}") for n in range(3))
_SCAN_S = 0.2


@dataclass(frozen=True, slots=True)
class Requested:
    """The deletion of a pod, or an update of one that is terminating."""

    pod: int
    grace_s: int
    has_pre_stop: bool


@dataclass(frozen=True, slots=True)
class Removed:
    pod: int


@dataclass(frozen=True, slots=True)
class Started:
    """A client. pod: None for one in none."""

    pod: int | None
    on_mps: bool
    is_mortal: bool


EVENTS = st.one_of(
    st.builds(Requested, st.integers(0, 2), st.integers(0, 40), st.booleans()),
    st.builds(Removed, st.integers(0, 2)),
    st.builds(Started, st.one_of(st.none(), st.integers(0, 3)), st.booleans(), st.booleans()),
)


class World:
    """Pods that run, end and are gone, whose clients are looked at with each scan."""

    def __init__(self) -> None:
        self.now_s = SEEN_S
        self.ends: dict[str, PodEnd] = {}
        self.kills_s: dict[str, float] = {}  # by pod, when kubelet kills it at the earliest
        self.clients: list[Client] = []
        self.mortal: set[ProcessIdentity] = set()
        self.stopped: set[int] = set()

    def happens(self, event: Requested | Removed | Started) -> None:
        match event:
            case Requested(number, grace_s, has_pre_stop):
                pod = _PODS[number]
                known = self.ends.get(pod.uid)
                deletion = PodDeletion(grace_s, has_pre_stop)
                self.ends[pod.uid] = deleted(known, pod, deletion, self.now_s, was_running=True)
                first_s = known.seen_s if known else self.now_s
                self.kills_s[pod.uid] = min(
                    self.kills_s.get(pod.uid, first_s + grace_s), first_s + grace_s
                )
                assert not known or stop_at_s(self.ends[pod.uid], POD_END_S) <= stop_at_s(
                    known, POD_END_S
                )
            case Removed(number):
                pod = _PODS[number]
                self.ends[pod.uid] = removed(self.ends.get(pod.uid), pod, self.now_s)
                self.kills_s[pod.uid] = min(self.kills_s.get(pod.uid, self.now_s), self.now_s)
            case Started(number, on_mps, is_mortal):
                one = client(
                    len(self.clients) + 1,
                    None if number is None else f"uid-{number}",
                    on_mps=on_mps,
                )
                self.clients.append(one)
                if is_mortal:
                    self.mortal.add(one.process)

    def is_scanned(self) -> None:
        found = due_clients(self.ends, self.clients, self.mortal, self.now_s, POD_END_S)
        now = {one.pid for one in found.clients}
        assert self.stopped <= now, "one that is due stays due"
        self.stopped |= now
        for one in self.clients:
            end = self.ends.get(one.pod or "")
            if one.pid in now:
                assert end, "its pod is terminating"
                assert one.on_mps
            elif end and one.on_mps:
                assert one.process not in self.mortal or end.has_pre_stop
                last_s = self.kills_s[end.pod.uid] - POD_END_S
                assert self.now_s < found.next_s <= last_s + 1e-6, (
                    "there is time left, and it is looked at again"
                )


@given(st.lists(st.tuples(EVENTS, st.integers(0, 60)), max_size=20))
def test_in_any_order_of_events_each_client_is_stopped_in_time_and_no_other(
    events: list[tuple[Requested | Removed | Started, int]],
) -> None:
    world = World()
    for event, scans in events:
        world.happens(event)
        world.is_scanned()
        for _scan in range(scans):
            world.now_s += _SCAN_S
            world.is_scanned()
