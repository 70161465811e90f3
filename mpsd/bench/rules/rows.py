"""What `mpsd bench` has measured, as it is saved: one row for each measurement, and what it was measured on.

A row holds what was read and nothing that can be computed from it; ratios and verdicts are `bench.rules.claims`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from mpsd.model.problem import InvalidInput, Problem, shown

VERSION = 1


class BenchPart(StrEnum):
    """The parts of a benchmark, in the order they run, each one question of a user."""

    SHARING = "sharing"  # what do many programs get done, in turns, under MPS and under mpsd?
    SHARES = "shares"  # does 30 % of the threads do 30 % of the work, alone and beside others?
    RATIO = "ratio"  # do two programs of 1:2 get 1:2?
    SIZES = "sizes"  # does a grant's memory change what it computes?
    NEED = "need"  # does a program that needs more than its grant end, and one that needs less run?
    COST = "cost"  # what does mpsd cost against MPS alone?
    CLIENTS = "clients"  # what becomes of it with more and more programs?
    PRIORITY = "priority"  # does a program that serves requests keep its latency beside batch work below normal?
    REACTIONS = "reactions"  # how soon is an escape stopped and over, a daemon back, a fault healed?
    TORCH = "torch"  # do ResNet-50 under PyTorch and shares of 1:2 get 1:2?


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
    """So many programs at once, each doing this work: launches a second of all, a sample's times of the slowest."""

    mode: SharingMode
    work: WorkKind
    programs: int
    launches_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A program under so many percent. sms: it was given. beside: the percent of those that ran at the same time."""

    percent: int
    sms: int
    beside: tuple[int, ...]
    work: WorkKind
    launches_per_s: float


@dataclass(frozen=True, slots=True)
class RatioRow:
    """Two programs at once: work done a second by each. batch: None for work that has none. unit: of what is done."""

    work: str
    batch: int | None
    percents: tuple[int, int]
    sms: tuple[int, int]
    per_s: tuple[float, float]
    unit: str


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One program under so many percent and GiB."""

    percent: int
    memory_gib: int
    launches_per_s: float


@dataclass(frozen=True, slots=True)
class NeedRow:
    """One program that needs so much under a limit of so much. result: CUDA's, of its last allocation or context."""

    needs_mib: int
    limit_mib: int
    got_mib: int
    result: str


@dataclass(frozen=True, slots=True)
class CostRow:
    """The same work under MPS alone and under mpsd, one right after the other; pair counts from 0.

    p99 of a sample, of the slowest program.
    """

    work: WorkKind
    programs: int
    pair: int
    mps_per_s: float
    mpsd_per_s: float
    mps_p99_ms: float
    mpsd_p99_ms: float


@dataclass(frozen=True, slots=True)
class ClientsRow:
    """So many programs under mpsd. starts_s: from the first start until the last had its context.

    mpsd_cores, mpsd_mib: what `mpsd up` takes meanwhile, of a core and resident; None in files of before.
    """

    programs: int
    work: WorkKind
    launches_per_s: float
    p50_ms: float
    p99_ms: float
    starts_s: float
    mpsd_cores: float | None = None
    mpsd_mib: float | None = None


class BatchWork(StrEnum):
    """What fills the GPU beside a program that serves requests."""

    NONE = "none"
    NORMAL = "normal"  # with the priority of the program that serves
    BELOW_NORMAL = "below normal"  # with CUDA_MPS_CLIENT_PRIORITY=1


@dataclass(frozen=True, slots=True)
class PriorityRow:
    """A program that is sent so many requests a second, whether or not it keeps up, beside batch work.

    p50, p99: of a request, from when it came to its end. batch_per_s: launches of the batch work.
    """

    batch: BatchWork
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    batch_per_s: float


class Reaction(StrEnum):
    """What is timed, from and to what."""

    # From the first look that shows more than the grant, until every thread is stopped, or none is left.
    STOPPED = "over its grant to stopped"
    # The same, to the first look that shows no more than the grant; at last with end_drain_s 0.
    MEMORY_BACK = "over its grant to memory back"
    AT_ONCE = "over its grant to memory back, killed at once"
    OFFERED = "daemon killed to its socket offered again"  # SIGKILL, to a new socket for clients, limits set
    DAEMON = "daemon killed to a new client served"  # SIGKILL, to the end of a new program that had its context
    FAULT = "fault to ready"  # the faulting program's own word, to the domain's state; its process lingers


@dataclass(frozen=True, slots=True)
class ReactionRow:
    """One time. how: in what way, such as the value that lifted a limit. grace_s: a wait that is policy, within it."""

    reaction: Reaction
    round: int
    how: str
    seconds: float
    grace_s: float = 0.0


Row = SharingRow | ShareRow | RatioRow | SizeRow | NeedRow | CostRow | ClientsRow | PriorityRow | ReactionRow


@dataclass(frozen=True, slots=True)
class MachineRow:
    """Where it was measured. date: ISO 8601, UTC. simulated: the figures say nothing of a real GPU."""

    date: str
    mpsd: str
    gpu: str
    memory_mib: int
    sms: int
    driver: str
    cuda: str
    cores: int
    python: str
    simulated: bool


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One run. window_s: of each measurement. skipped: the part, and why. listed: nvidia-smi's table of processes
    while programs ran under mpsd; empty where it was not read."""

    version: int
    machine: MachineRow
    window_s: float
    skipped: tuple[tuple[BenchPart, str], ...] = ()
    sharing: tuple[SharingRow, ...] = ()
    shares: tuple[ShareRow, ...] = ()
    ratio: tuple[RatioRow, ...] = ()
    sizes: tuple[SizeRow, ...] = ()
    need: tuple[NeedRow, ...] = ()
    cost: tuple[CostRow, ...] = ()
    clients: tuple[ClientsRow, ...] = ()
    priority: tuple[PriorityRow, ...] = ()
    reactions: tuple[ReactionRow, ...] = ()
    torch: tuple[RatioRow, ...] = ()
    listed: str = ""


Named = tuple[str, Benchmark]  # the file it is from


def together(runs: Sequence[Named]) -> Benchmark:
    """Several runs as one: each part is of one run, and all are of one GPU and driver.

    runs: at least one; of several, the date is an interval. InvalidInput with every reason against it.
    """
    if problems := tuple(_problems(runs)):
        raise InvalidInput("mpsd bench --show", problems)
    benchmarks = [run for _file, run in runs]
    first = benchmarks[0]
    if len(runs) == 1:
        return first
    dates = sorted(run.machine.date for run in benchmarks)
    rows: dict[str, Any] = {
        part.value: next((found for run in benchmarks if (found := rows_of(run, part))), ()) for part in BenchPart
    }
    measured = {part for part in BenchPart if rows[part.value]}
    skipped = {part: why for run in benchmarks for part, why in run.skipped if part not in measured}
    return replace(
        first,
        machine=replace(first.machine, date=f"{dates[0]}/{dates[-1]}"),
        window_s=min(run.window_s for run in benchmarks),
        skipped=tuple(skipped.items()),
        listed=next((run.listed for run in benchmarks if run.listed), ""),
        **rows,
    )


def rows_of(benchmark: Benchmark, part: BenchPart) -> tuple[object, ...]:
    """What was measured of a part; each has its field."""
    found: tuple[object, ...] = getattr(benchmark, part.value)
    return found


def _problems(runs: Sequence[Named]) -> Iterator[Problem]:
    first_file, first = runs[0]
    for file, run in runs[1:]:
        for field in ("gpu", "driver", "simulated"):
            found, wanted = getattr(run.machine, field), getattr(first.machine, field)
            if found != wanted:
                message = f"is not {shown(wanted)}, as in {first_file}"
                yield Problem(
                    "other-machine", f"{file}: machine.{field}", shown(found), message, "show them one by one"
                )
    for part in BenchPart:
        files = [file for file, run in runs if rows_of(run, part)]
        if len(files) > 1:
            message = f"is in {files[0]} too, and a part is shown of one run"
            yield Problem("part-twice", f"{files[1]}: {part.value}", "", message, "leave one of the files out")
