"""What happened between two looks at a node, as events on the node and on the pods it happened to.

One rule: a pod hears only of what took something from it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mpsd.model.domain import State
from mpsd.model.events import Event, Reason, Stamp, Subject, node_subject, pod_subject
from mpsd.model.grants import Grant
from mpsd.model.identity import PodName
from mpsd.model.node_view import DomainRecord, DomainView, Fault, NodeView, pod_names
from mpsd.model.violations import ViolationKind
from mpsd.mps.rules.faults import presence, suspects, unhealed

REFUSED = "Refused"


OF_VIOLATIONS = frozenset(
    kind.reason.value for kind in ViolationKind
)  # these are told with how they ended, by the watchdog


@dataclass(frozen=True, slots=True)
class PastEvent:
    """What an agent remembers beside its status. what: a value of model.events.Reason, or REFUSED.

    uid: of what it happened to; empty where that has none.
    """

    at: float
    what: str
    where: str
    text: str
    uid: str = ""


# What is told of the faults of a domain: on its node, and on each pod that a fault hit.
#
# One rule: a fault is told by what is written down of it, never by the time of a look, so that every agent that finds
# it says the same, and the API server sees that it was said already.

TOLD_S = 600.0  # a fault that healed and is older is not told by an agent that comes upon it
MOST_NAMES = 10  # in one message

_Hit = Counter[str | None]  # processes by the uid of their pod; None: of no pod


@dataclass(frozen=True, slots=True)
class FaultTeller:
    """before: None for an agent's first look. node: whose GPUs they are."""

    before: NodeView | None
    now: NodeView
    node: Subject
    stamp: Stamp

    def of(self, domain: str) -> Iterator[Event]:
        """What is new of this domain's faults."""
        there = self.now.domain(domain)
        earlier = self.before.domain(domain) if self.before else None
        told = {fault.at: fault for fault in (earlier.record.faults if earlier else ())}
        faults = there.record.faults if there else ()
        saying = _Saying(domain, self._names(), self.node, self.stamp)
        for number, fault in enumerate(faults, 1):
            old = earlier is None and fault.healed_at is not None and self.now.now - fault.at > TOLD_S
            if old:
                continue
            hit = self._hit(fault)
            if fault.at not in told:
                yield saying.on_node(faults[:number], hit)
                yield from saying.on_pods(faults[:number], hit)
            else:  # but for those whom the log named later
                yield from saying.on_pods(faults[:number], hit - self._hit(told[fault.at]))
            yield from saying.of_ends(told.get(fault.at), fault)

    def _names(self) -> Mapping[str, PodName]:
        return pod_names(self.now, self.before) if self.before else pod_names(self.now)

    def _hit(self, fault: Fault) -> _Hit:
        """Of what pod the record does not say, the look before may."""
        written = {hit.process.pid: hit.pod for hit in fault.hit}
        seen = {client.pid: client.pod for client in (self.before.clients if self.before else None) or ()}
        return Counter(written.get(pid) or seen.get(pid) for pid in fault.pids)


@dataclass(frozen=True, slots=True)
class _Saying:
    """names: of the pods, by uid."""

    domain: str
    names: Mapping[str, PodName]
    node: Subject
    stamp: Stamp

    def on_node(self, faults: Sequence[Fault], hit: _Hit) -> Event:
        """Of the last of these."""
        said = f"MPS domain {self.domain} had a fault, which ended the work of every program on its GPU: "
        said += self._who(hit)
        if sum(hit.values()) > 1:
            said += "; which of them caused it nobody can say"
        if found := suspects(faults):
            each = [f"{self._name(one.pod)} ({one.faults} faults since {self.stamp(one.since)})" for one in found]
            said += f"; hit each time: {listed(each)}"
        return Event(self.node, Reason.FAULT, said, faults[-1].at)

    def on_pods(self, faults: Sequence[Fault], hit: _Hit) -> Iterator[Event]:
        """On every pod that the last of these hit."""
        for pod in sorted(hit.keys() & self.names.keys(), key=str):
            lost = f"{hit[pod]} GPU process{'es' if hit[pod] > 1 else ''} of this pod"
            said = f"MPS domain {self.domain}: the fault of a program there ended the work of {lost}"
            said += f"; {'they' if hit[pod] > 1 else 'it'} must be started again"
            times = presence(faults, str(pod))
            if times > 1:
                since = self.stamp(faults[-times].at)
                said += f"; this pod was present at {times} of {times} faults since {since}"
            yield Event(pod_subject(self.names[str(pod)]), Reason.FAULT, said, faults[-1].at)

    def of_ends(self, told: Fault | None, fault: Fault) -> Iterator[Event]:
        """On the pods of those that lingered and were ended since it was told last."""
        already = {hit.process for hit in told.hit if hit.ended_at is not None} if told else set()
        for hit in fault.hit:
            pod = self.names.get(hit.pod or "")
            if pod and hit.ended_at is not None and hit.process not in already:
                said = (
                    f"MPS domain {self.domain}: {hit.process} of this pod stayed after a fault had ended its work, "
                    "and was killed, so that the GPU serves again"
                )
                yield Event(pod_subject(pod), Reason.FAULT, said, hit.ended_at)

    def _who(self, hit: _Hit) -> str:
        pods = sorted(f"{self._name(pod)} ({number})" for pod, number in hit.items() if pod is not None)
        others = [f"processes of no pod ({hit[None]})"] if hit[None] else []
        return listed(pods + others) if hit else "nobody is known to have been there"

    def _name(self, pod: str) -> str:
        return str(self.names[pod]) if pod in self.names else f"a pod that is gone, uid {pod}"


def listed(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


_REASONS = {
    State.DOWN: Reason.DAEMON_DOWN,
    State.FAULT: Reason.FAULT,
    State.WEDGED: Reason.WEDGED,
    State.REFUSED: Reason.REFUSED,
    State.READY: Reason.READY,
    State.DRAINING: Reason.DRAINING,
    State.DRAINED: Reason.DRAINED,
}
_WORDS = {
    State.DOWN: "has no MPS control daemon",
    State.FAULT: "had a fault, which ended every program on its GPUs",
    State.WEDGED: "does not answer; programs that run there go on, new ones wait",
    State.REFUSED: "cannot be served",
    State.READY: "serves",
    State.DRAINING: "takes no new pods and waits for those that run there",
    State.DRAINED: "is empty and takes no new pods",
}
_TROUBLED = frozenset({State.DOWN, State.FAULT, State.WEDGED, State.REFUSED})


def happenings(before: NodeView | None, now: NodeView, node: str, stamp: Stamp) -> tuple[Event, ...]:
    """before: None for the first look, which tells of troubles that are there, and takes nothing for lost."""
    subject = node_subject(node)
    faults = FaultTeller(before, now, subject, stamp)
    found: list[Event] = []
    for domain in now.domains:
        found += faults.of(domain.name)
        found += _of_domain(before, domain, subject)
    return tuple(found)


def _of_domain(before: NodeView | None, domain: DomainView, node: Subject) -> Iterator[Event]:
    earlier = before.domain(domain.name) if before else None
    ended = earlier is not None and domain.record.restarts_total > earlier.record.restarts_total
    risk = _risk(earlier.record, domain.record) if earlier else None
    at_risk = list(_on_pods(before, domain, risk)) if before and risk else []
    if _is_news(earlier, domain) or ended:
        yield from _on_node(domain, node, at_risk, ended=ended)
    yield from at_risk


def _is_news(earlier: DomainView | None, domain: DomainView) -> bool:
    if domain.state is State.FAULT and unhealed(domain.record.faults):
        return False  # it is told by itself
    if earlier is None:
        return domain.state in _TROUBLED
    return domain.state is not earlier.state


def _on_node(domain: DomainView, node: Subject, at_risk: Sequence[Event], *, ended: bool) -> Iterator[Event]:
    pods = listed(sorted({f"{one.subject.namespace}/{one.subject.name}" for one in at_risk}))
    lost, may_lose = (f"; {what}: {pods}" if pods else "" for what in ("pods that lost GPU processes", "pods there"))
    if ended and domain.state is not State.DOWN:  # it ended and came back between the two looks
        yield Event(node, Reason.DAEMON_DOWN, f"{_named(domain)}: its MPS control daemon ended{lost}")
    if domain.state in _REASONS:
        why = f": {domain.record.reason}" if domain.record.reason else ""
        if domain.state is State.READY and domain.record.canary:
            doubt = domain.record.canary.problem or domain.record.canary.warning
            why = f"{why}, although its canary found: {doubt}" if doubt else why
        who = {State.DOWN: lost, State.FAULT: lost, State.WEDGED: may_lose}.get(domain.state, "")
        yield Event(node, _REASONS[domain.state], f"{_named(domain)} {_WORDS[domain.state]}{why}{who}")


def _risk(earlier: DomainRecord, now: DomainRecord) -> Reason | None:
    """Why programs lost the GPUs of a domain between two looks, or may lose them; None where neither is so."""
    if now.restarts_total > earlier.restarts_total or (now.daemon is None and earlier.daemon is not None):
        return Reason.DAEMON_DOWN
    if now.state is earlier.state:
        return None
    if now.state is State.FAULT and not unhealed(now.faults):  # as an older mpsd control tells it
        return Reason.FAULT
    return Reason.WEDGED if now.state is State.WEDGED else None


def _on_pods(before: NodeView, domain: DomainView, reason: Reason) -> Iterator[Event]:
    for grant, pod in _pods_on(before, domain.record.gpus):
        number = _clients(before, grant)
        if number != 0:
            yield Event(pod_subject(pod), reason, f"{_named(domain)}: {_lost(number, reason)}")


def _lost(number: int | None, reason: Reason) -> str:
    """number: of its processes on MPS; None where that is not known."""
    whose = "the GPU processes that this pod may have"
    if number is not None:
        whose = f"{number} GPU process{'es' if number > 1 else ''} of this pod"
    if reason is Reason.WEDGED:
        how = "its MPS control daemon does not answer"
        return f"{how}; {whose} may go on, and lose the GPU if it must be started anew"
    cause = "the end of its MPS control daemon" if reason is Reason.DAEMON_DOWN else "the fault of a program there"
    remedy = "it must be started again" if number == 1 else "they see CUDA errors and must be started again"
    return f"{cause} ended {whose}{' had' if number is None else ''}; {remedy}"


def _pods_on(view: NodeView, gpus: Iterable[str]) -> Iterator[tuple[Grant, PodName]]:
    here = set(gpus)
    for held in view.grants:
        if held.grant.pod and not here.isdisjoint(held.grant.gpus):
            yield held.grant, held.grant.pod


def _clients(view: NodeView, grant: Grant) -> int | None:
    """How many processes of a grant were on MPS; None where that was not known."""
    if view.clients is None:
        return None
    return len({client.pid for client in view.clients if client.grant == grant.id and client.on_mps})


def _named(domain: DomainView) -> str:
    return f"MPS domain {domain.name}"
