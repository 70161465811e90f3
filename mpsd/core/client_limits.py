"""The limits in a client's environment: how mpsd writes them, and how libcuda was seen to read them.

One rule: mpsd writes only the forms that were seen to work on real hardware. Everything else that looks like a limit
may be none: libcuda never complains (docs/mps-observed.md, sections 2 and 3).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpsd.core.gpu_facts import Capability
from mpsd.core.problem import Problem

MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREAD_PERCENT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
PARTITIONING = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

MIB = 1024 * 1024
DENY_MIB = 8  # a server limit that no context fits under; 0 would mean no limit at all
_UNLIMITED_BYTES = 2**64 - 1


@dataclass(frozen=True, slots=True)
class ClientLimit:
    """What one process may have of one GPU: MiB (context included) and active-thread percentage, 1 to 100."""

    memory_mib: int
    thread_percent: int


def environment(limit: ClientLimit, pipe_directory: str) -> dict[str, str]:
    """The variables that hold a client to its limit.

    The one entry `0=` is right for every client, whichever GPU it got and however it narrows its devices: the ordinal
    counts the devices the process sees, and an entry for one it does not see would lift every limit.
    """
    return {
        PIPE_DIRECTORY: pipe_directory,
        MEMORY_LIMIT: f"0={limit.memory_mib}M",
        THREAD_PERCENT: str(limit.thread_percent),
        PARTITIONING: "0",
    }


def problems_with(limit: ClientLimit, where: str, capability: Capability, card_mib: int, sms: int) -> tuple[Problem, ...]:
    """Why a client could not start, or would not be held, under this limit on a GPU of `card_mib` MiB and `sms` SMs."""
    problems = []
    if not 1 <= limit.thread_percent <= 100:
        problems.append(
            Problem("percent-range", where, str(limit.thread_percent), "is no thread percentage", "write 1 to 100")
        )
    cost_mib = capability.context_cost_mib(capability.sms_given(min(100, max(1, limit.thread_percent)), sms))
    if limit.memory_mib <= cost_mib:
        problems.append(
            Problem(
                "memory-below-context",
                where,
                f"{limit.memory_mib} MiB",
                f"does not hold a CUDA context, which takes {cost_mib} MiB on this GPU",
                f"ask for more than {cost_mib} MiB, or for fewer threads",
            )
        )
    if limit.memory_mib > card_mib:
        problems.append(
            Problem(
                "memory-over-card",
                where,
                f"{limit.memory_mib} MiB",
                f"is more than the GPU's {card_mib} MiB",
                f"ask for at most {card_mib} MiB",
            )
        )
    return tuple(problems)


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
_AMOUNT = re.compile(r"(?P<number>-?[0-9]+)(?P<unit>.?)", re.DOTALL)
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
            return Lifted(f'the entry "{entry}" is not device=amount')
        ordinal = _ordinal(match["device"], visible_uuids)
        if ordinal is None:
            return Lifted(f'the entry "{entry}" names a GPU that the process does not see')
        amount = _amount_bytes(match["amount"])
        if not isinstance(amount, int):
            return amount
        limits[ordinal] = amount
    return Limited(limits) if limits else Lifted("there is no entry in it")


def _ordinal(device: str, visible_uuids: Sequence[str]) -> int | None:
    """The position of the named device among the visible ones; None when it is not one of them."""
    if device.isascii() and device.isdigit():
        return int(device) if int(device) < len(visible_uuids) else None
    matching = [n for n, uuid in enumerate(visible_uuids) if len(device) >= len("GPU-") + 8 and uuid.startswith(device)]
    return matching[0] if len(matching) == 1 else None


def _amount_bytes(amount: str) -> int | Lifted | Unusable:
    match = _AMOUNT.match(amount)
    if match is None or int(match["number"]) == 0:
        return Lifted(f'the amount "{amount}" is none')
    if match["unit"] in {".", "t", "T"}:
        return Unusable(f'the amount "{amount}" leaves no room for a context')
    unit_bytes = _UNIT_BYTES.get(match["unit"].lower())
    if unit_bytes is None:
        return Lifted(f'the amount "{amount}" has no unit that counts; M and G do')
    number = int(match["number"])
    return _UNLIMITED_BYTES if number < 0 else min(number * unit_bytes, _UNLIMITED_BYTES)


def thread_percent_as_read(value: str | None) -> float:
    """What libcuda makes of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: anything that is not above 0 and at most 100 is 100."""
    try:
        percent = float(value or "")
    except ValueError:
        return 100.0
    return percent if 0 < percent <= 100 else 100.0
