"""A frozen picture of one node: everything that a decision may rest on.

What could not be seen is None or named in `unknown`, never zero.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from typing import NamedTuple

from mpsd.model.domain import ENDED, ON_DEMAND, State
from mpsd.model.gpu_health import GpuCondition
from mpsd.model.grants import CardsRequest, Gpu, Grant, Request
from mpsd.model.identity import HostContainer, PodName, ProcessIdentity

RECORD_VERSION = 1


class Queue(StrEnum):
    """Whether a killed client's queued work had run, by its MPS servers' use; the worst last."""

    #: the servers had nothing to do
    DRY = "dry"
    #: there are too few samples, as of MIG instances or without a wait, or it ended by itself
    UNKNOWN = "unknown"
    #: its time was up, and a server was in use, by this client or by another
    IN_USE = "in_use"


@dataclass(frozen=True, slots=True)
class EndRecord:
    """An end under way, as kept on the node: what makes a stopped process mpsd's to kill."""

    process: ProcessIdentity
    #: UUIDs of the GPUs whose MPS servers run what it has queued
    gpus: tuple[str, ...]
    #: why it ends, in words
    reason: str
    #: for how long its queue may run after a stop
    drain_s: float
    #: when it is killed in any case, in seconds of CLOCK_BOOTTIME
    deadline_s: float
    #: more than one where somebody continued it
    stops: int = 0
    #: whether it was seen stopped since the last of them
    is_held: bool = False
    #: whether it gets SIGKILL now; the record is kept a little longer, to report whose end it was
    is_killed: bool = False


@dataclass(frozen=True, slots=True)
class FaultHit:
    """A process that a fault tore down. pod: the uid in its pod's cgroup; None where none is known.
    ended_at: when mpsd ended it, for it lingered; None where it did not."""

    process: ProcessIdentity
    command: str
    pod: str | None
    ended_at: float | None = None
    #: the id of its program's grant on a machine of its own; None where none is known
    grant: str | None = None


@dataclass(frozen=True, slots=True)
class FaultCause:
    """A client that ended just before a fault, not by it. pod, grant: as of a FaultHit."""

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
    """A fault of a GPU: when it was seen, and every process that lost its context by it. Which of
    these caused it cannot be determined (docs/mps-observed.md, section 6). unidentified: pids of
    those that were gone before they were identified. healed_at: None while its server accepts no
    client. causes: the clients whose end is its likely cause; None while that is not settled. at_s:
    as `at`, by CLOCK_BOOTTIME, for what is waited for."""

    at: float
    hit: tuple[FaultHit, ...]
    unidentified: tuple[int, ...] = ()
    healed_at: float | None = None
    causes: tuple[FaultCause, ...] | None = ()
    at_s: float = 0.0

    @property
    def pids(self) -> frozenset[int]:
        return frozenset({hit.process.pid for hit in self.hit} | set(self.unidentified))

    @property
    def killed(self) -> Mapping[ProcessIdentity, FaultHit]:
        """Those that mpsd has ended since."""
        return {hit.process: hit for hit in self.hit if hit.ended_at is not None}

    @property
    def pods(self) -> frozenset[str]:
        """Their uids, as far as they are known."""
        return frozenset(hit.pod for hit in self.hit if hit.pod is not None)


@dataclass(frozen=True, slots=True)
class Canary:
    """What a CUDA client of mpsd found under known limits. problem: why this driver cannot be
    relied on. context_mib: with `sms` SMs; None where there was no context. warning: what is not as
    limits/gpus.yaml has it. memory_cap: CAP_HOLDS where a memory limit of its cgroup held a client,
    else why it did not, if that was tried."""

    boot_id: str
    driver: str
    at: float
    problem: str
    context_mib: int | None
    sms: int | None
    warning: str = ""
    memory_cap: str = ""

    @property
    def doubt(self) -> str:
        """Empty where it found nothing."""
        return self.problem or self.warning


CAP_HOLDS = "holds"


@dataclass(frozen=True, slots=True)
class DomainRecord:
    """What `mpsd control` keeps in record.json about one domain, and everyone else reads.

    daemon: None while there is none. since: when this state began, in seconds since 1970. restarts:
    in a row, without a time of stability between. restarts_total: since mpsd first ran in this
    boot. compute_modes: what the GPUs were set to before mpsd, by UUID; `mps.compute_modes` goes by
    files of its own. served: whether it has ever been ready in this boot. faults: the last ones,
    the newest last. canary: None before it has run. written_by: the version of the `mpsd control`
    that keeps it. kind: a `DomainKind`. started_s: when mpsd started a daemon last; held_until_s:
    no new client is let in before, since mpsd first makes a context of its own there. Both in
    seconds of CLOCK_BOOTTIME, and 0 where there is none. health: of each GPU. unwatched: why no
    container may start there although it serves; empty while its processes are watched."""

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
    started_s: float
    compute_modes: dict[str, int]
    served: bool = False
    faults: tuple[Fault, ...] = ()
    canary: Canary | None = None
    boot_id: str = ""
    faults_total: int = 0
    written_by: str = ""
    kind: str = ""
    held_until_s: float = 0.0
    health: tuple[GpuCondition, ...] = ()
    unwatched: str = ""


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
    def is_sick(self) -> bool:
        return any(one.cause is not None for one in self.record.health)

    @property
    def allowed_mib(self) -> int:
        """The largest client that every server, now and to come, is known to accept."""
        confirmed = {(limit.server, limit.ordinal): limit.memory_mib for limit in self.limits}
        servers = (None, *self.record.servers)
        wanted = product(servers, range(len(self.record.gpus)))
        return min(confirmed.get(one, 0) for one in wanted)


@dataclass(frozen=True, slots=True)
class Client:
    """A process that holds memory of a GPU. on_mps False: it runs beside MPS. grant: the id of its
    grant, or None. used_mib: with its managed memory; None where NVML does not say. pod: the uid in
    the cgroup of its pod, or the grant of the container without Kubernetes that it is in; None
    where it is known to be in neither. environment: the variables that MPS reads of those it was
    started with; None where they cannot be read. only_draws: it uses the GPU through a graphics
    interface alone, not by MPS. reserved_kib: of its context (model.gpu_facts); 0 where nobody
    asked, or there is none yet. is_unread: what it was started with or what it maps could not be
    read for a while."""

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
    is_unread: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that has no answer yet. deadline_s: None: it wants an answer now. asked_s: when it
    came. Both in seconds of CLOCK_BOOTTIME. tenant: the uid of who asks; None for root and mpsd's
    own user, who wait for no tenant."""

    id: str
    request: Request | CardsRequest
    holder: ProcessIdentity | HostContainer
    holder_alive: bool
    command: str
    deadline_s: float | None
    asked_s: float = 0.0
    tenant: int | None = None


@dataclass(frozen=True, slots=True)
class HeldGrant:
    """others_alive: where its holder has ended, whether other processes are in the cgroup that mpsd
    made for it. cgroup: that one; empty where it has none; None of no program."""

    grant: Grant
    holder_alive: bool
    others_alive: bool = False
    cgroup: str | None = None


@dataclass(frozen=True, slots=True)
class UnreadableGrant:
    """A grant whose record, this file, cannot be read. domain: whose GPUs it may be on; None where
    that is unknown too."""

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
    """What the node's ledger of grants (`grants.ledger.Ledger`) knows. unknown: why it may be
    incomplete. holders: the grant of each living program, by pid. by_place: the grant of each pod,
    container or cgroup that holds one, by its name in `Whereabouts`. ungranted: each pod that is
    known to hold no grant, by the uid in its cgroups. unreadable: grants that are not among `held`,
    because their records cannot be read. ends: of containers."""

    held: tuple[HeldGrant, ...] = ()
    unknown: tuple[str, ...] = ()
    holders: Mapping[int, str] = field(default_factory=dict)
    by_place: Mapping[str, str] = field(default_factory=dict)
    ungranted: Mapping[str, PodName] = field(default_factory=dict)
    unreadable: tuple[UnreadableGrant, ...] = ()
    ends: ContainerEnds = field(default_factory=dict)

    @property
    def gpus(self) -> frozenset[str]:
        """The GPUs of all grants."""
        return frozenset().union(*(held.grant.gpus for held in self.held))

    @property
    def is_complete(self) -> bool:
        return not self.unknown and not self.unreadable

    def holds(self, grant_id: str) -> bool:
        return any(held.grant.id == grant_id for held in self.held)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One look at the node. now: seconds since 1970, for people. now_s: of CLOCK_BOOTTIME. unknown:
    in plain words, what of the grants could not be read, and why. clients: on the GPUs that could
    be seen. unseen: by UUID of each other GPU, why; nothing there may be taken for gone.
    grants_known: whether `grants` are all of them. ungranted, unreadable: as in LedgerView.
    unexplained_mib: by GPU, what is in use of no process that is known. leaving: domains that `mpsd
    control` ends, since their GPUs are of others from now on. A MIG instance that was removed is
    not among `gpus`; its domain is one of `domains` until its programs have ended. capped: the
    grants whose cgroups have memory limits in force. uncapped: by grant, why those of others have
    none; of one in neither nothing is known. past_pods: by the uid in its cgroup, those that held a
    grant of late. reasons: of the causes of faults. troubles: by UUID, why a GPU can be given to no
    program now."""

    now: float
    now_s: float
    driver: str
    gpus: tuple[Gpu, ...]
    domains: tuple[DomainView, ...]
    grants: tuple[HeldGrant, ...]
    clients: tuple[Client, ...]
    waiting: tuple[WaitingRequest, ...]
    unknown: tuple[str, ...]
    unseen: Mapping[str, str] = field(default_factory=dict)
    grants_known: bool = True
    ungranted: Mapping[str, PodName] = field(default_factory=dict)
    unexplained_mib: Mapping[str, int] = field(default_factory=dict)
    unreadable: tuple[UnreadableGrant, ...] = ()
    leaving: tuple[DomainView, ...] = ()
    capped: frozenset[str] = frozenset()
    uncapped: Mapping[str, str] = field(default_factory=dict)
    past_pods: Mapping[str, PodName] = field(default_factory=dict)
    reasons: Reasons = field(default_factory=dict)
    troubles: Mapping[str, str] = field(default_factory=dict)

    def domain(self, name: str) -> DomainView | None:
        return next((domain for domain in self.domains if domain.name == name), None)

    @property
    def every_domain(self) -> tuple[DomainView, ...]:
        return (*self.domains, *self.leaving)

    @property
    def domain_of(self) -> dict[str, str]:
        """By UUID, the name of the domain that stays."""
        return {uuid: one.name for one in self.domains for uuid in one.record.gpus}

    def condition(self, uuid: str) -> GpuCondition | None:
        """None where `mpsd control` has not looked at this GPU's health."""
        for domain in self.domains:
            for one in domain.record.health:
                if one.gpu == uuid:
                    return one
        return None

    @property
    def is_regrouping(self) -> bool:
        """Whether GPUs are between two domains: the one ends, or the next comes up for the first
        time."""
        here = {gpu.uuid for gpu in self.gpus}
        if any(not here.isdisjoint(one.record.gpus) for one in self.leaving):
            return True
        return any(
            one.record.served and not one.record.restarts_total
            for one in self.domains
            if one.state in {State.DOWN, State.STARTING}
        )

    @property
    def is_unused(self) -> bool:
        """Whether nobody holds a part of a GPU here, no program is on MPS, and no domain accepts or
        still has one. No where a grant may not be known."""
        if self.grants or self.waiting or self.unreadable or not self.grants_known:
            return False
        if any(client.on_mps for client in self.clients):
            return False
        return all(domain.state in ENDED for domain in self.every_domain)

    def sees(self, gpus: Iterable[str]) -> bool:
        """Whether the processes on all of these GPUs (UUIDs) are known."""
        return self.unseen.keys().isdisjoint(gpus)

    @property
    def unseen_in_words(self) -> tuple[str, ...]:
        """What is not known of each GPU that could not be seen, and why."""
        labels = {gpu.uuid: gpu.label for gpu in self.gpus}
        found = []
        for uuid, why in self.unseen.items():
            found.append(f"which processes use {labels.get(uuid, uuid)}: {why}")
        return tuple(found)

    @property
    def on_demand(self) -> frozenset[str]:
        """The GPUs that may be joined with others, and divided."""
        found = set[str]()
        for domain in self.every_domain:
            if domain.record.kind in ON_DEMAND:
                found.update(domain.record.gpus)
        return frozenset(found)

    @property
    def ungrantable(self) -> Mapping[str, str]:
        """By UUID, why a GPU takes no new grant and its limits stay: a grant that may be on it
        cannot be read."""
        if not self.unreadable:
            return {}
        labels = {gpu.uuid: gpu.label for gpu in self.gpus}
        domains = {domain.name: domain.record.gpus for domain in self.domains}
        found: dict[str, str] = {}
        for one in self.unreadable:
            gpus = one.gpus(domains, labels)
            take, them = ("take", "them")
            if len(gpus) == 1:
                take, them = ("takes", "it")
            why = (
                f"{' and '.join(labels.get(uuid, uuid) for uuid in gpus)} {take} no new grant,"
                f" because the record of grant {one.id} cannot be read ({one.file}: {one.reason});"
                f" once no program uses {them}, run `rm {shlex.quote(one.file)}`"
            )
            found |= dict.fromkeys(gpus, why)
        return found


_MOST_PAST = 256  # pods that are remembered


def pod_names(*views: NodeView) -> dict[str, PodName]:
    """By the uid in its cgroup, every pod that these looks name; the first look wins."""
    names: dict[str, PodName] = {}
    for view in reversed(views):
        names |= {**view.past_pods, **view.ungranted, **_granted(view)}
    return names


def past_pods(view: NodeView) -> dict[str, PodName]:
    """Those that hold a grant, and the last that did, to be named in a fault."""
    every = dict(view.past_pods)
    for uid, pod in _granted(view).items():
        every.pop(uid, None)  # to the end
        every[uid] = pod
    return dict([*every.items()][-_MOST_PAST:])


def _granted(view: NodeView) -> dict[str, PodName]:
    grants = {held.grant.id: held.grant for held in view.grants}
    names: dict[str, PodName] = {}
    for one in grants.values():
        names.update((pod.uid, pod) for pod in one.pods if pod.uid)
    for client in view.clients:  # of a static pod the cgroup has another uid than the API
        grant = grants.get(client.grant or "")
        if client.pod is not None and grant and (holder := grant.pod_of(client.pod)):
            names[client.pod] = holder
    return names
