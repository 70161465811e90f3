"""What `mpsd status` says of programs that took more than they were given."""

import io
import time

from rich.console import Console

from mpsd.model.identity import PodName
from mpsd.model.node_report import SeenViolations
from mpsd.model.node_view import Queue
from mpsd.model.policy import Response
from mpsd.model.violations import Violation, ViolationKind
from mpsd.status.machine import show
from mpsd.status.rules.node_report import node_report
from mpsd.watchdog.watchdog import ViolationHistory
from tests.model.worlds import NOW, POLICY
from tests.status.pod_worlds import client as pod_client
from tests.status.pod_worlds import held, node


def shown(violations: SeenViolations | None, used_mib: int = 1024) -> str:
    text = io.StringIO()
    view = node(grants=(held("a"),), clients=(pod_client("a", 1, used_mib),))
    show(
        node_report(view, POLICY, violations),
        Console(file=text, width=300, markup=False, highlight=False),
    )
    return text.getvalue()


def violation(
    pid: int, kind: ViolationKind = ViolationKind.OUTSIDE_MPS, *, again: bool = False
) -> Violation:
    who = pod_client("a", pid)
    pod = PodName("default", "a", "a-uid")
    return Violation(
        kind, Response.KILL, who.gpu, who.grant, pod, who, "runs beside MPS on gpu0", again
    )


def test_the_last_of_them_are_shown_with_what_became_of_them_and_since_when_they_are_counted() -> (
    None
):
    book = ViolationHistory(NOW)
    for pid in range(1, 8):
        book.ended(book.add(violation(pid), NOW + pid), 0.06, Queue.DRY)
    said = shown(book.whole(0.0, ""))
    clock = time.strftime("%H:%M:%S", time.localtime(NOW))
    assert f"violations since mpsd's agent started at {clock}: 7 outside_mps ended" in said
    assert said.count("default/a pid ") == 5
    assert (
        "default/a pid 7 (train) runs beside MPS on gpu0; ended, its memory back 0.06 s after it"
        " was seen" in said
    )


def test_one_that_is_never_gone_is_told_of_once_however_many_come_after_it() -> None:
    book = ViolationHistory(NOW)
    first = book.add(violation(1), NOW)
    first.announced = "it goes on"
    for pid in range(2, 42):
        book.add(violation(pid), NOW)
    assert book.add(violation(1, again=True), NOW).announced == "it goes on"
    assert [one.count for one in book.whole(0.0, "").node.counts] == [41]


def test_looks_and_the_longest_pause_between_two_are_counted() -> None:
    book = ViolationHistory(NOW)
    for began in (10.0, 10.2, 11.0, 11.2, 11.5):
        book.scanned(began)
    status = book.whole(1.25, "").node
    assert (status.looks, status.longest_pause_s, status.late_looks, status.nvml_s) == (
        5,
        0.8,
        2,
        1.25,
    )


def test_a_grant_that_is_over_is_marked() -> None:
    assert "7 GiB, over" in shown(None, 7 * 1024 + 33)
    assert "over" not in shown(None, 7 * 1024 + 32)
