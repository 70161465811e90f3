"""What `mpsd status` says of programs that took more than they were given."""

from collections.abc import Iterator

from mpsd.model.node_status import ViolationCount, ViolationsStatus, ViolationStatus
from mpsd.model.problem import printable
from mpsd.model.responses import DONE, Response
from mpsd.status.tables import clock

_LONGEST = 1000


def violation_lines(seen: ViolationsStatus, *, most: int) -> Iterator[str]:
    """How many there were, and the last ones, at most so many. Nothing where there was none."""
    if seen.unjudged:
        yield printable(f"nobody is watched: {seen.unjudged}", _LONGEST)
    if seen.counts:
        counts = ", ".join(map(_counted, seen.counts))
        yield f"violations since mpsd's agent started at {clock(seen.since)}: {counts}"
    for one in seen.last[-most:]:
        yield printable(f"{clock(one.at)} {_said(one)}", _LONGEST)


def _counted(one: ViolationCount) -> str:
    """One that was to end may go on, or be gone by itself."""
    if one.action is Response.KILL and one.ended == one.count:
        return f"{one.count} {one.kind} ended"
    were = f" ({one.ended} ended)" if one.action.ends and one.ended is not None else ""
    return f"{one.count} {one.kind} {DONE[one.action]}{were}"


def _said(one: ViolationStatus) -> str:
    who = f"{one.namespace}/{one.pod} " if one.pod else ""
    outcome = f"; {one.outcome}" if one.outcome else ""
    return f"{who}{one.message}{outcome}"
