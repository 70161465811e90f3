"""What `mpsd bench` has measured, as it is saved: one row for each measurement, and what it was
measured on.

A row holds what was read and nothing that can be computed from it; ratios and verdicts are
`bench.rules.claims`.
"""

from dataclasses import dataclass
from enum import StrEnum

VERSION = 3


class BenchGroup(StrEnum):
    """The groups of measurements, in the order they run, each one question of a user."""

    SHARING = "sharing"
    SHARES = "shares"
    COST = "cost"
    REACTIONS = "reactions"


class SharingMode(StrEnum):
    """How programs share the GPU."""

    TIME_SLICED = "time-sliced"  # without MPS: they take turns
    MPS = "MPS"  # a control daemon without mpsd
    MPSD = "mpsd"


class WorkKind(StrEnum):
    """What a program computes: `prepare=` of mpsd/bench/cuda_client.py."""

    ARITHMETIC = "arithmetic"  # fills the SMs that it may use; always the same amount
    SMALL = "small"  # leaves most of the GPU idle
    BANDWIDTH = "bandwidth"  # copies memory


@dataclass(frozen=True, slots=True)
class SharingRow:
    """So many programs at once, each doing this work."""

    mode: SharingMode
    work: WorkKind
    programs: int
    #: Of all programs.
    launches_per_s: float
    #: Of a sample of the slowest program.
    p50_ms: float
    p99_ms: float
    #: From the first start until the last program had its context.
    starts_s: float
    #: What `mpsd up` takes meanwhile, of a core; None without mpsd.
    mpsd_cores: float | None = None
    #: Its resident memory; None without mpsd.
    mpsd_mib: float | None = None


class BatchWork(StrEnum):
    """What fills the GPU beside a program that serves requests."""

    NONE = "none"
    NORMAL = "normal"  # with the priority of the program that serves
    BELOW_NORMAL = "below normal"  # with CUDA_MPS_CLIENT_PRIORITY=1


@dataclass(frozen=True, slots=True)
class PriorityRow:
    """A program that is sent requests at a fixed rate, whether or not it keeps up, beside batch
    work."""

    batch: BatchWork
    requests_per_s: float
    #: Of a request, from when it came to its end.
    p50_ms: float
    p99_ms: float
    #: Launches of the batch work.
    batch_per_s: float


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A program with a share of the GPU."""

    percent: int
    memory_gib: int
    #: That it was given.
    sms: int
    #: The percent of the programs that ran at the same time.
    beside: tuple[int, ...]
    work: WorkKind
    launches_per_s: float


@dataclass(frozen=True, slots=True)
class CostRow:
    """The same work under MPS alone and under mpsd, one right after the other."""

    work: WorkKind
    programs: int
    #: Counts from 0.
    pair: int
    mps_per_s: float
    mpsd_per_s: float
    #: Of a sample of the slowest program.
    mps_p99_ms: float
    mpsd_p99_ms: float


class Reaction(StrEnum):
    """What is timed, from and to what."""

    # From the first look that shows more than the grant, until every thread is stopped, or none is
    # left.
    STOPPED = "over its grant to stopped"
    # The same, to the first look that shows no more than the grant.
    MEMORY_BACK = "over its grant to memory back"
    # SIGKILL, to the end of a new program that had its context
    DAEMON = "daemon killed to a new client served"
    # the faulting program's own word, to the domain's state; its process lingers
    FAULT = "fault to ready"


@dataclass(frozen=True, slots=True)
class ReactionRow:
    """One time."""

    reaction: Reaction
    round: int
    #: In what way, such as the value that lifted a limit.
    how: str
    seconds: float
    #: A wait that is policy, within it.
    grace_s: float = 0.0


Row = SharingRow | PriorityRow | ShareRow | CostRow | ReactionRow


@dataclass(frozen=True, slots=True)
class MachineRow:
    """Where it was measured."""

    #: ISO 8601, UTC.
    date: str
    mpsd: str
    gpu: str
    memory_mib: int
    sms: int
    driver: str
    cuda: str
    cores: int
    python: str
    #: The figures say nothing of a real GPU.
    simulated: bool


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One run: a field for each kind of row."""

    version: int
    machine: MachineRow
    #: Of each measurement.
    window_s: float
    #: The groups that could not be measured, and why.
    skipped: tuple[tuple[BenchGroup, str], ...] = ()
    sharing: tuple[SharingRow, ...] = ()
    priority: tuple[PriorityRow, ...] = ()
    shares: tuple[ShareRow, ...] = ()
    cost: tuple[CostRow, ...] = ()
    reactions: tuple[ReactionRow, ...] = ()


# The fields of `Benchmark` that a group fills, in the order they are shown.
FIELDS = {
    BenchGroup.SHARING: ("sharing", "priority"),
    BenchGroup.SHARES: ("shares",),
    BenchGroup.COST: ("cost",),
    BenchGroup.REACTIONS: ("reactions",),
}
FIELD_OF: dict[type[Row], str] = {
    SharingRow: "sharing",
    PriorityRow: "priority",
    ShareRow: "shares",
    CostRow: "cost",
    ReactionRow: "reactions",
}


def rows_of(benchmark: Benchmark, field: str) -> tuple[Row, ...]:
    """What is in one of FIELDS."""
    found: tuple[Row, ...] = getattr(benchmark, field)
    return found


def is_run(benchmark: Benchmark, group: BenchGroup) -> bool:
    """Whether anything of it was measured, or tried."""
    tried = any(skipped is group for skipped, _why in benchmark.skipped)
    return tried or any(rows_of(benchmark, field) for field in FIELDS[group])
