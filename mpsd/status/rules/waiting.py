"""Why a pod that has no node has none: what keeps it out whatever the GPUs have comes before what
they lack."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from mpsd.grants.rules.placement import find_gpus
from mpsd.model.grants import Request
from mpsd.model.names import CLAIMS_LABEL
from mpsd.model.pod import NodeWishes
from mpsd.model.problem import shown, shown_name
from mpsd.model.quantity import gib
from mpsd.platform.rules.kubernetes_objects import LABELS, kept_away
from mpsd.scheduler.rules.capacity import AssignmentSource, NodeCapacity, can_ever, has_domain
from mpsd.scheduler.rules.filter import why_not
from mpsd.status.rules.pods import (
    Explanation,
    ExplanationContext,
    PodSeen,
    Why,
    counted,
    listed,
    quoted,
)

_MOST_REASONS = 5
_MOST_LACKING = 3


def waiting_explanation(pod: PodSeen, request: Request, context: ExplanationContext) -> Explanation:
    """The sentence is without the pod."""
    if pod.terminating:
        words = "never ran: it is being deleted, and waits for its finalizers"
        return Explanation(Why.ENDS, words)
    found = _of_itself(pod, context) or _outlook(
        request, pod.wishes, _serving(pod, context), by_sums=not pod.claim
    )
    words = f"waits: {found.sentence}"
    if found.why is not Why.NOT_LOOKED_AT:
        return replace(found, sentence=words)
    if pod.unscheduled:
        name = f"{shown_name(pod.name.name)} -n {shown_name(pod.name.namespace)}"
        words += f', and its scheduler says "{quoted(pod.unscheduled)}"; more in'
        words += f" kubectl describe pod {name}"
        return replace(found, why=Why.SCHEDULER_SAYS, sentence=words)
    scheduler = shown(pod.scheduler) if pod.scheduler else "the default-scheduler"
    words += f", and its scheduler, {scheduler}, has not reported on it yet; check that it runs"
    return replace(found, sentence=words)


def _of_itself(pod: PodSeen, context: ExplanationContext) -> Explanation | None:
    if pod.gates:
        gates = f"gate {shown_name(pod.gates[0])} is removed, by whoever set it"
        if len(pod.gates) > 1:
            names = listed([*map(shown_name, pod.gates)])
            gates = f"gates {names} are removed, by whoever set them"
        words = f"no scheduler looks at it before its scheduling {gates} (spec.schedulingGates)"
        return Explanation(Why.GATED, words)
    known = context.policy.admission.schedulers
    if pod.claim and pod.claim.impossible:
        return Explanation(Why.CLAIM_IMPOSSIBLE, pod.claim.impossible)
    if pod.claim and pod.claim.lacking:
        return Explanation(Why.NO_CLAIM, pod.claim.lacking)
    if pod.scheduler and pod.scheduler not in known and not pod.claim:
        words = f"it names the scheduler {shown(pod.scheduler)}, which does not ask mpsd"
        return Explanation(
            Why.OTHER_SCHEDULER,
            f"{words}; recreate it with spec.schedulerName: {' or '.join(known)}",
        )
    words = _reserved(context).get(pod.name.uid, "")
    return Explanation(Why.RESERVED, words) if words else None


def _serving(pod: PodSeen, context: ExplanationContext) -> ExplanationContext:
    if pod.claim:
        return _of_claims(context, pod.claim.nodes)
    return _of_requests(context) if context.policy.claim_nodes == "labelled" else context


@lru_cache(maxsize=4)
def _of_requests(context: ExplanationContext) -> ExplanationContext:
    if context.machines is None:
        return context
    machines = context.machines.values()
    return _among(context, [one.name for one in machines if one.labels.get(CLAIMS_LABEL) != "true"])


@lru_cache(maxsize=4)
def _of_claims(context: ExplanationContext, nodes: frozenset[str] | None) -> ExplanationContext:
    """No GPUs are joined for claims. nodes: None where nobody knows which serve them."""
    ledger = {name: _without_joining(one) for name, one in context.ledger.items()}
    context = replace(context, ledger=ledger)
    return context if nodes is None else _among(context, nodes)


def _among(context: ExplanationContext, nodes: Collection[str]) -> ExplanationContext:
    ledger = {name: context.ledger[name] for name in context.ledger.keys() & nodes}
    machines = context.machines
    if machines is not None:
        machines = {name: machines[name] for name in machines.keys() & nodes}
    return replace(context, ledger=ledger, machines=machines)


def _without_joining(ledger: NodeCapacity) -> NodeCapacity:
    return replace(
        ledger,
        rooms=tuple([replace(room, holders=None) for room in ledger.rooms]),
        closed=tuple([replace(one, on_demand=False) for one in ledger.closed]),
    )


@lru_cache(maxsize=4)
def _reserved(context: ExplanationContext) -> Mapping[str, str]:
    found = {}
    for ledger in context.ledger.values():
        for one in ledger.taken:
            if one.source is AssignmentSource.RESERVED:
                gpus = listed([gpu.label for gpu, _total in ledger.totals if gpu.uuid in one.gpus])
                words = f"its scheduler has reserved {gpus} of {shown_name(ledger.node)} for it"
                found[one.pod.uid] = f"{words}, and binds it there or gives that up within a minute"
    return found


# -- the nodes


@dataclass(frozen=True, slots=True)
class _Candidate:
    """away: why it may not take the pod, whatever its GPUs have. gpus: labels of those that have
    room for it."""

    node: str
    ledger: NodeCapacity | None
    away: str
    gpus: tuple[str, ...]

    @property
    def room(self) -> str:
        return f"{listed(self.gpus)} of {shown_name(self.node)}"


@lru_cache(maxsize=256)
def _outlook(
    request: Request, wishes: NodeWishes, context: ExplanationContext, *, by_sums: bool
) -> Explanation:
    """What there is for a request: NOT_LOOKED_AT where there is room that the pod may have.
    by_sums: autoscalers see the sum of a node's GPUs, as of requests, and not each of them, as of
    claims."""
    labelled = {one for one, machine in (context.machines or {}).items() if machine.is_labelled}
    # Every node that has an MPSNode, or should: those that mpsd shares first, each by name.
    names = sorted(labelled | context.ledger.keys(), key=lambda name: (name not in labelled, name))
    nodes = [_candidate(node, request, wishes, context) for node in names]
    if not any(one.ledger for one in nodes):
        return Explanation(Why.NO_NODE, _no_node(nodes, context))
    fitting = [one for one in nodes if one.gpus]
    free = [one for one in fitting if not one.away]
    rooms = tuple([one.room for one in free or fitting])
    if free:
        have = "has" if len(free) == 1 else "have"
        return Explanation(Why.NOT_LOOKED_AT, f"{listed(rooms)} {have} room", room=rooms)
    if fitting:
        return Explanation(Why.KEPT_AWAY, _kept_away(request, fitting, nodes), room=rooms)
    if words := _too_large(request, nodes) or _too_many_clients(request, nodes, context):
        return Explanation(Why.TOO_LARGE, f"it {words}, so it never fits; request less")
    fragmented = _fragmented(request, nodes) if by_sums else []
    words = "; ".join([_shortage(request, nodes), *fragmented, _when(request, nodes, context)])
    return Explanation(Why.NO_ROOM, words)


def _candidate(
    node: str, request: Request, wishes: NodeWishes, context: ExplanationContext
) -> _Candidate:
    ledger = context.ledger.get(node)
    if ledger is None:
        return _Candidate(node, None, "labelled, and has no MPSNode", ())
    away = ""
    if context.machines is not None:  # else nobody may look at the Nodes
        machine = context.machines.get(node)
        away = kept_away(wishes, machine) if machine else "no node of the cluster any more"
    shut = ledger.shut.removeprefix("its ").removeprefix("it ")
    found = None if shut else find_gpus(request, ledger.rooms, ledger.policy)
    if found is None:
        return _Candidate(node, ledger, away or shut, ())
    labels = {room.gpu.uuid: room.gpu.label for room in ledger.rooms}
    return _Candidate(node, ledger, away, tuple([labels[uuid] for uuid in found.gpus]))


def _no_node(nodes: Sequence[_Candidate], context: ExplanationContext) -> str:
    if nodes:
        are = "is" if len(nodes) == 1 else "are"
        return (
            f"{listed([shown_name(one.node) for one in nodes])} {are} labelled {LABELS[0]}, and"
            " mpsd reports no GPU there; see whether the pods run: kubectl get pods -A -o wide -l"
            " app.kubernetes.io/part-of=mpsd"
        )
    words = "no node has an MPSNode"
    if context.machines is not None:
        words = f"no node is labelled {LABELS[0]}"
    return f"{words}; an administrator does it: kubectl label node NODE {LABELS[0]}"


# -- nothing fits


def _too_large(request: Request, nodes: Sequence[_Candidate]) -> str:
    """Why it could not even fit on empty GPUs; empty where it could, or a size is not known."""
    most_mib, where = -1, ""
    for one in nodes:
        ledger = one.ledger
        if ledger is None or not ledger.totals or can_ever(request, ledger):
            return ""
        for gpu, mib in ledger.totals:
            if mib > most_mib:
                most_mib, where = mib, f"{gpu.label} of {shown_name(one.node)}"
    asks = f"asks for {gib(request.memory_mib)} GiB of"
    if most_mib < request.memory_mib:
        return f"{asks} one GPU, and the largest can give {gib(most_mib)}, {where}"
    return f"{asks} each of {request.gpus} GPUs, and no node has as many so large"


def _too_many_clients(
    request: Request, nodes: Sequence[_Candidate], context: ExplanationContext
) -> str:
    most = 0
    for one in nodes:
        node = context.reported.get(one.node)
        sizes = [gpu.promised_clients for gpu in node.gpus] if node else [None]
        if None in sizes:
            return ""
        most = max(most, *filter(None, sizes), 0)
    if request.clients is None or request.clients <= most:
        return ""
    return f"asks for {request.clients} clients of one GPU, and the most that one serves is {most}"


def _shortage(request: Request, nodes: Sequence[_Candidate]) -> str:
    reasons: dict[str, list[str]] = {}
    for one in nodes:
        if one.away:
            reasons.setdefault(one.away, []).append(shown_name(one.node))
    lack = _lack(request, _open(nodes))
    if not reasons:
        return lack
    each = [f"{counted(names, 'nodes')} ({why})" for why, names in reasons.items()]
    return f"{lack}; not counted: {listed(each, _MOST_REASONS)}"


def _open(nodes: Sequence[_Candidate]) -> list[NodeCapacity]:
    return [one.ledger for one in nodes if one.ledger and not one.away]


def _lack(request: Request, nodes: Sequence[NodeCapacity]) -> str:
    """The node with the most memory free on one GPU comes first."""
    if not nodes:
        return "no node may take it now"
    nearest = sorted(nodes, key=_most_free_mib, reverse=True)[:_MOST_LACKING]
    words = [f"{shown_name(one.node)} ({quoted(why_not(request, one))})" for one in nearest]
    if len(nodes) > _MOST_LACKING:
        words.append(f"{len(nodes) - _MOST_LACKING} more")
    return f"no room on {listed(words, len(words))}"


def _most_free_mib(ledger: NodeCapacity) -> int:
    return max((room.memory_mib for room in ledger.rooms), default=0)


def _fragmented(request: Request, nodes: Sequence[_Candidate]) -> Iterator[str]:
    most_mib = 0
    names = []
    for one in _open(nodes):
        free_mib = [max(0, room.memory_mib) for room in one.rooms]
        most_mib = max(most_mib, *free_mib, 0)
        if sum(free_mib) >= request.memory_mib:
            names.append(shown_name(one.node))
    if request.gpus == 1 and most_mib < request.memory_mib and names:
        yield (
            f"the GPUs of {counted(names, 'nodes')} have that only together, and autoscalers count"
            " it as free"
        )


_REMEDIES = (
    ("cordoned", "kubectl uncordon allows pods there again"),
    ("taint ", "a toleration in the pod allows it there"),
    ("not ready", "kubectl describe node shows what is wrong there"),
    ("not labelled", f"with the label {LABELS[0]}, mpsd shares it"),
)


def _kept_away(request: Request, fitting: Sequence[_Candidate], nodes: Sequence[_Candidate]) -> str:
    rooms = listed([f"{one.room} ({one.away})" for one in fitting])
    words = [f"there is room only where it may not go: {rooms}"]
    for start, remedy in _REMEDIES:
        if any(one.away.startswith(start) for one in fitting):
            words.append(remedy)
    if rest := [one for one in nodes if not one.gpus]:
        words.append(f"elsewhere, {_shortage(request, rest)}")
    return "; ".join(words)


def _when(request: Request, nodes: Sequence[_Candidate], context: ExplanationContext) -> str:
    open_ones = _open(nodes)
    if not open_ones:
        return "kubectl mps shows how each node is"
    if not any(has_domain(request, ledger) for ledger in open_ones):
        return (
            f"it never fits until an administrator makes a domain of {request.gpus} GPUs; or ask"
            " for one GPU"
        )
    unit_mib = context.policy.resources.memory_unit_mib
    most_mib = max(map(_most_free_mib, open_ones))
    less_mib = most_mib // unit_mib * unit_mib
    words = ["what is counted is too small for it even when empty"]
    between = "; "
    if any(can_ever(request, ledger) for ledger in open_ones):
        words = ["it starts when others end, which kubectl mps shows"]
        between = "; or "
    if 0 < less_mib < request.memory_mib and request.gpus == 1:
        words.append(f"ask for {gib(less_mib)} GiB or less")
    return between.join(words)
