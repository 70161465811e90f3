"""A simulated card: a small shared file that says which process holds how much of a GPU's memory.

A process that is dead holds nothing. Nobody has to clean up after a SIGKILL, as on the real thing;
a slot counts only while /proc shows its process with the same start time.
"""

import fcntl
import mmap
import os
import struct
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntFlag
from pathlib import Path
from typing import Final, Generic, TypeVar

from mpsd.simulator.gpus import MIB
from mpsd.simulator.kernel_queue import KernelQueue
from mpsd.simulator.process_status import process_start_ticks, process_status

# -- CUDA driver results, as `code:NAME`
# Source: CUDA driver API, CUresult; only those that clients were seen to get, or that a compute
# mode gives.

SUCCESS: Final = 0
OUT_OF_MEMORY: Final = 2
DEVICE_UNAVAILABLE: Final = 46
NO_DEVICE: Final = 100
INVALID_DEVICE: Final = 101
INVALID_CONTEXT: Final = 201
ILLEGAL_ADDRESS: Final = 700
LAUNCH_FAILED: Final = 719
MPS_CONNECTION_FAILED: Final = 805
MPS_RPC_FAILURE: Final = 806
MPS_SERVER_NOT_READY: Final = 807
MPS_MAX_CLIENTS_REACHED: Final = 808
MPS_CLIENT_TERMINATED: Final = 810

_NAMES = {
    SUCCESS: "CUDA_SUCCESS",
    OUT_OF_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY",
    DEVICE_UNAVAILABLE: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    NO_DEVICE: "CUDA_ERROR_NO_DEVICE",
    INVALID_DEVICE: "CUDA_ERROR_INVALID_DEVICE",
    INVALID_CONTEXT: "CUDA_ERROR_INVALID_CONTEXT",
    ILLEGAL_ADDRESS: "CUDA_ERROR_ILLEGAL_ADDRESS",
    LAUNCH_FAILED: "CUDA_ERROR_LAUNCH_FAILED",
    MPS_CONNECTION_FAILED: "CUDA_ERROR_MPS_CONNECTION_FAILED",
    MPS_RPC_FAILURE: "CUDA_ERROR_MPS_RPC_FAILURE",
    MPS_SERVER_NOT_READY: "CUDA_ERROR_MPS_SERVER_NOT_READY",
    MPS_MAX_CLIENTS_REACHED: "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
    MPS_CLIENT_TERMINATED: "CUDA_ERROR_MPS_CLIENT_TERMINATED",
}


def shown(code: int) -> str:
    """A result as the client prints it, such as `2:CUDA_ERROR_OUT_OF_MEMORY`."""
    return f"{code}:{_NAMES[code]}"


# Kinds of holder; 0 is a free slot.
MPS_CLIENT: Final = 1
MPS_SERVER: Final = 2
OUTSIDE_MPS: Final = 3
GRAPHICS: Final = 4  # shows something on a display

# Compute modes, with NVML's numbers.
DEFAULT: Final = 0
PROHIBITED: Final = 2
EXCLUSIVE_PROCESS: Final = 3

# bytes in all, pid namespace of the machine, compute mode, lost, MIG, quirks
_HEADER = struct.Struct("<QQIIII")
_MODE_AT = 16
_LOST_AT = 20
_MIG_AT = 24
_QUIRKS_AT = 28
_UNCORRECTED_AT = 32
_BRAKES_AT = 36
_REMAP_PENDING_AT = 40
_REMAP_FAILED_AT = 44
_RECOVERY_AT = 48
_XIDS_AT = 52  # how many there were, and the last ones as a ring
_XID = struct.Struct("<H")
_KEPT_XIDS = 4
_FLAG = struct.Struct("<I")
# start time in ticks, bytes, pid, kind, priority, busy SMs, MiB of managed memory
_SLOT = struct.Struct("<QQIHHII")
_BYTES_AT = 8
_BUSY_AT = 24
_MANAGED_AT = 28
_SLOTS_AT = 64
_SLOTS = 256
# Behind the slots and in their order, where a simulator that knows nothing of them does not look.
# Its end in ns of CLOCK_MONOTONIC, the pid, the us of each kernel, whether they are products.
_QUEUE = struct.Struct("<QIII4x")
_QUEUES_AT = _SLOTS_AT + _SLOTS * _SLOT.size
_SIZE = _QUEUES_AT + _SLOTS * _QUEUE.size
_TRY_AGAIN_S = 0.0005
_LOOK_AT_HOLDER = 10  # tries
_UNSEEN_NS = 1_000_000_000  # how long a process that computes may have waited for a processor


Value = TypeVar("Value", bound=int)


class Quirk(IntFlag):
    """What a rehearsal has the GPU or its driver do as an H200 under 580.159.04 does not."""

    IGNORES_MEMORY_LIMITS = 1
    IGNORES_THREAD_PERCENT = 2
    DEAR_CONTEXTS = 4
    IGNORES_MEMORY_CAPS = 8
    TELLS_NO_MEMORY = 16  # NVML: Not Supported, as of a GB10
    HANGS = 32  # NVML's calls for it return once this is over


class CardRefusal(Exception):
    """The card gives nothing; `code` is the CUDA error the process gets."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class ProcessHolding:
    """What one living process holds and has queued.

    held_bytes: without managed memory, as NVML counts it. busy_sms: on how many it computes.
    stopped: by a signal, so that it queues nothing more.
    """

    slot: int
    pid: int
    kind: int
    held_bytes: int
    busy_sms: int
    managed_mib: int
    priority: int
    queue: KernelQueue
    stopped: bool

    def computes(self, now_ns: int) -> bool:
        """Whether kernels of it run now, by CLOCK_MONOTONIC."""
        unseen_ns = 0 if self.stopped else _UNSEEN_NS
        return bool(self.busy_sms) and self.queue.runs(now_ns - unseen_ns)

    @property
    def all_bytes(self) -> int:
        return self.held_bytes + self.managed_mib * MIB


@dataclass(frozen=True, slots=True)
class ContextClaim:
    """What a process wants in order to have a context; most_clients bounds the MPS clients on the
    card."""

    pid: int
    kind: int
    wanted_bytes: int
    most_clients: int = _SLOTS
    priority: int = 0


def create_card(path: Path, memory_bytes: int) -> None:
    """Write an empty card, open to every user as /dev/nvidia0 is."""
    content = bytearray(_SIZE)
    _HEADER.pack_into(content, 0, memory_bytes, _pid_namespace(), DEFAULT, 0, 0, 0)
    path.write_bytes(content)
    path.chmod(0o666)


class _Flag(Generic[Value]):
    """A number in the header of a CardView."""

    def __init__(self, at: int, read: Callable[[int], Value]) -> None:
        self._at = at
        self._read = read

    def __get__(self, card: "CardView", _class: type) -> Value:
        return self._read(card.number(self._at))

    def __set__(self, card: "CardView", value: Value) -> None:
        card.set_number(self._at, int(value))


class CardView:
    """One process's view of a card."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._close_file = weakref.finalize(self, os.close, self._file)
        self._map = mmap.mmap(self._file, _SIZE)
        _memory_bytes, namespace, *_ = _HEADER.unpack_from(self._map, 0)
        # In a pid namespace of its own a process cannot look the others up, so it takes them to be
        # alive. Those who can, such as the MPS server, free what the dead held.
        self._sees_processes: bool = namespace == _pid_namespace()

    @property
    def memory_bytes(self) -> int:
        """Less than the GPU's where a rehearsal has it give none."""
        memory_bytes, *_ = _HEADER.unpack_from(self._map, 0)
        return int(memory_bytes)

    def is_replaced(self, path: Path) -> bool:
        """Whether there is another file at this path by now; not, where that cannot be seen."""
        try:
            found = path.stat()
        except OSError:
            return False
        return found.st_size == _SIZE and not os.path.samestat(found, os.fstat(self._file))

    def close(self) -> None:
        self._map.close()
        self._close_file()

    compute_mode = _Flag(_MODE_AT, int)
    lost = _Flag(_LOST_AT, bool)  # whether a rehearsal has the GPU fall off the bus
    mig = _Flag(_MIG_AT, bool)  # whether MIG is on
    quirks = _Flag(_QUIRKS_AT, Quirk)
    # its health, as NVML has it (simulator.nvml_health)
    uncorrected = _Flag(_UNCORRECTED_AT, int)
    brakes = _Flag(_BRAKES_AT, int)
    remap_pending = _Flag(_REMAP_PENDING_AT, int)
    remap_failed = _Flag(_REMAP_FAILED_AT, int)
    recovery = _Flag(_RECOVERY_AT, int)
    xids_total = _Flag(_XIDS_AT, int)

    def post_xid(self, xid: int) -> None:
        with self._locked(fcntl.LOCK_EX):
            total = self.xids_total
            _XID.pack_into(self._map, _xid_at(total), xid)
            self.xids_total = total + 1

    def xid_after(self, read: int) -> tuple[int, int] | None:
        """The next Xid that is kept after so many, and how many there are with it."""
        number = max(read, self.xids_total - _KEPT_XIDS)
        if number >= self.xids_total:
            return None
        return number + 1, int(_XID.unpack_from(self._map, _xid_at(number))[0])

    def holdings(self) -> tuple[ProcessHolding, ...]:
        """What every living process holds, oldest slot first."""
        with self._locked(fcntl.LOCK_SH):
            content = self._map[:]
        return tuple(self._living(content))

    def free_bytes(self) -> int:
        """Managed memory beyond the card's lies in the host's."""
        return max(0, self._left(self.holdings()))

    def _left(self, holdings: Iterable[ProcessHolding]) -> int:
        return self.memory_bytes - sum(holding.all_bytes for holding in holdings)

    def claim(self, claim: ContextClaim) -> int:
        """Take a slot with the context's bytes in it and return its number, or raise Refused."""
        with self._locked(fcntl.LOCK_EX):
            living = self._living_only()
            if claim.kind != MPS_CLIENT and not self._admits(living):
                raise CardRefusal(DEVICE_UNAVAILABLE)
            if claim.kind == MPS_CLIENT and _clients(living) >= claim.most_clients:
                raise CardRefusal(MPS_MAX_CLIENTS_REACHED)
            if self._left(living) < claim.wanted_bytes:
                raise CardRefusal(OUT_OF_MEMORY)
            taken = {holding.slot for holding in living}
            slot = next(slot for slot in range(_SLOTS) if slot not in taken)
            start = process_start_ticks(claim.pid)
            values = start, claim.wanted_bytes, claim.pid, claim.kind, claim.priority, 0, 0
            _SLOT.pack_into(self._map, _at(slot), *values)
            _QUEUE.pack_into(self._map, _queue_at(slot), 0, claim.pid, 0, 0)
            return slot

    def held_bytes(self, slot: int) -> int:
        return int.from_bytes(
            self._map[_at(slot) + _BYTES_AT : _at(slot) + _BYTES_AT + 8], "little"
        )

    def add(self, slot: int, more_bytes: int) -> bool:
        """Add to what the slot holds, or take off when negative; False when the card has not that
        much left."""
        with self._locked(fcntl.LOCK_EX):
            if not self._has_room(more_bytes):
                return False
            struct.pack_into(
                "<Q", self._map, _at(slot) + _BYTES_AT, self.held_bytes(slot) + more_bytes
            )
            return True

    def managed_mib(self, slot: int) -> int:
        return self.number(_at(slot) + _MANAGED_AT)

    def add_managed(self, slot: int, more_mib: int) -> None:
        """The card may be full: what has no room there lies in the host's memory."""
        with self._locked(fcntl.LOCK_EX):
            self.set_number(_at(slot) + _MANAGED_AT, self.managed_mib(slot) + more_mib)

    def be_busy(self, slot: int, pid: int, sms: int, queue: KernelQueue) -> None:
        """Say on how many SMs the slot's process computes, 0 for none, and what it has queued."""
        _QUEUE.pack_into(
            self._map, _queue_at(slot), queue.ends_ns, pid, queue.kernel_us, queue.gemm
        )
        self.set_number(_at(slot) + _BUSY_AT, sms)

    def queue(self, slot: int, pid: int) -> KernelQueue:
        """What this process has queued, also once it is dead; nothing where the slot is
        another's."""
        ends_ns, owner, kernel_us, gemm = _QUEUE.unpack_from(self._map, _queue_at(slot))
        return KernelQueue(ends_ns, kernel_us, bool(gemm)) if owner == pid else KernelQueue()

    def release(self, slot: int, pid: int) -> None:
        """Give back what this process holds there; a dead one's place may be another's by now, who
        keeps it."""
        with self._locked(fcntl.LOCK_EX):
            if _SLOT.unpack_from(self._map, _at(slot))[2] == pid:
                self._clear(slot)

    def _has_room(self, more_bytes: int) -> bool:
        """Whether that much is free; the dead are looked for only when it matters, as allocations
        come in thousands."""
        if more_bytes <= 0:
            return True
        written = [holding for holding, _ in _holdings(self._map)]
        return self._left(written) >= more_bytes or self._left(self._living_only()) >= more_bytes

    def _admits(self, living: list[ProcessHolding]) -> bool:
        """Whether the compute mode lets one more process have the card to itself or share it."""
        others = any(holding.kind != MPS_CLIENT for holding in living)
        return self.compute_mode == DEFAULT or (
            self.compute_mode == EXCLUSIVE_PROCESS and not others
        )

    def _living_only(self) -> list[ProcessHolding]:
        """Those of the living, after the slots of the dead were cleared."""
        living = list(self._living(self._map))
        kept = {holding.slot for holding in living}
        for holding, _ in _holdings(self._map):
            if holding.slot not in kept:
                self._clear(holding.slot)
        return living

    def _living(self, content: bytes | mmap.mmap) -> Iterator[ProcessHolding]:
        for holding, start in _holdings(content):
            if not self._sees_processes:
                yield holding
                continue
            process = process_status(holding.pid)
            if process.start_ticks == start:
                yield replace(holding, stopped=process.stopped)

    def _clear(self, slot: int) -> None:
        self._map[_at(slot) : _at(slot) + _SLOT.size] = bytes(_SLOT.size)

    def number(self, at: int) -> int:
        (value,) = _FLAG.unpack_from(self._map, at)
        return int(value)

    def set_number(self, at: int, value: int) -> None:
        _FLAG.pack_into(self._map, at, value)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """Without the lock where its holder is stopped: a real one would have been seen through by
        the kernel first."""
        tries = 0
        while not self._try_lock(how):
            tries += 1
            if tries % _LOOK_AT_HOLDER == 0 and self._is_holder_stopped():
                break
            time.sleep(_TRY_AGAIN_S)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _try_lock(self, how: int) -> bool:
        try:
            fcntl.flock(self._file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _is_holder_stopped(self) -> bool:
        """By /proc/locks: number, FLOCK, ADVISORY, kind, pid, device and inode, and the range."""
        inode = str(os.fstat(self._file).st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            is_ours = fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode
            if is_ours and process_status(int(fields[4])).stopped:
                return True
        return False


def _holdings(content: bytes | mmap.mmap) -> Iterator[tuple[ProcessHolding, int]]:
    """Of a card's file: every slot in use, with the start time of its process."""
    slots = _SLOT.iter_unpack(content[_SLOTS_AT:_QUEUES_AT])
    for slot, (start, held_bytes, pid, kind, priority, busy_sms, managed_mib) in enumerate(slots):
        if kind:
            ends_ns, _pid, kernel_us, gemm = _QUEUE.unpack_from(content, _queue_at(slot))
            queue = KernelQueue(ends_ns, kernel_us, bool(gemm))
            yield (
                ProcessHolding(
                    slot, pid, kind, held_bytes, busy_sms, managed_mib, priority, queue, False
                ),
                start,
            )


def _clients(living: list[ProcessHolding]) -> int:
    return sum(holding.kind == MPS_CLIENT for holding in living)


def _at(slot: int) -> int:
    return _SLOTS_AT + slot * _SLOT.size


def _xid_at(number: int) -> int:
    return _XIDS_AT + 4 + number % _KEPT_XIDS * _XID.size


def _queue_at(slot: int) -> int:
    return _QUEUES_AT + slot * _QUEUE.size


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
