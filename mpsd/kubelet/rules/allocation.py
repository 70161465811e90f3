"""What a container gets for the devices that kubelet chose for it, or every reason why it cannot have it.

One rule: the ids alone say which GPU and how much memory, so a wrong guess at the pod can never lift a memory limit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from mpsd.kubelet.rules.devices import gpu_of, is_percent, not_ours, units_by_gpu
from mpsd.kubelet.rules.messages import Answer, DeviceNode, HostMount
from mpsd.kubelet.rules.node_pods import ContainerName, NodePod
from mpsd.model.client_limits import VISIBLE_DEVICES, ClientLimit, environment
from mpsd.model.cuda_limit_parser import THREAD_PERCENT
from mpsd.model.domain import Domain
from mpsd.model.policy import Policy, Resources
from mpsd.model.problem import InvalidInput, Problem
from mpsd.model.request import ContainerRequest, taken_in_part

Asking = tuple[NodePod, ContainerRequest]

_ANEW = "delete the pod, so that it is placed anew"
_ROOM = "no single GPU here has so much left: ask for less, or wait until one has"
_AGAIN = "of an init container's devices kubelet gives the next container any: ask for no less in that one"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a container gets of each of `gpus` (UUIDs of one domain, in the domain's order).

    thread_percent None: the container asks for percent, and that resource's answer says how much.
    """

    domain: str
    gpus: tuple[str, ...]
    memory_mib: int
    thread_percent: int | None


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One entry of the journal: what was answered to one Allocate.

    pod None: nobody knew whom it was for. thread_percent None: no cap was answered. at: seconds since 1970. uid: of
    the pod, so that a pod of the same name that comes later is not taken for it. unit_mib: what each device was worth;
    0 where nobody wrote it down, and then it is what the policy says.
    """

    resource: Literal["memory", "percent"]
    ids: tuple[str, ...]
    pod: ContainerName | None
    thread_percent: int | None
    boot_id: str
    at: float
    uid: str = ""
    unit_mib: int = 0


def allocate_memory(ids: Sequence[str], pod: Asking | None, domains: Sequence[Domain], policy: Policy) -> Allocation:
    """What the memory devices are worth. InvalidInput with every reason why no container can have them together.

    pod None: nobody knows whom they are for.
    """
    wrong = tuple(device_id for device_id in ids if gpu_of(device_id) is None)
    units = units_by_gpu(device_id for device_id in ids if device_id not in wrong)
    domain = next((domain for domain in domains if units and units.keys() <= set(domain.gpus)), None)
    problems = [not_ours(wrong)] if wrong else []
    problems += _unusable(ids, units, domains, policy.resources)
    wrong_number = list(_wrong_number(units, pod, policy.resources))
    if pod is None or not wrong_number:  # else that says it all
        problems += _apart(units, pod, domains, policy.resources)
    problems += wrong_number
    if problems or domain is None:
        raise InvalidInput(_subject(pod), problems)
    asks_percent = pod is not None and pod[1].thread_percent is not None
    return Allocation(
        domain=domain.name,
        gpus=tuple(uuid for uuid in domain.gpus if uuid in units),
        memory_mib=len(ids) * policy.resources.memory_unit_mib // len(units),
        thread_percent=None if asks_percent else policy.requests.default_thread_percent,
    )


def allocate_percent(ids: Sequence[str], pod: Asking | None, policy: Policy) -> int:
    """The cap, 1 to 100, on each GPU of the container. InvalidInput where there can be none.

    pod None: nobody knows whom it is for; then it has one GPU.
    """
    wrong = tuple(device_id for device_id in ids if not is_percent(device_id))
    problems = [not_ours(wrong)] if wrong else []
    gpus = pod[1].gpus if pod else 1
    percent = len(ids) // gpus
    if not 1 <= percent <= 100 or len(ids) % gpus:
        names = policy.resources
        message = f"{len(ids)} percent over {_gpus(gpus)} is no share of a GPU's threads"
        remedy = f"ask for 1 to 100 percent of each GPU, the same of each; the label {names.count} says how many"
        problems.append(Problem("percent-range", names.percent, "", message, remedy))
    if problems:
        raise InvalidInput(_subject(pod), problems)
    return percent


def _subject(pod: Asking | None) -> str:
    return str(pod[0].container(pod[1])) if pod else "a container that kubelet did not name"


def _unusable(
    ids: Sequence[str], units: dict[str, int], domains: Sequence[Domain], resources: Resources
) -> Iterator[Problem]:
    """Why these devices can be no one container's, whoever asks."""
    where = resources.memory
    if not ids:
        yield Problem("no-devices", where, "", "kubelet names no device", "see kubelet's log")
    if len(set(ids)) < len(ids):
        yield Problem("device-twice", where, "", "kubelet names a device more than once", "see kubelet's log")
    known = {uuid for domain in domains for uuid in domain.gpus}
    gone = [uuid for uuid in units if uuid not in known]
    if gone:
        yield Problem("device-gone", where, "", f"{', '.join(gone)} is in no domain of this node now", _ANEW)


def _apart(
    units: dict[str, int], pod: Asking | None, domains: Sequence[Domain], resources: Resources
) -> Iterator[Problem]:
    """Why devices of several GPUs do not go together."""
    where = resources.memory
    here = [domain.name for domain in domains if units.keys() & set(domain.gpus)]
    if len(here) > 1:
        message = f"kubelet took {spread(units)}, of the domains {', '.join(here)}, and a container lies in one"
        yield Problem("devices-of-domains", where, "", message, f"{_ROOM}; `domains` in the policy says what is one")
    if len(set(units.values())) > 1:
        message = f"kubelet took {spread(units)}, which is not the same of each GPU"
        yield Problem("devices-uneven", where, "", message, _AGAIN if _uses_again(pod) else _ROOM)


def _wrong_number(units: dict[str, int], pod: Asking | None, resources: Resources) -> Iterator[Problem]:
    """Why the number of GPUs is not the one that was asked for; one GPU is right for a pod that nobody knows."""
    where, label = resources.memory, resources.count
    if pod is None and len(units) > 1:
        message = f"kubelet took {spread(units)}, and no pod that waits here asks for so much over {_gpus(len(units))}"
        yield Problem("gpu-count", where, "", message, f"{_ROOM}, or name the number of GPUs in the label {label}")
    if pod is not None and units and len(units) != pod[1].gpus:
        message = f"kubelet took {spread(units)}, and the pod asks for {_gpus(pod[1].gpus)}"
        remedy = _AGAIN if _uses_again(pod) else f"{_ROOM}, or change the label {label}"
        yield Problem("gpu-count", where, "", message, remedy)


def _uses_again(pod: Asking | None) -> bool:
    """Whether kubelet chose among an init container's devices, and nobody could choose for it."""
    asked = [(request.role, request.memory_units) for request in pod[0].requests] if pod else []
    return taken_in_part(asked) is not None


def spread(units: Mapping[str, int]) -> str:
    """How many devices lie on which GPU, for people."""
    return " and ".join(f"{count} of {uuid}" for uuid, count in units.items())


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


# What kubelet is told to put into a container for its devices: limits, the one socket, the gate, the GPU itself.
#
# One rule: everything that holds a container to its grant is in here, and nothing of it depends on admission.

CLIENT_INSIDE = "/run/mpsd/client"
GATE_INSIDE = "/dev/mpsd-gate"

# Where NVIDIA's container runtime takes a mount for the choice of a device, so that an image's own variable counts for
# nothing (accept-nvidia-visible-devices-as-volume-mounts in its configuration).
_VOLUME_LIST = "/var/run/nvidia-container-devices"
_CDI_KIND = "nvidia.com/gpu"
_CDI_ANNOTATION = "cdi.k8s.io/mpsd"


class DeviceListStrategy(StrEnum):
    """How a container gets the nodes of its GPU, in the words of NVIDIA's device plugin.

    Source: https://github.com/NVIDIA/k8s-device-plugin, DEVICE_LIST_STRATEGY.
    """

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_CRI = "cdi-cri"
    CDI_ANNOTATIONS = "cdi-annotations"


@dataclass(frozen=True, slots=True)
class NodeConditions:
    """What is the same for every container of this node.

    run_directory: mpsd's, on the host. The rest is for simulated GPUs, and empty where they are real: extra: variables;
    shared: folders of the host that a container sees at the same path; device_lists: variables that take the UUIDs,
    in place of the device nodes that a container runtime would make.
    """

    run_directory: str
    strategy: DeviceListStrategy
    extra: Mapping[str, str]
    shared: tuple[str, ...] = ()
    device_lists: tuple[str, ...] = ()


def memory_answer(allocation: Allocation, around: NodeConditions) -> Answer:
    """For the memory resource; the percent stays out where the other resource answers it."""
    limit = ClientLimit(allocation.memory_mib, allocation.thread_percent or 100)
    limits = environment(limit, CLIENT_INSIDE)
    if allocation.thread_percent is None:
        del limits[THREAD_PERCENT]
    folder = f"{around.run_directory}/{allocation.domain}"
    chosen = _gpus_answered(allocation.gpus, around.strategy)
    return Answer(
        environment={
            **limits,
            **chosen.environment,
            **around.extra,
            **dict.fromkeys(around.device_lists, ",".join(allocation.gpus)),
        },
        mounts=(
            HostMount(f"{folder}/client", CLIENT_INSIDE, read_only=True),
            *chosen.mounts,
            *(HostMount(shared, shared, read_only=False) for shared in around.shared),
        ),
        devices=(DeviceNode(f"{folder}/gate", GATE_INSIDE, "r"),),
        annotations=chosen.annotations,
        cdi=chosen.cdi,
    )


def percent_answer(thread_percent: int) -> Answer:
    """For the percent resource, which names no GPU."""
    return Answer(environment={THREAD_PERCENT: str(thread_percent)})


def _gpus_answered(uuids: Iterable[str], strategy: DeviceListStrategy) -> Answer:
    """What makes the container runtime put these GPUs into the container, and no others."""
    match strategy:
        case DeviceListStrategy.ENVVAR:
            return Answer({VISIBLE_DEVICES: ",".join(uuids)})
        case DeviceListStrategy.VOLUME_MOUNTS:
            mounts = (HostMount("/dev/null", f"{_VOLUME_LIST}/{uuid}", read_only=True) for uuid in uuids)
            return Answer({VISIBLE_DEVICES: _VOLUME_LIST}, mounts=tuple(mounts))
        case DeviceListStrategy.CDI_CRI:
            return Answer({VISIBLE_DEVICES: "void"}, cdi=tuple(f"{_CDI_KIND}={uuid}" for uuid in uuids))
        case DeviceListStrategy.CDI_ANNOTATIONS:
            names = ",".join(f"{_CDI_KIND}={uuid}" for uuid in uuids)
            return Answer({VISIBLE_DEVICES: "void"}, annotations={_CDI_ANNOTATION: names})
