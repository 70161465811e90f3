"""What the watchdog's book tells a cluster: by grant while it is held, and of everybody."""

from mpsd.model.policy import Response
from mpsd.model.violations import Violation, ViolationKind
from mpsd.watchdog.history import ViolationHistory
from tests.model.worlds import NOW
from tests.status.pod_worlds import client, pod


def violation(
    name: str, pid: int, kind: ViolationKind = ViolationKind.OUTSIDE_MPS, *, again: bool = False
) -> Violation:
    who = client(name, pid)
    return Violation(kind, Response.KILL, who.gpu, who.grant, pod(name), who, "runs beside MPS", again)


def test_each_grant_has_its_own_counts_and_its_last_one() -> None:
    book = ViolationHistory(NOW)
    book.add(violation("a", 1), NOW + 1)
    book.add(violation("b", 2, ViolationKind.LIMIT_LIFTED), NOW + 2)
    book.add(violation("a", 3, ViolationKind.LIMIT_LIFTED), NOW + 3)
    seen = book.seen()
    own = seen.grants[pod("a").uid]
    assert own.counts == {ViolationKind.OUTSIDE_MPS: 1, ViolationKind.LIMIT_LIFTED: 1}
    assert (own.last.kind, own.last.at, own.last.pod) == (ViolationKind.LIMIT_LIFTED, NOW + 3, pod("a"))
    assert seen.counts == {ViolationKind.OUTSIDE_MPS: 1, ViolationKind.LIMIT_LIFTED: 2}
    assert [one.at for one in seen.last] == [NOW + 1, NOW + 2, NOW + 3]


def test_one_that_is_there_again_is_not_another() -> None:
    book = ViolationHistory(NOW)
    book.add(violation("a", 1), NOW)
    book.add(violation("a", 1, again=True), NOW + 2)
    assert book.seen().grants[pod("a").uid].counts == {ViolationKind.OUTSIDE_MPS: 1}


def test_a_grant_that_is_gone_is_forgotten_and_stays_in_what_is_told_of_all() -> None:
    book = ViolationHistory(NOW)
    for name in "ab":
        book.add(violation(name, 1), NOW)
    book.keep({pod("b").uid})
    seen = book.seen()
    assert list(seen.grants) == [pod("b").uid]
    assert seen.counts == {ViolationKind.OUTSIDE_MPS: 2}


def test_what_was_told_is_not_changed_by_what_comes_after_it() -> None:
    book = ViolationHistory(NOW)
    book.add(violation("a", 1), NOW)
    before = book.seen()
    book.add(violation("a", 2), NOW)
    assert before != book.seen()
    assert before.grants[pod("a").uid].counts == {ViolationKind.OUTSIDE_MPS: 1}
