"""What NVML says of a GPU's health, and what is kept of it from one look to the next."""

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One look. None: the driver answers Not Supported."""

    #: those since the look before, the oldest first
    xids: tuple[int, ...] = ()
    #: uncorrectable errors of its memories since the driver was loaded
    uncorrected: int | None = None
    #: rows that were replaced by spare ones, over its life
    remapped_rows: int | None = None
    #: 1: rows wait for a reset to be replaced
    remap_pending: int | None = None
    #: 1: there was no spare row
    remap_failed: int | None = None
    #: 1: pages wait for a reset to be retired, on cards that do not remap rows
    pages_pending: int | None = None
    #: what slows its clocks down against its will, in words; empty where nothing does
    brakes: tuple[str, ...] | None = None
    #: what the driver asks for, in words; empty for nothing
    recovery: str | None = None


class XidKind(StrEnum):
    """What an Xid tells of the GPU."""

    PROGRAM = "program"  # a program did it, and the GPU is well
    HARDWARE = "hardware"  # the GPU is in doubt
    NOTICE = "notice"  # what it is about is told by other figures of its health


class HealthCause(StrEnum):
    """Why a GPU is sick."""

    XID = "xid"
    ECC = "ecc"
    ROWS = "rows"
    PAGES = "pages"
    RECOVERY = "recovery"
    BRAKE = "brake"
    CONTEXTS = "contexts"


@dataclass(frozen=True, slots=True)
class GpuCondition:
    """What `mpsd control` keeps of one GPU in this boot. Times are seconds of CLOCK_BOOTTIME."""

    gpu: str
    #: None: it is well
    cause: HealthCause | None = None
    #: in a sentence, with the remedy
    reason: str = ""
    #: whether the cause is there still, so that no canary can make it well
    persists: bool = False
    #: as of the last look; its xids are in `xids`
    seen: GpuHealth = field(default_factory=GpuHealth)
    #: how often each Xid came, by its number
    xids: dict[str, int] = field(default_factory=dict)
    #: the uncorrectable errors that a canary has passed with; None before the first look
    accepted: int | None = None
    #: since when something slows it down; None where nothing does
    braked_s: float | None = None
    #: of mpsd's own contexts that failed, without one between that did not
    failed_contexts: int = 0
