"""Memory limits of cgroups on a simulated machine: a file that NVML writes, and what it means for a
process.

It is played as NVIDIA documents the driver's own counting (its backend `misc`; "MPS v3 Memory
Partitioning", release 615): the nearest limit above a process holds, of all processes below that
cgroup together, without their managed memory; limits do not nest. Documented, not observed.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mpsd.simulator.card import CardView, Quirk

UNLIMITED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class CgroupRoom:
    """Bytes: what the processes below a cgroup may have of a GPU, and what they have."""

    limit: int
    used: int

    @property
    def free(self) -> int:
        return max(0, self.limit - self.used)


class MemoryLimits:
    """Those of the machine in this folder; by GPU and cgroup [soft, hard, inode of the cgroup]."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "memory-limits.json"
        self._stamp: tuple[int, ...] = ()
        self._known: Mapping[str, Mapping[str, list[int]]] = {}

    def put(self, gpu: str, cgroup: Path, soft: int, hard: int) -> None:
        """FileNotFoundError where there is no such cgroup."""
        inode = cgroup.stat().st_ino
        path = cgroup_path(cgroup)
        known = {uuid: dict(rows) for uuid, rows in self._read().items()}
        known.setdefault(gpu, {}).pop(path, None)
        if (soft, hard) != (0, UNLIMITED):
            known[gpu][path] = [soft, hard, inode]
        beside = self._file.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(known))
        beside.chmod(0o644)
        beside.replace(self._file)

    def get(self, gpu: str, cgroup: Path) -> tuple[int, int]:
        """Soft and hard limit, of the nearest cgroup that has one. FileNotFoundError where there is
        no such cgroup."""
        inode = cgroup.stat().st_ino
        path = cgroup_path(cgroup)
        rows = self._read().get(gpu, {})
        if path in rows and rows[path][2] != inode:  # of an earlier cgroup, with which it went
            return 0, UNLIMITED
        nearest = _nearest(path, rows)
        return (rows[nearest][0], rows[nearest][1]) if nearest is not None else (0, UNLIMITED)

    def used(self, card: CardView, path: str) -> int:
        """What the processes below this cgroup hold."""
        return sum(
            one.held_bytes for one in card.holdings() if _is_below(_cgroup_of(one.pid), path)
        )

    def room(self, gpu: str, pid: int, card: CardView) -> CgroupRoom | None:
        """None where nothing limits this process."""
        rows = self._read().get(gpu)
        if not rows or Quirk.IGNORES_MEMORY_CAPS in card.quirks:
            return None
        nearest = _nearest(_cgroup_of(pid), rows)
        return None if nearest is None else CgroupRoom(rows[nearest][1], self.used(card, nearest))

    def _read(self) -> Mapping[str, Mapping[str, list[int]]]:
        try:
            status = self._file.stat()
        except OSError:
            return {}
        if (stamp := (status.st_ino, status.st_mtime_ns)) != self._stamp:
            with suppress(OSError):
                self._known = json.loads(self._file.read_bytes())
                self._stamp = stamp
        return self._known


def cgroup_path(folder: Path) -> str:
    """As /proc/PID/cgroup has it: below the top of the hierarchy."""
    top = folder
    while (top.parent / "cgroup.controllers").exists():
        top = top.parent
    return f"/{folder.relative_to(top)}" if top != folder else "/"


def _nearest(path: str, rows: Mapping[str, list[int]]) -> str | None:
    above = [one for one in rows if _is_below(path, one)]
    return max(above, key=len, default=None)


def _is_below(path: str, above: str) -> bool:
    return f"{path}/".startswith(f"{above.rstrip('/')}/")


def _cgroup_of(pid: int) -> str:
    """In v2; empty where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().split("\n")
    except OSError:
        return ""
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
