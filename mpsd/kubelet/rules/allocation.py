"""Devices (`<UUID>/<n>`: a unit of a GPU's memory; `percent/<n>`: a percent of any GPU's threads),
whether they can go together, and the answer to kubelet.

The ids alone say which GPU and how much memory a container gets, so a wrong guess at the pod can
never lift a memory limit.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from mpsd.kubelet.rules.node_pods import Kind, RequestingContainer
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

# -- the devices

PERCENT = "percent"  # in the place of a memory device's GPU
_ID = re.compile(r"(?P<of>.+)/(?P<number>0|[1-9][0-9]{0,8})", re.ASCII | re.DOTALL)
_SHOWN = 3  # of many unknown ids

# A domain that was ready and is coming back keeps its devices: a pod that comes meanwhile waits for
# it in PreStartContainer, while one that finds no healthy device fails for good.
_STAYS_HEALTHY = frozenset({State.FAULT, State.STARTING, State.DOWN})


@dataclass(frozen=True, slots=True)
class Device:
    """A container keeps one that becomes unhealthy; no other gets it."""

    id: str
    healthy: bool


def memory_devices(gpus: Sequence[Gpu], policy: Policy) -> tuple[str, ...]:
    """For every whole unit (policy.resources.memory_unit_mib) that each GPU may give away."""
    unit_mib = policy.resources.memory_unit_mib
    found: list[str] = []
    for gpu in gpus:
        found += [f"{gpu.uuid}/{n}" for n in range(promised_mib(gpu, policy) // unit_mib)]
    return tuple(found)


def units_claimed(claims: Iterable["Allocation"], policy: Policy) -> Mapping[str, int]:
    """By UUID, how many units resource claims hold, which are no devices for others."""
    units: Counter[str] = Counter()
    for claim in claims:
        each = -(-claim.memory_mib // policy.resources.memory_unit_mib)
        units.update(dict.fromkeys(claim.gpus, each))
    return units


def without_room(devices: Sequence[str], claimed: Mapping[str, int]) -> frozenset[str]:
    """The devices, the last ones of each GPU, in whose place claims hold memory."""
    left = Counter(map(gpu_of, devices))
    left.subtract(claimed)
    return frozenset(one for one in devices if number_of(one) >= left[gpu_of(one)])


def percent_devices(gpus: Sequence[Gpu], policy: Policy) -> tuple[str, ...]:
    """For every percent that all GPUs together may give away."""
    percents = policy.oversubscription.thread_percent * len(gpus)
    return tuple(f"{PERCENT}/{n}" for n in range(percents))


def healthy(state: State | None, was_ready: bool) -> bool:
    """Whether new pods may get a GPU's devices. state None: its domain has no daemon yet.
    was_ready: since the agent or the daemon started."""
    return state is State.READY or (was_ready and state in _STAYS_HEALTHY)


@lru_cache(maxsize=16_384)  # the same few thousand ids are read at every look
def _read(device_id: str) -> tuple[str, int]:
    """A device's UUID or PERCENT, and its number; empty and 0 for an unknown id."""
    found = _ID.fullmatch(device_id)
    if found is None:
        return "", 0
    return found["of"], int(found["number"])


def gpu_of(device_id: str) -> str:
    """The UUID of a memory device's GPU; empty for any other id."""
    of = _read(device_id)[0]
    return "" if of == PERCENT else of


def is_percent(device_id: str) -> bool:
    return _read(device_id)[0] == PERCENT


def kind_of(device_id: str) -> Kind:
    return "percent" if is_percent(device_id) else "memory"


def number_of(device_id: str) -> int:
    """The number within its GPU, or among the percents; 0 for an unknown id."""
    return _read(device_id)[1]


def units_by_gpu(ids: Iterable[str]) -> Counter[str]:
    """Of each UUID. InvalidInput for unknown ids."""
    named = tuple(ids)
    if unknown := [device_id for device_id in named if not gpu_of(device_id)]:
        raise InvalidInput("the devices", _unknown(unknown))
    return Counter(map(gpu_of, named))


def gpus_of(ids: Iterable[str]) -> tuple[str, ...]:
    """Their UUIDs, in the order of their first ids."""
    return tuple(dict.fromkeys(filter(None, map(gpu_of, ids))))


def names_by_gpu(domains: Iterable[Domain]) -> dict[str, str]:
    """From UUID to the name of the GPU's domain."""
    return {uuid: domain.name for domain in domains for uuid in domain.gpus}


def domain_with(gpus: Iterable[str], domains: Iterable[Domain]) -> Domain | None:
    """None where none has all of these GPUs."""
    wanted = frozenset(gpus)
    return next((domain for domain in domains if wanted.issubset(domain.gpus)), None)


def _unknown(ids: Sequence[str]) -> Iterator[Problem]:
    if not ids:
        return
    names = shortened([*map(printable, ids)], _SHOWN)
    remedy = "make sure that no other device plugin of this node registers the same resource"
    yield Problem("device-unknown", names, "", "this resource has no such device", remedy)


def spread(units: Mapping[str, int]) -> str:
    return " and ".join(f"{count} of {uuid}" for uuid, count in units.items())


# -- what they are worth together

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
    units = Counter(map(gpu_of, ids))
    del units[""]
    resources = policy.resources
    problems = [
        *_unknown([device_id for device_id in ids if not gpu_of(device_id)]),
        *_refused(ids, units, container, domains, resources),
    ]
    domain = domain_with(units, domains)
    if problems or domain is None:
        raise InvalidInput(_subject(container), problems)
    thread_percent: int | None = policy.requests.default_thread_percent
    if container and container.request.thread_percent is not None:
        thread_percent = None
    return Allocation(
        domain=domain.name,
        gpus=tuple(uuid for uuid in domain.gpus if uuid in units),
        memory_mib=len(ids) * resources.memory_unit_mib // len(units),
        thread_percent=thread_percent,
        priority=client_priority(container and container.pod.priority, policy.gpu_priority),
    )


def allocate_percent(
    ids: Sequence[str], container: RequestingContainer | None, policy: Policy
) -> int:
    """The cap, 1 to 100, on each GPU of the container. InvalidInput where there can be none.
    container None: it is not known, and counts as having one GPU."""
    problems = [*_unknown([device_id for device_id in ids if not is_percent(device_id)])]
    gpus = gpus_asked(container)
    percent, rest = divmod(len(ids), gpus)
    if rest or not 1 <= percent <= 100:
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


def gpus_asked(container: RequestingContainer | None) -> int:
    return container.request.gpus if container else 1


def _subject(container: RequestingContainer | None) -> str:
    return str(container.name) if container else "a container that kubelet did not name"


def misplaced(
    units: Mapping[str, int], domains: Sequence[str], holds: str
) -> Iterator[tuple[str, str]]:
    """Why no container can have these units together: rule and sentence. domains: the names of
    those that the GPUs are of. holds: how the sentence begins."""
    those = f"{holds} {spread(units)}"
    if len(domains) > 1:
        of = f"of the domains {', '.join(domains)}; a container must be in one domain"
        yield "devices-of-domains", f"{those}, {of}"
    if len(set(units.values())) > 1:
        yield "devices-uneven", f"{those}, not the same number on each GPU"


def _refused(
    ids: Sequence[str],
    units: Mapping[str, int],
    container: RequestingContainer | None,
    domains: Sequence[Domain],
    resources: Resources,
) -> Iterator[Problem]:
    where = resources.memory
    see_log = "see kubelet's log"
    if not ids:
        yield Problem("no-devices", where, "", "kubelet names no device", see_log)
    if len(set(ids)) < len(ids):
        message = "kubelet names a device more than once"
        yield Problem("device-twice", where, "", message, see_log)
    domain_of = names_by_gpu(domains)
    if gone := [uuid for uuid in units if uuid not in domain_of]:
        message = f"{', '.join(gone)} is in no domain of this node now"
        yield Problem("device-gone", where, "", message, _RECREATE)
    asked = gpus_asked(container)
    room = _room(asked)
    reused = _AGAIN if _reuses_devices(container) else ""
    is_wrong_number = len(units) not in (0, asked)
    if container is None or not is_wrong_number:  # otherwise the number explains it all
        here = [domain.name for domain in domains if units.keys() & set(domain.gpus)]
        remedies = {
            "devices-of-domains": _room(asked if container else len(units)),
            "devices-uneven": reused or room,
        }
        for rule, message in misplaced(units, here, "kubelet chose"):
            yield Problem(rule, where, "", message, remedies[rule])
    if not is_wrong_number:
        return
    chosen = f"kubelet chose {spread(units)}"
    message = f"{chosen}, but the pod requests {_gpus(asked)}"
    remedy = reused or f"{room}, or change the label {resources.count}"
    if container is None:
        message = f"{chosen}, and no waiting pod requests that much over {_gpus(len(units))}"
        remedy = f"{room}, or set the number of GPUs in the label {resources.count}"
    yield Problem("gpu-count", where, "", message, remedy)


def _room(gpus: int) -> str:
    return _ROOM if gpus == 1 else _ROOM_OF_SEVERAL.format(gpus=gpus)


def _reuses_devices(container: RequestingContainer | None) -> bool:
    """Whether kubelet chose among an init container's devices, where `preferred` has no
    influence."""
    if container is None:
        return False
    requests = container.pod.requests
    return taken_in_part([(request.role, request.memory_units) for request in requests]) is not None


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


# -- the answer to kubelet
# Source of its fields:
# https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/

CLIENT_INSIDE = "/run/mpsd/client"

# A mount here tells NVIDIA's container runtime which device to use, so that an image's own variable
# has no effect (accept-nvidia-visible-devices-as-volume-mounts in its configuration).
_VOLUME_LIST = "/var/run/nvidia-container-devices"
_CDI_KIND = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Answer:
    """cdi: names such as `vendor.com/class=name`."""

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
    """What is the same for every container of this node. run_directory: on the host. The rest is
    for simulated GPUs. extra: variables; shared: folders of the host, at the same path inside;
    device_lists: variables that take the UUIDs in place of device nodes."""

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
    return Answer(environment={THREAD_PERCENT: str(thread_percent)})


def _gpus_answer(uuids: Sequence[str], strategy: DeviceListStrategy) -> Answer:
    """What makes the container runtime put in these GPUs alone."""
    cdi = tuple(f"{_CDI_KIND}={uuid}" for uuid in uuids)
    match strategy:
        case DeviceListStrategy.ENVVAR:
            return Answer({NVIDIA_VISIBLE_DEVICES: ",".join(uuids)})
        case DeviceListStrategy.VOLUME_MOUNTS:
            places = [f"{_VOLUME_LIST}/{uuid}" for uuid in uuids]
            mounts = tuple(HostMount("/dev/null", place, read_only=True) for place in places)
            return Answer({NVIDIA_VISIBLE_DEVICES: _VOLUME_LIST}, mounts=mounts)
        case DeviceListStrategy.CDI_CRI:
            return Answer({NVIDIA_VISIBLE_DEVICES: "void"}, cdi=cdi)
        case DeviceListStrategy.CDI_ANNOTATIONS:
            return Answer(
                {NVIDIA_VISIBLE_DEVICES: "void"}, annotations={"cdi.k8s.io/mpsd": ",".join(cdi)}
            )
