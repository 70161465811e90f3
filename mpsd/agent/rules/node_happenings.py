"""What happened between two looks at a node, as events on the node and on the pods it happened to.

One rule: a pod hears only of what took something from it.
"""

from collections.abc import Iterable, Iterator, Sequence

from mpsd.agent.rules.fault_happenings import FaultTeller, listed
from mpsd.model.domain_states import State
from mpsd.model.events import Happening, Reason, Stamp, Subject, node_subject, pod_subject
from mpsd.model.grants import Grant
from mpsd.model.identity import PodName
from mpsd.model.node_view import DomainRecord, DomainView, NodeView
from mpsd.mps.rules.faults import unhealed

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


def happenings(before: NodeView | None, now: NodeView, node: str, stamp: Stamp) -> tuple[Happening, ...]:
    """before: None for the first look, which tells of troubles that are there, and takes nothing for lost."""
    subject = node_subject(node)
    faults = FaultTeller(before, now, subject, stamp)
    found: list[Happening] = []
    for domain in now.domains:
        found += faults.of(domain.name)
        found += _of_domain(before, domain, subject)
    return tuple(found)


def _of_domain(before: NodeView | None, domain: DomainView, node: Subject) -> Iterator[Happening]:
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


def _on_node(domain: DomainView, node: Subject, at_risk: Sequence[Happening], *, ended: bool) -> Iterator[Happening]:
    pods = listed(sorted({f"{one.subject.namespace}/{one.subject.name}" for one in at_risk}))
    lost, may_lose = (f"; {what}: {pods}" if pods else "" for what in ("pods that lost GPU processes", "pods there"))
    if ended and domain.state is not State.DOWN:  # it ended and came back between the two looks
        yield Happening(node, Reason.DAEMON_DOWN, f"{_named(domain)}: its MPS control daemon ended{lost}")
    if domain.state in _REASONS:
        why = f": {domain.record.reason}" if domain.record.reason else ""
        if domain.state is State.READY and domain.record.canary:
            doubt = domain.record.canary.problem or domain.record.canary.warning
            why = f"{why}, although its canary found: {doubt}" if doubt else why
        who = {State.DOWN: lost, State.FAULT: lost, State.WEDGED: may_lose}.get(domain.state, "")
        yield Happening(node, _REASONS[domain.state], f"{_named(domain)} {_WORDS[domain.state]}{why}{who}")


def _risk(earlier: DomainRecord, now: DomainRecord) -> Reason | None:
    """Why programs lost the GPUs of a domain between two looks, or may lose them; None where neither is so."""
    if now.restarts_total > earlier.restarts_total or (now.daemon is None and earlier.daemon is not None):
        return Reason.DAEMON_DOWN
    if now.state is earlier.state:
        return None
    if now.state is State.FAULT and not unhealed(now.faults):  # as an older mpsd control tells it
        return Reason.FAULT
    return Reason.WEDGED if now.state is State.WEDGED else None


def _on_pods(before: NodeView, domain: DomainView, reason: Reason) -> Iterator[Happening]:
    for grant, pod in _pods_on(before, domain.record.gpus):
        number = _clients(before, grant)
        if number != 0:
            yield Happening(pod_subject(pod), reason, f"{_named(domain)}: {_lost(number, reason)}")


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
