"""What `mpsd status` says of programs that took more than they were given."""

from collections.abc import Iterator

from mpsd.cli.tables import clock
from mpsd.core.node_status import ViolationsStatus, ViolationStatus
from mpsd.core.policy import Response
from mpsd.core.problem import printable

_LONGEST = 1000
_DONE = {Response.OBSERVE: "only seen", Response.WARN: "told of", Response.KILL: "ended", Response.EVICT: "evicted"}


def violation_lines(seen: ViolationsStatus, *, most: int) -> Iterator[str]:
    """How many there were, and the last ones, at most so many. Nothing where there was none."""
    if seen.unjudged:
        yield printable(f"nobody is watched: {seen.unjudged}", _LONGEST)
    if seen.counts:
        counts = ", ".join(f"{one.count} {one.kind} {_DONE[one.action]}" for one in seen.counts)
        yield f"violations since mpsd's agent started at {clock(seen.since)}: {counts}"
    for one in seen.last[-most:]:
        yield printable(f"{clock(one.at)} {_said(one)}", _LONGEST)


def _said(one: ViolationStatus) -> str:
    who = f"{one.namespace}/{one.pod} " if one.pod else ""
    outcome = f"; {one.outcome}" if one.outcome else ""
    return f"{who}{one.message}{outcome}"
