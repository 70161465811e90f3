"""Why a pod that has no node has none.

What keeps the pod out whatever the GPUs have comes before what the GPUs lack, and `no room` only where there is none on
any node that may take it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mpsd.grants.rules.placement import Placed, place
from mpsd.model.grants import GpuCapacity, Request
from mpsd.model.problem import shown, shown_name
from mpsd.model.quantity import gib
from mpsd.platform.rules.kubernetes_objects import LABELS, NodeWishes, kept_away
from mpsd.scheduler.rules.capacity import AssignmentSource, NodeCapacity, can_ever, has_domain
from mpsd.status.rules.pods import Explanation, ExplanationContext, PodSeen, Why, counted, listed, quoted, wanted

_NO_NODE = "no node of the cluster any more"
_TELLS_NOTHING = "labelled, and has no MPSNode"
_MOST_REASONS = 5
_MOST_CLOSED = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node. away: why it may not take the pod, whatever its GPUs have; empty where it may. gpus: labels of those that
    have room for it, () where none has.
    """

    node: str
    ledger: NodeCapacity | None
    away: str
    gpus: tuple[str, ...]

    @property
    def room(self) -> str:
        return f"{listed(self.gpus)} of {shown_name(self.node)}"


def candidates(request: Request, wishes: NodeWishes, scene: ExplanationContext) -> tuple[Candidate, ...]:
    """By name: every node that has an MPSNode, or should."""
    labelled = {one for one, machine in (scene.machines or {}).items() if machine.is_labelled}
    return tuple(_candidate(node, request, wishes, scene) for node in sorted(labelled | scene.ledger.keys()))


def _candidate(node: str, request: Request, wishes: NodeWishes, scene: ExplanationContext) -> Candidate:
    ledger = scene.ledger.get(node)
    if ledger is None:
        return Candidate(node, None, _TELLS_NOTHING, ())
    shut = ledger.shut.removeprefix("its ").removeprefix("it ")
    return Candidate(node, ledger, _kept_away_of_all(node, wishes, scene) or shut, _with_room(request, ledger))


def _with_room(request: Request, ledger: NodeCapacity) -> tuple[str, ...]:
    """`place` is asked only where it may find something: it would word a reason for each of thousands of GPUs."""
    if ledger.shut or not any(room.holds(request, ledger.policy) for room in ledger.rooms):
        return ()
    found = place(request, ledger.rooms, ledger.policy)
    labels = {room.gpu.uuid: room.gpu.label for room in ledger.rooms}
    return tuple(labels[uuid] for uuid in found.gpus) if isinstance(found, Placed) else ()


def _kept_away_of_all(node: str, wishes: NodeWishes, scene: ExplanationContext) -> str:
    """By Kubernetes; nothing is known of that where nobody may look at the Nodes."""
    if scene.machines is None:
        return ""
    machine = scene.machines.get(node)
    return kept_away(wishes, machine) if machine else _NO_NODE


# -- nothing fits --------------------------------------------------------------------------------------------------


def too_large(request: Request, nodes: Sequence[Candidate]) -> str:
    """Why it could fit nowhere, not even on empty GPUs; empty where it could, or where a node has not told its size."""
    told = [one.ledger for one in nodes if one.ledger]
    if len(told) < len(nodes) or any(not ledger.totals or can_ever(request, ledger) for ledger in told):
        return ""
    sizes = [(mib, f"{gpu.label} of {shown_name(ledger.node)}") for ledger in told for gpu, mib in ledger.totals]
    most_mib, where = max(sizes, key=lambda pair: pair[0], default=(0, ""))
    if most_mib < request.memory_mib:
        return f"asks for {gib(request.memory_mib)} GiB of one GPU, and the largest can give {gib(most_mib)}, {where}"
    return f"asks for {gib(request.memory_mib)} GiB of each of {request.gpus} GPUs, and no node has as many so large"


def shortage(request: Request, nodes: Sequence[Candidate]) -> str:
    """What the nodes that may take it lack, and which may not. For nodes of which none may take it and has room."""
    open_ones = [one.ledger for one in nodes if one.ledger and not one.away]
    parts = [_lack(request, open_ones), *_closed(open_ones), *_left_out([one for one in nodes if one.away])]
    return "; ".join(parts)


def _lack(request: Request, nodes: Sequence[NodeCapacity]) -> str:
    if not nodes:
        return "no node may take it now"
    where = counted([shown_name(one.node) for one in nodes], "nodes")
    rooms = [_At(room, one, len(nodes) == 1) for one in nodes for room in one.rooms]
    if not rooms:
        return f"no GPU of {where} takes pods now"
    return _lack_of_one(request, rooms, where) if request.gpus == 1 else _lack_of_several(request, rooms, where)


@dataclass(frozen=True, slots=True)
class _At:
    """A GPU's room. alone: its node is the only one that is spoken of."""

    room: GpuCapacity
    ledger: NodeCapacity
    alone: bool

    def __str__(self) -> str:
        return self.room.gpu.label if self.alone else f"{self.room.gpu.label} of {shown_name(self.ledger.node)}"


def _lack_of_one(request: Request, rooms: Sequence[_At], where: str) -> str:
    with_memory = [one for one in rooms if one.room.memory_mib >= request.memory_mib]
    if not with_memory:
        best = max(rooms, key=lambda one: one.room.memory_mib)
        most = gib(max(0, best.room.memory_mib))
        return f"no GPU of {where} has {gib(request.memory_mib)} GiB free: the most is {most} GiB, {best}"
    with_threads = [one for one in with_memory if one.room.thread_percent >= (request.thread_percent or 0)]
    if not with_threads:
        best = max(with_memory, key=lambda one: one.room.thread_percent)
        percent = max(0, best.room.thread_percent)
        has = f"{best} has the memory and {percent} %" if request.memory_mib else f"the most is {percent} %, {best}"
        return f"no GPU of {where} has {wanted(request)} free: {has}"
    best = max(with_threads, key=lambda one: one.room.clients)
    clients = best.ledger.policy.requests.clients_per_grant
    left = max(0, best.room.clients)
    return f"no GPU of {where} with {wanted(request)} free takes {clients} more clients: {best} takes {left}"


def _lack_of_several(request: Request, rooms: Sequence[_At], where: str) -> str:
    sizes = Counter((one.ledger.node, one.room.domain) for one in rooms)
    if max(sizes.values()) < request.gpus:
        return f"no domain of {where} has {request.gpus} GPUs that take pods (domains in the policy)"
    fitting = [one for one in rooms if one.room.holds(request, one.ledger.policy)]
    most = max(Counter((one.ledger.node, one.room.domain) for one in fitting).values(), default=0)
    return f"no domain of {where} has {request.gpus} GPUs with {wanted(request)} free: the most is {most}"


def _closed(nodes: Iterable[NodeCapacity]) -> Iterator[str]:
    closed = [
        (f"{one.gpu.label} of {shown_name(ledger.node)}", one.reason) for ledger in nodes for one in ledger.closed
    ]
    if not closed:
        return
    if len(closed) <= _MOST_CLOSED:
        yield f"taking none: {listed([f'{gpu} ({shown_name(reason)})' for gpu, reason in closed])}"
        return
    reasons = Counter(shown_name(reason) for _gpu, reason in closed)
    each = [f"{number} {reason}" for reason, number in sorted(reasons.items())]
    yield f"{len(closed)} GPUs take none ({listed(each)})"


def _left_out(away: Sequence[Candidate]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for one in away:
        reasons.setdefault(one.away, []).append(shown_name(one.node))
    said = [f"{counted(nodes, 'nodes')} ({why})" for why, nodes in reasons.items()]
    if said:
        yield f"not counted: {listed(said, _MOST_REASONS)}"


def most_mib(nodes: Iterable[Candidate]) -> int:
    """The most that one GPU has free of those that may take it."""
    return max(
        (room.memory_mib for one in nodes if one.ledger and not one.away for room in one.ledger.rooms), default=0
    )


_NOBODY_SAID = "the default-scheduler"


def waiting_story(pod: PodSeen, request: Request, scene: ExplanationContext) -> Explanation:
    """Of a pod that is bound to no node."""
    for look in (_ending, _gated, _scheduled_by_others):
        if story := look(pod, scene):
            return story
    if words := _promises(scene).get(pod.name.uid):
        return _waits(pod, Why.PROMISED, words)
    outlook = _outlook(request, pod.wishes, scene)
    return _fits(pod, outlook.room) if outlook.why is None else _waits(pod, outlook.why, outlook.words, outlook.room)


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What there is for a request. why None: there is room that the pod may have. room: that, or what it is kept away
    from."""

    why: Why | None
    words: str = ""
    room: tuple[Candidate, ...] = ()


@lru_cache(maxsize=256)
def _outlook(request: Request, wishes: NodeWishes, scene: ExplanationContext) -> _Outlook:
    nodes = candidates(request, wishes, scene)
    if not any(one.ledger for one in nodes):
        return _Outlook(Why.NO_NODE, _no_node(nodes, scene))
    fitting = tuple(one for one in nodes if one.gpus)
    if free := tuple(one for one in fitting if not one.away):
        return _Outlook(None, "", free)
    if fitting:
        return _Outlook(Why.KEPT_AWAY, _kept_away(request, fitting, nodes), fitting)
    if words := too_large(request, nodes):
        return _Outlook(Why.TOO_LARGE, f"it {words}, so it never fits; ask for less")
    return _Outlook(Why.NO_ROOM, f"{shortage(request, nodes)}; {_when(request, nodes, scene)}")


def _waits(pod: PodSeen, why: Why, sentence: str, room: Sequence[Candidate] = ()) -> Explanation:
    return Explanation(why, f"pod {shown_name(str(pod.name))} waits: {sentence}", room=tuple(one.room for one in room))


def _ending(pod: PodSeen, _scene: ExplanationContext) -> Explanation | None:
    if not pod.terminating:
        return None
    return Explanation(
        Why.ENDS, f"pod {shown_name(str(pod.name))} never ran: it is being deleted, and waits for its finalizers"
    )


def _gated(pod: PodSeen, _scene: ExplanationContext) -> Explanation | None:
    if not pod.gates:
        return None
    gates = listed([shown_name(gate) for gate in pod.gates])
    many = len(pod.gates) > 1
    words = f"no scheduler looks at it before its scheduling gate{'s' * many} {gates} {'are' if many else 'is'} removed"
    return _waits(pod, Why.GATED, f"{words}, by whoever set {'them' if many else 'it'} (spec.schedulingGates)")


def _scheduled_by_others(pod: PodSeen, scene: ExplanationContext) -> Explanation | None:
    known = scene.policy.admission.schedulers
    if not pod.scheduler or pod.scheduler in known:
        return None
    words = f"it names the scheduler {shown(pod.scheduler)}, which does not ask mpsd"
    return _waits(pod, Why.OTHER_SCHEDULER, f"{words}; make it anew with spec.schedulerName: {' or '.join(known)}")


def _no_node(nodes: Sequence[Candidate], scene: ExplanationContext) -> str:
    if nodes:
        where = listed([shown_name(one.node) for one in nodes])
        words = f"{where} {'is' if len(nodes) == 1 else 'are'} labelled {LABELS[0]}, and mpsd tells of no GPU there"
        return f"{words}; see whether the pods run: kubectl get pods -A -o wide -l app.kubernetes.io/part-of=mpsd"
    words = "no node has an MPSNode" if scene.machines is None else f"no node is labelled {LABELS[0]}"
    return f"{words}; an administrator does it: kubectl label node NODE {LABELS[0]}"


@lru_cache(maxsize=4)
def _promises(scene: ExplanationContext) -> Mapping[str, str]:
    """By uid of a pod, where a scheduler has promised it room."""
    found = {}
    for ledger in scene.ledger.values():
        for one in ledger.taken:
            if one.source is AssignmentSource.RESERVED:
                gpus = listed([gpu.label for gpu, _total in ledger.totals if gpu.uuid in one.gpus])
                words = f"its scheduler has promised it {gpus} of {shown_name(ledger.node)}"
                found[one.pod.uid] = f"{words}, and binds it there or gives that up within a minute"
    return found


def _fits(pod: PodSeen, fitting: Sequence[Candidate]) -> Explanation:
    room = f"{listed([one.room for one in fitting])} {'has' if len(fitting) == 1 else 'have'} room"
    describe = f"kubectl describe pod {shown_name(pod.name.name)} -n {shown_name(pod.name.namespace)}"
    if pod.unscheduled:
        words = f'{room}, and its scheduler says "{quoted(pod.unscheduled)}"; more in {describe}'
        return _waits(pod, Why.SCHEDULER_SAYS, words, fitting)
    scheduler = shown(pod.scheduler) if pod.scheduler else _NOBODY_SAID
    words = f"{room}, and its scheduler, {scheduler}, has said nothing of it yet; see whether that runs"
    return _waits(pod, Why.NOT_LOOKED_AT, words, fitting)


_REMEDIES = (
    ("cordoned", "kubectl uncordon takes pods there again"),
    ("taint ", "a toleration in the pod lets it there"),
    ("not ready", "kubectl describe node says what is wrong there"),
    ("not labelled", f"the label {LABELS[0]} lets mpsd share it"),
)


def _kept_away(request: Request, fitting: Sequence[Candidate], nodes: Sequence[Candidate]) -> str:
    rooms = listed([f"{one.room} ({one.away})" for one in fitting])
    remedy = [words for start, words in _REMEDIES if any(one.away.startswith(start) for one in fitting)]
    rest = [one for one in nodes if not one.gpus]
    elsewhere = [f"elsewhere, {shortage(request, rest)}"] if rest else []
    return "; ".join([f"there is room only where it may not go: {rooms}", *remedy, *elsewhere])


def _when(request: Request, nodes: Sequence[Candidate], scene: ExplanationContext) -> str:
    """When it will start, and what would do sooner."""
    open_ones = [one.ledger for one in nodes if one.ledger and not one.away]
    if not open_ones:
        return "kubectl mps shows how each node is"
    unit_mib = scene.policy.resources.memory_unit_mib
    less_mib = most_mib(nodes) // unit_mib * unit_mib
    ask_less = f"ask for {gib(less_mib)} GiB or less" if 0 < less_mib < request.memory_mib and request.gpus == 1 else ""
    if not any(has_domain(request, ledger) for ledger in open_ones):
        return f"it never fits until an administrator makes a domain of {request.gpus} GPUs; or ask for one GPU"
    if any(can_ever(request, ledger) for ledger in open_ones):
        return "; or ".join(filter(None, ["it starts when others end, which kubectl mps shows", ask_less]))
    return "; ".join(filter(None, ["what is counted is too small for it even when empty", ask_less]))
