"""What happened lately on a node: the lines of its page, and what each of its pods was told last.

One rule: what one thing did is one line, told by whoever knows best how it ended.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mpsd.model.events import Reason
from mpsd.model.fault_status import FaultsStatus
from mpsd.model.node_status import NodeStatus
from mpsd.model.problem import shown_name
from mpsd.model.violations import Kind
from mpsd.status.page.rules.page_view import LatelyLine, Level, shown_text

REFUSED = "Refused"
MOST_LATELY = 60
OF_VIOLATIONS = frozenset(kind.reason.value for kind in Kind)  # these are told with how they ended, by the watchdog


@dataclass(frozen=True, slots=True)
class Happened:
    """What an agent remembers beside its status. what: a value of model.events.Reason, or REFUSED.

    uid: of what it happened to; empty where that has none.
    """

    at: float
    what: str
    where: str
    text: str
    uid: str = ""


def last_warnings(happened: Iterable[Happened]) -> Mapping[str, str]:
    """By uid, what each pod was told last of what keeps or ends it: reason and message, as its event has them."""
    found = sorted((one for one in happened if one.uid and _level(one.what) is Level.WARN), key=lambda one: one.at)
    return {one.uid: f"{one.what}: {one.text}" for one in found}


def lately(node: NodeStatus, happened: Iterable[Happened], since: float) -> Sequence[LatelyLine]:
    """The newest first."""
    found = [*_remembered(happened), *_violations(node), *_older_faults(node, since)]
    return sorted(found, key=lambda line: (-line.at, line.id))[:MOST_LATELY]


def _remembered(happened: Iterable[Happened]) -> Iterator[LatelyLine]:
    for one in happened:
        if one.what not in OF_VIOLATIONS:
            key = f"{one.what} {one.at:.6f} {one.where}"
            yield LatelyLine(
                shown_name(key), one.at, _level(one.what), one.what, shown_name(one.where), shown_text(one.text)
            )


def _level(what: str) -> Level:
    return Level.WARN if what == REFUSED or Reason(what).is_warning else Level.WELL


def _violations(node: NodeStatus) -> Iterator[LatelyLine]:
    for one in node.violations.last if node.violations else ():
        where = f"{one.namespace}/{one.pod}" if one.pod else f"pid {one.pid}"
        text = f"{one.message}; {one.outcome}" if one.outcome else one.message
        key = f"violation {one.at:.3f} {one.pid} {one.kind}"
        yield LatelyLine(key, one.at, Level.WARN, one.kind.value, shown_name(where), shown_text(text))


def _older_faults(node: NodeStatus, since: float) -> Iterator[LatelyLine]:
    """Those of which this agent knows from the domain's record alone."""
    for domain in node.domains:
        at = domain.faults.last
        if at is not None and at < since:
            key = f"fault {domain.name} {at:.3f}"
            yield LatelyLine(key, at, Level.WARN, Reason.FAULT.value, domain.name, shown_text(_hit(domain.faults)))


def _hit(faults: FaultsStatus) -> str:
    return ", ".join(f"{one.pod or 'processes of no known pod'} ({one.processes})" for one in faults.hit)
