"""Which GPU a pod has or should get: its annotations, mpsd's own and gpushare's two formats, and
the devices to prefer.

Reading annotations never raises, whatever is in them, and names GPUs of this node or none.
Sources of the formats: github.com/AliyunContainerService/gpushare-scheduler-extender (v1), and
github.com/koordinator-sh/koordinator, which reads both (v2).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec

from mpsd.grants.rules.placement import by_preference, together
from mpsd.kubelet.rules.allocation import gpu_of, gpus_of, number_of
from mpsd.kubelet.rules.ledger import ContainerDevices
from mpsd.kubelet.rules.node_pods import (
    ALLOCATED,
    ALLOCATION,
    ASSIGN_TIME,
    ASSIGNED,
    ASSUME_TIME,
    BOUND_AT,
    DEV,
    GPU,
    IDX,
    LONGEST_ANNOTATION,
    PERCENT_ALLOCATION,
    POD,
    NodePod,
    RequestingContainer,
    annotations_of,
)
from mpsd.model.grants import Gpu, GpuCapacity, GpuName, Request, promised_mib
from mpsd.model.identity import PodName
from mpsd.model.pod import Pod, pod_in
from mpsd.model.policy import Policy
from mpsd.model.problem import LONGEST_NAME
from mpsd.model.request import PodRequest, read_allocated

_ORDINAL = re.compile(r"[0-9]{1,3}", re.ASCII)

CHOICE_KEYS = (GPU, IDX, ALLOCATION)  # by which `chosen_gpus` reads


def chosen_gpus(annotations: Mapping[str, str], gpus: Sequence[GpuName]) -> tuple[str, ...]:
    """The UUIDs that the pod's annotations name, in the order of `gpus`; () for none. The first
    format that names one decides; gpushare's ordinals name no MIG instances."""
    own = _names(annotations, GPU)
    found = tuple(gpu.uuid for gpu in gpus if gpu.uuid in own)
    whole = [gpu for gpu in gpus if not gpu.instance]
    return (
        found
        or _numbered(_names(annotations, IDX), whole)
        or _numbered([*_ordinals(annotations.get(ALLOCATION, ""))], whole)
    )


def _names(annotations: Mapping[str, str], key: str) -> Sequence[str]:
    return [part.strip() for part in annotations.get(key, "")[:LONGEST_ANNOTATION].split(",")]


def _numbered(ordinals: Sequence[str], gpus: Sequence[GpuName]) -> tuple[str, ...]:
    return tuple(gpu.uuid for gpu in gpus if str(gpu.ordinal) in ordinals)


def _ordinals(text: str) -> Iterator[str]:
    if len(text) > LONGEST_ANNOTATION:
        return
    try:
        allocation = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
    except (ValueError, RecursionError):
        return
    for of_container in allocation.values():
        for ordinal, units in of_container.items():
            if _ORDINAL.fullmatch(ordinal) and units not in (0, "0", None):
                yield str(int(ordinal))


def annotations_for(
    pod: NodePod, held: Sequence[ContainerDevices], gpus: Sequence[Gpu], policy: Policy, at_ns: int
) -> dict[str, str]:
    """All annotations of mpsd for a pod that holds these devices, whatever a scheduler chose; {}
    for none. at_ns: when they were allocated, since 1970, for a pod that has no time of its own
    yet. v1 has no form for several GPUs."""
    own = [one for one in held if one.pod == (pod.namespace, pod.name)]
    units = _by_gpu({device_id for one in own for device_id in one.memory}, gpus)
    if not units:
        return {}
    wanted = {GPU: ",".join(gpu.uuid for gpu in units), **_in_v2(pod, own, gpus)}
    if len(units) == 1:
        gpu, count = units.popitem()
        dev_units = promised_mib(gpu, policy) // policy.resources.memory_unit_mib
        wanted |= _v1(gpu, count, dev_units, assigned=True)
    for time in (BOUND_AT, ASSIGN_TIME, ASSUME_TIME):
        wanted[time] = pod.annotations.get(time, str(at_ns))
    return wanted


def annotations_at_bind(
    gpus: Sequence[GpuName], memory_mib: int, dev_mib: int, policy: Policy, at_ns: int
) -> dict[str, str]:
    """What a scheduler writes on a pod with its binding. memory_mib: on each GPU. dev_mib: what the
    first may promise in all. at_ns: now, since 1970."""
    wanted = {GPU: ",".join(gpu.uuid for gpu in gpus)}
    unit_mib = policy.resources.memory_unit_mib
    if len(gpus) == 1:
        wanted |= _v1(gpus[0], memory_mib // unit_mib, dev_mib // unit_mib, assigned=False)
    return wanted | {BOUND_AT: str(at_ns)}


def _by_gpu(ids: Iterable[str], gpus: Sequence[Gpu]) -> dict[Gpu, int]:
    """How many are on each GPU that has any, in the order of `gpus`."""
    count = Counter(map(gpu_of, ids))
    return {gpu: count[gpu.uuid] for gpu in gpus if count[gpu.uuid]}


def _v1(gpu: GpuName, units: int, dev_units: int, *, assigned: bool) -> dict[str, str]:
    return {
        IDX: str(gpu.ordinal),
        POD: str(units),
        DEV: str(dev_units),
        ASSIGNED: str(assigned).lower(),
    }


def _in_v2(pod: NodePod, held: Sequence[ContainerDevices], gpus: Sequence[Gpu]) -> dict[str, str]:
    """v2 counts main containers by their position in the pod, and has no form for others."""
    memory: dict[str, dict[str, int]] = {}
    percent: dict[str, dict[str, int]] = {}
    by_name = {one.container.container: one for one in held}
    for position, name in enumerate(pod.main_containers):
        if name in by_name and (units := _by_gpu(by_name[name].memory, gpus)):
            memory[str(position)] = {str(gpu.ordinal): count for gpu, count in units.items()}
            if each := len(by_name[name].percent) // len(units):
                percent[str(position)] = {str(gpu.ordinal): each for gpu in units}
    if not memory:
        return {}
    written = {ALLOCATION: _json(memory), ALLOCATED: "true"}
    if percent:
        written[PERCENT_ALLOCATION] = _json(percent)
    return written


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def preferred(
    offer: "Offer",
    container: RequestingContainer | None,
    rooms: Sequence[GpuCapacity],
    policy: Policy,
    held: Sequence[str] = (),
) -> tuple[str, ...]:
    """The ids to take, always `size` of them; Allocate refuses them where nothing fits one domain.
    rooms: of all GPUs of the node. held: devices that other containers of the pod have; their GPUs
    come first, then those that the scheduler wrote on the pod, then the policy's placement."""
    unit_mib = policy.resources.memory_unit_mib
    percent: int | None = None
    chosen: Iterable[str] = ()
    if container:
        percent = container.request.thread_percent
        chosen = chosen_gpus(container.pod.annotations, [room.gpu for room in rooms])
    request = Request(offer.each * unit_mib, percent, offer.gpus)
    able = [room for room in rooms if offer.fits(room.gpu.uuid)]
    offered = (replace(one, memory_mib=offer.units(one.gpu.uuid) * unit_mib) for one in able)
    fitting = by_preference(offered, policy)
    roomy = [room for room in fitting if room.holds(request, policy)]
    wishes = (fitting, gpus_of(held)), (fitting, chosen), (roomy, None), (fitting, None)
    group = together(rooms)
    for among, wish in wishes:
        wished = None if wish is None else frozenset(wish)
        if selected := offer.select(among, wished, group):
            return offer.taken_from(selected)
    return (*offer.must, *offer.free)[: max(0, offer.size)]


class Offer:
    """The choice that kubelet offers. must, free: ids, in order. each: units on each of `gpus`
    GPUs, with `rest` left over."""

    def __init__(
        self, available: Sequence[str], must_include: Sequence[str], size: int, gpus: int
    ) -> None:
        self.must = tuple(dict.fromkeys(must_include))
        free = set(available).difference(self.must)
        self.free = tuple(sorted(free, key=lambda one: (number_of(one), one)))
        self.size = size
        self.gpus = gpus
        self.each, self.rest = divmod(size, gpus)
        self.inside, self.left = Counter(map(gpu_of, self.must)), Counter(map(gpu_of, free))

    def units(self, uuid: str) -> int:
        return self.inside[uuid] + self.left[uuid]

    def fits(self, uuid: str) -> bool:
        return self.rest == 0 and self.inside[uuid] <= self.each <= self.units(uuid)

    def select(
        self, among: Sequence[GpuCapacity], wish: frozenset[str] | None, group: Mapping[str, str]
    ) -> tuple[str, ...]:
        """GPUs that can be had together (by `group`) and hold what must be included, and are of the
        wish or hold all of it; () for none."""
        needed = self.inside.keys() - {""}
        for domain in dict.fromkeys(group[room.gpu.uuid] for room in among):
            here = [room.gpu.uuid for room in among if group[room.gpu.uuid] == domain]
            here.sort(key=lambda uuid: (uuid not in needed, uuid not in (wish or ())))
            selected = set(here[: self.gpus])
            wished = wish is None or (wish and (selected <= wish or wish <= selected))
            if len(selected) == self.gpus and needed <= selected and wished:
                return tuple(here[: self.gpus])
        return ()

    def taken_from(self, selected: Sequence[str]) -> tuple[str, ...]:
        """As many on each."""
        taken = [*self.must]
        for uuid in selected:
            free = [one for one in self.free if gpu_of(one) == uuid]
            taken += free[: self.each - self.inside[uuid]]
        return tuple(taken)


@dataclass(frozen=True, slots=True)
class SharedPod:
    """A pod of the cluster as a scheduler needs it. request: on each of its GPUs, when it holds
    most. node: empty where it is not bound. choice: its annotations by CHOICE_KEYS. created: RFC
    3339. terminating: its deletion was requested."""

    name: PodName
    request: Request
    node: str
    choice: Mapping[str, str]
    scheduler: str
    priority: int
    created: str
    finished: bool
    terminating: bool


def read_shared_pod(thing: object, policy: Policy) -> SharedPod | None:
    """None for what asks for no GPU or cannot be read."""
    pod = pod_in(thing)
    if pod is None:
        return None
    return shared_pod(pod, read_allocated(pod, policy.resources))


def shared_pod(pod: Pod, share: PodRequest) -> SharedPod | None:
    """share: what it asks of GPUs; None where that is nothing."""
    if not share.requests or not pod.is_named:
        return None
    return SharedPod(
        name=pod.name,
        request=_request(share.memory_mib, share.thread_percent, share.requests[0].gpus),
        node=pod.spec.node,
        choice=annotations_of(pod, CHOICE_KEYS),
        scheduler=pod.spec.scheduler[:LONGEST_NAME],
        priority=pod.spec.priority or 0,
        created=pod.metadata.created or "",
        finished=pod.is_finished,
        terminating=pod.is_terminating,
    )


@lru_cache(maxsize=1024)
def _request(memory_mib: int, percent: int, gpus: int) -> Request:
    """The very same for pods that ask for the same."""
    return Request(memory_mib, percent or None, gpus)
