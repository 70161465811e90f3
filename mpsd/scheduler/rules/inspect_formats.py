"""gpushare's formats: the tables of `kubectl inspect cgpu`, and the answers to /inspect.

Every number is in whole units of the memory resource, rounded down, as kubelet counts its devices.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from mpsd.model.grants import Request
from mpsd.scheduler.rules.capacity import AssignmentSource, NodeCapacity

_GAP = "  "
_MORE_DASHES = 20  # than the characters of the first row, as gpushare has it
_MOST_COLUMNS = 64  # an ordinal beyond is no place in a table
_CLUSTER = "Allocated/Total GPU Memory In Cluster:"


@dataclass(frozen=True, slots=True)
class CgpuGpu:
    """column: n of GPUn. allocated, total: in units."""

    column: int
    label: str
    uuid: str
    allocated: int
    total: int


@dataclass(frozen=True, slots=True)
class CgpuPod:
    """columns: of its GPUs; () for a pod that is bound and has none yet. memory: on each of them,
    or in all where it has none."""

    namespace: str
    name: str
    uid: str
    columns: tuple[int, ...]
    memory: int


@dataclass(frozen=True, slots=True)
class CgpuNode:
    """gpus: by column. allocated: with what is pending, which is on no GPU yet."""

    name: str
    address: str
    gpus: tuple[CgpuGpu, ...]
    pods: tuple[CgpuPod, ...]

    @property
    def pending(self) -> int:
        return sum(pod.memory for pod in self.pods if not pod.columns)

    @property
    def allocated(self) -> int:
        return sum(gpu.allocated for gpu in self.gpus) + self.pending

    @property
    def total(self) -> int:
        return sum(gpu.total for gpu in self.gpus)

    @property
    def width(self) -> int:
        return max((gpu.column + 1 for gpu in self.gpus), default=0)


def cgpu_node(
    ledger: NodeCapacity, address: str, bound: Mapping[str, Request], unit_mib: int
) -> CgpuNode:
    """bound: what pods asked for, by uid, of those that kubelet may have given nothing yet."""
    columns = _columns(ledger)
    allocated_mib: Counter[str] = Counter()
    pods: list[CgpuPod] = []
    for one in ledger.taken:
        if one.source is AssignmentSource.RESERVED:
            continue
        on = tuple(sorted(columns[uuid] for uuid in one.gpus if uuid in columns))
        memory_mib = one.memory_mib
        if one.source is AssignmentSource.GUESSED:
            on = ()
            if asked := bound.get(one.pod.uid):  # of the node, as it has no GPU yet
                memory_mib *= asked.gpus
        elif on:
            allocated_mib.update(dict.fromkeys(one.gpus, memory_mib))
        else:
            continue  # on GPUs that the node has no more
        name = one.pod
        pods.append(CgpuPod(name.namespace, name.name, name.uid, on, memory_mib // unit_mib))
    pods.sort(key=lambda pod: (pod.columns or (_MOST_COLUMNS,), pod.namespace, pod.name, pod.uid))
    gpus = [
        CgpuGpu(
            columns[gpu.uuid],
            gpu.label,
            gpu.uuid,
            allocated=allocated_mib[gpu.uuid] // unit_mib,
            total=total_mib // unit_mib,
        )
        for gpu, total_mib in ledger.totals
    ]
    gpus.sort(key=lambda gpu: gpu.column)
    return CgpuNode(ledger.node, address, tuple(gpus), tuple(pods))


def _columns(ledger: NodeCapacity) -> dict[str, int]:
    """By UUID: that of its ordinal, and for one without, or one whose place is taken, as by another
    MIG instance of the same GPU, the next that is free."""
    columns: dict[str, int] = {}
    gpus = [(gpu, 0 <= gpu.ordinal < _MOST_COLUMNS) for gpu, _total in ledger.totals]
    for gpu, is_place in sorted(gpus, key=lambda pair: (not pair[1], bool(pair[0].instance))):
        wanted = gpu.ordinal if is_place else 0
        while wanted in columns.values():
            wanted += 1
        columns[gpu.uuid] = wanted
    return columns


# -- for people, and for what reads gpushare's output


def summary(nodes: Sequence[CgpuNode], unit_mib: int) -> str:
    """A row a node that has GPUs, and the sum."""
    nodes = [node for node in nodes if node.gpus]
    width = max((node.width for node in nodes), default=0)
    unit = {1024: "GiB", 1: "MiB"}.get(unit_mib, f"{unit_mib}MiB")
    columns = [f"GPU{n}(Allocated/Total)" for n in range(width)]
    table = [["NAME", "IPADDRESS", *columns, "PENDING(Allocated)", f"GPU Memory({unit})"]]
    for node in nodes:
        on = ["0/0"] * width
        for gpu in node.gpus:
            on[gpu.column] = f"{gpu.allocated}/{gpu.total}"
        memory = f"{node.allocated}/{node.total}"
        table.append([node.name, node.address, *on, str(node.pending), memory])
    if not any(node.pending for node in nodes):
        for row in table:
            del row[-2]
    dashes = _MORE_DASHES
    if nodes:
        dashes += len("\t".join(table[1])) + 1
    return "\n".join([*_aligned(table), "-" * dashes, _CLUSTER, _of_all(nodes)])


def detailed(nodes: Sequence[CgpuNode]) -> str:
    """The pods of each node that has GPUs, and the sum."""
    nodes = [node for node in nodes if node.gpus]
    lines: list[str] = []
    for node in nodes:
        table = list(_aligned(_detail_rows(node)))
        lines += ["", *_aligned([["NAME:", node.name], ["IPADDRESS:", node.address]]), "", *table]
        lines += ["-" * (max(map(len, table)) + _MORE_DASHES)]
    return "\n".join([*lines, "", f"{_CLUSTER}{_GAP}{_of_all(nodes)}"])


def _detail_rows(node: CgpuNode) -> Sequence[Sequence[str]]:
    columns = [f"GPU{n}(Allocated)" for n in range(node.width)]
    table = [["NAME", "NAMESPACE", *columns, "Pending(Allocated)"]]
    for pod in node.pods:
        on = ["0"] * (node.width + 1)
        for column in pod.columns or (node.width,):
            on[column] = str(pod.memory)
        table.append([pod.name, pod.namespace, *on])
    if not node.pending:
        for row in table:
            del row[-1]
    allocated = f"{node.allocated} ({_percent(node.allocated, node.total)}%)"
    return [*table, ["Allocated :", allocated], ["Total :", str(node.total)]]


def _of_all(nodes: Iterable[CgpuNode]) -> str:
    allocated = sum(node.allocated for node in nodes)
    total = sum(node.total for node in nodes)
    return f"{allocated}/{total} ({_percent(allocated, total)}%)"


def _percent(part: int, whole: int) -> int:
    return part * 100 // whole if whole else 0


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Two spaces between columns, none at the end of a line."""
    columns = [*zip_longest(*rows, fillvalue="")]
    widths = [max(map(len, column)) for column in columns]
    for row in rows:
        yield _GAP.join(map(str.ljust, row, widths)).rstrip()


# -- for clients of gpushare, which ask its extender for /inspect
# Source of the format: github.com/AliyunContainerService/gpushare-scheduler-extender,
# pkg/scheduler. Percent, clients and closed GPUs have no place in it.

Record = dict[str, Any]


def inspection(nodes: Sequence[object], error: str = "") -> Record:
    """The answer. nodes: `inspected` of each. error: why nothing is known, or why it may be old;
    empty for neither."""
    found: Record = {"nodes": nodes}
    if error:
        found["error"] = error
    return found


def inspected(ledger: NodeCapacity) -> Record:
    unit_mib = ledger.policy.resources.memory_unit_mib
    devices = list[Record]()
    for gpu, total_mib in ledger.totals:
        pods: list[Record] = []
        for one in ledger.taken:
            if gpu.uuid in one.gpus:
                name = {"name": one.pod.name, "namespace": one.pod.namespace}
                pods.append({**name, "usedGPU": one.memory_mib // unit_mib})
        used = sum(pod["usedGPU"] for pod in pods)
        total = total_mib // unit_mib
        devices.append({"id": gpu.ordinal, "totalGPU": total, "usedGPU": used, "pods": pods})
    total, used = (sum(device[key] for device in devices) for key in ("totalGPU", "usedGPU"))
    return {"name": ledger.node, "totalGPU": total, "usedGPU": used, "devs": devices}
