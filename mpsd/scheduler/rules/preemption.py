"""Which pods have to be preempted so that a request fits a node.

No pod is preempted in vain: one is added to those that kube-scheduler has proposed only where the
request does not fit without it, and fits with it. What other pods are giving back already is waited
for.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from mpsd.grants.rules.placement import by_preference, find_gpus
from mpsd.kubelet.rules.gpu_choice import SharedPod
from mpsd.model.grants import GpuCapacity, Request
from mpsd.model.policy import Policy
from mpsd.scheduler.rules.capacity import AssignmentSource, NodeCapacity, Taken, after

_Rooms = tuple[GpuCapacity, ...]
_Victims = tuple[Taken, ...]


def victims(
    preemptor: SharedPod, ledger: NodeCapacity, pods: Iterable[SharedPod], proposed: Sequence[str]
) -> tuple[str, ...]:
    """The uids of all who have to go: those proposed, and as few more as will do. Empty where
    nothing helps, or where nobody has to go.

    pods: those of the node that ledger knows. proposed: uids, kept whatever they are, since they
    may stand in the way of CPU, say. The room of pods that go already counts. For a request of one
    GPU no other choice adds fewer, and the highest priority that has to go is as low as it can be;
    for several they are found GPU by GPU.
    """
    there = tuple(pods)
    gone = {*_going(ledger, there), *(one for one in ledger.taken if one.pod.uid in proposed)}
    rooms = after(ledger.rooms, gone, ledger.policy, gone=True)
    priorities = {pod.name.uid: pod.priority for pod in there if pod.priority < preemptor.priority}
    search = _Search(preemptor.request, ledger.policy, priorities)
    if search.fits(rooms):
        return tuple(proposed)
    may_go = [one for one in ledger.taken if one.gpus and one.pod.uid in priorities]
    others = tuple(one for one in may_go if one not in gone)
    by_domain: dict[str, list[GpuCapacity]] = {}
    for room in rooms:
        by_domain.setdefault(room.domain, []).append(room)
    ways = [search.of_domain(tuple(here), others) for here in by_domain.values()]
    ways.append(search.of_joined(rooms, others))
    possible = [way for way in ways if way is not None]
    if not possible:
        return ()
    return (*proposed, *(one.pod.uid for one in min(possible, key=search.cost)))


def _going(ledger: NodeCapacity, pods: Sequence[SharedPod]) -> Iterator[Taken]:
    """What is given back without anybody else's end. A reservation may be for a pod that is being
    bound."""
    here: set[str] = set()
    stay: set[str] = set()
    for pod in pods:
        names = {pod.name.uid, str(pod.name)}
        here |= names
        if not pod.finished and not pod.terminating:
            stay |= names
    for one in ledger.taken:
        name = one.pod.uid or str(one.pod)
        if name not in stay and (name in here or one.source is AssignmentSource.GRANTED):
            yield one


@dataclass(frozen=True, slots=True)
class _Search:
    """Finds whom to stop for a request. priorities: by uid."""

    request: Request
    policy: Policy
    priorities: Mapping[str, int]

    def fits(self, rooms: _Rooms, gone: Iterable[Taken] = ()) -> bool:
        """Whether the request fits once these have gone."""
        left = after(rooms, gone, self.policy, gone=True)
        return find_gpus(self.request, left, self.policy) is not None

    def rank(self, one: Taken) -> tuple[int, str]:
        """The least important first."""
        return self.priorities[one.pod.uid], one.pod.uid

    def cost(self, way: _Victims) -> tuple[int, list[int], list[str]]:
        """The fewest, of these the least important, of these always the same."""
        priorities = sorted([self.priorities[one.pod.uid] for one in way], reverse=True)
        return len(way), priorities, sorted(one.pod.uid for one in way)

    def of_domain(self, here: _Rooms, others: _Victims) -> _Victims | None:
        """Frees as many GPUs of a domain as are asked for, each time the one that costs least; None
        where it cannot."""
        gone: _Victims = ()
        freed: set[str] = set()
        while len(freed) < self.request.gpus:
            now = after(here, gone, self.policy, gone=True)
            left = tuple(one for one in others if one not in gone)
            ways: list[tuple[_Victims, str]] = []
            for room in by_preference(now, self.policy):
                gpu = room.gpu.uuid
                if gpu not in freed and (way := self._of_gpu(room, left)) is not None:
                    ways.append((way, gpu))
            if not ways:
                return None
            way, gpu = min(ways, key=lambda found: self.cost(found[0]))
            gone += way
            freed.add(gpu)
        if self.request.gpus == 1:
            return gone
        return self._needed(here, gone)

    def of_joined(self, rooms: _Rooms, others: _Victims) -> _Victims | None:
        """Empties as many GPUs that may be joined as are asked for, each time a domain that costs
        least for each GPU; None where it cannot."""
        if self.request.gpus == 1:
            return None
        by_domain: dict[str, list[GpuCapacity]] = {}
        for room in rooms:
            if room.holders is not None:
                by_domain.setdefault(room.domain, []).append(room)
        ways = []
        for here in by_domain.values():
            uuids = {room.gpu.uuid for room in here}
            way = tuple(one for one in others if not uuids.isdisjoint(one.gpus))
            freed = after(tuple(here), way, self.policy, gone=True)
            number = sum(room.holds(self.request, self.policy) for room in freed)
            if number and not any(room.holders for room in freed):
                ways.append((self.cost(way), way, number))
        gone: _Victims = ()
        found = 0
        for _cost, way, number in sorted(ways, key=itemgetter(0)):
            if found < self.request.gpus:
                gone = tuple(dict.fromkeys((*gone, *way)))
                found += number
        if found < self.request.gpus:
            return None
        return self._needed(rooms, gone)

    def _needed(self, here: _Rooms, gone: _Victims) -> _Victims:
        """Without those that a later choice has made needless, the most important of them first."""
        kept = tuple(sorted(gone, key=lambda one: (-self.priorities[one.pod.uid], one.pod.uid)))
        for one in kept:
            rest = tuple(other for other in kept if other is not one)
            if self.fits(here, rest):
                kept = rest
        return kept

    def _of_gpu(self, room: GpuCapacity, others: _Victims) -> _Victims | None:
        """The fewest whose going makes room on this GPU, of these the least important; None where
        that cannot be."""
        here = sorted((one for one in others if room.gpu.uuid in one.gpus), key=self.rank)
        fewest = self._fewest(room, here)
        if not fewest:
            return fewest
        # The more may go, the fewer have to: so the first priority where as few do is found by
        # halving.
        priorities = sorted({self.rank(one)[0] for one in here})
        low = 0
        high = priorities.index(max(self.rank(one)[0] for one in fewest))
        best = fewest
        while low < high:
            middle = (low + high) // 2
            low_ones = [one for one in here if self.rank(one)[0] <= priorities[middle]]
            found = self._fewest(room, low_ones)
            if found is not None and len(found) == len(fewest):
                high = middle
                best = found
            else:
                low = middle + 1
        return best

    def _fewest(self, room: GpuCapacity, here: Sequence[Taken]) -> _Victims | None:
        """The fewest of these whose going makes room on this GPU; the earlier ones where it is all
        the same. Steps are at most the square of their number, times the percent that lack."""
        clients = self.policy.requests.clients_per_grant
        lack_mib = self.request.memory_mib - room.memory_mib
        lack_percent = max(0, (self.request.thread_percent or 0) - room.thread_percent)
        lent_mib = sum(one.memory_mib for one in here)
        lent_percent = sum(one.percent for one in here)
        if lent_mib < lack_mib or lent_percent < lack_percent:
            return None
        # By how many go, and how many percent that frees (all that lack at most): the most MiB that
        # it can free.
        most: dict[tuple[int, int], tuple[int, _Victims]] = {(0, 0): (0, ())}
        for one in here:
            for (count, percent), (mib, who) in list(most.items()):
                reached = count + 1, min(lack_percent, percent + one.percent)
                freed = mib + one.memory_mib
                if reached not in most or most[reached][0] < freed:
                    most[reached] = (freed, (*who, one))
        enough: dict[int, _Victims] = {}
        for (count, percent), (mib, who) in most.items():
            has_clients = room.clients + count * clients >= clients
            if percent == lack_percent and mib >= lack_mib and has_clients:
                enough.setdefault(count, who)
        return enough[min(enough)] if enough else None
