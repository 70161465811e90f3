"""Devices and what a container gets for them: their ids, whether they can go together, and the
answer to kubelet.

A device is one unit of a GPU's memory, `<UUID>/<n>`, or one percent of the threads of any GPU,
`percent/<n>`. The ids alone say which GPU and how much memory a container gets, so a wrong guess at
the pod can never lift a memory limit.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from mpsd.kubelet.rules.node_pods import RequestingContainer
from mpsd.model.client_limits import (
    CUDA_CAPABILITIES,
    NVIDIA_DRIVER_CAPABILITIES,
    NVIDIA_VISIBLE_DEVICES,
    ClientLimit,
    client_priority,
    environment,
)
from mpsd.model.cuda_limit_parser import THREAD_PERCENT
from mpsd.model.domain import Domain, State
from mpsd.model.grants import DeviceNode, Gpu, HostMount, promised_mib
from mpsd.model.policy import Policy, Resources
from mpsd.model.problem import InvalidInput, Problem, printable, shortened
from mpsd.model.request import taken_in_part

# -- the devices ----------------------------------------------------------------------------------

PERCENT = "percent"  # in the place of a memory device's GPU
_ID = re.compile(r"(?P<of>.+)/(?P<number>0|[1-9][0-9]{0,8})", re.ASCII | re.DOTALL)
_SHOWN = 3  # of many unknown ids

# A domain that was ready and is coming back keeps its devices: a pod that comes meanwhile waits for
# it in PreStartContainer, while one that finds no healthy device fails for good.
_STAYS_HEALTHY = frozenset({State.FAULT, State.STARTING, State.DOWN})


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a resource. A container keeps a device that becomes unhealthy; no other one
    gets it."""

    id: str
    healthy: bool


def memory_devices(gpus: Sequence[Gpu], policy: Policy) -> tuple[str, ...]:
    """`<UUID>/<n>` for every whole unit (policy.resources.memory_unit_mib) that each GPU may give
    away."""
    unit_mib = policy.resources.memory_unit_mib
    return tuple(
        f"{gpu.uuid}/{n}"
        for gpu in gpus
        for n in range(max(0, promised_mib(gpu, policy)) // unit_mib)
    )


def units_claimed(claims: Iterable["Allocation"], policy: Policy) -> Mapping[str, int]:
    """By UUID, how many units resource claims hold, which kubelet must not give away as devices
    too."""
    units: Counter[str] = Counter()
    for claim in claims:
        units.update(
            dict.fromkeys(claim.gpus, -(-claim.memory_mib // policy.resources.memory_unit_mib))
        )
    return units


def without_room(devices: Sequence[str], claimed: Mapping[str, int]) -> frozenset[str]:
    """The devices, the last ones of each GPU, in whose place claims hold memory."""
    counts = Counter(map(gpu_of, devices))
    return frozenset(
        one
        for one in devices
        if number_of(one) >= counts[gpu_of(one)] - claimed.get(gpu_of(one) or "", 0)
    )


def percent_devices(gpus: Sequence[Gpu], policy: Policy) -> tuple[str, ...]:
    """`percent/<n>` for every percent of the threads that all GPUs together may give away."""
    return tuple(
        f"{PERCENT}/{n}" for n in range(policy.oversubscription.thread_percent * len(gpus))
    )


def healthy(state: State | None, was_ready: bool) -> bool:
    """Whether kubelet may give a GPU's devices to new pods. state None: its domain has no daemon
    yet. was_ready: the domain has been ready since the agent or the daemon started."""
    return state is State.READY or (was_ready and state in _STAYS_HEALTHY)


@lru_cache(maxsize=16_384)  # the same few thousand ids are read at every look
def _read(device_id: str) -> tuple[str, int]:
    """A device's UUID or PERCENT, and its number; empty and 0 for an unknown id."""
    found = _ID.fullmatch(device_id)
    return (found["of"], int(found["number"])) if found else ("", 0)


def gpu_of(device_id: str) -> str | None:
    """The UUID of a memory device's GPU; None for any other id."""
    of = _read(device_id)[0]
    return of if of and of != PERCENT else None


def is_percent(device_id: str) -> bool:
    return _read(device_id)[0] == PERCENT


def number_of(device_id: str) -> int:
    """The number within its GPU, or among the percents; 0 for an unknown id."""
    return _read(device_id)[1]


def units_by_gpu(ids: Iterable[str]) -> dict[str, int]:
    """From UUID to the number of units there, in the order of their first ids. InvalidInput for
    unknown ids."""
    named = tuple(ids)
    if unknown := [device_id for device_id in named if gpu_of(device_id) is None]:
        raise InvalidInput("the devices", _unknown(unknown))
    return dict(Counter(filter(None, map(gpu_of, named))))


def _unknown(ids: Sequence[str]) -> Iterator[Problem]:
    if not ids:
        return
    names = shortened([*map(printable, ids)], _SHOWN)
    remedy = "make sure that no other device plugin of this node registers the same resource"
    yield Problem("device-unknown", names, "", "this resource has no such device", remedy)


def spread(units: Mapping[str, int]) -> str:
    """How many devices are on which GPU, for people."""
    return " and ".join(f"{count} of {uuid}" for uuid, count in units.items())


# -- what they are worth together ----------------------------------------------------------------

_RECREATE = "delete the pod, so that it is placed again"
_ROOM = "no single GPU here has that much left: request less, or wait until one has"
_ROOM_OF_SEVERAL = (
    "no {gpus} GPUs of one domain have that much left, and GPUs are joined only while nobody uses"
    " them: wait until others have ended, or request less"
)
_AGAIN = (
    "kubelet reuses any of an init container's devices for the next container: request no less in"
    " that one"
)


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a container gets of each of `gpus` (UUIDs of one domain, in the domain's order).
    thread_percent None: the container requests percents, and that resource's answer says how many.
    priority None: it is given none."""

    domain: str
    gpus: tuple[str, ...]
    memory_mib: int
    thread_percent: int | None
    priority: int | None = None


def allocate_memory(
    ids: Sequence[str],
    container: RequestingContainer | None,
    domains: Sequence[Domain],
    policy: Policy,
) -> Allocation:
    """What the memory devices are worth. InvalidInput with every reason why no container can have
    them together. container None: it is not known."""
    unknown = [device_id for device_id in ids if gpu_of(device_id) is None]
    units = units_by_gpu(device_id for device_id in ids if device_id not in unknown)
    domain = next(
        (domain for domain in domains if units and units.keys() <= set(domain.gpus)), None
    )
    problems = [*_unknown(unknown), *_unusable(ids, units, domains, policy.resources.memory)]
    wrong_number = [*_wrong_number(units, container, policy.resources)]
    if container is None or not wrong_number:  # otherwise the number explains it all
        problems += _apart(units, container, domains, policy.resources.memory)
    problems += wrong_number
    if problems or domain is None:
        raise InvalidInput(_subject(container), problems)
    asks_percent = container is not None and container.request.thread_percent is not None
    return Allocation(
        domain=domain.name,
        gpus=tuple(uuid for uuid in domain.gpus if uuid in units),
        memory_mib=len(ids) * policy.resources.memory_unit_mib // len(units),
        thread_percent=None if asks_percent else policy.requests.default_thread_percent,
        priority=client_priority(
            container.pod.priority if container else None, policy.gpu_priority
        ),
    )


def allocate_percent(
    ids: Sequence[str], container: RequestingContainer | None, policy: Policy
) -> int:
    """The cap, 1 to 100, on each GPU of the container. InvalidInput where there can be none.
    container None: it is not known, and counts as having one GPU."""
    problems = [*_unknown([device_id for device_id in ids if not is_percent(device_id)])]
    gpus = container.request.gpus if container else 1
    percent = len(ids) // gpus
    if not 1 <= percent <= 100 or len(ids) % gpus:
        names = policy.resources
        message = f"{len(ids)} percent over {_gpus(gpus)} is not a valid share of a GPU's threads"
        remedy = (
            f"request 1 to 100 percent of each GPU, the same of each; the label {names.count} sets"
            " their number"
        )
        problems.append(Problem("percent-range", names.percent, "", message, remedy))
    if problems:
        raise InvalidInput(_subject(container), problems)
    return percent


def _subject(container: RequestingContainer | None) -> str:
    return str(container.name) if container else "a container that kubelet did not name"


def _unusable(
    ids: Sequence[str], units: dict[str, int], domains: Sequence[Domain], where: str
) -> Iterator[Problem]:
    if not ids:
        yield Problem("no-devices", where, "", "kubelet names no device", "see kubelet's log")
    if len(set(ids)) < len(ids):
        yield Problem(
            "device-twice", where, "", "kubelet names a device more than once", "see kubelet's log"
        )
    known = {uuid for domain in domains for uuid in domain.gpus}
    if gone := [uuid for uuid in units if uuid not in known]:
        yield Problem(
            "device-gone",
            where,
            "",
            f"{', '.join(gone)} is in no domain of this node now",
            _RECREATE,
        )


def _apart(
    units: dict[str, int],
    container: RequestingContainer | None,
    domains: Sequence[Domain],
    where: str,
) -> Iterator[Problem]:
    here = [domain.name for domain in domains if units.keys() & set(domain.gpus)]
    if len(here) > 1:
        message = (
            f"kubelet chose {spread(units)}, of the domains {', '.join(here)}; a container must be"
            " in one domain"
        )
        yield Problem("devices-of-domains", where, "", message, _room(container, len(units)))
    if len(set(units.values())) > 1:
        message = f"kubelet chose {spread(units)}, not the same number on each GPU"
        yield Problem(
            "devices-uneven",
            where,
            "",
            message,
            _AGAIN if _reuses_devices(container) else _room(container),
        )


def _wrong_number(
    units: dict[str, int], container: RequestingContainer | None, resources: Resources
) -> Iterator[Problem]:
    """Why the number of GPUs is not the requested one; an unknown container requests one GPU."""
    where = resources.memory
    label = resources.count
    if container is None and len(units) > 1:
        message = (
            f"kubelet chose {spread(units)}, and no waiting pod requests that much over"
            f" {_gpus(len(units))}"
        )
        yield Problem(
            "gpu-count",
            where,
            "",
            message,
            f"{_room(None)}, or set the number of GPUs in the label {label}",
        )
    if container is not None and units and len(units) != container.request.gpus:
        message = (
            f"kubelet chose {spread(units)}, but the pod requests {_gpus(container.request.gpus)}"
        )
        remedy = (
            _AGAIN
            if _reuses_devices(container)
            else f"{_room(container)}, or change the label {label}"
        )
        yield Problem("gpu-count", where, "", message, remedy)


def _room(container: RequestingContainer | None, gpus: int = 1) -> str:
    """What to do where the GPUs that were free did not do. gpus: where the container is not
    known."""
    wanted = container.request.gpus if container else gpus
    return _ROOM if wanted == 1 else _ROOM_OF_SEVERAL.format(gpus=wanted)


def _reuses_devices(container: RequestingContainer | None) -> bool:
    """Whether kubelet chose among an init container's devices, where `preferred` has no
    influence."""
    requests = container.pod.requests if container else ()
    return taken_in_part([(request.role, request.memory_units) for request in requests]) is not None


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


# -- the answer to kubelet -----------------------------------------------------------------------
# Source of its fields:
# https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/

CLIENT_INSIDE = "/run/mpsd/client"

# A mount here tells NVIDIA's container runtime which device to use, so that an image's own variable
# has no effect (accept-nvidia-visible-devices-as-volume-mounts in its configuration).
_VOLUME_LIST = "/var/run/nvidia-container-devices"
_CDI_KIND = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a container gets with its devices. cdi: names such as `vendor.com/class=name`."""

    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[HostMount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()


class DeviceListStrategy(StrEnum):
    """How a container gets the nodes of its GPU: DEVICE_LIST_STRATEGY of
    https://github.com/NVIDIA/k8s-device-plugin."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_CRI = "cdi-cri"
    CDI_ANNOTATIONS = "cdi-annotations"


@dataclass(frozen=True, slots=True)
class NodeConditions:
    """What is the same for every container of this node. run_directory: mpsd's, on the host. The
    rest is for simulated GPUs, and empty for real ones. extra: variables; shared: folders of the
    host that a container sees at the same path; device_lists: variables that take the UUIDs, in
    place of the device nodes that a container runtime would make."""

    run_directory: str
    strategy: DeviceListStrategy
    extra: Mapping[str, str]
    shared: tuple[str, ...] = ()
    device_lists: tuple[str, ...] = ()


_LIBRARIES = {NVIDIA_DRIVER_CAPABILITIES: ",".join(CUDA_CAPABILITIES)}  # whatever the image says


def memory_answer(allocation: Allocation, conditions: NodeConditions) -> Answer:
    """For the memory resource; without the percent where the other resource answers it."""
    limit = ClientLimit(allocation.memory_mib, allocation.thread_percent or 100)
    limits = environment(limit, CLIENT_INSIDE, allocation.priority)
    if allocation.thread_percent is None:
        limits.pop(THREAD_PERCENT, None)
    folder = f"{conditions.run_directory}/{allocation.domain}"
    # at the same path inside: in a user namespace runc mounts the host's node of that path
    gate = f"{folder}/gate"
    gpus = _gpus_answer(allocation.gpus, conditions.strategy)
    lists = dict.fromkeys(conditions.device_lists, ",".join(allocation.gpus))
    return Answer(
        environment={**limits, **gpus.environment, **_LIBRARIES, **conditions.extra, **lists},
        mounts=(
            HostMount(f"{folder}/client", CLIENT_INSIDE, read_only=True),
            *gpus.mounts,
            *(HostMount(shared, shared, read_only=False) for shared in conditions.shared),
        ),
        devices=(DeviceNode(gate, gate, "r"),),
        annotations=gpus.annotations,
        cdi=gpus.cdi,
    )


def percent_answer(thread_percent: int) -> Answer:
    """For the percent resource, which names no GPU."""
    return Answer(environment={THREAD_PERCENT: str(thread_percent)})


def _gpus_answer(uuids: Sequence[str], strategy: DeviceListStrategy) -> Answer:
    """What makes the container runtime put these GPUs into the container, and no others."""
    cdi = tuple(f"{_CDI_KIND}={uuid}" for uuid in uuids)
    match strategy:
        case DeviceListStrategy.ENVVAR:
            return Answer({NVIDIA_VISIBLE_DEVICES: ",".join(uuids)})
        case DeviceListStrategy.VOLUME_MOUNTS:
            mounts = (
                HostMount("/dev/null", f"{_VOLUME_LIST}/{uuid}", read_only=True) for uuid in uuids
            )
            return Answer({NVIDIA_VISIBLE_DEVICES: _VOLUME_LIST}, mounts=tuple(mounts))
        case DeviceListStrategy.CDI_CRI:
            return Answer({NVIDIA_VISIBLE_DEVICES: "void"}, cdi=cdi)
        case DeviceListStrategy.CDI_ANNOTATIONS:
            return Answer(
                {NVIDIA_VISIBLE_DEVICES: "void"}, annotations={"cdi.k8s.io/mpsd": ",".join(cdi)}
            )
