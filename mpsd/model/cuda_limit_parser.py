"""How libcuda was seen to read the limits in its process's environment.

This is what the driver does (580.159.04), not what a manual says. libcuda never complains: a value it does
not like may be no limit at all.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpsd.model.problem import shown

MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREAD_PERCENT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
PARTITIONING = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
VARIABLES = (MEMORY_LIMIT, THREAD_PERCENT, PIPE_DIRECTORY, PARTITIONING, VISIBLE_DEVICES)  # all that decide of a limit

_UNLIMITED_BYTES = 2**64 - 1
_MOST_DIGITS = 20  # of a number below that


@dataclass(frozen=True, slots=True)
class Unset:
    """The client says nothing: the server's limit counts."""


@dataclass(frozen=True, slots=True)
class Limited:
    """Bytes by the ordinal of a device the process sees; where the server's limit is smaller, that one counts."""

    bytes_by_ordinal: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Lifted:
    """The value switches every memory limit off, the server's too."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """Creating a context fails with CUDA_ERROR_OUT_OF_MEMORY."""

    reason: str


MemoryReading = Unset | Limited | Lifted | Unusable

_ENTRY = re.compile(r"(?P<device>\S+?) *= *(?P<amount>.*)", re.DOTALL)
_AMOUNT = re.compile(r"(?P<minus>-?)(?P<digits>[0-9]+)(?P<unit>.?)", re.DOTALL)
_UNIT_BYTES = {"g": 1024**3, "m": 1024**2}


def memory_limit_as_read(value: str | None, visible_uuids: Sequence[str]) -> MemoryReading:
    """What libcuda makes of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT in a process that sees these GPUs, in this order.

    Every row was read off driver 580.159.04; None stands for a variable that is not set.
    """
    if not value:
        return Unset()
    limits: dict[int, int] = {}
    for entry in filter(None, value.split(",")):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            return Lifted(f"the entry {shown(entry)} is not device=amount")
        ordinal = _ordinal(match["device"], visible_uuids)
        if ordinal is None:
            return Lifted(f"the entry {shown(entry)} names a GPU that the process does not see")
        amount = _amount_bytes(match["amount"])
        if not isinstance(amount, int):
            return amount
        limits[ordinal] = amount
    return Limited(limits) if limits else Lifted("there is no entry in it")


def _ordinal(device: str, visible_uuids: Sequence[str]) -> int | None:
    """The position of the named device among the visible ones; None when it is not one of them."""
    if device.isascii() and device.isdigit():
        ordinal = _whole(device)
        return ordinal if ordinal < len(visible_uuids) else None
    matching = [n for n, uuid in enumerate(visible_uuids) if len(device) >= len("GPU-") + 8 and uuid.startswith(device)]
    return matching[0] if len(matching) == 1 else None


def _amount_bytes(amount: str) -> int | Lifted | Unusable:
    match = _AMOUNT.match(amount)
    number = _whole(match["digits"]) if match else 0
    if match is None or number == 0:
        return Lifted(f"the amount {shown(amount)} is none")
    if match["unit"] in {".", "t", "T"}:
        return Unusable(f"the amount {shown(amount)} leaves no room for a context")
    unit_bytes = _UNIT_BYTES.get(match["unit"].lower())
    if unit_bytes is None:
        return Lifted(f"the amount {shown(amount)} has no unit that counts; M and G do")
    return _UNLIMITED_BYTES if match["minus"] else min(number * unit_bytes, _UNLIMITED_BYTES)


def _whole(digits: str) -> int:
    """The number; those beyond 64 bits are all alike, so that one of thousands of digits is read like any other."""
    return int(digits.lstrip("0")[:_MOST_DIGITS] or "0")


def visible_devices(value: str | None, uuids: Sequence[str]) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES leaves of these GPUs, in its order; None stands for a variable that is not set.

    As the CUDA programming guide has it: the first entry that is no device hides itself and everything after it.
    """
    if value is None:
        return tuple(uuids)
    visible: list[str] = []
    for entry in value.split(","):
        uuid = _named(entry.strip(), uuids)
        if uuid is None or uuid in visible:
            break
        visible.append(uuid)
    return tuple(visible)


def _named(entry: str, uuids: Sequence[str]) -> str | None:
    """The GPU with this ordinal or this start of a UUID; None when there is no such one, or more than one."""
    if entry.isascii() and entry.isdigit():
        ordinal = _whole(entry)
        return uuids[ordinal] if ordinal < len(uuids) else None
    matching = [uuid for uuid in uuids if entry.startswith("GPU-") and uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None


def thread_percent_as_read(value: str | None) -> float:
    """What libcuda makes of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: anything that is not above 0 and at most 100 is 100."""
    try:
        percent = float(value or "")
    except ValueError:
        return 100.0
    return percent if 0 < percent <= 100 else 100.0
