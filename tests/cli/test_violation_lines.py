"""What `mpsd status` says of programs that took more than they were given."""

import io
import time

from rich.console import Console

from mpsd.cli.status import show
from mpsd.core.identity import PodName
from mpsd.core.node_status import ViolationsStatus, node_status
from mpsd.core.policy import Response
from mpsd.core.violations import Kind, Violation
from mpsd.roles.violation_book import ViolationBook
from tests.core.pod_worlds import client as pod_client
from tests.core.pod_worlds import held, node
from tests.core.worlds import NOW, POLICY


def shown(violations: ViolationsStatus | None, used_mib: int = 1024) -> str:
    text = io.StringIO()
    view = node(grants=(held("a"),), clients=(pod_client("a", 1, used_mib),))
    show(node_status(view, POLICY, violations), Console(file=text, width=300, markup=False, highlight=False))
    return text.getvalue()


def violation(pid: int, kind: Kind = Kind.OUTSIDE_MPS, *, again: bool = False) -> Violation:
    who = pod_client("a", pid)
    pod = PodName("default", "a", "a-uid")
    return Violation(kind, Response.KILL, who.gpu, who.grant, pod, who, "runs beside MPS on gpu0", again)


def test_the_last_of_them_are_shown_with_what_became_of_them_and_since_when_they_are_counted() -> None:
    book = ViolationBook(NOW)
    for pid in range(1, 8):
        book.add(violation(pid), NOW + pid).outcome = "ended, its memory back 0.06 s after it was seen"
    said = shown(book.status(0.0, ""))
    clock = time.strftime("%H:%M:%S", time.localtime(NOW))
    assert f"violations since mpsd's agent started at {clock}: 7 outside_mps ended" in said
    assert said.count("default/a pid ") == 5
    assert "default/a pid 7 (train) runs beside MPS on gpu0; ended, its memory back 0.06 s after it was seen" in said


def test_a_violation_that_is_there_again_is_counted_once() -> None:
    book = ViolationBook(NOW)
    first, other = book.add(violation(1), NOW), book.add(violation(2), NOW)
    assert book.add(violation(1, again=True), NOW + 2) is first is not other
    assert [(one.kind, one.count) for one in book.status(0.0, "").counts] == [(Kind.OUTSIDE_MPS, 2)]


def test_looks_and_the_longest_pause_between_two_are_counted() -> None:
    book = ViolationBook(NOW)
    for began in (10.0, 10.2, 11.0, 11.2, 11.5):
        book.looked(began)
    status = book.status(1.25, "")
    assert (status.looks, status.longest_pause_s, status.late_looks, status.nvml_s) == (5, 0.8, 2, 1.25)


def test_where_nobody_is_judged_the_reason_is_shown() -> None:
    assert "nobody is watched: kubelet has not said yet who holds what" in shown(
        ViolationBook(NOW).status(0.0, "kubelet has not said yet who holds what")
    )
    assert "watched" not in shown(ViolationBook(NOW).status(0.0, ""))
    assert "violation" not in shown(None)


def test_a_grant_that_is_over_is_marked() -> None:
    assert "7 GiB, over" in shown(None, 7 * 1024 + 33)
    assert "over" not in shown(None, 7 * 1024 + 32)
