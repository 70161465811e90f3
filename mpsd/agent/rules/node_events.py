"""The events between two views of a node: on the node, and on each pod that lost something. Those
of a fault are made from its record, so that every agent makes the same."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mpsd.model.cluster_status import ended_before
from mpsd.model.domain import State, because
from mpsd.model.events import Event, PastEvent, Reason, Subject, node_subject, pod_subject
from mpsd.model.grants import Grant
from mpsd.model.identity import PodName
from mpsd.model.node_view import (
    DomainRecord,
    DomainView,
    Fault,
    NodeView,
    Reasons,
    WaitingRequest,
    pod_names,
)
from mpsd.model.problem import program_of, shortened
from mpsd.model.times import epoch, stamp
from mpsd.model.violations import ViolationKind
from mpsd.mps.rules.faults import causes_report, presence, suspects

REFUSED = "Refused"
# the watchdog reports these with an outcome
VIOLATION_REASONS = frozenset(kind.reason.value for kind in ViolationKind)
OLD_FAULT_S = 600.0  # an agent's first view makes no events of healed faults older than this


def node_events(before: NodeView | None, now: NodeView, node: str) -> tuple[Event, ...]:
    """before: None at first; then present troubles are reported, and nothing is lost."""
    subject = node_subject(node)
    found = list[Event]()
    names: Mapping[str, PodName] = {}
    if any(domain.record.faults for domain in now.domains):  # nothing else names a pod by its uid
        names = pod_names(*filter(None, (now, before)))
    for domain in now.domains:
        earlier = before.domain(domain.name) if before else None
        if earlier and earlier.record.gpus != domain.record.gpus:
            earlier = None  # another domain, whose name this one has now
        found += _FaultEvents(domain.name, names, subject).between(before, earlier, now, domain)
        found += _domain_events(before, earlier, domain, subject)
        found += _sick(earlier, now, domain, subject)
    found += _unavailable(before, now, subject)
    return tuple(found)


def _unavailable(before: NodeView | None, now: NodeView, node: Subject) -> Iterator[Event]:
    """On the node, and on each pod with a grant on a GPU that is in trouble since the last view."""
    known = before.troubles if before else {}
    new = {uuid: why for uuid, why in now.troubles.items() if known.get(uuid) != why}
    for why in dict.fromkeys(new.values()):
        yield Event(node, Reason.UNAVAILABLE, f"takes no new pods: {why}")
        for pod in _pods_on(now, {uuid for uuid in new if new[uuid] == why}):
            text = f"a GPU of this pod takes no new programs: {why}; its grant is kept"
            yield Event(pod_subject(pod), Reason.UNAVAILABLE, text)


def _sick(
    earlier: DomainView | None, now: NodeView, domain: DomainView, node: Subject
) -> Iterator[Event]:
    """On the node, and on each pod with a grant on a GPU that has become sick."""
    known = set()
    if earlier:
        known = {(one.gpu, one.reason) for one in earlier.record.health}
    labels = {gpu.uuid: gpu.label for gpu in now.gpus}
    for one in domain.record.health:
        if one.cause is None or (one.gpu, one.reason) in known:
            continue
        text = f"{labels.get(one.gpu, one.gpu)} is sick and takes no new pods: {one.reason}"
        yield Event(node, Reason.SICK, text)
        for pod in _pods_on(now, {one.gpu}):
            yield Event(pod_subject(pod), Reason.SICK, f"{text}; the processes there continue")


def _pods_on(view: NodeView, gpus: set[str]) -> set[PodName]:
    """Those with a grant on one of these GPUs."""
    holding = [held.grant for held in view.grants if not gpus.isdisjoint(held.grant.gpus)]
    return {pod for grant in holding for pod in grant.pods}


# -- faults

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
        known = {fault.at: fault for fault in _settled(earlier)}
        clients: dict[int, str | None] = {}
        reasons: Reasons = {}
        if before and domain.record.faults:
            clients = {client.pid: client.pod for client in before.clients}
            reasons = before.reasons
        every = _settled(domain)
        for number, fault in enumerate(every, 1):
            is_old = now.now_s - fault.at_s > OLD_FAULT_S
            if earlier is None and fault.healed_at is not None and is_old:
                continue
            same = known.get(fault.at)
            if same is None:
                hit = _hit_by_pod(fault, clients)
                faults = every[:number]
                yield self._on_node(faults, hit)
                yield from self._on_pods(faults, hit)
            yield from self._of_killed(same, fault)
            if not is_old:
                yield from self._of_reasons(fault, reasons, now.reasons)

    def _on_node(self, faults: Sequence[Fault], hit: _Hit) -> Event:
        text = (
            f"MPS domain {self.domain} had a fault, which ended the work of every program on its"
            " GPU: "
        )
        struck = sorted(f"{self._name(pod)} ({number})" for pod, number in hit.items() if pod)
        if hit[None]:
            struck.append(f"processes of no pod ({hit[None]})")
        text += shortened(struck) or "no process was seen there"
        if faults[-1].causes:
            text += f"; {self._ended_before(faults[-1], {})}"
        elif hit.total() > 1:
            text += "; MPS does not report which of them caused it"
        each = []
        for one in suspects(faults, self.names):
            since = stamp(epoch(one.since) or 0.0)
            each.append(f"{self._name(one.uid)} ({one.faults} faults since {since})")
        if each:
            text += f"; hit each time: {shortened(each)}"
        return Event(self.node, Reason.FAULT, text, faults[-1].at)

    def _on_pods(self, faults: Sequence[Fault], hit: _Hit) -> Iterator[Event]:
        for pod in sorted(hit.keys() & self.names.keys(), key=str):
            lost = "1 GPU process of this pod; it"
            if hit[pod] > 1:
                lost = f"{hit[pod]} GPU processes of this pod; they"
            text = (
                f"MPS domain {self.domain}: a program's fault ended the work of {lost} must be"
                " restarted"
            )
            if faults[-1].causes:
                text += f"; {self._ended_before(faults[-1], {})}"
            if (times := presence(faults, str(pod))) > 1:
                since = stamp(faults[-times].at)
                text += f"; this pod was present at {times} of {times} faults since {since}"
            yield Event(pod_subject(self.names[str(pod)]), Reason.FAULT, text, faults[-1].at)

    def _of_killed(self, known: Fault | None, fault: Fault) -> Iterator[Event]:
        """On the pods of processes that were killed since `known`."""
        already = known.killed if known else {}
        for hit in fault.killed.values():
            pod = self.names.get(hit.pod or "")
            if pod and hit.process not in already:
                text = (
                    f"MPS domain {self.domain}: {hit.process} of this pod remained after a fault"
                    " had ended its work, and was killed so that the GPU can serve again"
                )
                yield Event(pod_subject(pod), Reason.FAULT, text, hit.ended_at)

    def _of_reasons(self, fault: Fault, known: Reasons, reported: Reasons) -> Iterator[Event]:
        """What Kubernetes says of its causes, which comes later."""
        if all(one.process in known or one.process not in reported for one in fault.causes or ()):
            return
        text = f"MPS domain {self.domain} had a fault at {stamp(fault.at)}"
        text += f"; {self._ended_before(fault, reported)}"
        hit = [self.names[pod] for pod in sorted(fault.pods & self.names.keys())]
        for subject in (self.node, *map(pod_subject, hit)):
            yield Event(subject, Reason.FAULT, text, fault.at + 1)

    def _ended_before(self, fault: Fault, reasons: Reasons) -> str:
        return ended_before(map(str, causes_report(fault, self.names, reasons)))

    def _name(self, pod: str) -> str:
        return str(self.names.get(pod) or f"a pod that is gone, uid {pod}")


def _settled(domain: DomainView | None) -> tuple[Fault, ...]:
    """Its faults, but one that began just now, whose causes are not known yet."""
    faults = domain.record.faults if domain else ()
    return tuple(fault for fault in faults if fault.causes is not None)


def _hit_by_pod(fault: Fault, clients: Mapping[int, str | None]) -> _Hit:
    """clients: pods of processes in the view before, where the record lacks them."""
    recorded = {hit.process.pid: hit.pod for hit in fault.hit}
    return Counter(recorded.get(pid) or clients.get(pid) for pid in fault.pids)


# -- states of domains

_STATES = {
    State.DOWN: (Reason.DAEMON_DOWN, "has no MPS control daemon"),
    State.WEDGED: (Reason.WEDGED, "does not answer; running programs continue, new ones wait"),
    State.REFUSED: (Reason.REFUSED, "cannot be served"),
    State.READY: (Reason.READY, "serves"),
    State.DRAINING: (Reason.DRAINING, "takes no new pods and waits for the running ones"),
    State.DRAINED: (Reason.DRAINED, "is empty and takes no new pods"),
}


def _domain_events(
    before: NodeView | None, earlier: DomainView | None, domain: DomainView, node: Subject
) -> Iterator[Event]:
    risk = None
    ended = False
    at_risk: list[_Loser] = []
    # a fault has events of its own
    has_changed = domain.state in {State.WEDGED, State.REFUSED}
    if domain.state is State.DOWN and not before:
        has_changed = bool(domain.record.started_s)  # else its first daemon is about to be started
    if before and earlier:
        has_changed = domain.state is not earlier.state
        if domain.state is State.DOWN and not _is_bereft(earlier.record, domain.record):
            has_changed = False
        ended = domain.record.restarts_total > earlier.record.restarts_total
        if risk := _risk(earlier.record, domain.record):
            at_risk = list(_at_risk(before, domain))
    if domain.is_sick and not at_risk and (ended or domain.state is State.DOWN):
        return  # mpsd has restarted it to try the GPU
    if domain.record.unwatched and not (earlier and earlier.record.unwatched):
        text = f"MPS domain {domain.name} takes no new pods: {domain.record.unwatched}"
        yield Event(node, Reason.UNWATCHED, text)
    if has_changed or ended:
        yield from _on_node(domain, node, at_risk, ended=ended)
    for one in at_risk:
        if risk and one.pod:
            text = f"MPS domain {domain.name}: {one.loss(risk)}"
            yield Event(pod_subject(one.pod), risk, text)


def _on_node(
    domain: DomainView, node: Subject, at_risk: Sequence["_Loser"], *, ended: bool
) -> Iterator[Event]:
    lost = may_lose = ""
    if names := shortened(sorted({one.name for one in at_risk})):
        lost = f"; programs that lost the GPU: {names}"
        may_lose = f"; programs there: {names}"
        if all(one.pod for one in at_risk):
            lost = f"; pods that lost GPU processes: {names}"
            may_lose = f"; pods there: {names}"
    named = f"MPS domain {domain.name}"
    if ended and domain.state is not State.DOWN:  # it ended and came back between the two views
        yield Event(node, Reason.DAEMON_DOWN, f"{named}: its MPS control daemon ended{lost}")
    if domain.state in _STATES:
        reason, state = _STATES[domain.state]
        text = because(f"{named} {state}", domain.record.reason)
        canary = domain.record.canary
        if domain.state is State.READY and canary and canary.doubt:
            text += f", although its canary found: {canary.doubt}"
        text += {State.DOWN: lost, State.WEDGED: may_lose}.get(domain.state, "")
        yield Event(node, reason, text)


def _risk(earlier: DomainRecord, now: DomainRecord) -> Reason | None:
    """Why programs lost a domain's GPUs, or may lose them, but for a fault; None for neither."""
    if now.restarts_total > earlier.restarts_total or _is_bereft(earlier, now):
        return Reason.DAEMON_DOWN
    if now.state is State.WEDGED and earlier.state is not State.WEDGED:
        return Reason.WEDGED
    return None


def _is_bereft(earlier: DomainRecord, now: DomainRecord) -> bool:
    """Whether a daemon is gone that programs may have been on. mpsd ends those of drained domains
    itself: for another MIG layout, when GPUs are joined or divided, or when it stops."""
    if earlier.state in {State.DRAINED, State.REFUSED} or now.state is State.DRAINED:
        return False
    return bool(earlier.daemon) and not now.daemon


class _Loser(NamedTuple):
    """A grant, one of its pods if any, and how many processes it has there; None where that is not
    known."""

    grant: Grant
    pod: PodName | None
    processes: int | None

    @property
    def name(self) -> str:
        """A pod, a container, or a program without its arguments, any of which may be a secret."""
        if self.pod or self.grant.container:
            return str(self.pod or self.grant.holder)
        program, _space, _arguments = program_of(self.grant.command).partition(" ")
        return f"{self.grant.holder} ({program})"

    def loss(self, reason: Reason) -> str:
        whose = "any GPU processes of this pod"
        if self.processes == 1:
            whose = "1 GPU process of this pod"
        elif self.processes is not None:
            whose = f"{self.processes} GPU processes of this pod"
        if reason is Reason.WEDGED:
            may = f"{whose} may continue, and will lose the GPU if mpsd restarts the daemon"
            return f"its MPS control daemon does not answer; {may}"
        return f"its MPS control daemon ended; {whose} lost the GPU and must be restarted"


def _at_risk(before: NodeView, domain: DomainView) -> Iterator[_Loser]:
    """Those of the grants with processes there."""
    for held in before.grants:
        grant = held.grant
        if set(domain.record.gpus).isdisjoint(grant.gpus):
            continue
        for pod in grant.pods or (None,):
            processes = _processes_of(grant, before, pod)
            if processes != 0:
                yield _Loser(grant, pod, processes)


def _processes_of(grant: Grant, before: NodeView, pod: PodName | None) -> int | None:
    """How many are on MPS under the grant, of this pod if any; None where not known."""
    if not before.sees(grant.gpus):
        return None
    found = set()
    for one in before.clients:
        if one.grant == grant.id and one.on_mps and pod in (None, grant.pod_of(one.pod)):
            found.add(one.pid)
    return len(found)


# -- what an agent remembers

_MOST_OF_POD = 8  # events of one pod that are kept


class EventHistory:
    """The last events of this node, for its page, bounded by kind and by pod, so that none pushes
    out the others. since: when the agent began, in seconds since 1970."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.since = clock()
        self._of_node = deque[PastEvent](maxlen=80)
        self._of_pods = deque[PastEvent](maxlen=80)
        self._violations = deque[PastEvent](maxlen=20)
        # with whose request it was
        self._refusals = deque[tuple[object, PastEvent]](maxlen=20)

    def compare(self, before: NodeView | None, now: NodeView) -> None:
        """Adds the events between two views (before: None at first). A refusal is forgotten once
        its process has joined the queue, as `mpsd run --wait` does."""
        queued = [request.holder for request in now.waiting]
        kept = [one for one in self._refusals if one[0] not in queued]
        self._refusals = deque(kept, self._refusals.maxlen)
        for event in node_events(before, now, ""):
            self._keep(event, self._past(event))

    def add(self, event: Event) -> None:
        """An event that no view shows; a repeated one is kept once, at its last time."""
        new = self._past(event)
        for kept in (self._of_node, self._of_pods, self._violations):
            for one in tuple(kept):
                if replace(one, at=new.at) == new:
                    kept.remove(one)
        self._keep(event, new)

    def _keep(self, event: Event, new: PastEvent) -> None:
        if event.reason.value in VIOLATION_REASONS:
            self._violations.append(new)
        elif not event.subject.namespace:
            self._of_node.append(new)
        else:
            own = [one for one in self._of_pods if (one.where, one.uid) == (new.where, new.uid)]
            if len(own) >= _MOST_OF_POD:
                self._of_pods.remove(own[0])
            self._of_pods.append(new)

    def refused(self, request: WaitingRequest, reason: str) -> None:
        event = PastEvent(self._clock(), REFUSED, request.command, reason)
        self._refusals.append((request.holder, event))

    def all(self) -> Sequence[PastEvent]:
        refusals = [event for _holder, event in self._refusals]
        return (*self._of_node, *self._of_pods, *self._violations, *refusals)

    def _past(self, event: Event) -> PastEvent:
        subject = event.subject
        at = self._clock() if event.at is None else event.at
        return PastEvent(at, event.reason.value, subject.place, event.message, subject.uid)
