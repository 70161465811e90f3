"""What happened between two looks at a node, as events on the node and on the pods it happened to.

One rule: a pod hears only of what took something from it.
"""

from collections.abc import Iterable, Iterator

from mpsd.core.domain_states import State
from mpsd.core.events import Happening, Reason, Subject, node_subject, pod_subject
from mpsd.core.grants import Grant
from mpsd.core.identity import PodName
from mpsd.core.node_view import DomainRecord, DomainView, NodeView

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


def happenings(before: NodeView | None, now: NodeView, node: str) -> tuple[Happening, ...]:
    """before: None for the first look, which tells of troubles that are there, and takes nothing for lost."""
    subject = node_subject(node)
    return tuple(one for domain in now.domains for one in _of_domain(before, domain, subject))


def _of_domain(before: NodeView | None, domain: DomainView, node: Subject) -> Iterator[Happening]:
    earlier = before.domain(domain.name) if before else None
    ended = earlier is not None and domain.record.restarts_total > earlier.record.restarts_total
    if _is_news(earlier, domain) or ended:
        yield from _on_node(domain, node, ended=ended)
    if before and earlier:
        reason = _loss(earlier.record, domain.record)
        if reason:
            yield from _on_pods(before, domain, reason)


def _is_news(earlier: DomainView | None, domain: DomainView) -> bool:
    if earlier is None:
        return domain.state in _TROUBLED
    return domain.state is not earlier.state


def _on_node(domain: DomainView, node: Subject, *, ended: bool) -> Iterator[Happening]:
    if ended and domain.state is not State.DOWN:  # it ended and came back between the two looks
        yield Happening(node, Reason.DAEMON_DOWN, f"{_named(domain)}: its MPS control daemon ended")
    if domain.state in _REASONS:
        why = f": {domain.record.reason}" if domain.record.reason else ""
        yield Happening(node, _REASONS[domain.state], f"{_named(domain)} {_WORDS[domain.state]}{why}")


def _loss(earlier: DomainRecord, now: DomainRecord) -> Reason | None:
    """Why programs lost the GPUs of a domain between two looks; None where they did not."""
    if now.restarts_total > earlier.restarts_total or (now.daemon is None and earlier.daemon is not None):
        return Reason.DAEMON_DOWN
    if now.state is State.FAULT and earlier.state is not State.FAULT:
        return Reason.FAULT
    return None


def _on_pods(before: NodeView, domain: DomainView, reason: Reason) -> Iterator[Happening]:
    cause = "the end of its MPS control daemon" if reason is Reason.DAEMON_DOWN else "the fault of a program there"
    for grant, pod in _pods_on(before, domain.record.gpus):
        lost = _clients(before, grant)
        if lost is None:
            how = f"{_named(domain)}: {cause} ended the GPU processes that this pod may have had"
        elif lost:
            how = f"{_named(domain)}: {cause} ended {lost} GPU process{'es' if lost > 1 else ''} of this pod"
        else:
            continue
        remedy = "they see CUDA errors and must be started again" if lost != 1 else "it must be started again"
        yield Happening(pod_subject(pod), reason, f"{how}; {remedy}")


def _pods_on(view: NodeView, gpus: Iterable[str]) -> Iterator[tuple[Grant, PodName]]:
    here = set(gpus)
    for held in view.grants:
        holder = held.grant.holder
        if isinstance(holder, PodName) and not here.isdisjoint(held.grant.gpus):
            yield held.grant, holder


def _clients(view: NodeView, grant: Grant) -> int | None:
    """How many processes of a grant were on MPS; None where that was not known."""
    if view.clients is None:
        return None
    return len({client.pid for client in view.clients if client.grant == grant.id and client.on_mps})


def _named(domain: DomainView) -> str:
    return f"MPS domain {domain.name}"
