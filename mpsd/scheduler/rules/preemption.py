"""Which pods have to be preempted so that a request fits a node.

No pod is preempted in vain: one is added to those that kube-scheduler has proposed only where the request does not fit
without it, and fits with it. What other pods are giving back already is waited for.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mpsd.grants.rules.placement import Placed, by_preference, place
from mpsd.kubelet.rules.gpu_choice import SharedPod
from mpsd.model.grants import GpuCapacity, Request
from mpsd.scheduler.rules.capacity import AssignmentSource, NodeCapacity, Taken


@dataclass(frozen=True, slots=True)
class Preemptor:
    """A pod that may have others stopped: what it asks for, and which pods give way to it, those below its priority."""

    request: Request
    priority: int


@dataclass(frozen=True, slots=True)
class _Victim:
    """A pod that may be stopped, and what each of its GPUs has back then."""

    taken: Taken
    priority: int

    @property
    def uid(self) -> str:
        return self.taken.pod.uid


def victims(
    preemptor: Preemptor, ledger: NodeCapacity, pods: Iterable[SharedPod], proposed: Sequence[str]
) -> tuple[str, ...]:
    """The uids of all who have to go: those proposed, and as few more as will do. Empty where nothing helps, or where
    nobody has to go.

    pods: those of the node that ledger knows. proposed: uids, kept whatever they are, since they may stand in the way
    of something else that the request wants, such as CPU. A pod that goes, or has gone while its node has not reported
    yet that its devices are back, gives room without our help: where that is enough, nobody is added.

    For a request of one GPU no other choice adds fewer; among such, the highest priority that has to go is the lowest
    that it can be. For one of several GPUs they are found GPU by GPU, so that there may be a choice of fewer.
    """
    known, there = set(proposed), tuple(pods)
    going = frozenset(_going(ledger, there))
    rooms = _without(ledger.rooms, (one for one in ledger.taken if one in going or one.pod.uid in known), ledger)
    by_uid = {one.pod.uid: one for one in ledger.taken if one.gpus and one not in going and one.pod.uid not in known}
    others = [
        _Victim(by_uid[pod.name.uid], pod.priority)
        for pod in there
        if pod.name.uid in by_uid and pod.priority < preemptor.priority
    ]
    added = _added(preemptor.request, rooms, others, ledger)
    return () if added is None else (*proposed, *(one.uid for one in added))


def _going(ledger: NodeCapacity, pods: Sequence[SharedPod]) -> Iterator[Taken]:
    """What is given back without anybody else's end. A reservation may be for a pod that is being bound."""
    stay = {name for pod in pods if not pod.finished and not pod.terminating for name in (pod.name.uid, str(pod.name))}
    here = {name for pod in pods for name in (pod.name.uid, str(pod.name))}
    for one in ledger.taken:
        name = one.pod.uid or str(one.pod)
        if name not in stay and (name in here or one.source is AssignmentSource.GRANTED):
            yield one


def _added(
    request: Request, rooms: tuple[GpuCapacity, ...], others: Sequence[_Victim], ledger: NodeCapacity
) -> tuple[_Victim, ...] | None:
    """Whom to stop beside those whose room is counted already; None where that does not help."""
    if _fits(request, rooms, ledger):
        return ()
    ways = [_of_domain(request, domain, rooms, others, ledger) for domain in dict.fromkeys(r.domain for r in rooms)]
    return min((way for way in ways if way is not None), key=_cost, default=None)


def _cost(way: Sequence[_Victim]) -> tuple[int, list[int], list[str]]:
    """The fewest, of these the least important, of these always the same."""
    return len(way), sorted((one.priority for one in way), reverse=True), sorted(one.uid for one in way)


def _of_domain(
    request: Request, domain: str, rooms: tuple[GpuCapacity, ...], others: Sequence[_Victim], ledger: NodeCapacity
) -> tuple[_Victim, ...] | None:
    """Frees as many GPUs of the domain as are asked for, each time the one that costs least; None where it cannot."""
    here = tuple(room for room in rooms if room.domain == domain)
    gone: tuple[_Victim, ...] = ()
    freed: set[str] = set()
    while len(freed) < request.gpus:
        now = by_preference(_without(here, (one.taken for one in gone), ledger), ledger.policy)
        left = [one for one in others if one not in gone]
        ways = [
            (way, room)
            for room in now
            if room.gpu.uuid not in freed
            if (way := _of_gpu(request, room, left, ledger)) is not None
        ]
        if not ways:
            return None
        way, room = min(ways, key=lambda found: _cost(found[0]))
        gone += way
        freed.add(room.gpu.uuid)
    return gone if request.gpus == 1 else tuple(_needed(request, here, gone, ledger))


def _needed(
    request: Request, rooms: tuple[GpuCapacity, ...], gone: Sequence[_Victim], ledger: NodeCapacity
) -> Iterator[_Victim]:
    """Without those that a later choice has made needless, the most important of them first."""
    kept = sorted(gone, key=lambda one: (-one.priority, one.uid))
    for one in tuple(kept):
        rest = [other for other in kept if other is not one]
        if _fits(request, _without(rooms, (other.taken for other in rest), ledger), ledger):
            kept = rest
    yield from kept


def _of_gpu(
    request: Request, room: GpuCapacity, others: Sequence[_Victim], ledger: NodeCapacity
) -> tuple[_Victim, ...] | None:
    """The fewest whose going makes room on this GPU, and of these the least important; None where that cannot be."""
    here = sorted((one for one in others if room.gpu.uuid in one.taken.gpus), key=lambda one: (one.priority, one.uid))
    fewest = _fewest(request, room, here, ledger)
    if not fewest:
        return fewest
    # The more may go, the fewer have to: so the first priority where as few do is found by halving.
    priorities = sorted({one.priority for one in here})
    low, high, best = 0, priorities.index(max(one.priority for one in fewest)), fewest
    while low < high:
        middle = (low + high) // 2
        found = _fewest(request, room, [one for one in here if one.priority <= priorities[middle]], ledger)
        if found is not None and len(found) == len(fewest):
            high, best = middle, found
        else:
            low = middle + 1
    return best


def _fewest(
    request: Request, room: GpuCapacity, here: Sequence[_Victim], ledger: NodeCapacity
) -> tuple[_Victim, ...] | None:
    """The fewest of these whose going makes room on this GPU; the earlier ones where it is all the same.

    Steps are at most the square of their number, times the percent that lack.
    """
    clients = ledger.policy.requests.clients_per_grant
    lack_mib = request.memory_mib - room.memory_mib
    lack_percent = max(0, (request.thread_percent or 0) - room.thread_percent)
    if sum(one.taken.memory_mib for one in here) < lack_mib or sum(one.taken.percent for one in here) < lack_percent:
        return None
    # By how many go and how many percent that frees (all that lack at most): the most MiB that it can free, and who.
    most: dict[tuple[int, int], tuple[int, tuple[_Victim, ...]]] = {(0, 0): (0, ())}
    for one in here:
        for (count, percent), (mib, who) in list(most.items()):
            reached = (count + 1, min(lack_percent, percent + one.taken.percent))
            freed = mib + one.taken.memory_mib
            if reached not in most or most[reached][0] < freed:
                most[reached] = (freed, (*who, one))
    enough = (
        (count, who)
        for (count, percent), (mib, who) in most.items()
        if percent == lack_percent and mib >= lack_mib and room.clients + count * clients >= clients
    )
    return min(enough, key=lambda found: found[0], default=(0, None))[1]


def _fits(request: Request, rooms: tuple[GpuCapacity, ...], ledger: NodeCapacity) -> bool:
    return isinstance(place(request, rooms, ledger.policy), Placed)


def _without(rooms: tuple[GpuCapacity, ...], gone: Iterable[Taken], ledger: NodeCapacity) -> tuple[GpuCapacity, ...]:
    """The rooms once these have gone."""
    by_gpu = {room.gpu.uuid: room for room in rooms}
    for one in gone:
        for uuid in one.gpus:
            if room := by_gpu.get(uuid):
                by_gpu[uuid] = replace(
                    room,
                    memory_mib=room.memory_mib + one.memory_mib,
                    thread_percent=room.thread_percent + one.percent,
                    clients=room.clients + ledger.policy.requests.clients_per_grant,
                )
    return tuple(by_gpu.values())
