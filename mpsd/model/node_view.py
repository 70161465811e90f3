"""A frozen picture of one node: everything that a decision may rest on.

What could not be seen is None or named in `unknown`, never zero.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from mpsd.model.domain import ON_DEMAND, State
from mpsd.model.grants import CardsRequest, Gpu, Grant, Request
from mpsd.model.identity import HostContainer, PodName, ProcessIdentity

RECORD_VERSION = 1


class Queue(StrEnum):
    """Whether all that a killed client had queued had run, by its MPS servers' use; worst last."""

    #: the servers had nothing to do
    DRY = "dry"
    #: there are too few samples, as of MIG instances or without a wait, or it ended by itself
    UNKNOWN = "unknown"
    #: its time was up, and a server was in use, by this client or by another
    IN_USE = "in_use"


@dataclass(frozen=True, slots=True)
class EndRecord:
    """An end that is under way, as it is kept on the node: what makes a stopped process mpsd's to
    kill."""

    process: ProcessIdentity
    #: UUIDs of the GPUs whose MPS servers run what it has queued
    gpus: tuple[str, ...]
    #: why it ends, in words
    reason: str
    #: for how long its queue may run after a stop
    drain_s: float
    #: when it is killed in any case, in seconds of CLOCK_BOOTTIME
    deadline_s: float
    #: how often it was stopped for good, which is more than once where somebody continued it
    stops: int = 0
    #: whether it was seen stopped since the last of them
    is_held: bool = False
    #: whether it gets SIGKILL now; the record is kept a little longer, to tell whose end this was
    is_killed: bool = False


@dataclass(frozen=True, slots=True)
class FaultHit:
    """A process that a fault tore down. pod: the uid in its pod's cgroup; None where it is in no
    pod that is known. ended_at: when mpsd ended it, for it lingered; None where it did not."""

    process: ProcessIdentity
    command: str
    pod: str | None
    ended_at: float | None = None
    #: the id of its program's grant on a machine of its own; None where none is known
    grant: str | None = None


@dataclass(frozen=True, slots=True)
class FaultCause:
    """A client that ended just before a fault, and not by it. pod, grant: as of a FaultHit."""

    process: ProcessIdentity
    command: str
    pod: str | None
    #: such as "killed by SIGKILL", "ended by mpsd (pod deleted)", "exit code 1", or "ended" where
    #: nobody says
    how: str
    grant: str | None = None


class ContainerEnd(NamedTuple):
    """The end of a pod's container, as the API has it."""

    #: such as OOMKilled; the pod's, such as Evicted, where the container was killed with it
    reason: str
    #: seconds since 1970, without fractions
    at: float


ContainerEnds = Mapping[str, tuple[ContainerEnd, ...]]  # by the API's uid of their pod
Reasons = Mapping[ProcessIdentity, str]  # why it ended, where Kubernetes alone says it


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a GPU: when it was seen (seconds since 1970), and every process that lost its
    context by it. Which of these caused it, if one did, cannot be determined (docs/mps-observed.md,
    section 6). unidentified: the pids of those that were gone before it was seen who they were.
    healed_at: None while its server accepts no client. causes: the clients whose end is its likely
    cause; empty where there are none, None while that is not settled."""

    at: float
    hit: tuple[FaultHit, ...]
    unidentified: tuple[int, ...] = ()
    healed_at: float | None = None
    causes: tuple[FaultCause, ...] | None = ()

    @property
    def pids(self) -> frozenset[int]:
        return frozenset({hit.process.pid for hit in self.hit} | set(self.unidentified))

    @property
    def pods(self) -> frozenset[str]:
        """Their uids, as far as they are known."""
        return frozenset(hit.pod for hit in self.hit if hit.pod is not None)


@dataclass(frozen=True, slots=True)
class Canary:
    """What a CUDA client of our own found under known limits. problem: why this driver cannot be
    relied on, or empty. boot_id, driver: what it holds for. context_mib: measured with sms SMs;
    None where there was no context. warning: what is not as limits/gpus.yaml has it, or empty.
    memory_cap: CAP_HOLDS where a memory limit of its cgroup held a client, why it did not, or empty
    where that was not tried."""

    boot_id: str
    driver: str
    at: float
    problem: str
    context_mib: int | None
    sms: int | None
    warning: str = ""
    memory_cap: str = ""


CAP_HOLDS = "holds"


@dataclass(frozen=True, slots=True)
class DomainRecord:
    """What `mpsd control` keeps in record.json about one domain, and everyone else reads.

    daemon: None while there is none. since: seconds since 1970 when this state began. restarts: in
    a row, without a time of stability between. restarts_total: since mpsd first ran in this boot.
    compute_modes: what the GPUs were set to before mpsd, by UUID; `mps.compute_modes` goes by files
    of its own. served: whether it has ever been ready in this boot. faults: the last ones of this
    boot, the newest last. canary: None before it has run. boot_id: of the boot that all of it is
    about. written_by: the version of the `mpsd control` that keeps it. kind: a `DomainKind`.
    held_until: seconds since 1970 until which no new client is let in, since mpsd first makes a
    context of its own there; 0 where none is made."""

    version: int
    domain: str
    gpus: tuple[str, ...]
    state: State
    since: float
    reason: str
    daemon: ProcessIdentity | None
    servers: tuple[int, ...]
    restarts: int
    restarts_total: int
    started_at: float
    compute_modes: dict[str, int]
    served: bool = False
    faults: tuple[Fault, ...] = ()
    canary: Canary | None = None
    boot_id: str = ""
    faults_total: int = 0
    written_by: str = ""
    kind: str = ""
    held_until: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerLimit:
    """A memory limit that was set and read back. server None: the default for servers to come."""

    server: int | None
    ordinal: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class DomainView:
    """One domain as it was seen. limits: those confirmed since the daemon's and the server's
    start."""

    record: DomainRecord
    limits: frozenset[ServerLimit]

    @property
    def name(self) -> str:
        return self.record.domain

    @property
    def state(self) -> State:
        return self.record.state

    @property
    def allowed_mib(self) -> int:
        """The largest client that every server, now and to come, is known to accept; 0 while one is
        not known to."""
        confirmed = {(limit.server, limit.ordinal): limit.memory_mib for limit in self.limits}
        servers = (None, *self.record.servers)
        gpus = self.record.gpus
        return min(
            confirmed.get((server, ordinal), 0)
            for server in servers
            for ordinal in range(len(gpus))
        )


@dataclass(frozen=True, slots=True)
class Client:
    """A process that holds memory of a GPU. on_mps False: it runs beside MPS. grant: the id of its
    grant, or None. used_mib: with its managed memory; None: NVML knows the process and not its
    memory. pod: the uid in the cgroup of its pod, or the grant of the container without Kubernetes
    that it is in; None where it is in neither that anybody can tell. environment: of what it was
    started with, the variables that MPS reads; None where that cannot be read. only_draws: it uses
    the GPU through a graphics interface alone, which MPS has no part in. reserved_kib: of its
    context (model.gpu_facts); 0 where nobody asked, or there is none yet."""

    process: ProcessIdentity
    gpu: str
    used_mib: int | None
    on_mps: bool
    command: str
    grant: str | None
    pod: str | None = None
    environment: Mapping[str, str] | None = None
    only_draws: bool = False
    reserved_kib: int = 0

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that has no answer yet. deadline None: it wants an answer now."""

    id: str
    request: Request | CardsRequest
    holder: ProcessIdentity | HostContainer
    holder_alive: bool
    command: str
    deadline: float | None


@dataclass(frozen=True, slots=True)
class HeldGrant:
    """A grant and whether the process it was given to still lives. others_alive: where that has
    ended, whether other processes are in the cgroup that mpsd made for it. cgroup: that one; empty
    where it has none; None of no program."""

    grant: Grant
    holder_alive: bool
    others_alive: bool = False
    cgroup: str | None = None


@dataclass(frozen=True, slots=True)
class UnreadableGrant:
    """A grant whose record, this file, cannot be read, so that nobody knows what it holds. domain:
    whose GPUs it may be on; None where that is unknown too."""

    id: str
    file: str
    reason: str
    domain: str | None = None

    def gpus(
        self, domains: Mapping[str, tuple[str, ...]], everywhere: Iterable[str]
    ) -> tuple[str, ...]:
        """The UUIDs of the GPUs that it may be on: of its domain, else of the node."""
        return domains.get(self.domain or "") or tuple(everywhere)


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What a ledger knows. unknown: why it may be incomplete, empty where it is complete. holders:
    the grant of each living program, by pid. pods: the grant of each pod or container that holds
    one, by its name in `Whereabouts`. ungranted: each pod that is known to hold no grant, by the
    uid in its cgroups. unreadable: grants that are not among `held`, because their records cannot
    be read. ends: of containers."""

    held: tuple[HeldGrant, ...] = ()
    unknown: tuple[str, ...] = ()
    holders: Mapping[int, str] = field(default_factory=dict)
    pods: Mapping[str, str] = field(default_factory=dict)
    ungranted: Mapping[str, PodName] = field(default_factory=dict)
    unreadable: tuple[UnreadableGrant, ...] = ()
    ends: ContainerEnds = field(default_factory=dict)

    @property
    def gpus(self) -> frozenset[str]:
        """The GPUs of all grants."""
        return frozenset(uuid for held in self.held for uuid in held.grant.gpus)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One look at the node. now: seconds since 1970. unknown: in plain words, what could not be
    seen, and why. clients None: NVML could not say, so nothing may be taken for gone. grants_known:
    whether `grants` are all of them. ungranted: by the uid in its cgroup, each pod that is known to
    hold no grant; a pod of neither is not known yet. unexplained_mib: by GPU, where that much is in
    use of no process that is known. unreadable: as in LedgerView. leaving: domains that `mpsd
    control` ends, since their GPUs are of others from now on. A MIG instance that was removed is
    not among `gpus`; its domain is one of `domains` until its programs have ended. capped: the
    grants whose cgroups have memory limits in force. uncapped: by grant, why those of others have
    none; of one that is in neither nothing is known. past_pods: by the uid in its cgroup, those
    that held a grant of late. reasons: of the causes of faults."""

    now: float
    driver: str
    gpus: tuple[Gpu, ...]
    domains: tuple[DomainView, ...]
    grants: tuple[HeldGrant, ...]
    clients: tuple[Client, ...] | None
    waiting: tuple[WaitingRequest, ...]
    unknown: tuple[str, ...]
    grants_known: bool = True
    ungranted: Mapping[str, PodName] = field(default_factory=dict)
    unexplained_mib: Mapping[str, int] = field(default_factory=dict)
    unreadable: tuple[UnreadableGrant, ...] = ()
    leaving: tuple[DomainView, ...] = ()
    capped: frozenset[str] = frozenset()
    uncapped: Mapping[str, str] = field(default_factory=dict)
    past_pods: Mapping[str, PodName] = field(default_factory=dict)
    reasons: Reasons = field(default_factory=dict)

    def domain(self, name: str) -> DomainView | None:
        return next((domain for domain in self.domains if domain.name == name), None)

    @property
    def is_unused(self) -> bool:
        """Whether nobody holds a part of a GPU here, no program is on MPS, and no domain accepts or
        still has one. No where a grant may not be known."""
        idle = {State.DRAINED, State.REFUSED, State.DOWN}
        held = self.grants or self.waiting or self.unreadable or not self.grants_known
        held = held or any(client.on_mps for client in self.clients or ())
        return not held and all(domain.state in idle for domain in (*self.domains, *self.leaving))

    @property
    def on_demand(self) -> frozenset[str]:
        """The GPUs that may be joined with others, and divided."""
        every = (*self.domains, *self.leaving)
        return frozenset(
            gpu for domain in every if domain.record.kind in ON_DEMAND for gpu in domain.record.gpus
        )

    @property
    def ungrantable(self) -> Mapping[str, str]:
        """By UUID, why a GPU takes no new grant and its limits stay as they are, with the remedy: a
        grant that may be on it cannot be read."""
        if not self.unreadable:
            return {}
        labels = {gpu.uuid: gpu.label for gpu in self.gpus}
        domains = {domain.name: domain.record.gpus for domain in self.domains}
        found: dict[str, str] = {}
        for one in self.unreadable:
            gpus = one.gpus(domains, labels)
            what = " and ".join(labels.get(uuid, uuid) for uuid in gpus)
            take, them = ("takes", "it") if len(gpus) == 1 else ("take", "them")
            because = f"the record of grant {one.id} cannot be read ({one.file}: {one.reason})"
            remedy = f"once no program uses {them}, run `rm {shlex.quote(one.file)}`"
            found |= dict.fromkeys(gpus, f"{what} {take} no new grant, because {because}; {remedy}")
        return found


_MOST_PAST = 256  # pods that are remembered


def pod_names(*views: NodeView) -> dict[str, PodName]:
    """By the uid in its cgroup, every pod that these looks name; the first look wins."""
    names: dict[str, PodName] = {}
    for view in reversed(views):
        names |= {**view.past_pods, **view.ungranted, **_granted(view)}
    return names


def past_pods(view: NodeView) -> dict[str, PodName]:
    """Those that hold a grant, and the last of those that did: a pod that was killed is to be named
    in a fault."""
    granted = _granted(view)
    every = {uid: pod for uid, pod in view.past_pods.items() if uid not in granted} | granted
    return dict([*every.items()][-_MOST_PAST:])


def _granted(view: NodeView) -> dict[str, PodName]:
    grants = {held.grant.id: held.grant for held in view.grants}
    names = {pod.uid: pod for one in grants.values() for pod in one.pods if pod.uid}
    for client in view.clients or ():  # of a static pod the cgroup has another uid than the API
        grant = grants.get(client.grant or "")
        if client.pod is not None and grant and (holder := grant.pod_of(client.pod)):
            names[client.pod] = holder
    return names
