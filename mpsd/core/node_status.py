"""What operators and programs are told about a node: the shape of `GET /v1/node` and of `mpsd status -o json`.

One rule: names and units here are an interface; fields are added, never renamed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from mpsd.core.domain_states import State
from mpsd.core.fault_status import FaultsStatus, faults_status
from mpsd.core.grants import Gpu, Part, promised_mib
from mpsd.core.identity import PodName, process_of
from mpsd.core.node_view import Canary, Client, HeldGrant, NodeView, pod_names
from mpsd.core.responses import Response
from mpsd.core.violations import Kind, most_mib

if TYPE_CHECKING:  # as in core.grants
    from mpsd.core.policy import Policy

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """promised_mib, promised_percent, promised_clients: what may be granted in all; the last two None where an agent
    older than this does not say. used_mib None: NVML could not say.
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


@dataclass(frozen=True, slots=True)
class DomainStatus:
    """since: seconds since 1970. restarts: since mpsd first ran in this boot. daemon_pid None: there is none.

    canary: None where it was not run. version: of the `mpsd control` that holds it; empty where an older one does not
    say.
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
    """used_mib: the most that its clients together use on one of its GPUs; None: NVML could not say.

    holder_pid None: a pod holds it, the one that namespace and pod name; else those are None. container: the id of the
    container without Kubernetes that holds it, else None; its pid is that of its first process. over: it uses more than
    it may of one of its GPUs, the policy's tolerance included. cards: GPU by GPU; empty where an agent older than this
    does not say, and memory_mib is the most of them.
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


@dataclass(frozen=True, slots=True)
class ViolationStatus:
    """A process that took more than it was given. at: seconds since 1970. action: what the policy has done about it.

    gpu: its UUID. namespace, pod: None where it is in no pod that is known. outcome: how it ended; empty where it was
    not to end, or is about to.
    """

    at: float
    kind: Kind
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
    """ended: how many of these are known to have been ended; None where that is not told."""

    kind: Kind
    action: Response
    count: int
    ended: int | None = None


@dataclass(frozen=True, slots=True)
class ViolationsStatus:
    """What the watchdog has seen since it began, which is when this agent did (since: seconds since 1970).

    looks: how often it looked. longest_pause_s: between two of them. late_looks: those after a pause of more than a
    quarter of a second, where the machine had no processor for it. nvml_s: processor time that this agent has
    spent in NVML. counts: of every kind and action that has happened. last: the last ones, the newest last. unjudged:
    why nobody is judged now; empty while everybody is.
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
    """reason: why it has no answer yet, in plain words; empty where an agent older than this does not say."""

    id: str
    memory_mib: int
    thread_percent: int | None
    gpus: int
    holder_pid: int
    command: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """violations: None where nobody watches. grants_known: whether `grants` are all of them. version: of the agent's
    mpsd. limits_directory: where it reads the limits files. Both empty where an agent older than this does not say.
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


def node_status(
    view: NodeView, policy: "Policy", violations: ViolationsStatus | None = None, version: str = ""
) -> NodeStatus:
    """The view in the words of the interface, with what the watchdog has seen."""
    parts = _by((part.gpu, part) for held in view.grants for part in held.grant.parts)
    on_gpus = None if view.clients is None else _by((client.gpu, client) for client in view.clients)
    of_grants = None if view.clients is None else _by((client.grant, client) for client in view.clients)
    reasons = _why_waiting(view, policy) if view.waiting else {}
    return NodeStatus(
        now=view.now,
        driver=view.driver,
        gpus=tuple(_gpu(gpu, view, parts, on_gpus, policy) for gpu in view.gpus),
        domains=tuple(_domain_statuses(view)),
        grants=tuple(_grant(held, of_grants, policy) for held in view.grants),
        clients=None if view.clients is None else tuple(map(_client, view.clients)),
        waiting=tuple(
            WaitingStatus(
                id=waiting.id,
                memory_mib=waiting.request.memory_mib,
                thread_percent=waiting.request.thread_percent,
                gpus=waiting.request.gpus,
                holder_pid=process_of(waiting.holder).pid,
                command=waiting.command,
                reason=reasons.get(waiting.id, ""),
            )
            for waiting in view.waiting
        ),
        unknown=view.unknown,
        violations=violations,
        grants_known=view.grants_known,
        version=version,
    )


def _why_waiting(view: NodeView, policy: "Policy") -> Mapping[str, str]:
    from mpsd.core.decide import why_waiting  # as above: who only reads a status does without

    return why_waiting(view, policy)


def _by(pairs: Iterable[tuple[Key, Value]]) -> Mapping[Key, Sequence[Value]]:
    """The values of each key, in their order; a node with 320 clients is told without asking each of them for each."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _gpu(
    gpu: Gpu,
    view: NodeView,
    parts: Mapping[str, Sequence[Part]],
    on_gpus: Mapping[str, Sequence[Client]] | None,
    policy: "Policy",
) -> GpuStatus:
    here = parts.get(gpu.uuid, ())
    clients = None if on_gpus is None else on_gpus.get(gpu.uuid, ())
    return GpuStatus(
        uuid=gpu.uuid,
        label=gpu.label,
        name=gpu.name,
        domain=next((domain.name for domain in view.domains if gpu.uuid in domain.record.gpus), None),
        memory_mib=gpu.memory_mib,
        sms=gpu.sms,
        promised_mib=promised_mib(gpu, policy),
        granted_mib=sum(part.memory_mib for part in here),
        granted_percent=sum(part.reserved_percent for part in here),
        used_mib=_used_mib(clients, gpu.uuid),
        clients=None if clients is None else len(clients),
        promised_percent=policy.oversubscription.thread_percent,
        promised_clients=gpu.capability.clients,
    )


def _domain_statuses(view: NodeView) -> list[DomainStatus]:
    names = pod_names(view)
    return [
        DomainStatus(
            name=record.domain,
            gpus=record.gpus,
            state=record.state,
            since=record.since,
            reason=record.reason,
            restarts=record.restarts_total,
            daemon_pid=record.daemon.pid if record.daemon else None,
            servers=record.servers,
            faults=faults_status(record, names),
            canary=record.canary,
            version=record.written_by,
        )
        for record in (domain.record for domain in view.domains)
    ]


def _grant(held: HeldGrant, of_grants: Mapping[str | None, Sequence[Client]] | None, policy: "Policy") -> GrantStatus:
    grant = held.grant
    pod, container = grant.pod, grant.container
    own = None if of_grants is None else of_grants.get(grant.id, ())
    cards = tuple(_card(part, own, policy) for part in grant.parts)
    return GrantStatus(
        id=grant.id,
        gpus=grant.gpus,
        memory_mib=grant.memory_mib,
        thread_percent=grant.thread_percent,
        used_mib=_most(card.used_mib for card in cards),
        clients=None if own is None else len({client.pid for client in own}),
        holder_pid=None if isinstance(grant.holder, PodName) else process_of(grant.holder).pid,
        holder_alive=held.holder_alive,
        command=grant.command,
        namespace=pod.namespace if pod else None,
        pod=pod.name if pod else None,
        over=any(card.over for card in cards),
        cards=cards,
        container=container.id if container else None,
        container_name=container.name if container else None,
    )


def _card(part: Part, own: Sequence[Client] | None, policy: "Policy") -> CardStatus:
    used_mib = _used_mib(own, part.gpu)
    over = used_mib is not None and used_mib > most_mib(part, policy)
    return CardStatus(part.gpu, part.memory_mib, part.reserved_percent, used_mib, over)


def _used_mib(clients: Sequence[Client] | None, gpu: str) -> int | None:
    """What these clients use of one GPU; None as soon as the use of one of them is not known."""
    if clients is None:
        return None
    used_mib = 0
    for client in clients:
        if client.gpu == gpu:
            if client.used_mib is None:
                return None
            used_mib += client.used_mib
    return used_mib


def _most(amounts: Iterable[int | None]) -> int | None:
    known = list(amounts)
    return None if None in known else max(amount for amount in known if amount is not None)


def _client(client: Client) -> ClientStatus:
    return ClientStatus(client.pid, client.gpu, client.used_mib, client.on_mps, client.grant, client.command)
