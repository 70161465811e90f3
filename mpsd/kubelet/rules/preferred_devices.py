"""Which devices kubelet should take for a container: those of one GPU, or of as many GPUs of one domain as it asks.

One rule: whatever is available, the answer has the size that kubelet asked for and holds what kubelet must include;
where nothing fits one domain it is no good selection, and Allocate refuses it with the reason.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mpsd.grants.rules.placement import by_preference
from mpsd.kubelet.rules.allocation import Asking
from mpsd.kubelet.rules.devices import gpu_of, number_of
from mpsd.kubelet.rules.placement_annotations import chosen_gpus
from mpsd.model.grants import Gpu, Grant, Request, Room, rooms
from mpsd.model.policy import Policy


@dataclass(frozen=True, slots=True)
class Choice:
    """What kubelet lets us choose: `size` ids of `available`, and `must_include` among them."""

    available: Sequence[str]
    must_include: Sequence[str]
    size: int


@dataclass(frozen=True, slots=True)
class Cards:
    """The node's GPUs. domain_of: from UUID to domain. grants: everybody's, so that a GPU whose threads or clients are
    promised is passed over where another one would do.
    """

    gpus: Sequence[Gpu]
    domain_of: Mapping[str, str]
    grants: Sequence[Grant] = ()


def preferred(
    choice: Choice, pod: Asking | None, cards: Cards, policy: Policy, held: Sequence[str] = ()
) -> tuple[str, ...]:
    """The ids to take. Those of the percent resource are taken by their numbers.

    held: devices that other containers of the pod have; their GPUs come first, then those that the scheduler wrote on
    the pod, then the policy's placement.
    """
    count, percent = (pod[1].gpus, pod[1].thread_percent) if pod else (1, None)
    offer = _Offer.of(choice, count)
    request = Request(offer.each * policy.resources.memory_unit_mib, percent, count)
    here = [gpu for gpu in cards.gpus if gpu.uuid in cards.domain_of]
    known = rooms(here, cards.domain_of, cards.grants, policy)
    fitting = by_preference(
        (
            replace(room, memory_mib=offer.units(room.gpu.uuid) * policy.resources.memory_unit_mib)
            for room in known
            if offer.fits(room.gpu.uuid)
        ),
        policy,
    )
    roomy = [room for room in fitting if room.holds(request, policy)]
    beside = frozenset(gpu for gpu in map(gpu_of, held) if gpu)
    chosen = frozenset(chosen_gpus(pod[0].annotations, cards.gpus)) if pod else frozenset[str]()
    for among, wish in ((fitting, beside), (fitting, chosen), (roomy, None), (fitting, None)):
        selected = offer.select(among, wish)
        if selected:
            return offer.taken_from(selected)
    return offer.anything()


@dataclass(frozen=True, slots=True)
class _Offer:
    """A choice, counted. must, free: ids, in order. each: units on each of `gpus` GPUs."""

    must: tuple[str, ...]
    free: tuple[str, ...]
    size: int
    gpus: int
    each: int
    inside: Counter[str | None]
    left: Counter[str | None]

    @classmethod
    def of(cls, choice: Choice, gpus: int) -> "_Offer":
        must = tuple(dict.fromkeys(choice.must_include))
        free = tuple(sorted(set(choice.available).difference(must), key=lambda one: (number_of(one), one)))
        inside, left = Counter(map(gpu_of, must)), Counter(map(gpu_of, free))
        return cls(must, free, choice.size, gpus, choice.size // gpus, inside, left)

    def units(self, uuid: str) -> int:
        return self.inside[uuid] + self.left[uuid]

    def fits(self, uuid: str) -> bool:
        """Whether this GPU could be one of the container's."""
        return self.size % self.gpus == 0 and self.inside[uuid] <= self.each <= self.units(uuid)

    def select(self, among: Sequence[Room], wish: frozenset[str] | None) -> tuple[str, ...]:
        """GPUs of one domain that hold what must be included, and are of the wish or hold all of it; () for none."""
        needed = {uuid for uuid in self.inside if uuid}
        for domain in dict.fromkeys(room.domain for room in among):
            here = [room.gpu.uuid for room in among if room.domain == domain]
            here.sort(key=lambda uuid: (uuid not in needed, uuid not in (wish or ())))
            selected = set(here[: self.gpus])
            wished = wish is None or (wish and (selected <= wish or wish <= selected))
            if len(selected) == self.gpus and needed <= selected and wished:
                return tuple(here[: self.gpus])
        return ()

    def taken_from(self, selected: Sequence[str]) -> tuple[str, ...]:
        """The ids of the container on these GPUs, the same number on each."""
        rest = [
            device_id
            for uuid in selected
            for device_id in [one for one in self.free if gpu_of(one) == uuid][: self.each - self.inside[uuid]]
        ]
        return (*self.must, *rest)

    def anything(self) -> tuple[str, ...]:
        return (*self.must, *self.free)[: max(0, self.size)]
