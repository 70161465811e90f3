"""What is reported of a node: `GET /v1/node`, and with fields left out MPSNode.status.

Names and units are an interface: in JSON `memory_mib` is `memoryMiB`, and a time is RFC 3339 in
UTC. What is absent is not known or not reported, and never zero; an empty text or list says that
there is nothing. `model.mpsnode` reads what others wrote.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import msgspec

from mpsd.model.events import PastEvent
from mpsd.model.fields import Part
from mpsd.model.names import CONDITION
from mpsd.model.problem import shortened
from mpsd.model.times import Instant, epoch

LARGEST = 2**63 - 1  # an int64, as the definition of MPSNode has it
MOST_ENTRIES = 1024  # of a list that is read at once; a longer one is read entry by entry

Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Amount = Count | None
Time = Annotated[Instant, msgspec.Meta(tz=True)] | None  # in JSON: RFC 3339, with a time zone
Few = msgspec.Meta(max_length=MOST_ENTRIES)


def json_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(["MiB" if word == "mib" else word.title() for word in rest])


class ReportPart(Part, frozen=True, omit_defaults=True, rename=json_name, gc=False):
    pass


class PodReport(ReportPart, frozen=True):
    #: Namespace and name, or its uid alone where it is gone; empty for no known pod.
    pod: str = ""
    uid: str = ""

    @property
    def namespace(self) -> str:
        return self.pod.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.pod.rpartition("/")[2]


class SuspectReport(PodReport, frozen=True):
    """A pod that each of the last `faults` faults hit."""

    faults: Amount = None
    #: The first of these.
    since: Time = None


class HitReport(PodReport, frozen=True):
    """A pod, or a program beside Kubernetes, that a fault hit."""

    processes: Amount = None
    #: Its grant and program, where it is in no pod and its grant is known.
    program: str = ""

    def __str__(self) -> str:
        return f"{self.pod or self.program or 'processes of no known pod'} ({self.processes})"


class CauseReport(PodReport, frozen=True):
    """A client whose end is a fault's likely cause."""

    #: Its grant, where that is known, its pid and program.
    program: str = ""
    #: Such as `killed by SIGKILL`.
    how: str = ""

    def __str__(self) -> str:
        return f"{self.pod or self.program}: {self.how}"


class FaultsReport(ReportPart, frozen=True):
    """Of a domain in this boot; hit, healed and causes are of the last one."""

    count: Count = 0
    last: Time = None
    #: Whom at least the last two hit; which of them caused them, if one did, cannot be determined.
    suspects: Annotated[tuple[SuspectReport, ...], Few] = ()
    hit: Annotated[tuple[HitReport, ...], Few] = ()
    #: Absent while it is not over.
    healed: Time = None
    causes: Annotated[tuple[CauseReport, ...], Few] = ()


NO_FAULTS = FaultsReport()


class CanaryReport(ReportPart, frozen=True):
    """What a CUDA client of mpsd observed under known limits."""

    at: Time = None
    driver: str = ""
    #: What a context costs on so many SMs.
    context_mib: Amount = None
    sms: Amount = None
    #: Why this driver does not enforce limits.
    problem: str = ""
    #: What is not as limits/gpus.yaml has it.
    warning: str = ""


class XidCount(ReportPart, frozen=True):
    xid: Amount = None
    #: Since the node started.
    count: Amount = None


class GpuReport(ReportPart, frozen=True):
    """A GPU, or a MIG instance. promised: what may be granted in all."""

    uuid: str = ""
    #: Such as `gpu0`, or `gpu0-mig7`.
    label: str = ""
    model: str = ""
    #: Empty where no control daemon holds it.
    domain: str = ""
    memory_mib: Amount = None
    sms: Amount = None
    promised_mib: Amount = None
    promised_percent: Amount = None
    promised_clients: Amount = None
    granted_mib: Amount = None
    granted_percent: Amount = None
    used_mib: Amount = None
    clients: Amount = None
    #: Why it is not known which processes use it, nor how much; empty where it is.
    unseen: str = ""
    #: In use of no process that is known; 0 below 1 GiB.
    unexplained_mib: Amount = None
    #: Why it takes no new program; empty where it is well.
    sick: str = ""
    #: A value of model.gpu_health.HealthCause, or one of a newer agent.
    sick_cause: str = ""
    xids: tuple[XidCount, ...] = ()
    #: How much of the time any kernel runs there; this and what follows only in `GET /v1/use`.
    sm_percent: Amount = None
    #: What may still be granted, where all grants are known.
    free_mib: Amount = None
    free_percent: Amount = None
    #: cGPU's policy by its number, its max_inst and what is left of that, if there is one.
    compute_policy: Amount = None
    max_inst: Amount = None
    free_weight: Amount = None
    #: Of a MIG instance the UUID of its GPU, and its size, such as `1g.10gb`.
    parent: str = ""
    mig_profile: str = ""


class DomainReport(ReportPart, frozen=True):
    """A control daemon and its GPUs (UUIDs)."""

    name: str = ""
    gpus: Annotated[tuple[str, ...], Few] = ()
    #: A value of model.domain.State, or one of a newer agent.
    state: str = "unknown"
    since: Time = None
    reason: str = ""
    #: Since the node started.
    restarts: Amount = None
    daemon_pid: Amount = None
    servers: tuple[int, ...] = ()
    faults: FaultsReport = NO_FAULTS
    #: Absent where it was not run.
    canary: CanaryReport | None = None
    #: Of its `mpsd control`.
    version: str = ""
    #: A value of model.domain.DomainKind.
    kind: str = ""
    #: No container may start there, for the reason.
    unwatched: bool = False

    @property
    def context_mib(self) -> int | None:
        return self.canary.context_mib if self.canary else None

    @property
    def doubt(self) -> str:
        """What its canary found."""
        return (self.canary.problem or self.canary.warning) if self.canary else ""


class CardReport(ReportPart, frozen=True):
    """A grant's part of one GPU (a UUID)."""

    gpu: str = ""
    memory_mib: Amount = None
    reserved_percent: Amount = None
    used_mib: Amount = None
    #: It uses more than it may, the policy's tolerance included.
    over: bool = False
    #: How much of the time its kernels run, where NVML could tell; only in `GET /v1/use`.
    sm_percent: Amount = None
    #: Absent where it was not asked for in cGPU's words.
    weight: Amount = None


class ViolationCount(ReportPart, frozen=True):
    kind: str = ""
    #: What the policy has done; empty for all together.
    action: str = ""
    count: Amount = None
    #: How many of these are known to have been ended.
    ended: Amount = None


class ViolationReport(ReportPart, frozen=True):
    """A process that took more than it was given."""

    at: Time = None
    #: A value of model.violations.ViolationKind, or one of a newer agent.
    kind: str = ""
    #: A value of model.violations.Response.
    action: str = ""
    gpu: str = ""
    pid: Amount = None
    command: str = ""
    #: Absent where it has none.
    grant: str | None = None
    #: Namespace and name; empty where none is known, and in an MPSNode for the only pod of a grant.
    pod: str = ""
    message: str = ""
    #: How it ended; empty where it was not to end, or is about to.
    outcome: str = ""


class GrantViolations(ReportPart, frozen=True):
    counts: Annotated[tuple[ViolationCount, ...], Few] = ()
    last: ViolationReport | None = None


NO_VIOLATIONS = GrantViolations()


class ViolationsReport(ReportPart, frozen=True):
    """What the watchdog has seen since it began, of pods that are gone too."""

    since: Time = None
    looks: Amount = None
    #: Between two looks.
    longest_pause_s: float | None = None
    #: After a pause of more than 0.25 s, where the machine had no processor for it.
    late_looks: Amount = None
    #: Processor time of the agent in NVML.
    nvml_s: float | None = None
    counts: Annotated[tuple[ViolationCount, ...], Few] = ()
    #: The newest last.
    last: Annotated[tuple[ViolationReport, ...], Few] = ()
    #: In an MPSNode: how many grants have violations; it does not list all.
    pods: Amount = None
    #: Why no process is judged now; empty while all are.
    unjudged: str = ""


class GrantReport(PodReport, frozen=True):
    """What a pod, a container or a program got, or a resource claim, of which `pod` is the first
    pod."""

    #: The uid of its claim, else of its pod; of a program one that mpsd gave it.
    id: str = ""
    gpus: Annotated[tuple[str, ...], Few] = ()
    #: The most of one of its GPUs.
    memory_mib: Amount = None
    thread_percent: Amount = None
    reserved_percent: Amount = None
    #: The most that its clients together use on one of its GPUs.
    used_mib: Amount = None
    clients: Amount = None
    cards: tuple[CardReport, ...] = ()
    #: It uses more than it may of one of its GPUs.
    over: bool = False
    #: Of a program or a container's first process; absent of a pod.
    holder_pid: Amount = None
    #: Its holder is gone, though not all of its processes.
    ended: bool = False
    command: str = ""
    #: Id and name of the container without Kubernetes that holds it.
    container: str = ""
    container_name: str = ""
    #: Of a program; empty where it has none, so that its processes are known by MPSD_GRANT and by
    #: descent alone.
    cgroup: str | None = None
    #: The resource claim that it is of, namespace and name.
    claim: str = ""
    #: The pods that hold the claim beside `pod`.
    shared_with: Annotated[tuple[PodReport, ...], Few] = ()
    #: Of its clients, 0 or 1, which is below normal.
    priority: Count = 0
    #: `cgroup` where memory limits of its cgroups are in force, else `mps`.
    memory_cap: str = ""
    #: Why they are not, where that is known.
    memory_cap_why: str = ""
    violations: GrantViolations | None = None

    @property
    def pods(self) -> tuple[PodReport, ...]:
        """Its pod, and those that share its claim."""
        return (PodReport(self.pod, self.uid), *self.shared_with)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.pod, *[one.pod for one in self.shared_with])

    @property
    def pods_in_words(self) -> str:
        """Such as `default/train-0 and 2 more`; empty where it is in none."""
        return shortened(self.names, 1)

    @property
    def container_in_words(self) -> str:
        return self.container_name or self.container[:12]


class ClientReport(ReportPart, frozen=True):
    """A process on a GPU, by MPS or beside it."""

    pid: Amount = None
    gpu: str = ""
    used_mib: Amount = None
    on_mps: bool = False
    #: Absent where it has none.
    grant: str | None = None
    command: str = ""


class WaitingReport(ReportPart, frozen=True):
    """A program that waits for a grant."""

    id: str = ""
    memory_mib: Amount = None
    gpus: Amount = None
    holder_pid: Amount = None
    thread_percent: Amount = None
    command: str = ""
    #: Why it has no answer yet.
    reason: str = ""


class ConditionReport(ReportPart, frozen=True):
    type: str = ""
    status: str = ""
    last_transition_time: Time = None
    reason: str = ""
    message: str = ""


class Summary(ReportPart, frozen=True):
    """The columns of `kubectl get mps`."""

    gpus: str = ""
    domains: str = ""
    granted: str = ""
    used: str = ""
    clients: str = ""
    pods: Amount = None
    violations: Amount = None


class NodeStatus(ReportPart, frozen=True):
    driver: str = ""
    #: Of the agent's mpsd.
    version: str = ""
    gpus: Annotated[tuple[GpuReport, ...], Few] = ()
    domains: Annotated[tuple[DomainReport, ...], Few] = ()
    #: Absent where there is no watchdog, or where they are not reported.
    violations: ViolationsReport | None = None
    conditions: Annotated[tuple[ConditionReport, ...], Few] = ()

    @property
    def condition(self) -> ConditionReport | None:
        """MPSReady, if it is reported."""
        return next((one for one in self.conditions if one.type == CONDITION), None)

    @property
    def labels(self) -> dict[str, str]:
        """Of the GPUs, by UUID."""
        return {gpu.uuid: gpu.label for gpu in self.gpus}


class NodeReport(NodeStatus, frozen=True):
    """A node as its agent sees it."""

    reported_at: Time = None
    #: Of an MPSNode.
    summary: Summary | None = None
    #: Absent where they are not known; in an MPSNode those of pods, if they are all of them.
    grants: Annotated[tuple[GrantReport, ...], Few] | None = None
    #: Whether `grants` are all of them.
    grants_known: bool = True
    #: Of all GPUs but those that have `unseen`; absent in an MPSNode.
    clients: tuple[ClientReport, ...] | None = None
    waiting: tuple[WaitingReport, ...] = ()
    #: What could not be seen, and why.
    unknown: tuple[str, ...] = ()
    #: Where the agent reads the limits files.
    limits_directory: str = ""
    #: The last 10 since the agent started, with who lost GPU processes.
    daemon_ends: tuple[PastEvent, ...] = ()
    #: The name under which resource claims are served here.
    claim_driver: str = ""
    #: Why they cannot be served now.
    claims_trouble: str = ""

    @property
    def now(self) -> float:
        """Of a report of this machine, in seconds since 1970."""
        return epoch(self.reported_at) or 0.0


class SeenViolations(NamedTuple):
    node: ViolationsReport
    #: By the ids of those in force; the one that had a violation last is last.
    grants: Mapping[str, GrantViolations]


def total(amounts: Iterable[int | None]) -> int | None:
    """The sum; None as soon as one is not known."""
    found = [*amounts]
    return None if None in found else sum(filter(None, found))


def by_kind(counts: Iterable[ViolationCount]) -> dict[str, int | None]:
    """How often each kind was seen, whatever was done about it."""
    found: dict[str, int | None] = {}
    for one in counts:
        found[one.kind] = total([found.get(one.kind, 0), one.count])
    return found
