"""The status of a node: the shape of `GET /v1/node` and of `mpsd status -o json`.

Names and units here are an interface; fields are added, never renamed.
"""

import re
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mpsd.model.domain import State
from mpsd.model.events import PastEvent
from mpsd.model.node_view import Canary
from mpsd.model.violations import Response, ViolationKind


@dataclass(frozen=True, slots=True)
class SuspectStatus:
    """A pod that each of the last `faults` faults hit, since the first of these (seconds since
    1970). pod: its namespace and name; its uid alone where it is gone.
    """

    pod: str
    uid: str
    faults: int
    since: float


@dataclass(frozen=True, slots=True)
class HitStatus:
    """How many processes of a pod a fault hit. pod: as of a suspect; None for processes of no pod
    that is known. program: of these, the grant's id and the program; None where no grant is known.
    """

    pod: str | None
    processes: int
    program: str | None = None

    def __str__(self) -> str:
        return f"{self.pod or self.program or 'processes of no known pod'} ({self.processes})"


@dataclass(frozen=True, slots=True)
class CauseStatus:
    """A client whose end is a fault's likely cause. pod, uid: as of a suspect; None of a process in
    no pod that is known. program: its grant, if that is known, its pid and program. how: it ended,
    such as "killed by SIGKILL".
    """

    pod: str | None
    uid: str | None
    program: str
    how: str

    def __str__(self) -> str:
        return f"{self.pod or self.program}: {self.how}"


@dataclass(frozen=True, slots=True)
class FaultsStatus:
    """count: of this boot. last: seconds since 1970; None where there was none. suspects: who was
    hit by at least the last two; which of them caused them, if one did, cannot be determined. hit:
    by the last one. healed: when that was over; None while it is not. causes: clients that ended
    just before the last one; empty where none did.
    """

    count: int = 0
    last: float | None = None
    suspects: tuple[SuspectStatus, ...] = ()
    hit: tuple[HitStatus, ...] = ()
    healed: float | None = None
    causes: tuple[CauseStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """promised_*: what may be granted in all; None where an older agent does not report it.
    used_mib None: NVML could not say. unexplained_mib: in use of no process that is known, 0 below
    1 GiB. parent, mig_profile: of a MIG instance the UUID of its GPU, and NVIDIA's name of its
    size, such as `1g.10gb`; None of a whole GPU.
    """

    uuid: str
    label: str
    name: str
    domain: str | None
    memory_mib: int
    sms: int
    promised_mib: int
    granted_mib: int
    granted_percent: int
    used_mib: int | None
    clients: int | None
    promised_percent: int | None = None
    promised_clients: int | None = None
    unexplained_mib: int | None = None
    parent: str | None = None
    mig_profile: str | None = None


@dataclass(frozen=True, slots=True)
class DomainStatus:
    """since: seconds since 1970. restarts: since mpsd first ran in this boot. daemon_pid None:
    there is none. canary: None where it was not run. version: of its `mpsd control`; empty where an
    older one does not report it. kind: `alone`, `listed` by the policy, `joined` on demand, or an
    `instance` of MIG; empty as well.
    """

    name: str
    gpus: tuple[str, ...]
    state: State
    since: float
    reason: str
    restarts: int
    daemon_pid: int | None
    servers: tuple[int, ...]
    faults: FaultsStatus = field(default_factory=FaultsStatus)
    canary: Canary | None = None
    version: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """A process on a GPU. on_mps False: it runs beside MPS. grant None: it has none."""

    pid: int
    gpu: str
    used_mib: int | None
    on_mps: bool
    grant: str | None
    command: str


@dataclass(frozen=True, slots=True)
class CardStatus:
    """A grant's part of one GPU (a UUID). used_mib None: NVML could not say."""

    gpu: str
    memory_mib: int
    reserved_percent: int
    used_mib: int | None
    over: bool


@dataclass(frozen=True, slots=True)
class GrantStatus:
    """used_mib: the most that its clients together use on one of its GPUs; None: NVML could not
    say, as of a MIG instance that was removed, of which clients is None too. holder_pid None: a pod
    holds it, the one that namespace and pod name; else those are None. container: the id of the
    container without Kubernetes that holds it, else None; its pid is that of its first process.
    over: it uses more than it may of one of its GPUs, the policy's tolerance included. cards: GPU
    by GPU; empty where an older agent does not report it, and memory_mib is the most of them.
    cgroup: the one that mpsd made for a program; empty where there is none, so that its processes
    are known by MPSD_GRANT and by descent alone; None of a pod or a container. claim: the resource
    claim that it is of, namespace and name, whose uid is the id; None where it is of none.
    shared_with: the pods that hold the claim beside this one, namespace and name. priority: of its
    clients, 0 or 1, which is below normal. memory_cap: `cgroup` where memory limits of its cgroups
    are in force, else `mps`; empty where an older agent does not report it. memory_cap_why: why
    they are not, where that is known.
    """

    id: str
    gpus: tuple[str, ...]
    memory_mib: int
    thread_percent: int
    used_mib: int | None
    clients: int | None
    holder_pid: int | None
    holder_alive: bool
    command: str
    namespace: str | None = None
    pod: str | None = None
    over: bool = False
    cards: tuple[CardStatus, ...] = ()
    container: str | None = None
    container_name: str | None = None
    cgroup: str | None = None
    claim: str | None = None
    shared_with: tuple[str, ...] = ()
    priority: int = 0
    memory_cap: str = ""
    memory_cap_why: str = ""


@dataclass(frozen=True, slots=True)
class ViolationStatus:
    """A process that took more than it was given. at: seconds since 1970. action: what the policy
    has done about it. gpu: its UUID. namespace, pod: None where it is in no pod that is known.
    outcome: how it ended; empty where it was not to end, or is about to.
    """

    at: float
    kind: ViolationKind
    action: Response
    gpu: str
    pid: int
    command: str
    grant: str | None
    namespace: str | None
    pod: str | None
    message: str
    outcome: str


@dataclass(frozen=True, slots=True)
class ViolationCount:
    """ended: how many of these are known to have been ended; None where that is not reported."""

    kind: ViolationKind
    action: Response
    count: int
    ended: int | None = None


@dataclass(frozen=True, slots=True)
class ViolationsStatus:
    """What the watchdog has seen since it began, which is when this agent did (since: seconds since
    1970). looks: how often it looked. longest_pause_s: between two of them. late_looks: those after
    a pause of more than a quarter of a second, where the machine had no processor for it. nvml_s:
    processor time that this agent has spent in NVML. counts: of every kind and action that has
    happened. last: the last ones, the newest last. unjudged: why no process is judged now; empty
    while all are.
    """

    since: float
    looks: int
    longest_pause_s: float
    late_looks: int
    nvml_s: float
    counts: tuple[ViolationCount, ...]
    last: tuple[ViolationStatus, ...]
    unjudged: str


@dataclass(frozen=True, slots=True)
class WaitingStatus:
    """reason: why it has no answer yet, in plain words; empty where an older agent does not report
    it."""

    id: str
    memory_mib: int
    thread_percent: int | None
    gpus: int
    holder_pid: int
    command: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """violations: None where there is no watchdog. grants_known: whether `grants` are all of them.
    version: of the agent's mpsd. limits_directory: where it reads the limits files. Both empty
    where an older agent does not report it. daemon_ends: the last 10 ends of control daemons since
    the agent started, with who lost GPU processes. claim_driver: the name under which resource
    claims are served here; empty where they are not. claims_trouble: why they cannot be now; empty
    while they can.
    """

    now: float
    driver: str
    gpus: tuple[GpuStatus, ...]
    domains: tuple[DomainStatus, ...]
    grants: tuple[GrantStatus, ...]
    clients: tuple[ClientStatus, ...] | None
    waiting: tuple[WaitingStatus, ...]
    unknown: tuple[str, ...]
    violations: ViolationsStatus | None = None
    grants_known: bool = True
    version: str = ""
    limits_directory: str = ""
    daemon_ends: tuple[PastEvent, ...] = ()
    claim_driver: str = ""
    claims_trouble: str = ""


# -- without arguments ---------------------------------------------------------------------------

Started = TypeVar("Started", ClientStatus, GrantStatus, WaitingStatus, ViolationStatus)
_PROGRAM = re.compile(r"[\w.:/+@~-]{1,200}")


def program_of(command: str) -> str:
    """A command without its arguments, any of which may be a tenant's secret."""
    program, _space, arguments = command.strip().partition(" ")
    if program and ("://" in program or not _PROGRAM.fullmatch(program)):
        program = "[redacted]"
    return f"{program} [arguments redacted]" if arguments else program


def without_arguments(status: NodeStatus) -> NodeStatus:
    """For those who may see who uses what, and not what programs were started with: commands cut to
    their programs."""
    violations = status.violations
    if violations:
        seen = violations.last
        last = [
            replace(one, message=one.message.replace(one.command, program_of(one.command)))
            for one in seen
        ]
        violations = replace(violations, last=_bare(tuple(last)))
    return replace(
        status,
        clients=None if status.clients is None else _bare(status.clients),
        grants=_bare(status.grants),
        waiting=_bare(status.waiting),
        violations=violations,
    )


def _bare(entries: tuple[Started, ...]) -> tuple[Started, ...]:
    return tuple(replace(one, command=program_of(one.command)) for one in entries)
