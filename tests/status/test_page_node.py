"""A node as its page shows it."""

from dataclasses import replace

import pytest

from mpsd.agent.rules.node_events import REFUSED
from mpsd.model.domain import State, remedy
from mpsd.model.events import PastEvent, Reason
from mpsd.model.node_report import SeenViolations, ViolationReport, ViolationsReport
from mpsd.model.node_view import Canary, Client, DomainView, HeldGrant, WaitingRequest
from mpsd.model.times import utc
from mpsd.model.violations import ViolationKind
from mpsd.status.page.rules.pages import (
    MOST_RECENT,
    MOST_WAITING,
    cluster_page,
    node_page,
    node_parts,
)
from mpsd.status.page.rules.view import (
    Level,
    NoteKind,
    PageHead,
    PageScope,
    PageView,
    SliceHolder,
    level_of,
)
from mpsd.status.rules.node_report import node_report
from tests.model.worlds import GPUS, LOST, NOW, NOW_S, POLICY, blind, grant, identity, view, waiting
from tests.page_worlds import GIB, LISTS, crowd, domain, granted, node, page_of
from tests.status.cluster_worlds import cluster_node, held
from tests.status.pod_worlds import held_claim, pod


def kinds(page: PageView) -> list[tuple[NoteKind, Level, str]]:
    return [(note.kind, note.level, note.where) for note in page.notes]


def test_a_slice_says_who_has_it_what_was_given_and_what_is_used() -> None:
    page = page_of(node(GPUS, [granted(GPUS[0], "train", 7 * GIB, percent=30)], used_mib=3 * GIB))
    first, second = page.gpus
    assert page.head.scope is PageScope.NODE
    granted_mib, percent = first.granted_mib, first.granted_percent
    assert (first.label, first.level, granted_mib, percent) == ("gpu0", Level.WELL, 7 * GIB, 30)
    (one,) = first.slices or ()
    amounts = one.memory_mib, one.used_mib
    assert (one.holder, one.name, amounts) == (
        *(SliceHolder.POD, "default/train", (7 * GIB, 3 * GIB)),
    )
    assert (one.thread_percent, one.reserved_percent, one.clients, one.pid) == (30, 30, 1, None)
    assert second.slices == ()
    assert page.notes == ()


def test_what_is_not_known_is_none_and_said() -> None:
    page = page_of(blind(node(GPUS, [granted(GPUS[0], "train", GIB)]), GPUS[0].uuid))
    (one,) = page.gpus[0].slices or ()
    assert (page.gpus[0].used_mib, page.gpus[0].clients, one.used_mib, one.clients) == (
        None,
        None,
        None,
        None,
    )
    assert kinds(page) == [(NoteKind.UNKNOWN, Level.BAD, "")]
    assert page.notes[0].text == f"which processes use gpu0: {LOST}"
    assert (page.gpus[1].used_mib, page.gpus[1].clients) == (0, 0)


def test_grants_that_are_not_all_known_are_not_shown_as_none() -> None:
    page = page_of(replace(node(GPUS, []), grants_known=False))
    assert {(gpu.slices, gpu.granted_mib, gpu.granted_percent) for gpu in page.gpus} == {
        (None, None, None)
    }


@pytest.mark.parametrize("state", list(State))
def test_a_domain_that_does_not_serve_is_told_with_its_state_its_reason_and_since_when(
    state: State,
) -> None:
    seen = replace(
        node(GPUS[:1], []), domains=(DomainView(domain(GPUS[0], state, "because"), frozenset()),)
    )
    page = page_of(seen)
    assert page.gpus[0].state == state
    assert page.gpus[0].level is level_of(state)
    if state is State.READY:
        assert page.notes == ()
    else:
        (note,) = page.notes
        assert (note.kind, note.state, note.text, note.since) == (
            NoteKind.STATE,
            state.value,
            "because",
            NOW,
        )
        assert note.level is page.gpus[0].level is not Level.WELL
        assert note.remedy == remedy(state, "because")


def test_a_gpu_without_a_daemon_is_told() -> None:
    page = page_of(replace(node(GPUS[:1], []), domains=()))
    assert kinds(page) == [(NoteKind.NO_DAEMON, Level.BAD, "gpu0")]
    assert (page.gpus[0].state, page.gpus[0].level) == (None, Level.BAD)


def test_who_uses_more_than_it_was_given_is_told() -> None:
    page = page_of(node(GPUS, [granted(GPUS[0], "greedy", GIB)], used_mib=2 * GIB))
    assert kinds(page) == [(NoteKind.OVER, Level.WARN, "default/greedy")]
    assert page.notes[0].text == "2/1 GiB"
    assert [one.over for one in page.gpus[0].slices or ()] == [True]
    assert [gpu.level for gpu in page.gpus] == [Level.WARN, Level.WELL]


def test_a_claim_is_told_with_all_its_pods_and_who_is_over_is_all_of_them() -> None:
    shared = held_claim("share", pod("a"), pod("b"), gib=1).grant
    page = page_of(node(GPUS, [shared], used_mib=2 * GIB))
    (one,) = page.gpus[0].slices or ()
    assert (one.name, one.claim, one.others) == ("default/a", "default/share", ("default/b",))
    assert kinds(page) == [(NoteKind.OVER, Level.WARN, "default/a and 1 more")]


@pytest.mark.parametrize(
    ("on_mps", "kind"), [(True, NoteKind.WITHOUT_GRANT), (False, NoteKind.OUTSIDE_MPS)]
)
def test_a_process_that_nobody_granted_anything_has_a_slice_of_its_own(
    *, on_mps: bool, kind: NoteKind
) -> None:
    foreign = Client(identity(77), GPUS[1].uuid, 5 * GIB, on_mps, "miner", None)
    page = page_of(replace(node(GPUS, []), clients=(foreign,)))
    assert kinds(page) == [(kind, Level.WARN, "gpu1, pid 77")]
    (one,) = page.gpus[1].slices or ()
    assert (one.holder, one.name, one.memory_mib, one.used_mib, one.pid) == (
        SliceHolder.FOREIGN,
        "miner",
        None,
        5 * GIB,
        77,
    )


def test_a_canary_that_found_something_is_told_although_the_domain_serves() -> None:
    doubtful = replace(
        domain(GPUS[0]), canary=Canary("a-boot", "580", NOW, "", None, None, "a context costs more")
    )
    page = page_of(replace(node(GPUS[:1], []), domains=(DomainView(doubtful, frozenset()),)))
    assert kinds(page) == [(NoteKind.CANARY, Level.WARN, "gpu0")]


def full(*queue: WaitingRequest) -> PageView:
    """A node with 3 GiB left on each of its two GPUs."""
    grants = (HeldGrant(grant("big", 20), True), HeldGrant(grant("other", 20, gpu=1), True))
    return page_of(view(grants=grants, waits=queue))


def test_who_waits_is_told_why_in_the_words_of_a_refusal() -> None:
    (one,) = full(waiting("late", 7, deadline_s=NOW_S + 60)).waiting
    assert (one.memory_mib, one.place, one.level) == (7 * GIB, 1, Level.WARN)
    assert one.text == "no single GPU has 7 GiB: gpu0 has 3 of the needed 7 GiB free, gpu1 3"


def test_of_a_thousand_that_wait_the_first_are_listed_and_the_others_counted() -> None:
    page = full(
        *(
            waiting(f"request{number}", 23, deadline_s=NOW_S + 60)
            for number in range(MOST_WAITING + 3)
        )
    )
    assert len(page.waiting) == MOST_WAITING
    assert page.head.waiting_more == 3


def test_what_happened_is_told_the_newest_first_and_violations_once() -> None:
    kind = ViolationKind.MEMORY_OVER_GRANT.value
    over = ViolationReport(at=utc(NOW + 2), kind=kind, message="uses 9 GiB", outcome="ended")
    watched = SeenViolations(ViolationsReport(last=(over,)), {})
    status = node_report(node(GPUS, []), POLICY, watched)
    happened = [
        PastEvent(NOW + 1, Reason.READY.value, "gpu-a1", "MPS domain gpu0 serves"),
        PastEvent(NOW + 2, Reason.MEMORY_OVER_GRANT.value, "default/train", "as the pod was told"),
        PastEvent(NOW + 3, REFUSED, "train", "no single GPU has 7 GiB"),
    ]
    recent = node_page(status, "gpu-a1", happened).recent
    assert [line.what for line in recent] == [REFUSED, kind, Reason.READY.value]
    assert [line.level for line in recent] == [Level.WARN, Level.WARN, Level.WELL]
    assert recent[1].text == "uses 9 GiB; ended"


def test_nobody_watching_is_as_bad_as_it_gets() -> None:
    status = node_report(
        node(GPUS, []), POLICY, SeenViolations(ViolationsReport(unjudged="NVML is away"), {})
    )
    assert kinds(node_page(status, "gpu-a1")) == [(NoteKind.UNJUDGED, Level.BAD, "")]


def test_more_than_anybody_reads_is_cut() -> None:
    happened = [PastEvent(NOW + n, REFUSED, "train", "no room") for n in range(3 * MOST_RECENT)]
    recent = node_page(node_report(node(GPUS, []), POLICY), "gpu-a1", happened).recent
    assert len(recent) == MOST_RECENT
    assert recent[0].at == NOW + 3 * MOST_RECENT - 1


def test_what_is_written_by_others_is_on_one_line_and_shows_no_control_characters() -> None:
    evil = granted(GPUS[0], "a\u202eb\x1b[31m\n", GIB, namespace="<script>")
    (one,) = page_of(node(GPUS, [evil])).gpus[0].slices or ()
    assert one.name == "<script>/a\\u202eb\\x1b[31m\\n"


def two_nodes() -> PageView:
    nodes = [cluster_node(name, held=(held("train", 7, node=name),)) for name in ("a", "b")]
    return cluster_page(
        PageHead(PageScope.CLUSTER, "", "", NOW), [node_parts(one, NOW) for one in nodes], ()
    )


@pytest.mark.parametrize(
    "page",
    [
        two_nodes(),
        page_of(crowd(2, 3)),
        page_of(blind(crowd(2, 3))),
        page_of(replace(crowd(2, 3), domains=(), unknown=("a", "b"))),
    ],
)
def test_ids_are_there_once_in_each_list(page: PageView) -> None:
    assert page.gpus
    for name in LISTS:
        ids = [entry.id for entry in getattr(page, name)]
        assert len(ids) == len(set(ids)), name
