"""Managed memory, which NVML counts for no process: whose it is, as far as their mappings prove."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mpsd.platform import processes
from mpsd.platform.mappings import MappedBytes
from mpsd.platform.nvml import Uses
from mpsd.platform.threaded_read import ThreadedRead

_MIB = 1024 * 1024
_UVM = b"nvidia-uvm"
_WAIT_S = 0.01  # for a read, which goes on meanwhile
_PATIENCE_S = 0.04  # in all, for those of one look
_UNREAD_S = 2.0  # from which on it is said that something is not read
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


@dataclass(slots=True)
class _Pass:
    """pages: of the address space, when it began. step: under way. Times are monotonic seconds."""

    pages: int
    mapped: MappedBytes
    began_at: float
    step: ThreadedRead[None] | None = None
    went_on_at: float = 0.0  # last

    def is_late(self, now: float) -> bool:
        return not self.mapped.is_whole and now - self.began_at >= _UNREAD_S


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
    for a second in use of nobody known; 0 for too little. unread: pids whose mappings take long."""

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
        self._passes: dict[int, _Pass] = {}  # by pid
        self._hiding: set[int] = set()  # pids of who once mapped more than could be known
        self._patience_s = _PATIENCE_S  # what is left of it
        self.of: Mapping[int, int] = {}
        self.unread: frozenset[int] = frozenset()
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
        kept = {pid: one for pid, one in self._passes.items() if pid in pids}
        if self._over_mib >= _LOOK_MIB:  # one may map other things with as many pages
            kept = {pid: one for pid, one in kept.items() if not one.mapped.is_whole}
        self._passes = kept
        self._hiding &= pids
        is_unread = any(not one.mapped.is_whole for one in kept.values())
        if grown_mib < _LOOK_MIB:
            self.of = {}
            self.unread = frozenset()
            self._seen_mib = self._rest_at_look_mib = self._rest_mib
            return
        pause_s = _LOOK_AGAIN_S
        if self._rest_mib >= self._seen_mib + _LOOK_MIB or is_unread:
            pause_s = _LOOK_S
        if now - self._looked_at < pause_s:
            return
        self._looked_at = now
        self._patience_s = _PATIENCE_S
        found = self._mappings(pids, count_gpus, now)
        bounded = any(is_upper_bound(one, self._memory_mib) for one in found.values())
        if bounded:  # the others are read now: one may map other things with as many pages
            unread = {pid: one for pid, one in self._passes.items() if not one.mapped.is_whole}
            self._passes = unread
            found = self._mappings(pids, count_gpus, now)
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
        late = {pid for pid, one in self._passes.items() if one.is_late(now)}
        self.unread = frozenset(late)

    def _mappings(
        self, pids: set[int], count_gpus: Callable[[int], int], now: float
    ) -> dict[int, UvmMapping]:
        in_turn = sorted(pids, key=self._went_on_at)
        return {pid: self._mapping(pid, count_gpus(pid), now) for pid in in_turn}

    def _went_on_at(self, pid: int) -> float:
        one = self._passes.get(pid)
        return one.went_on_at if one else 0.0

    def _mapping(self, pid: int, gpus: int, now: float) -> UvmMapping:
        pages = processes.address_space_pages(pid)
        if not pages:  # it is gone; what was in use a moment ago may have been its own
            return UvmMapping(0, gpus, is_all=False)
        one = self._passes.get(pid)
        if one is None or (one.mapped.is_whole and one.pages != pages):
            one = self._passes[pid] = _Pass(pages, MappedBytes(pid, _UVM), now)
        if not one.mapped.is_whole:
            self._go_on(pid, one)
        if one.mapped.is_whole and not one.mapped.is_all:
            self._hiding.add(pid)
        mib = max(0, one.mapped.bytes // _MIB - _UVM_OF_CONTEXT_MIB * gpus)
        return UvmMapping(mib, gpus, one.mapped.is_whole and pid not in self._hiding)

    def _go_on(self, pid: int, one: _Pass) -> None:
        within_s = 0.0
        if not one.step:
            one.step = ThreadedRead(one.mapped.go_on, processes.user_of(pid))
            within_s = max(0.0, min(_WAIT_S, self._patience_s))
        began = one.went_on_at = time.monotonic()
        try:
            one.step.value(within_s)
        except TimeoutError:
            pass
        except (OSError, MemoryError):
            del self._passes[pid]
        self._patience_s -= time.monotonic() - began
        if not one.step.goes_on:
            one.step = None
