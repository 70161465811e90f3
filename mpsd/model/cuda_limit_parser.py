"""How libcuda (580.159.04) was seen to read the limits in its process's environment. It never
complains: a value it does not like may be no limit at all."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpsd.model.problem import shown

MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREAD_PERCENT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
CLIENT_PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"
PARTITIONING = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"
CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
# all that decide of a limit or a priority
VARIABLES = (
    MEMORY_LIMIT,
    THREAD_PERCENT,
    PIPE_DIRECTORY,
    PARTITIONING,
    CLIENT_PRIORITY,
    CUDA_VISIBLE_DEVICES,
)

# stands, where no variable does, for an environment that no exec has made; its value says why
FORGED = ""

_UNLIMITED_BYTES = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Unset:
    """The client says nothing: the server's limit counts."""


@dataclass(frozen=True, slots=True)
class Limited:
    """Bytes by the ordinal of a device the process sees; a smaller limit of the server counts."""

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


def memory_limit_as_read(value: str | None, visible_uuids: Sequence[str]) -> MemoryReading:
    """What libcuda makes of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, None where it is not set, in a
    process that sees these GPUs in this order."""
    if not value:
        return Unset()
    limits: dict[int, int] = {}
    for entry in filter(None, value.split(",")):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            return Lifted(f"the entry {shown(entry)} is not device=amount")
        ordinal = _ordinal(match["device"], visible_uuids, len("GPU-") + 8)
        if ordinal is None:
            return Lifted(f"the entry {shown(entry)} names a GPU that the process does not see")
        amount = _amount_bytes(match["amount"])
        if not isinstance(amount, int):
            return amount
        limits[ordinal] = amount
    return Limited(limits) if limits else Lifted("there is no entry in it")


def _ordinal(device: str, uuids: Sequence[str], shortest: int) -> int | None:
    """The position of the one device with this ordinal, or with this start of a UUID, of `shortest`
    characters or more."""
    if device.isascii() and device.isdigit():
        matching = [_whole(device)]
    elif len(device) < shortest:
        return None
    else:
        matching = [n for n, uuid in enumerate(uuids) if uuid.startswith(device)]
    return matching[0] if len(matching) == 1 and matching[0] < len(uuids) else None


def _amount_bytes(amount: str) -> int | Lifted | Unusable:
    match = _AMOUNT.match(amount)
    number = _whole(match["digits"]) if match else 0
    if match is None or number == 0:
        return Lifted(f"the amount {shown(amount)} is none")
    if match["unit"] in {".", "t", "T"}:
        return Unusable(f"the amount {shown(amount)} leaves no room for a context")
    unit_bytes = {"g": 1024**3, "m": 1024**2}.get(match["unit"].lower())
    if unit_bytes is None:
        return Lifted(f"the amount {shown(amount)} has no unit that counts; M and G do")
    return _UNLIMITED_BYTES if match["minus"] else min(number * unit_bytes, _UNLIMITED_BYTES)


def _whole(digits: str) -> int:
    """Those beyond 64 bits are all alike, also of thousands of digits."""
    return int(digits.lstrip("0")[:20] or "0")


def visible_devices(value: str | None, uuids: Sequence[str]) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES, None where it is not set, leaves of these GPUs, in its order. The
    first entry that is no device hides itself and all after it (CUDA programming guide)."""
    if value is None:
        return tuple(uuids)
    visible: list[str] = []
    for entry in value.split(","):
        ordinal = _ordinal(entry.strip(), uuids, len("GPU-"))
        if ordinal is None or uuids[ordinal] in visible:
            break
        visible.append(uuids[ordinal])
    return tuple(visible)


def client_priority_as_read(value: str | None) -> int | None:
    """What libcuda makes of CUDA_MPS_CLIENT_PRIORITY: 0 is normal and the best, 1 below it; None
    where the server's default counts."""
    return int(value) if value in {"0", "1"} else None


def thread_percent_as_read(value: str | None) -> float:
    """What libcuda makes of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE."""
    try:
        percent = float(value or "")
    except ValueError:
        return 100.0
    return percent if 0 < percent <= 100 else 100.0
