"""A simulated card: a small shared file that says which process holds how much of a GPU's memory.

A process that is dead holds nothing. Nobody has to clean up after a SIGKILL, as on the real thing; a slot
counts only while /proc shows its process with the same start time.
"""

import fcntl
import mmap
import os
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path
from typing import Final

# -- CUDA driver results, as `code:NAME` ---------------------------------------------------------------------------
# Source: CUDA driver API, CUresult; only those that clients were seen to get, or that a compute mode gives.

SUCCESS: Final = 0
OUT_OF_MEMORY: Final = 2
DEVICE_UNAVAILABLE: Final = 46
NO_DEVICE: Final = 100
INVALID_DEVICE: Final = 101
INVALID_CONTEXT: Final = 201
ILLEGAL_ADDRESS: Final = 700
MPS_CONNECTION_FAILED: Final = 805
MPS_RPC_FAILURE: Final = 806
MPS_SERVER_NOT_READY: Final = 807
MPS_MAX_CLIENTS_REACHED: Final = 808
MPS_CLIENT_TERMINATED: Final = 810
INVALID_RESOURCE_CONFIGURATION: Final = 915  # documented, not observed

_NAMES = {
    SUCCESS: "CUDA_SUCCESS",
    OUT_OF_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY",
    DEVICE_UNAVAILABLE: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    NO_DEVICE: "CUDA_ERROR_NO_DEVICE",
    INVALID_DEVICE: "CUDA_ERROR_INVALID_DEVICE",
    INVALID_CONTEXT: "CUDA_ERROR_INVALID_CONTEXT",
    ILLEGAL_ADDRESS: "CUDA_ERROR_ILLEGAL_ADDRESS",
    MPS_CONNECTION_FAILED: "CUDA_ERROR_MPS_CONNECTION_FAILED",
    MPS_RPC_FAILURE: "CUDA_ERROR_MPS_RPC_FAILURE",
    MPS_SERVER_NOT_READY: "CUDA_ERROR_MPS_SERVER_NOT_READY",
    MPS_MAX_CLIENTS_REACHED: "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
    MPS_CLIENT_TERMINATED: "CUDA_ERROR_MPS_CLIENT_TERMINATED",
    INVALID_RESOURCE_CONFIGURATION: "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
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

_HEADER = struct.Struct("<QQIIII")  # bytes in all, pid namespace of the machine, compute mode, lost, MIG, quirks
_MODE_AT, _LOST_AT, _MIG_AT, _QUIRKS_AT = 16, 20, 24, 28
_FLAG = struct.Struct("<I")
_SLOT = struct.Struct("<QQIHHII")  # start time in ticks, bytes, pid, kind, priority, busy SMs, MiB of managed memory
_BYTES_AT, _BUSY_AT, _MANAGED_AT = 8, 24, 28
_SLOTS_AT = 64
_SLOTS = 256
_SIZE = _SLOTS_AT + _SLOTS * _SLOT.size
_MIB = 1024 * 1024


class Quirk(IntFlag):
    """What a rehearsal has the GPU's driver do as 580.159.04 does not."""

    IGNORES_MEMORY_LIMITS = 1
    IGNORES_THREAD_PERCENT = 2
    DEAR_CONTEXTS = 4
    IGNORES_MEMORY_CAPS = 8


class CardRefusal(Exception):
    """The card gives nothing; `code` is the CUDA error the process gets."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class ProcessHolding:
    """What one living process holds. held_bytes: without managed memory, as NVML counts it."""

    slot: int
    pid: int
    kind: int
    held_bytes: int
    busy_sms: int
    managed_mib: int
    priority: int

    @property
    def all_bytes(self) -> int:
        return self.held_bytes + self.managed_mib * _MIB


@dataclass(frozen=True, slots=True)
class ContextClaim:
    """What a process wants in order to have a context; most_clients bounds the MPS clients on the card."""

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


class CardView:
    """One process's view of a card."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._close_file = weakref.finalize(self, os.close, self._file)
        self._map = mmap.mmap(self._file, _SIZE)
        memory_bytes, namespace, *_ = _HEADER.unpack_from(self._map, 0)
        self.memory_bytes: int = memory_bytes
        # In a pid namespace of its own a process cannot look the others up, so it takes them to be alive. Those who
        # can, such as the MPS server, free what the dead held.
        self._sees_processes: bool = namespace == _pid_namespace()

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

    @property
    def compute_mode(self) -> int:
        return self._flag(_MODE_AT)

    @compute_mode.setter
    def compute_mode(self, mode: int) -> None:
        _FLAG.pack_into(self._map, _MODE_AT, mode)

    @property
    def lost(self) -> bool:
        """Whether a rehearsal has the GPU fall off the bus."""
        return bool(self._flag(_LOST_AT))

    @lost.setter
    def lost(self, lost: bool) -> None:
        _FLAG.pack_into(self._map, _LOST_AT, lost)

    @property
    def mig(self) -> bool:
        """Whether MIG is on, under which mpsd refuses the GPU."""
        return bool(self._flag(_MIG_AT))

    @mig.setter
    def mig(self, mig: bool) -> None:
        _FLAG.pack_into(self._map, _MIG_AT, mig)

    @property
    def quirks(self) -> Quirk:
        return Quirk(self._flag(_QUIRKS_AT))

    @quirks.setter
    def quirks(self, quirks: Quirk) -> None:
        _FLAG.pack_into(self._map, _QUIRKS_AT, quirks)

    def holdings(self) -> tuple[ProcessHolding, ...]:
        """What every living process holds, oldest slot first."""
        with self._locked(fcntl.LOCK_SH):
            slots = self._map[_SLOTS_AT:_SIZE]
        return tuple(holding for holding, start in _holdings(slots) if self._lives(holding.pid, start))

    def free_bytes(self) -> int:
        """Managed memory beyond the card's lies in the host's."""
        return max(0, self.memory_bytes - sum(holding.all_bytes for holding in self.holdings()))

    def claim(self, claim: ContextClaim) -> int:
        """Take a slot with the context's bytes in it and return its number, or raise Refused."""
        with self._locked(fcntl.LOCK_EX):
            living = self._living_only()
            if claim.kind != MPS_CLIENT and not self._admits(living):
                raise CardRefusal(DEVICE_UNAVAILABLE)
            if claim.kind == MPS_CLIENT and _clients(living) >= claim.most_clients:
                raise CardRefusal(MPS_MAX_CLIENTS_REACHED)
            if self.memory_bytes - sum(holding.all_bytes for holding in living) < claim.wanted_bytes:
                raise CardRefusal(OUT_OF_MEMORY)
            taken = {holding.slot for holding in living}
            slot = next(slot for slot in range(_SLOTS) if slot not in taken)
            start = process_start_ticks(claim.pid)
            values = start, claim.wanted_bytes, claim.pid, claim.kind, claim.priority, 0, 0
            _SLOT.pack_into(self._map, _at(slot), *values)
            return slot

    def held_bytes(self, slot: int) -> int:
        return int.from_bytes(self._map[_at(slot) + _BYTES_AT : _at(slot) + _BYTES_AT + 8], "little")

    def add(self, slot: int, more_bytes: int) -> bool:
        """Add to what the slot holds, or take off when negative; False when the card has not that much left."""
        with self._locked(fcntl.LOCK_EX):
            if not self._has_room(more_bytes):
                return False
            struct.pack_into("<Q", self._map, _at(slot) + _BYTES_AT, self.held_bytes(slot) + more_bytes)
            return True

    def managed_mib(self, slot: int) -> int:
        return self._flag(_at(slot) + _MANAGED_AT)

    def add_managed(self, slot: int, more_mib: int) -> None:
        """The card may be full: what has no room there lies in the host's memory."""
        with self._locked(fcntl.LOCK_EX):
            _FLAG.pack_into(self._map, _at(slot) + _MANAGED_AT, self.managed_mib(slot) + more_mib)

    def be_busy(self, slot: int, sms: int) -> None:
        """Say on how many SMs the slot's process computes now."""
        _FLAG.pack_into(self._map, _at(slot) + _BUSY_AT, sms)

    def release(self, slot: int, pid: int) -> None:
        """Give back what this process holds there; a dead one's place may be another's by now, who keeps it."""
        with self._locked(fcntl.LOCK_EX):
            if _SLOT.unpack_from(self._map, _at(slot))[2] == pid:
                self._clear(slot)

    def _has_room(self, more_bytes: int) -> bool:
        """Whether that much is free; the dead are looked for only when it matters, as allocations come in thousands."""
        if more_bytes <= 0:
            return True
        written = sum(holding.all_bytes for holding, _ in _holdings(self._map[_SLOTS_AT:_SIZE]))
        if self.memory_bytes - written >= more_bytes:
            return True
        return self.memory_bytes - sum(holding.all_bytes for holding in self._living_only()) >= more_bytes

    def _admits(self, living: list[ProcessHolding]) -> bool:
        """Whether the compute mode lets one more process have the card to itself or share it."""
        others = any(holding.kind != MPS_CLIENT for holding in living)
        return self.compute_mode == DEFAULT or (self.compute_mode == EXCLUSIVE_PROCESS and not others)

    def _living_only(self) -> list[ProcessHolding]:
        living = []
        for holding, start in _holdings(self._map[_SLOTS_AT:_SIZE]):
            if self._lives(holding.pid, start):
                living.append(holding)
            else:
                self._clear(holding.slot)
        return living

    def _clear(self, slot: int) -> None:
        self._map[_at(slot) : _at(slot) + _SLOT.size] = bytes(_SLOT.size)

    def _lives(self, pid: int, start_ticks: int) -> bool:
        return not self._sees_processes or process_start_ticks(pid) == start_ticks

    def _flag(self, at: int) -> int:
        (value,) = _FLAG.unpack_from(self._map, at)
        return int(value)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        fcntl.flock(self._file, how)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def process_start_ticks(pid: int) -> int:
    """Field 22 of /proc/<pid>/stat; 0 when there is no such process, or only its zombie, which holds no memory."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return 0
    try:
        fields = os.read(file, 1024).rpartition(b") ")[2].split()
    except ProcessLookupError:
        return 0
    finally:
        os.close(file)
    ended = fields[0] in {b"Z", b"X"} and int(fields[17]) < 2  # the first thread's memory stays with the others
    return 0 if ended else int(fields[19])


def _holdings(slots: bytes) -> Iterator[tuple[ProcessHolding, int]]:
    """Every slot in use, with the start time of its process."""
    for slot, (start, held_bytes, pid, kind, priority, busy_sms, managed_mib) in enumerate(_SLOT.iter_unpack(slots)):
        if kind:
            yield ProcessHolding(slot, pid, kind, held_bytes, busy_sms, managed_mib, priority), start


def _clients(living: list[ProcessHolding]) -> int:
    return sum(holding.kind == MPS_CLIENT for holding in living)


def _at(slot: int) -> int:
    return _SLOTS_AT + slot * _SLOT.size


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
