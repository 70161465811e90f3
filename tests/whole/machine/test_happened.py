"""What an agent remembers of what happened: the same once more takes nobody's place."""

from mpsd.agent.events import EventHistory
from mpsd.model.domain import State
from mpsd.model.events import Event, Reason, pod_subject
from tests.status.pod_worlds import node, pod


def held_back(name: str, at: float | None = None) -> Event:
    return Event(pod_subject(pod(name)), Reason.START_HELD_BACK, "gpu0 is in fault", at)


def test_what_kubelet_tries_again_and_again_pushes_nothing_out_and_is_as_of_the_last_time() -> None:
    book = EventHistory()
    book.note(held_back("other", 1.0))
    for at in range(1000):
        book.note(held_back("train", float(at)))
    assert [(one.where, one.at) for one in book.all()] == [("default/other", 1.0), ("default/train", 999.0)]


def test_a_tenant_who_breaks_limits_all_the_time_pushes_nothing_else_out() -> None:
    book = EventHistory()
    book.note(held_back("train", 1.0))
    for pid in range(1000):
        book.note(Event(pod_subject(pod("thief")), Reason.OUTSIDE_MPS, f"pid {pid} runs beside MPS"))
    seen = book.all()
    assert seen[0].where == "default/train"
    assert seen[-1].text == "pid 999 runs beside MPS"


def test_a_domain_that_goes_down_and_comes_back_twice_did_so_twice() -> None:
    book = EventHistory()
    up, down = node(), node(state=State.DOWN)
    for before, now in ((up, down), (down, up), (up, down), (down, up)):
        book.see(before, now)
    assert [one.what for one in book.all()] == ["MPSDaemonDown", "MPSReady"] * 2
