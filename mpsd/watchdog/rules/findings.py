"""What a scan shows of each process by itself: foreign ones, and those that are too many. What they
may use is in `escapes`; what follows is in `judge`."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mpsd.model.grants import Gpu, Grant
from mpsd.model.identity import HostContainer, PodName, ProcessIdentity
from mpsd.model.node_view import Client
from mpsd.model.violations import ViolationKind
from mpsd.watchdog.rules.escapes import ClientBounds

_START_ON_MPS = "start it with the CUDA_MPS_PIPE_DIRECTORY that mpsd set"

Share = tuple[str, str]  # the id of a grant and the UUID of a GPU of it


@dataclass(frozen=True, slots=True)
class WatchdogView:
    """What a scan is judged by. now: monotonic seconds. grants: by id. domains: UUIDs of GPUs by
    name. ungranted: as in NodeView. own: mpsd's processes and its daemons'. pods_known: pods are
    known by cgroups. unseen: GPUs whose processes are not known. unexplained_mib: by GPU, in use of
    no known process. doubtful: GPUs where a process may have a grant, or be mpsd's own, that an
    unreadable record hides."""

    now: float
    gpus: tuple[Gpu, ...]
    domains: Mapping[str, tuple[str, ...]]
    grants: Mapping[str, Grant]
    clients: tuple[Client, ...]
    ungranted: Mapping[str, PodName]
    own: frozenset[ProcessIdentity]
    pods_known: bool
    ending: frozenset[ProcessIdentity] = frozenset()  # those whose end is under way
    unseen: frozenset[str] = frozenset()
    unexplained_mib: Mapping[str, int] = field(default_factory=dict)
    doubtful: frozenset[str] = frozenset()

    def label(self, uuid: str) -> str:
        return next((gpu.label for gpu in self.gpus if gpu.uuid == uuid), uuid)

    def grant_of(self, client: Client) -> Grant | None:
        return self.grants.get(client.grant or "")

    def on_mps(self, gpu: Gpu) -> list[Client]:
        return [client for client in self.clients if client.on_mps and client.gpu == gpu.uuid]

    def by_share(self) -> Mapping[Share, list[Client]]:
        """The processes that are where they were granted, by grant and GPU."""
        found: dict[Share, list[Client]] = {}
        for client in self.clients:
            grant = self.grant_of(client)
            if grant and client.gpu in grant.gpus:
                found.setdefault((grant.id, client.gpu), []).append(client)
        return found


@dataclass(frozen=True, slots=True)
class ProcessFinding:
    """What is wrong with a process. pod: None where no known one holds it."""

    kind: ViolationKind
    client: Client
    pod: PodName | None
    message: str


def finding_of(kind: ViolationKind, client: Client, grant: Grant, message: str) -> ProcessFinding:
    return ProcessFinding(kind, client, grant.pod_of(client.pod), message)


def foreign_processes(view: WatchdogView, resource: str) -> Iterator[ProcessFinding]:
    """Processes on GPUs that they were not granted, and outside MPS, as far as grants are known.
    resource: what a pod must hold."""
    for client in view.clients:
        grant = view.grant_of(client)
        if grant and client.gpu in grant.gpus and client.on_mps:
            continue
        if client.process in view.own:
            continue
        if grant:
            yield _misplaced(client, grant, view)
        elif client.gpu not in view.doubtful:
            yield from _ungranted(client, view, resource)


def _misplaced(client: Client, grant: Grant, view: WatchdogView) -> ProcessFinding:
    label = view.label(client.gpu)
    if client.gpu not in grant.gpus:
        given = ", ".join(map(view.label, grant.gpus))
        message = f"uses {label}, but was granted {given}"
        return finding_of(ViolationKind.WITHOUT_GRANT, client, grant, message)
    remedy = _START_ON_MPS
    if client.only_draws:
        remedy = "use a GPU that mpsd does not share, since MPS serves CUDA alone"
    message = f"uses {label} {_beside(client)}; {remedy}"
    return finding_of(ViolationKind.OUTSIDE_MPS, client, grant, message)


def _beside(client: Client) -> str:
    beside = "beside MPS, without limits"
    if client.only_draws:
        beside += ", through a graphics interface (Vulkan, OpenGL)"
    return beside


def _ungranted(client: Client, view: WatchdogView, resource: str) -> Iterator[ProcessFinding]:
    how = "it is an MPS client"
    if not client.on_mps:
        how = f"it runs {_beside(client)}"
    label = view.label(client.gpu)
    if not view.pods_known or client.pod is None:
        where = "is in no pod"
        if not view.pods_known:
            where = "has no grant"
        message = f"{where} and uses {label}, which mpsd shares; {how}"
        yield ProcessFinding(ViolationKind.IN_NO_POD, client, None, message)
    elif pod := view.ungranted.get(client.pod):
        message = f"uses {label} without a grant: its pod holds no {resource}; {how}"
        yield ProcessFinding(ViolationKind.WITHOUT_GRANT, client, pod, message)


def bounds_of(view: WatchdogView, shares: Iterable[Share]) -> Iterator[ClientBounds]:
    """What holds the clients of each of these."""
    largest: dict[str, int] = {}
    for grant in view.grants.values():
        largest[grant.domain] = max(grant.memory_mib, largest.get(grant.domain, 0))
    for grant_id, _gpu in shares:
        grant = view.grants[grant_id]
        sees = grant.gpus  # as a container; a program of this machine sees all of its domain's
        if not isinstance(grant.holder, PodName | HostContainer):
            sees = view.domains.get(grant.domain, sees)
        yield ClientBounds(grant, largest[grant.domain], sees)


def crowd(
    grant: Grant,
    label: str,
    clients: Iterable[Client],
    ending: Container[ProcessIdentity],
    short: Container[ProcessIdentity],
) -> Iterator[ProcessFinding]:
    """The newest of a grant's processes where it has too many. ending: processes that do not
    count. short: those that `crowding_out` found."""
    counted = [client for client in clients if client.process not in ending]
    if len(counted) <= grant.clients:
        return
    most = "1 process"
    if grant.clients > 1:
        most = f"{grant.clients} processes"
    where = f"{together(grant)} on {label} (requests.clients_per_grant)"
    limit = f"exceeds its grant's limit of {most}{where}"
    for client in sorted(counted, key=age)[grant.clients :]:
        message = limit
        if client.process in short:
            message += "; another grant lacks its own because of it"
        yield finding_of(ViolationKind.TOO_MANY_CLIENTS, client, grant, message)


def together(grant: Grant) -> str:
    if len(grant.pods) <= 1:
        return ""
    return f" for all pods of claim {grant.claim} together"


def crowding_out(
    gpu: Gpu, grants: Iterable[Grant], clients: Iterable[Client]
) -> Iterator[ProcessIdentity]:
    """The processes without which every grant could have its own clients on the GPU: each time the
    newest of the grant that is furthest over."""
    own = {grant.id: grant.clients for grant in grants}
    used: dict[str, list[Client]] = {grant: [] for grant in own}
    others = 0
    for client in sorted(clients, key=age):
        if client.grant in own:
            used[client.grant].append(client)
        else:
            others += 1
    wanted = others + sum(max(len(theirs), own[grant]) for grant, theirs in used.items())
    for _ in range(wanted - gpu.capability.clients):
        most = max(own, key=lambda grant: len(used[grant]) - own[grant], default="")
        if not most or len(used[most]) <= own[most]:
            return
        yield used[most].pop().process


def age(client: Client) -> tuple[int, int]:
    return client.process.start_ticks, client.pid
