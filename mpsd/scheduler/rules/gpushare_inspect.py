"""What a scheduler's books look like to clients of gpushare, who ask its extender for /inspect.

One rule: names and units are gpushare's: whole units of the memory resource, rounded down, and pods by the GPU that
they have; what these clients cannot read (percent, clients, what is closed) is left out.
Source of the format: github.com/AliyunContainerService/gpushare-scheduler-extender, pkg/scheduler.
"""

from collections.abc import Sequence
from typing import Any

from mpsd.model.grants import GpuName
from mpsd.scheduler.rules.node_books import NodeBooks

Record = dict[str, Any]


def inspection(nodes: Sequence[object], error: str = "") -> Record:
    """nodes: of each its `inspected`. error: why there is nothing to see, or why it may be old; empty for neither."""
    record: Record = {"nodes": nodes}
    return record | ({"error": error} if error else {})


def inspected(books: NodeBooks) -> Record:
    """One node."""
    unit_mib = books.policy.resources.memory_unit_mib
    devices = [_device(books, gpu, total_mib, unit_mib) for gpu, total_mib in books.totals]
    return {
        "name": books.node,
        "totalGPU": sum(device["totalGPU"] for device in devices),
        "usedGPU": sum(device["usedGPU"] for device in devices),
        "devs": devices,
    }


def _device(books: NodeBooks, gpu: GpuName, total_mib: int, unit_mib: int) -> Record:
    pods: list[Record] = [
        {"name": one.pod.name, "namespace": one.pod.namespace, "usedGPU": one.memory_mib // unit_mib}
        for one in books.taken
        if gpu.uuid in one.gpus
    ]
    used = sum(pod["usedGPU"] for pod in pods)
    return {"id": gpu.ordinal, "totalGPU": total_mib // unit_mib, "usedGPU": used, "pods": pods}
