"""Why no GPU of a whole cluster has room for a request, in the few words that a person reads.

One rule: nodes that may take the pod are told apart from those that may not, so that `no GPU has room` is never said
of one that has.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mpsd.grants.rules.placement import Placed, gib, place
from mpsd.model.grants import Request, Room
from mpsd.model.problem import shown_name
from mpsd.platform.rules.kubernetes_node import NodeWishes, kept_away
from mpsd.scheduler.rules.node_books import NodeBooks
from mpsd.scheduler.rules.shortage import can_ever
from mpsd.status.rules.pod_scene import Scene, counted, listed, wanted

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
    books: NodeBooks | None
    away: str
    gpus: tuple[str, ...]

    @property
    def room(self) -> str:
        return f"{listed(self.gpus)} of {shown_name(self.node)}"


def candidates(request: Request, wishes: NodeWishes, scene: Scene) -> tuple[Candidate, ...]:
    """By name: every node that has an MPSNode, or should."""
    labelled = {one for one, machine in (scene.machines or {}).items() if machine.is_labelled}
    return tuple(_candidate(node, request, wishes, scene) for node in sorted(labelled | scene.books.keys()))


def _candidate(node: str, request: Request, wishes: NodeWishes, scene: Scene) -> Candidate:
    books = scene.books.get(node)
    if books is None:
        return Candidate(node, None, _TELLS_NOTHING, ())
    shut = books.shut.removeprefix("its ").removeprefix("it ")
    return Candidate(node, books, _kept_away(node, wishes, scene) or shut, _with_room(request, books))


def _with_room(request: Request, books: NodeBooks) -> tuple[str, ...]:
    """`place` is asked only where it may find something: it would word a reason for each of thousands of GPUs."""
    if books.shut or not any(room.holds(request, books.policy) for room in books.rooms):
        return ()
    found = place(request, books.rooms, books.policy)
    labels = {room.gpu.uuid: room.gpu.label for room in books.rooms}
    return tuple(labels[uuid] for uuid in found.gpus) if isinstance(found, Placed) else ()


def _kept_away(node: str, wishes: NodeWishes, scene: Scene) -> str:
    """By Kubernetes; nothing is known of that where nobody may look at the Nodes."""
    if scene.machines is None:
        return ""
    machine = scene.machines.get(node)
    return kept_away(wishes, machine) if machine else _NO_NODE


# -- nothing fits --------------------------------------------------------------------------------------------------


def too_large(request: Request, nodes: Sequence[Candidate]) -> str:
    """Why it could fit nowhere, not even on empty GPUs; empty where it could, or where a node has not told its size."""
    told = [one.books for one in nodes if one.books]
    if len(told) < len(nodes) or any(not books.totals or can_ever(request, books) for books in told):
        return ""
    sizes = [(mib, f"{gpu.label} of {shown_name(books.node)}") for books in told for gpu, mib in books.totals]
    most_mib, where = max(sizes, key=lambda pair: pair[0], default=(0, ""))
    if most_mib < request.memory_mib:
        return f"asks for {gib(request.memory_mib)} GiB of one GPU, and the largest can give {gib(most_mib)}, {where}"
    return f"asks for {gib(request.memory_mib)} GiB of each of {request.gpus} GPUs, and no node has as many so large"


def shortage(request: Request, nodes: Sequence[Candidate]) -> str:
    """What the nodes that may take it lack, and which may not. For nodes of which none may take it and has room."""
    open_ones = [one.books for one in nodes if one.books and not one.away]
    parts = [_lack(request, open_ones), *_closed(open_ones), *_left_out([one for one in nodes if one.away])]
    return "; ".join(parts)


def _lack(request: Request, nodes: Sequence[NodeBooks]) -> str:
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

    room: Room
    books: NodeBooks
    alone: bool

    def __str__(self) -> str:
        return self.room.gpu.label if self.alone else f"{self.room.gpu.label} of {shown_name(self.books.node)}"


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
    clients = best.books.policy.requests.clients_per_grant
    left = max(0, best.room.clients)
    return f"no GPU of {where} with {wanted(request)} free takes {clients} more clients: {best} takes {left}"


def _lack_of_several(request: Request, rooms: Sequence[_At], where: str) -> str:
    sizes = Counter((one.books.node, one.room.domain) for one in rooms)
    if max(sizes.values()) < request.gpus:
        return f"no domain of {where} has {request.gpus} GPUs that take pods (domains in the policy)"
    fitting = [one for one in rooms if one.room.holds(request, one.books.policy)]
    most = max(Counter((one.books.node, one.room.domain) for one in fitting).values(), default=0)
    return f"no domain of {where} has {request.gpus} GPUs with {wanted(request)} free: the most is {most}"


def _closed(nodes: Iterable[NodeBooks]) -> Iterator[str]:
    closed = [(f"{one.gpu.label} of {shown_name(books.node)}", one.reason) for books in nodes for one in books.closed]
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
    return max((room.memory_mib for one in nodes if one.books and not one.away for room in one.books.rooms), default=0)
