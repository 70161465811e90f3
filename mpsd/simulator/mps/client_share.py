"""What an MPS client gets of a GPU: its memory limit and its SMs, from its own environment and the
server's settings.

This is what driver 580.159.04 was seen to grant, the ways past a server's limits included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mpsd.model.cuda_limit_parser import (
    CLIENT_PRIORITY,
    MEMORY_LIMIT,
    PARTITIONING,
    THREAD_PERCENT,
    Lifted,
    Limited,
    MemoryReading,
    Unset,
    Unusable,
    client_priority_as_read,
    memory_limit_as_read,
    thread_percent_as_read,
)
from mpsd.simulator.card import Quirk
from mpsd.simulator.gpus import GIB, MIB, SimulatedGpu

DEAR_MIB = 100  # what a context costs more where they are dear


@dataclass(frozen=True, slots=True)
class Wish:
    """What the client's environment asks for one device.

    own_bytes: its limit, None where it sets none; lifted: it switched limits off, the server's too;
    partitioned: the flag that makes a thread percentage the context's own business and so lifts the
    server's. priority: None where it names none.
    """

    own_bytes: int | None
    lifted: bool
    thread_percent: float
    partitioned: bool
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class ClientShare:
    """What the client gets; limit_bytes is None where nothing limits it. The context comes out of
    the limit."""

    limit_bytes: int | None
    sms: int
    context_bytes: int

    @property
    def holds_its_context(self) -> bool:
        return self.limit_bytes is None or self.context_bytes <= self.limit_bytes


def wish(environment: Mapping[str, str], visible: tuple[SimulatedGpu, ...], ordinal: int) -> Wish:
    """What this environment asks for the device that the process sees as `ordinal`."""
    reading = memory_limit_as_read(environment.get(MEMORY_LIMIT), [gpu.uuid for gpu in visible])
    return Wish(
        own_bytes=_own_bytes(reading, ordinal),
        lifted=isinstance(reading, Lifted),
        thread_percent=thread_percent_as_read(environment.get(THREAD_PERCENT)),
        partitioned=environment.get(PARTITIONING) == "1",
        priority=client_priority_as_read(environment.get(CLIENT_PRIORITY)),
    )


def _own_bytes(reading: MemoryReading, ordinal: int) -> int | None:
    match reading:
        case Limited(bytes_by_ordinal):
            return bytes_by_ordinal.get(ordinal)
        case Unusable():
            return 0  # no context fits, which is how such a value was seen to fail
        case Unset() | Lifted():
            return None


def share(
    wish: Wish, server_bytes: int | None, server_percent: float, gpu: SimulatedGpu
) -> ClientShare:
    """The smaller of the client's and the server's limit wins, unless the client lifted them."""
    limits = [limit for limit in (wish.own_bytes, server_bytes) if limit is not None]
    percent = wish.thread_percent if wish.partitioned else min(wish.thread_percent, server_percent)
    sms = gpu.sms_by_percent[max(1, int(percent))]
    return ClientShare(
        limit_bytes=None if wish.lifted or not limits else min(limits),
        sms=sms,
        context_bytes=gpu.context_mib_by_sms[sms] * MIB,
    )


def with_quirks(share: ClientShare, quirks: Quirk, gpu: SimulatedGpu) -> ClientShare:
    """The share as a driver gives it that does not do what this one was seen to."""
    if Quirk.IGNORES_MEMORY_LIMITS in quirks:
        share = replace(share, limit_bytes=None)
    if Quirk.IGNORES_THREAD_PERCENT in quirks:
        share = replace(share, sms=gpu.sms, context_bytes=gpu.context_mib_by_sms[gpu.sms] * MIB)
    if Quirk.DEAR_CONTEXTS in quirks:
        share = replace(share, context_bytes=share.context_bytes + DEAR_MIB * MIB)
    return share


def server_limit_bytes(value: str) -> int | None:
    """The bytes in a value given to `set_device_pinned_mem_limit`; None for garbage and `0`, which
    remove the limit."""
    return _own_bytes(memory_limit_as_read(f"0={value}", ["GPU"]), 0)


def limit_as_shown(value: str) -> str:
    """How a limit reads back: whole GiB from 1 GiB on, rounded down, else MiB; every byte of it
    counts all the same."""
    limit = server_limit_bytes(value) or 0
    return f"{limit // GIB}G" if limit >= GIB else f"{limit // MIB}M"


# The table that `device_query` prints.

_COLUMNS = ("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes")


def device_table(gpus: Sequence[SimulatedGpu], *, csv: bool) -> str:
    """A header and a row for each GPU, columns aligned or separated by commas."""
    rows = [
        _COLUMNS,
        *((str(n), _pci_ids(gpu), gpu.uuid, gpu.name, "N/A") for n, gpu in enumerate(gpus)),
    ]
    return "".join((",".join(row) if csv else _aligned(row)) + "\n" for row in rows)


def _aligned(row: Sequence[str]) -> str:
    ordinal, pci, uuid, name, attributes = row
    return f"{ordinal:<16}{pci:<15}{uuid:<42}{name:<34}{attributes}"


def _pci_ids(gpu: SimulatedGpu) -> str:
    """`0000:00.06.00` for a GPU that NVML shows as `00000000:00:06.0`: domain, then bus, device and
    function in hex."""
    domain, bus, device = gpu.pci_id.split(":")
    device, function = device.split(".")
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}.{int(device, 16):02x}.{int(function, 16):02x}"
