"""The annotations that say which GPU a pod has: mpsd's own, and gpushare's in their two formats.

One rule: whatever text is in them, reading never raises, and names GPUs of this node or none.
Sources of the formats: github.com/AliyunContainerService/gpushare-scheduler-extender (v1), and
github.com/koordinator-sh/koordinator, which reads both (v2).
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mpsd.kubelet.rules.devices import gpu_of
from mpsd.kubelet.rules.node_pods import NodePod
from mpsd.kubelet.rules.pod_grants import ContainerDevices
from mpsd.model.grants import Gpu, GpuName, promised_mib
from mpsd.model.policy import Policy

GPU = "mpsd.io/gpu"  # UUIDs, with commas between

_V1 = "ALIYUN_COM_GPU_MEM_"  # IDX: ordinal; POD, DEV: units; ASSIGNED; ASSUME_TIME, ASSIGN_TIME: nanoseconds
_V2 = "scheduler.framework.gpushare."  # allocation: {"<container>": {"<ordinal>": units}}; assigned; assume-time
_V2_PERCENT = "gpushare.alibabacloud.com/core-percentage"  # as allocation, in percent
_LONGEST = 4096  # characters; far more than 32 GPUs or a pod's containers take
_ORDINAL = re.compile(r"[0-9]{1,3}", re.ASCII)

CHOICE_KEYS = (GPU, f"{_V1}IDX", f"{_V2}allocation")  # by which `chosen_gpus` reads


def chosen_gpus(annotations: Mapping[str, str], gpus: Sequence[GpuName]) -> tuple[str, ...]:
    """The UUIDs of the GPUs of this node that the pod's annotations name, in the order of `gpus`; () for none.

    The first format that names one decides.
    """
    own = set(_listed(annotations.get(GPU, "")))
    v1 = set(_listed(annotations.get(f"{_V1}IDX", "")))
    v2 = set(_ordinals(annotations.get(f"{_V2}allocation", "")))
    return (
        tuple(gpu.uuid for gpu in gpus if gpu.uuid in own)
        or tuple(gpu.uuid for gpu in gpus if str(gpu.ordinal) in v1)
        or tuple(gpu.uuid for gpu in gpus if str(gpu.ordinal) in v2)
    )


def _listed(text: str) -> Iterator[str]:
    return (part.strip() for part in text[:_LONGEST].split(","))


def _ordinals(text: str) -> Iterator[str]:
    """The GPUs of all containers in a v2 allocation."""
    try:
        allocation = json.loads(text) if len(text) <= _LONGEST else None
    except (ValueError, RecursionError):
        return
    for of_container in allocation.values() if isinstance(allocation, dict) else ():
        for ordinal, units in of_container.items() if isinstance(of_container, dict) else ():
            if _ORDINAL.fullmatch(ordinal) and units not in (0, "0", None):
                yield str(int(ordinal))


def annotations_for(
    pod: NodePod, held: Sequence[ContainerDevices], gpus: Sequence[Gpu], policy: Policy, at_ns: int
) -> dict[str, str]:
    """Everything of ours that a pod which holds these devices is to have written on it; {} for one that holds none.

    What kubelet gave goes over what a scheduler chose: it names no pod when it asks for devices, so of pods that are
    alike one may have got those of another.

    held: of any containers; those of other pods are passed over. at_ns: nanoseconds since 1970 when the devices were
    allocated, used where the pod has no time of its own yet. v1 knows one GPU a pod, so it says nothing of a pod that
    has several.
    """
    own = [one for one in held if one.pod == (pod.namespace, pod.name)]
    units = _by_gpu({device_id for one in own for device_id in one.memory}, gpus)
    if not units:
        return {}
    wanted = {GPU: ",".join(gpu.uuid for gpu in units), **_in_v2(pod, own, gpus)}
    if len(units) == 1:
        gpu, count = units.popitem()
        wanted |= _v1(gpu, count, promised_mib(gpu, policy) // policy.resources.memory_unit_mib, assigned=True)
    for time in (f"{_V1}ASSUME_TIME", f"{_V1}ASSIGN_TIME", f"{_V2}assume-time"):
        wanted[time] = pod.annotations.get(time, str(at_ns))
    return wanted


def annotations_at_bind(
    gpus: Sequence[GpuName], memory_mib: int, dev_mib: int, policy: Policy, at_ns: int
) -> dict[str, str]:
    """What a scheduler writes on a pod with its binding. gpus: those chosen, of one domain.

    memory_mib: on each of them. dev_mib: what the first of them may promise in all. at_ns: now, since 1970.
    """
    wanted = {GPU: ",".join(gpu.uuid for gpu in gpus)}
    unit_mib = policy.resources.memory_unit_mib
    if len(gpus) == 1:
        wanted |= _v1(gpus[0], memory_mib // unit_mib, dev_mib // unit_mib, assigned=False)
    return wanted | {f"{_V1}ASSUME_TIME": str(at_ns)}


def _by_gpu(ids: Iterable[str], gpus: Sequence[Gpu]) -> dict[Gpu, int]:
    """From each GPU of this node that has any of these devices to their number, in the order of `gpus`."""
    count = Counter(map(gpu_of, ids))
    return {gpu: count[gpu.uuid] for gpu in gpus if count[gpu.uuid]}


def _v1(gpu: GpuName, units: int, dev_units: int, *, assigned: bool) -> dict[str, str]:
    return {
        f"{_V1}IDX": str(gpu.ordinal),
        f"{_V1}POD": str(units),
        f"{_V1}DEV": str(dev_units),
        f"{_V1}ASSIGNED": "true" if assigned else "false",
    }


def _in_v2(pod: NodePod, held: Sequence[ContainerDevices], gpus: Sequence[Gpu]) -> dict[str, str]:
    """Counts main containers by their position in the pod; it has no word for others."""
    memory: dict[str, dict[str, int]] = {}
    percent: dict[str, dict[str, int]] = {}
    for position, name in enumerate(pod.main_containers):
        one = next((one for one in held if one.container.container == name), None)
        units = _by_gpu(one.memory, gpus) if one else {}
        if one and units:
            memory[str(position)] = {str(gpu.ordinal): count for gpu, count in units.items()}
        if one and units and one.percent:
            percent[str(position)] = {str(gpu.ordinal): len(one.percent) // len(units) for gpu in units}
    written = {f"{_V2}allocation": memory, _V2_PERCENT: percent}
    said = {key: json.dumps(value, separators=(",", ":")) for key, value in written.items() if value}
    return {**said, f"{_V2}assigned": "true"} if memory else {}
