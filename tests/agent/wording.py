"""The sentences of a node's events and of refused requests, as people read them: `wording.txt` has
them all."""

from collections.abc import Iterator
from dataclasses import replace

from mpsd.agent.rules.decide import Refuse, decide
from mpsd.agent.rules.node_events import node_events
from mpsd.model.domain import State
from mpsd.model.node_view import HeldGrant, NodeView
from tests.agent.test_node_events import BUSY, DEAR, DOWN, FAULT, KILLED, QUIET, hit, like, seen
from tests.model.worlds import NOW, NOW_S, POLICY, blind, grant, record, view, waiting
from tests.status.pod_worlds import client

_TWO = replace(BUSY, clients=(client("a", 1), client("a", 2)))


def changes() -> Iterator[tuple[NodeView, NodeView]]:
    """One of each change between two views that is an event."""
    starting = like(BUSY, state=State.STARTING)
    yield from ((starting, like(BUSY, state=state, reason="because")) for state in State)
    yield starting, like(starting, state=State.DOWN, daemon=None, reason="because")
    yield starting, like(BUSY, canary=DEAR)
    yield _TWO, like(_TWO, **DOWN)
    yield blind(BUSY), like(BUSY, **DOWN)
    yield BUSY, like(BUSY, restarts_total=1)
    yield QUIET, seen(FAULT)
    yield QUIET, (caused := seen(replace(FAULT, causes=(KILLED,))))
    yield caused, replace(caused, reasons={KILLED.process: "OOMKilled"})
    yield (
        seen(replace(FAULT, at=NOW - 60), state=State.READY),
        seen(replace(FAULT, at=NOW - 60), FAULT),
    )
    yield seen(FAULT), seen(replace(FAULT, hit=(hit(1, "a", NOW + 5), *FAULT.hit[1:])))
    yield QUIET, seen(replace(FAULT, hit=(hit(1, "gone"),)))
    yield QUIET, seen(replace(FAULT, hit=()))


def refusals() -> Iterator[Refuse]:
    sizes = enumerate((20, 23))
    full = tuple(HeldGrant(grant(f"g{n}", gib, n), holder_alive=True) for n, gib in sizes)
    large = replace(waiting("large", 22, deadline_s=NOW_S + 60), tenant=1000)
    ahead = (large, replace(waiting("small", 2), tenant=1001))
    tiny = replace(waiting("a", 1), request=replace(waiting("a", 1).request, memory_mib=100))
    down = record(0, State.DOWN, reason="because")
    for one in (
        view(grants=full, waits=ahead),
        view(grants=full, waits=(large, replace(large, id="second"))),
        view(waits=(tiny,)),
        view(records=(down, record(1, State.DRAINED)), waits=(waiting("a", 1),)),
        view(records=(down,), waits=(waiting("a", 1),)),
    ):
        yield from (action for action in decide(one, POLICY) if isinstance(action, Refuse))


def wording() -> str:
    events = dict.fromkeys(
        f"{one.reason} on the {one.subject.kind}\n  {one.message}"
        for before, now in changes()
        for one in node_events(before, now, "node1")
    )
    refused = [f"{'for ever' if one.for_ever else 'now'}: {one.reason}" for one in refusals()]
    return "\n".join([*events, *dict.fromkeys(refused)]) + "\n"
