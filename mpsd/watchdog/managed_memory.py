"""Managed memory, which NVML counts for no process: whose it is, as far as their mappings prove."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from mpsd.platform import processes
from mpsd.platform.nvml import Uses
from mpsd.platform.threaded_read import ThreadedRead

_MIB = 1024 * 1024
_UVM = b"nvidia-uvm"
_AT_ONCE = 4  # processes of whom mappings are still read, as where there are thousands
_WAIT_S = 0.01  # for each; it goes on meanwhile
_UVM_OF_CONTEXT_MIB = 2  # docs/mps-observed.md, section 10
_LOOK_MIB = 64  # unexplained, from which on some of it may be managed memory
# at least, between two looks at what the processes map while more of the GPU comes into use
_LOOK_S = 0.25
_LOOK_AGAIN_S = 1.0  # and while it does not: one process may have freed what another took
_STEADY_S = 1.0  # how long a figure must stay before anything is concluded from it
_REPORT_MIB = 1024  # contexts cost up to 350 MiB of a GPU that NVML counts for no process
_ROUND_MIB = 64


@dataclass(frozen=True, slots=True)
class UvmMapping:
    """What a process maps of `nvidia-uvm` beyond its contexts, as managed memory, on whichever of
    its `gpus` GPUs; of a managed pool only the addresses."""

    mib: int
    gpus: int
    is_all: bool = True  # False: it may map more, under another name or what could not be read


def is_upper_bound(one: UvmMapping, memory_mib: int) -> bool:
    """Whether less than it maps may be on a GPU with this memory."""
    return one.gpus > 1 or one.mib > memory_mib


def managed_mib(
    mapped: Mapping[int, UvmMapping], unexplained_mib: int, memory_mib: int
) -> dict[int, int]:
    """By pid, the managed memory proven on a GPU with this memory. unexplained_mib: in use there of
    nobody by NVML, for as long as that proves anything. On one GPU all that is mapped counts, if
    the GPU has as much; else only what nobody else can have."""
    proven = {}
    unknown = {pid for pid, one in mapped.items() if not one.is_all}
    all_mib = sum(one.mib for one in mapped.values())
    for pid, one in mapped.items():
        mib = one.mib
        if is_upper_bound(one, memory_mib):
            mib = min(mib, unexplained_mib - (all_mib - mib))
            if unknown - {pid}:
                mib = 0
        if mib > 0:
            proven[pid] = mib
    return proven


class ManagedMemory:
    """The managed memory of the processes on one GPU, which NVML counts for none: it shows in what
    is in use in all, and only where that grows are processes read. of: MiB by pid. unexplained_mib:
    for a second in use of nobody known; 0 for too little."""

    def __init__(self, memory_mib: int) -> None:
        self._memory_mib = memory_mib
        self._seen_mib = 0  # what was in use and not counted when `of` was found
        self._looked_at = self._steady_since = -math.inf
        self._over_since = math.inf
        self._over_mib = 0  # of nobody's, beyond the least that was
        self._rest_mib = 0  # in use, and not counted by NVML for any process
        # of it, with no managed memory in use; None before that is known
        self._least_mib: int | None = None
        self._rest_at_look_mib = 0  # the same at the last look
        # by pid, pages of its address space, and MiB mapped with these
        self._mapped: dict[int, tuple[int, int]] = {}
        self._hiding: set[int] = set()  # pids of who once mapped more than could be known
        self._readings: dict[int, ThreadedRead[tuple[int, bool]]] = {}  # under way, by pid
        self.of: Mapping[int, int] = {}
        self.unexplained_mib = 0

    def look(self, used_mib: int, uses: Uses, count_gpus: Callable[[int], int], now: float) -> None:
        """used_mib: of the whole GPU. count_gpus: of a process. now: monotonic seconds."""
        counted = [used_bytes for _pid, used_bytes in uses if used_bytes is not None]
        if len(counted) < len(uses):  # NVML does not know all, so nothing is known of the rest
            return
        rest_mib = used_mib - sum(counted) // _MIB
        if rest_mib != self._rest_mib:
            self._rest_mib = rest_mib
            self._steady_since = now
        self._find({pid for pid, _ in uses}, count_gpus, now)
        nobodys_mib = rest_mib - sum(self.of.values())
        if now - self._steady_since >= _STEADY_S:
            least_mib = max(0, nobodys_mib)
            if self._least_mib is not None:
                least_mib = min(least_mib, self._least_mib)
            self._least_mib = least_mib
        self._over_mib = 0
        if self._least_mib is not None:
            self._over_mib = nobodys_mib - self._least_mib
        self._over_since = min(self._over_since, now)
        if self._over_mib < _REPORT_MIB:
            self._over_since = math.inf
        self.unexplained_mib = 0
        if now - self._over_since >= _STEADY_S:
            self.unexplained_mib = self._over_mib // _ROUND_MIB * _ROUND_MIB

    def _find(self, pids: set[int], count_gpus: Callable[[int], int], now: float) -> None:
        grown_mib = self._rest_mib - (self._least_mib or 0)
        for known in (self._mapped, self._readings):
            for pid in known.keys() - pids:
                del known[pid]
        self._hiding &= pids
        if self._over_mib >= _LOOK_MIB:  # one may map other things with as many pages
            self._mapped.clear()
        if grown_mib < _LOOK_MIB:
            self.of = {}
            self._seen_mib = self._rest_at_look_mib = self._rest_mib
            return
        pause_s = _LOOK_AGAIN_S
        if self._rest_mib >= self._seen_mib + _LOOK_MIB:
            pause_s = _LOOK_S
        if now - self._looked_at < pause_s:
            return
        self._looked_at = now
        found = self._mappings(pids, count_gpus)
        bounded = any(is_upper_bound(one, self._memory_mib) for one in found.values())
        if bounded:  # the others are read now: one may map other things with as many pages
            self._mapped = {pid: (0, mib) for pid, (_pages, mib) in self._mapped.items()}
            found = self._mappings(pids, count_gpus)
        # in use at two looks: what a process that has gone had may be in use a little longer
        lasting_mib = min(self._rest_mib, self._rest_at_look_mib)
        self._rest_at_look_mib = self._rest_mib
        self._seen_mib = self._rest_mib
        if bounded:
            self._seen_mib = lasting_mib
        grown_mib = 0
        if self._least_mib is not None:
            grown_mib = lasting_mib - self._least_mib
        self.of = managed_mib(found, grown_mib, self._memory_mib)

    def _mappings(self, pids: set[int], count_gpus: Callable[[int], int]) -> dict[int, UvmMapping]:
        return {pid: self._mapping(pid, count_gpus(pid)) for pid in pids}

    def _mapping(self, pid: int, gpus: int) -> UvmMapping:
        pages = processes.address_space_pages(pid)
        if not pages:  # it is gone; what was in use a moment ago may have been its own
            return UvmMapping(0, gpus, is_all=False)
        known_pages, mib = self._mapped.get(pid, (0, 0))
        is_read = known_pages == pages
        if not is_read and (pid in self._readings or len(self._readings) < _AT_ONCE):
            reading = self._readings.pop(pid, None)
            reading = reading or ThreadedRead(partial(processes.mapped_bytes, pid, _UVM))
            try:
                mapped_bytes, is_all = reading.value(_WAIT_S)
                is_read = True
                mib = mapped_bytes // _MIB
                self._mapped[pid] = pages, mib
                if not is_all:
                    self._hiding.add(pid)
            except TimeoutError:  # what is not read yet is nobody's
                self._readings[pid] = reading
        mib = max(0, mib - _UVM_OF_CONTEXT_MIB * gpus)
        return UvmMapping(mib, gpus, is_read and pid not in self._hiding)
