"""gpushare's formats: the tables of `kubectl inspect cgpu`, and the answers to /inspect.

Every number is in whole units of the memory resource, rounded down, as kubelet counts its devices.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpsd.model.grants import Request
from mpsd.scheduler.rules.capacity import AssignmentSource, NodeCapacity, Taken

_GAP = "  "
_MORE_DASHES = 20  # than the characters of the first row, as gpushare has it
_MOST_COLUMNS = 64  # an ordinal beyond is no place in a table
_CLUSTER = "Allocated/Total GPU Memory In Cluster:"


@dataclass(frozen=True, slots=True)
class CgpuGpu:
    """A GPU in a table. column: n of GPUn. allocated, total: in units."""

    column: int
    label: str
    uuid: str
    allocated: int
    total: int


@dataclass(frozen=True, slots=True)
class CgpuPod:
    """A pod in a table. columns: of its GPUs; () for one that is bound and has none yet. memory: on
    each of them, or in all where it has none."""

    namespace: str
    name: str
    uid: str
    columns: tuple[int, ...]
    memory: int


@dataclass(frozen=True, slots=True)
class CgpuNode:
    """A node in a table. gpus: by column. allocated: including what is pending, which is on no GPU
    yet."""

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
    taken = [one for one in ledger.taken if one.source is not AssignmentSource.RESERVED]
    gpus = [
        CgpuGpu(
            column=columns[gpu.uuid],
            label=gpu.label,
            uuid=gpu.uuid,
            allocated=sum(
                one.memory_mib for one in taken if gpu.uuid in one.gpus and not _is_pending(one)
            )
            // unit_mib,
            total=total_mib // unit_mib,
        )
        for gpu, total_mib in ledger.totals
    ]
    pods = []
    for one in taken:
        on = (
            ()
            if _is_pending(one)
            else tuple(sorted(columns[uuid] for uuid in one.gpus if uuid in columns))
        )
        if on or _is_pending(one):  # others are on GPUs that the node has no more
            # A pod without a GPU yet takes its whole request of the node.
            times = 1 if on or one.pod.uid not in bound else bound[one.pod.uid].gpus
            units = one.memory_mib * times // unit_mib
            pods.append(CgpuPod(one.pod.namespace, one.pod.name, one.pod.uid, on, units))
    pods.sort(key=lambda pod: (pod.columns or (_MOST_COLUMNS,), pod.namespace, pod.name, pod.uid))
    return CgpuNode(
        ledger.node, address, tuple(sorted(gpus, key=lambda gpu: gpu.column)), tuple(pods)
    )


def _is_pending(one: Taken) -> bool:
    return one.source is AssignmentSource.GUESSED


def _columns(ledger: NodeCapacity) -> dict[str, int]:
    """By UUID: that of its ordinal, and for one without, or one whose place is taken, as by another
    MIG instance of the same GPU, the next that is free."""
    taken: dict[int, str] = {}
    gpus = [(gpu, not 0 <= gpu.ordinal < _MOST_COLUMNS) for gpu, _total in ledger.totals]
    for gpu, _last in sorted(gpus, key=lambda pair: (pair[1], pair[0].instance != "")):
        wanted = gpu.ordinal if 0 <= gpu.ordinal < _MOST_COLUMNS else 0
        while wanted in taken:
            wanted += 1
        taken[wanted] = gpu.uuid
    return {uuid: column for column, uuid in taken.items()}


# -- for people, and for what reads gpushare's output --------------------------------------------


def summary(nodes: Sequence[CgpuNode], unit_mib: int) -> str:
    """A row a node that has GPUs, and the sum."""
    nodes = [node for node in nodes if node.gpus]
    width = max((node.width for node in nodes), default=0)
    pending = any(node.pending for node in nodes)
    unit = {1024: "GiB", 1: "MiB"}.get(unit_mib, f"{unit_mib}MiB")
    columns = [f"GPU{n}(Allocated/Total)" for n in range(width)]
    head = [
        "NAME",
        "IPADDRESS",
        *columns,
        *(["PENDING(Allocated)"] * pending),
        f"GPU Memory({unit})",
    ]
    rows = []
    for node in nodes:
        by_column = {gpu.column: f"{gpu.allocated}/{gpu.total}" for gpu in node.gpus}
        on = [by_column.get(n, "0/0") for n in range(width)]
        rows.append(
            [
                node.name,
                node.address,
                *on,
                *([str(node.pending)] * pending),
                f"{node.allocated}/{node.total}",
            ]
        )
    dashes = (len("\t".join(rows[0])) + 1 if rows else 0) + _MORE_DASHES
    return "\n".join([*_aligned([head, *rows]), "-" * dashes, _CLUSTER, _of_all(nodes)])


def detailed(nodes: Sequence[CgpuNode]) -> str:
    """The pods of each node that has GPUs, and the sum."""
    nodes = [node for node in nodes if node.gpus]
    lines: list[str] = []
    for node in nodes:
        table = list(_aligned(_detail_rows(node)))
        lines += ["", *_aligned([["NAME:", node.name], ["IPADDRESS:", node.address]]), "", *table]
        lines += ["-" * (max(map(len, table)) + _MORE_DASHES)]
    return "\n".join([*lines, "", f"{_CLUSTER}{_GAP}{_of_all(nodes)}"])


def _detail_rows(node: CgpuNode) -> Iterator[list[str]]:
    pending = node.pending > 0
    columns = [f"GPU{n}(Allocated)" for n in range(node.width)]
    yield ["NAME", "NAMESPACE", *columns, *(["Pending(Allocated)"] * pending)]
    for pod in node.pods:
        on = [str(pod.memory) if n in pod.columns else "0" for n in range(node.width)]
        yield [pod.name, pod.namespace, *on, *(["0" if pod.columns else str(pod.memory)] * pending)]
    yield ["Allocated :", f"{node.allocated} ({_percent(node.allocated, node.total)}%)"]
    yield ["Total :", str(node.total)]


def _of_all(nodes: Iterable[CgpuNode]) -> str:
    allocated = sum(node.allocated for node in nodes)
    total = sum(node.total for node in nodes)
    return f"{allocated}/{total} ({_percent(allocated, total)}%)"


def _percent(part: int, whole: int) -> int:
    return part * 100 // whole if whole else 0


def _aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Two spaces between columns, none at the end of a line."""
    rows = [*rows]
    widths = [max(len(row[n]) for row in rows if n < len(row)) for n in range(max(map(len, rows)))]
    for row in rows:
        yield _GAP.join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=False)
        ).rstrip()


# -- for clients of gpushare, which ask its extender for /inspect --------------------------------
# Source of the format: github.com/AliyunContainerService/gpushare-scheduler-extender,
# pkg/scheduler. Percent, clients and closed GPUs have no place in it.

Record = dict[str, Any]


def inspection(nodes: Sequence[object], error: str = "") -> Record:
    """The answer. nodes: `inspected` of each. error: why nothing is known, or why it may be old;
    empty for neither."""
    return {"nodes": nodes} | ({"error": error} if error else {})


def inspected(ledger: NodeCapacity) -> Record:
    unit_mib = ledger.policy.resources.memory_unit_mib
    devices = list[Record]()
    for gpu, total_mib in ledger.totals:
        pods: list[Record] = [
            {
                "name": one.pod.name,
                "namespace": one.pod.namespace,
                "usedGPU": one.memory_mib // unit_mib,
            }
            for one in ledger.taken
            if gpu.uuid in one.gpus
        ]
        used = sum(pod["usedGPU"] for pod in pods)
        devices.append(
            {"id": gpu.ordinal, "totalGPU": total_mib // unit_mib, "usedGPU": used, "pods": pods}
        )
    total, used = (sum(device[key] for device in devices) for key in ("totalGPU", "usedGPU"))
    return {"name": ledger.node, "totalGPU": total, "usedGPU": used, "devs": devices}
