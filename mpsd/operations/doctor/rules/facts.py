"""What `mpsd doctor` saw of a node: a frozen picture, without a judgement.

One rule: what could not be read is Unknown, with why; what there is none of here is Elsewhere. Neither is ever a value.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Generic, TypeAlias, TypeVar

from mpsd.containers.engines.change import Engine
from mpsd.model.node_status import NodeStatus
from mpsd.model.node_view import DomainRecord
from mpsd.model.policy import Policy


@dataclass(frozen=True, slots=True)
class Unknown:
    """why: the reason that it could not be read, as the end of a sentence."""

    why: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """There is no such thing here. why: as the end of a sentence."""

    why: str


Value = TypeVar("Value")
Fact: TypeAlias = Value | Unknown | Elsewhere


class NotKnown(Exception):
    """A check cannot be made."""

    def __init__(self, fact: Unknown | Elsewhere) -> None:
        super().__init__(fact.why)
        self.fact = fact


def known(fact: Fact[Value]) -> Value:
    """The value. NotKnown where there is none."""
    if isinstance(fact, Unknown | Elsewhere):
        raise NotKnown(fact)
    return fact


@dataclass(frozen=True, slots=True)
class LimitsSeen:
    """wrong: every fault in both files. capabilities: those that gpus.yaml lists."""

    folder: str
    wrong: tuple[str, ...]
    capabilities: Fact[tuple[str, ...]]
    policy: Fact[Policy]


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """uuid: empty where NVML does not even say that, and `lost` says why. compute_mode: NVML's number."""

    ordinal: int
    uuid: str
    name: str
    lost: str
    capability: Fact[str]
    mig: Fact[bool]
    compute_mode: Fact[int]

    def __str__(self) -> str:
        return f"gpu{self.ordinal} ({self.name})" if self.name else f"gpu{self.ordinal}"


@dataclass(frozen=True, slots=True)
class RunDirectorySeen:
    """is_there False: the rest says nothing. wanted_owner: the uid of whoever runs mpsd there, or would.

    unwritable: why it takes no files; empty where it does. is_system: it is /run/mpsd. filesystem: its kind.
    """

    path: str
    is_there: bool
    owner: int
    wanted_owner: int
    unwritable: str
    is_system: bool
    filesystem: Fact[str]


@dataclass(frozen=True, slots=True)
class DomainSeen:
    """A domain's record of this boot, and whether the daemon that it names lives."""

    record: DomainRecord
    daemon_lives: bool


@dataclass(frozen=True, slots=True)
class DaemonSeen:
    """A process `nvidia-cuda-mps-control` that serves.

    pipe: its pipe directory; empty where that is not known. pipe_is_there: whether that has a socket for commands.
    """

    pid: int
    command: str
    pipe: str
    pipe_is_there: bool = True


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """told: None where nobody answers. why_not: with the remedy; empty where somebody does."""

    told: NodeStatus | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """text: its configuration; None where there is no such file."""

    engine: Engine
    file: str
    text: Fact[str | None]


@dataclass(frozen=True, slots=True)
class LauncherSeen:
    """is_there False: the rest says nothing. missing: of the files that it starts, those that are not there.

    next_runtimes: in its order; next_found: the first of them that is there, empty for none. text: what it says,
    Unknown where it is none that this version writes.
    """

    path: str
    is_there: bool
    missing: Fact[tuple[str, ...]]
    next_runtimes: tuple[str, ...] = ()
    next_found: str = ""


@dataclass(frozen=True, slots=True)
class KubeletSeen:
    """device_plugins: whether the folder is there in which device plugins register."""

    directory: str
    device_plugins: bool


@dataclass(frozen=True, slots=True)
class SelinuxSeen:
    """types: by folder of the clients, the type of its label, with its level where that is one container's; empty for
    none.
    """

    enforcing: bool
    types: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """nvml: why it does not answer; empty while it does. holder: the pid of `mpsd up` or `mpsd control`, None for none.

    unreadable: of the records of domains, why they cannot be read. uvm: whether /dev/nvidia-uvm is there. default_pipe:
    whether /tmp/nvidia-mps is. toolkit: whether nvidia-container-runtime is installed. ours: the version of this
    program.
    """

    limits: Fact[LimitsSeen]
    nvml: Fact[str]
    driver: Fact[str]
    gpus: Fact[tuple[GpuSeen, ...]]
    control_program: Fact[bool]
    run_directory: Fact[RunDirectorySeen]
    holder: Fact[int | None]
    domains: Fact[tuple[DomainSeen, ...]]
    unreadable: Fact[tuple[str, ...]]
    daemons: Fact[tuple[DaemonSeen, ...]]
    agent: Fact[AgentSeen]
    uvm: Fact[bool]
    default_pipe: Fact[bool]
    selinux: Fact[SelinuxSeen]
    engines: Fact[tuple[EngineSeen, ...]]
    launcher: Fact[LauncherSeen]
    toolkit: Fact[bool]
    kubelet: Fact[KubeletSeen]
    ours: Fact[str]


# What is wrong with a node, or a cluster: every check made on what was seen of it, what stops most first.
#
# One rule: a check that cannot be made is said to be unknown, never to be well.

Thing = TypeVar("Thing")
Facts = TypeVar("Facts")


class Severity(IntEnum):
    """The lower, the worse."""

    STOPS = 0
    BREAKS = 1
    NOTE = 2

    def __str__(self) -> str:
        return _WORDS[self]


_WORDS = {
    Severity.STOPS: "keeps programs from starting on MPS",
    Severity.BREAKS: "keeps MPS from holding",
    Severity.NOTE: "worth knowing",
}


@dataclass(frozen=True, slots=True)
class Wrong:
    """what: the object and what is wrong with it. remedy: the one thing to do. Neither ends with a full stop."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Check(Generic[Facts]):
    """One row. well: what is so where nothing is wrong. looks_at: fields of the facts. how: how those were found."""

    id: str
    severity: Severity
    well: str
    looks_at: tuple[str, ...]
    how: str
    find: Callable[[Facts], Iterator[Wrong]]


class CheckVerdict(StrEnum):
    FOUND = "found"
    UNKNOWN = "unknown"
    WELL = "well"
    ELSEWHERE = "does not apply"


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What came of a check. why: it could not be made, or does not apply; empty where it was made as a whole."""

    check: Check[Any]
    verdict: CheckVerdict
    wrong: tuple[Wrong, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """outcomes: in the order in which they are to be read."""

    outcomes: tuple[CheckOutcome, ...]

    def of(self, verdict: CheckVerdict) -> tuple[CheckOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.verdict is verdict)

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong as far as that can be known, and all of it can."""
        return not self.of(CheckVerdict.FOUND) and not self.of(CheckVerdict.UNKNOWN)

    @property
    def headline(self) -> str:
        """The worst, with its remedy, in one line."""
        for outcome in self.of(CheckVerdict.FOUND):
            return str(outcome.wrong[0])
        unknown = self.of(CheckVerdict.UNKNOWN)
        made = sum(outcome.verdict is not CheckVerdict.ELSEWHERE for outcome in self.outcomes)
        if unknown:
            more = f", and {len(unknown) - 1} more checks" if len(unknown) > 1 else ""
            return f"nothing wrong was found, but not known is whether {unknown[0].check.well}: {unknown[0].why}{more}"
        return f"all is well: {made} checks"


def diagnose(facts: Facts, checks: Sequence[Check[Facts]]) -> Diagnosis:
    """Found before unknown before well; of those found the worst first, and what causes others before these.

    checks: causes stand before what follows from them.
    """
    outcomes = [_outcome(check, facts) for check in checks]
    rank = {verdict: place for place, verdict in enumerate(CheckVerdict)}
    place = {check.id: number for number, check in enumerate(checks)}
    return Diagnosis(
        tuple(sorted(outcomes, key=lambda one: (rank[one.verdict], one.check.severity, place[one.check.id])))
    )


def _outcome(check: Check[Facts], facts: Facts) -> CheckOutcome:
    wrong: list[Wrong] = []
    try:
        for one in check.find(facts):
            wrong.append(one)  # noqa: PERF402 - those before what is not known are kept
        if not wrong:
            for _fact in each(check.looks_at, lambda name: getattr(facts, name)):
                pass  # nothing was found in what was seen: that is well only where all of it was
    except NotKnown as error:
        if wrong:
            return CheckOutcome(check, CheckVerdict.FOUND, tuple(wrong), str(error))
        verdict = CheckVerdict.ELSEWHERE if isinstance(error.fact, Elsewhere) else CheckVerdict.UNKNOWN
        return CheckOutcome(check, verdict, why=str(error))
    return CheckOutcome(check, CheckVerdict.FOUND if wrong else CheckVerdict.WELL, tuple(wrong))


def each(things: Iterable[Thing], fact: Callable[[Thing], Fact[Value]]) -> Iterator[tuple[Thing, Value]]:
    """Every thing of which this is known, with it; then NotKnown where it is not of another."""
    missing: Unknown | Elsewhere | None = None
    for thing in things:
        value = fact(thing)
        if isinstance(value, Unknown | Elsewhere):
            missing = value if missing is None or isinstance(value, Unknown) else missing
        else:
            yield thing, value
    if missing:
        raise NotKnown(missing)
