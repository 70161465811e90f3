"""What kubelet is told to put into a container for its devices: limits, the one socket, the gate, the GPU itself.

One rule: everything that holds a container to its grant is in here, and nothing of it depends on admission.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from mpsd.admission.rules.admission_case import VISIBLE_DEVICES
from mpsd.kubelet.rules.allocation import Allocation
from mpsd.kubelet.rules.messages import Answer, DeviceNode, Mount
from mpsd.model.client_limits import ClientLimit, environment
from mpsd.model.cuda_limit_parser import THREAD_PERCENT

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
class Surroundings:
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


def memory_answer(allocation: Allocation, around: Surroundings) -> Answer:
    """For the memory resource; the percent stays out where the other resource answers it."""
    limit = ClientLimit(allocation.memory_mib, allocation.thread_percent or 100)
    limits = environment(limit, CLIENT_INSIDE)
    if allocation.thread_percent is None:
        del limits[THREAD_PERCENT]
    folder = f"{around.run_directory}/{allocation.domain}"
    chosen = _gpus(allocation.gpus, around.strategy)
    return Answer(
        environment={
            **limits,
            **chosen.environment,
            **around.extra,
            **dict.fromkeys(around.device_lists, ",".join(allocation.gpus)),
        },
        mounts=(
            Mount(f"{folder}/client", CLIENT_INSIDE, read_only=True),
            *chosen.mounts,
            *(Mount(shared, shared, read_only=False) for shared in around.shared),
        ),
        devices=(DeviceNode(f"{folder}/gate", GATE_INSIDE, "r"),),
        annotations=chosen.annotations,
        cdi=chosen.cdi,
    )


def percent_answer(thread_percent: int) -> Answer:
    """For the percent resource, which names no GPU."""
    return Answer(environment={THREAD_PERCENT: str(thread_percent)})


def _gpus(uuids: Iterable[str], strategy: DeviceListStrategy) -> Answer:
    """What makes the container runtime put these GPUs into the container, and no others."""
    match strategy:
        case DeviceListStrategy.ENVVAR:
            return Answer({VISIBLE_DEVICES: ",".join(uuids)})
        case DeviceListStrategy.VOLUME_MOUNTS:
            mounts = (Mount("/dev/null", f"{_VOLUME_LIST}/{uuid}", read_only=True) for uuid in uuids)
            return Answer({VISIBLE_DEVICES: _VOLUME_LIST}, mounts=tuple(mounts))
        case DeviceListStrategy.CDI_CRI:
            return Answer({VISIBLE_DEVICES: "void"}, cdi=tuple(f"{_CDI_KIND}={uuid}" for uuid in uuids))
        case DeviceListStrategy.CDI_ANNOTATIONS:
            names = ",".join(f"{_CDI_KIND}={uuid}" for uuid in uuids)
            return Answer({VISIBLE_DEVICES: "void"}, annotations={_CDI_ANNOTATION: names})
