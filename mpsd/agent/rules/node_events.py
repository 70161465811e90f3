"""The events between two views of a node: on the node, and on each pod that lost something.

A fault's events are made from its record alone, never from the time of a view, so every agent that finds the record
makes the same events, and the API server recognizes repeated ones.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mpsd.model.domain import State
from mpsd.model.events import Event, Reason, Subject, node_subject, pod_subject
from mpsd.model.grants import Grant
from mpsd.model.identity import PodName
from mpsd.model.node_view import DomainRecord, DomainView, Fault, NodeView, pod_names
from mpsd.model.times import stamp
from mpsd.model.violations import ViolationKind
from mpsd.mps.rules.faults import presence, suspects, unhealed

REFUSED = "Refused"
VIOLATION_REASONS = frozenset(kind.reason.value for kind in ViolationKind)  # the watchdog reports these with an outcome
OLD_FAULT_S = 600.0  # an agent's first view makes no events of healed faults older than this
MOST_NAMES = 10  # in one message


def node_events(before: NodeView | None, now: NodeView, node: str) -> tuple[Event, ...]:
    """before: None for the first view, which reports present troubles and takes nothing for lost."""
    subject = node_subject(node)
    found: list[Event] = []
    for domain in now.domains:
        earlier = before.domain(domain.name) if before else None
        names = pod_names(now, before) if before else pod_names(now)
        found += _FaultEvents(domain.name, names, subject).between(before, earlier, now, domain)
        found += _domain_events(before, earlier, domain, subject)
    return tuple(found)


def listed(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


# -- faults --------------------------------------------------------------------------------------------------------

_Hit = Counter[str | None]  # processes by the uid of their pod; None: of no pod


@dataclass(frozen=True, slots=True)
class _FaultEvents:
    """Of one domain. names: of the pods, by uid."""

    domain: str
    names: Mapping[str, PodName]
    node: Subject

    def between(
        self, before: NodeView | None, earlier: DomainView | None, now: NodeView, domain: DomainView
    ) -> Iterator[Event]:
        known = {fault.at: fault for fault in (earlier.record.faults if earlier else ())}
        clients = {client.pid: client.pod for client in (before.clients if before else None) or ()}
        for number, fault in enumerate(domain.record.faults, 1):
            if earlier is None and fault.healed_at is not None and now.now - fault.at > OLD_FAULT_S:
                continue
            hit, faults = _hit_by_pod(fault, clients), domain.record.faults[:number]
            same = known.get(fault.at)
            if same is None:
                yield self._on_node(faults, hit)
            else:  # only pods that the log named later
                hit -= _hit_by_pod(same, clients)
            yield from self._on_pods(faults, hit)
            yield from self._of_killed(same, fault)

    def _on_node(self, faults: Sequence[Fault], hit: _Hit) -> Event:
        """Of the last of `faults`."""
        text = f"MPS domain {self.domain} had a fault, which ended the work of every program on its GPU: "
        text += self._who(hit)
        if sum(hit.values()) > 1:
            text += "; MPS does not report which of them caused it"
        if found := suspects(faults):
            each = [f"{self._name(one.pod)} ({one.faults} faults since {stamp(one.since)})" for one in found]
            text += f"; hit each time: {listed(each)}"
        return Event(self.node, Reason.FAULT, text, faults[-1].at)

    def _on_pods(self, faults: Sequence[Fault], hit: _Hit) -> Iterator[Event]:
        """On each pod that the last of `faults` hit."""
        for pod in sorted(hit.keys() & self.names.keys(), key=str):
            many = hit[pod] > 1
            text = (
                f"MPS domain {self.domain}: a fault of a program there ended the work of {hit[pod]} GPU "
                f"process{'es' if many else ''} of this pod; {'they' if many else 'it'} must be restarted"
            )
            if (times := presence(faults, str(pod))) > 1:
                since = stamp(faults[-times].at)
                text += f"; this pod was present at {times} of {times} faults since {since}"
            yield Event(pod_subject(self.names[str(pod)]), Reason.FAULT, text, faults[-1].at)

    def _of_killed(self, known: Fault | None, fault: Fault) -> Iterator[Event]:
        """On the pods of processes that stayed after the fault and were killed since `known`."""
        already = {hit.process for hit in known.hit if hit.ended_at is not None} if known else set()
        for hit in fault.hit:
            pod = self.names.get(hit.pod or "")
            if pod and hit.ended_at is not None and hit.process not in already:
                text = (
                    f"MPS domain {self.domain}: {hit.process} of this pod stayed after a fault had ended its work, "
                    "and was killed so that the GPU can serve again"
                )
                yield Event(pod_subject(pod), Reason.FAULT, text, hit.ended_at)

    def _who(self, hit: _Hit) -> str:
        pods = sorted(f"{self._name(pod)} ({number})" for pod, number in hit.items() if pod is not None)
        others = [f"processes of no pod ({hit[None]})"] if hit[None] else []
        return listed(pods + others) if hit else "no process was seen there"

    def _name(self, pod: str) -> str:
        return str(self.names[pod]) if pod in self.names else f"a pod that is gone, uid {pod}"


def _hit_by_pod(fault: Fault, clients: Mapping[int, str | None]) -> _Hit:
    """clients: the pods of the processes in the view before, for those whose pod the record lacks."""
    recorded = {hit.process.pid: hit.pod for hit in fault.hit}
    return Counter(recorded.get(pid) or clients.get(pid) for pid in fault.pids)


# -- states of domains ---------------------------------------------------------------------------------------------

_STATES = {
    State.DOWN: (Reason.DAEMON_DOWN, "has no MPS control daemon"),
    State.FAULT: (Reason.FAULT, "had a fault, which ended every program on its GPUs"),
    State.WEDGED: (Reason.WEDGED, "does not answer; running programs continue, new ones wait"),
    State.REFUSED: (Reason.REFUSED, "cannot be served"),
    State.READY: (Reason.READY, "serves"),
    State.DRAINING: (Reason.DRAINING, "takes no new pods and waits for the running ones"),
    State.DRAINED: (Reason.DRAINED, "is empty and takes no new pods"),
}
_TROUBLED = frozenset({State.DOWN, State.FAULT, State.WEDGED, State.REFUSED})


def _domain_events(
    before: NodeView | None, earlier: DomainView | None, domain: DomainView, node: Subject
) -> Iterator[Event]:
    ended = earlier is not None and domain.record.restarts_total > earlier.record.restarts_total
    risk = _risk(earlier.record, domain.record) if earlier else None
    at_risk = list(_on_pods(before, domain, risk)) if before and risk else []
    if _has_changed(earlier, domain) or ended:
        yield from _on_node(domain, node, at_risk, ended=ended)
    yield from at_risk


def _has_changed(earlier: DomainView | None, domain: DomainView) -> bool:
    if domain.state is State.FAULT and unhealed(domain.record.faults):
        return False  # the fault has events of its own
    if earlier is None:
        return domain.state in _TROUBLED
    return domain.state is not earlier.state


def _on_node(domain: DomainView, node: Subject, at_risk: Sequence[Event], *, ended: bool) -> Iterator[Event]:
    pods = listed(sorted({f"{one.subject.namespace}/{one.subject.name}" for one in at_risk}))
    lost, may_lose = (f"; {what}: {pods}" if pods else "" for what in ("pods that lost GPU processes", "pods there"))
    named = f"MPS domain {domain.name}"
    if ended and domain.state is not State.DOWN:  # it ended and came back between the two views
        yield Event(node, Reason.DAEMON_DOWN, f"{named}: its MPS control daemon ended{lost}")
    if domain.state in _STATES:
        why = f": {domain.record.reason}" if domain.record.reason else ""
        if domain.state is State.READY and domain.record.canary:
            doubt = domain.record.canary.problem or domain.record.canary.warning
            why = f"{why}, although its canary found: {doubt}" if doubt else why
        who = {State.DOWN: lost, State.FAULT: lost, State.WEDGED: may_lose}.get(domain.state, "")
        reason, text = _STATES[domain.state]
        yield Event(node, reason, f"{named} {text}{why}{who}")


def _risk(earlier: DomainRecord, now: DomainRecord) -> Reason | None:
    """Why programs lost the GPUs of a domain between two views, or may lose them; None where neither is so."""
    if now.restarts_total > earlier.restarts_total or (now.daemon is None and earlier.daemon is not None):
        return Reason.DAEMON_DOWN
    if now.state is earlier.state:
        return None
    if now.state is State.FAULT and not unhealed(now.faults):  # as an older mpsd control records it
        return Reason.FAULT
    return Reason.WEDGED if now.state is State.WEDGED else None


def _on_pods(before: NodeView, domain: DomainView, reason: Reason) -> Iterator[Event]:
    for grant, pod in _pods_on(before, domain.record.gpus):
        number = _clients(before, grant)
        if number != 0:
            yield Event(pod_subject(pod), reason, f"MPS domain {domain.name}: {_loss(number, reason)}")


def _loss(number: int | None, reason: Reason) -> str:
    """number: of the pod's processes on MPS; None where that is not known."""
    whose = "any GPU processes of this pod"
    if number is not None:
        whose = f"{number} GPU process{'es' if number > 1 else ''} of this pod"
    if reason is Reason.WEDGED:
        return f"its MPS control daemon does not answer; {whose} may continue, and lose the GPU if it must be restarted"
    cause = "the end of its MPS control daemon" if reason is Reason.DAEMON_DOWN else "a fault of a program there"
    remedy = "it must be restarted" if number == 1 else "they see CUDA errors and must be restarted"
    return f"{cause} ended {whose}; {remedy}"


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
