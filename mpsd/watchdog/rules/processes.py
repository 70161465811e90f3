"""What is wrong with the processes on the GPUs in one look, but for their memory: `watchdog.rules.judge` says what
follows.

One rule: what is not known is never wrong. A process whose pod nobody can tell, and mpsd's own, are left out.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mpsd.model.cuda_limit_parser import (
    MEMORY_LIMIT,
    PARTITIONING,
    THREAD_PERCENT,
    VISIBLE_DEVICES,
    Lifted,
    Limited,
    Unset,
    Unusable,
    memory_limit_as_read,
    thread_percent_as_read,
    visible_devices,
)
from mpsd.model.grants import Gpu, Grant
from mpsd.model.identity import PodName, ProcessIdentity
from mpsd.model.node_view import Client
from mpsd.model.problem import shown
from mpsd.model.violations import ViolationKind

# What the environment that a client was started with lifts of its limits.
#
# One rule: libcuda's own reading counts (`model.cuda_limit_parser`), and only what is known is judged: the environment
# is
# what a process began with, and what it sets itself afterwards shows nowhere. So what is used decides, and this warns.

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What holds a client. grant: its own. server_mib: the limit of its server, which is the domain's largest grant.

    sees: the UUIDs of the GPUs that its process can see, before CUDA_VISIBLE_DEVICES narrows them.
    """

    grant: Grant
    server_mib: int
    sees: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Escape:
    """kind: LIMIT_LIFTED or PARTITIONING_ENABLED. message: which variable does it, its value, and what it was given."""

    kind: ViolationKind
    message: str


def escapes(environment: Mapping[str, str], gpu: str, held: ClientLimits) -> tuple[Escape, ...]:
    """What lifts the limits of a client with this environment on the GPU with this UUID; empty where nothing does."""
    lifted = [why for why in (_memory(environment, gpu, held), _threads(environment, held.grant)) if why]
    found = (
        [Escape(ViolationKind.LIMIT_LIFTED, f"{'; '.join(lifted)}; leave it as the program was given it")]
        if lifted
        else []
    )
    if environment.get(PARTITIONING) == "1":
        what = f"{PARTITIONING}=1 lifts the server's thread percentage; take it out of the program's environment"
        found.append(Escape(ViolationKind.PARTITIONING_ENABLED, what))
    return tuple(found)


def _memory(environment: Mapping[str, str], gpu: str, held: ClientLimits) -> str:
    visible = visible_devices(environment.get(VISIBLE_DEVICES), held.sees)
    if gpu not in visible:  # it sees other GPUs than is known here, so nobody can say what its ordinals mean
        return ""
    value = environment.get(MEMORY_LIMIT)
    said = f"{MEMORY_LIMIT} is {shown(value)}" if value else f"{MEMORY_LIMIT} is not set"
    why = _lifting(value, visible, visible.index(gpu), held)
    return f"{said}: {why}; it was granted {held.grant.memory_mib} MiB" if why else ""


def _lifting(value: str | None, visible: Sequence[str], ordinal: int, held: ClientLimits) -> str:
    """Why this value holds its process to no less than it was granted, or empty."""
    granted_mib = max(held.grant.memory_mib, held.grant.earlier_mib)  # what runs keeps what it was started with
    match memory_limit_as_read(value, visible):
        case Lifted(reason):
            return f"{reason}, so that it has no limit at all, not even the server's"
        case Limited(bytes_by_ordinal) if ordinal in bytes_by_ordinal:
            limit_mib = min(bytes_by_ordinal[ordinal] // _MIB, held.server_mib)
            more = bytes_by_ordinal[ordinal] > granted_mib * _MIB
            return f"that is more than its grant, and lets it have {limit_mib} MiB" if more else ""
        case Limited() if ordinal > 0:
            return ""  # what mpsd writes names the first device alone: an entry for another could lift every limit
        case Unset() | Limited():
            more = held.server_mib > granted_mib
            return f"only the server's limit of {held.server_mib} MiB holds it" if more else ""
        case Unusable():
            return ""  # no context can be made with it


def _threads(environment: Mapping[str, str], grant: Grant) -> str:
    value = environment.get(THREAD_PERCENT)
    if thread_percent_as_read(value) <= max(grant.thread_percent, grant.earlier_percent):
        return ""
    said = f"is {shown(value)}" if value is not None else "is not set"
    read = f"{thread_percent_as_read(value):g}"
    return f"{THREAD_PERCENT} {said}, which counts as {read} %; it was granted {grant.thread_percent} %"


Books = tuple[str, str]  # the id of a grant and the UUID of a GPU of it
Place = tuple[ProcessIdentity, str]  # a process and the UUID of a GPU that it uses


@dataclass(frozen=True, slots=True)
class WatchdogView:
    """What a look goes by. now: seconds, of a clock that never goes back.

    grants: by id. domains: the UUIDs of each domain's GPUs, by name. ungranted: as in NodeView. own: mpsd's processes
    and those of its daemons. pods_known: whether pods are known by their cgroups; where not, nobody is in one. unseen:
    the UUIDs of the GPUs that NVML does not answer for.
    """

    now: float
    gpus: tuple[Gpu, ...]
    domains: Mapping[str, tuple[str, ...]]
    grants: Mapping[str, Grant]
    clients: tuple[Client, ...]
    ungranted: Mapping[str, PodName]
    own: frozenset[ProcessIdentity]
    pods_known: bool
    unseen: frozenset[str] = frozenset()

    def label(self, uuid: str) -> str:
        return next((gpu.label for gpu in self.gpus if gpu.uuid == uuid), uuid)

    def by_ledger(self) -> Mapping[Books, list[Client]]:
        """The processes that are where they were granted, by grant and GPU."""
        found: dict[Books, list[Client]] = {}
        for client in self.clients:
            grant = self.grants.get(client.grant or "")
            if grant and client.gpu in grant.gpus:
                found.setdefault((grant.id, client.gpu), []).append(client)
        return found


@dataclass(frozen=True, slots=True)
class ProcessFinding:
    """Something that is wrong with a process. pod: None where none that is known by name holds it."""

    kind: ViolationKind
    client: Client
    pod: PodName | None
    message: str


@dataclass(frozen=True, slots=True)
class Examined:
    """What the environment of a client was found to lift, and what that went by."""

    environment: Mapping[str, str]
    held: ClientLimits
    found: tuple[Escape, ...]


def strangers(seen: WatchdogView, resource: str) -> Iterator[ProcessFinding]:
    """Who is on a GPU that it was not given, and who is beside MPS. resource: what a pod must hold."""
    for client in seen.clients:
        grant = seen.grants.get(client.grant or "")
        if grant and client.gpu in grant.gpus and client.on_mps:
            continue
        if client.process not in seen.own:
            yield from _misplaced(client, grant, seen) if grant else _ungranted(client, seen, resource)


def _misplaced(client: Client, grant: Grant, seen: WatchdogView) -> Iterator[ProcessFinding]:
    label = seen.label(client.gpu)
    if client.gpu not in grant.gpus:
        given = ", ".join(map(seen.label, grant.gpus))
        yield ProcessFinding(ViolationKind.WITHOUT_GRANT, client, grant.pod, f"uses {label}, and was granted {given}")
    else:
        message = (
            f"runs beside MPS on {label}, where no limit holds it; it must be started with the "
            f"CUDA_MPS_PIPE_DIRECTORY that it was given"
        )
        yield ProcessFinding(ViolationKind.OUTSIDE_MPS, client, grant.pod, message)


def _ungranted(client: Client, seen: WatchdogView, resource: str) -> Iterator[ProcessFinding]:
    how = "it is on MPS" if client.on_mps else "it runs beside MPS, without limits"
    label = seen.label(client.gpu)
    if client.pod is None or not seen.pods_known:
        where = "is in no pod and uses" if seen.pods_known else "has no grant and uses"
        yield ProcessFinding(ViolationKind.IN_NO_POD, client, None, f"{where} {label}, which mpsd shares; {how}")
    elif client.pod in seen.ungranted:
        message = f"uses {label} without a grant: its pod holds no {resource}; {how}"
        yield ProcessFinding(ViolationKind.WITHOUT_GRANT, client, seen.ungranted[client.pod], message)


def lifted(
    seen: WatchdogView, by_ledger: Mapping[Books, list[Client]], before: Mapping[Place, Examined]
) -> dict[Place, Examined]:
    """What the environments of the clients on MPS lift; beside it there are no limits. before: of the last look."""
    largest: dict[str, int] = {}
    for grant in seen.grants.values():
        largest[grant.domain] = max(grant.memory_mib, largest.get(grant.domain, 0))
    examined = {}
    for (grant_id, gpu), clients in by_ledger.items():
        grant = seen.grants[grant_id]
        held = ClientLimits(grant, largest[grant.domain], _sees(grant, seen))
        for client in clients:
            if client.on_mps and client.environment is not None:
                known = before.get((client.process, gpu))
                if known is None or known.environment is not client.environment or known.held != held:
                    known = Examined(client.environment, held, escapes(client.environment, gpu, held))
                examined[client.process, gpu] = known
    return examined


def _sees(grant: Grant, seen: WatchdogView) -> tuple[str, ...]:
    """A container has its own GPUs only; a program of this machine all of its domain's."""
    return grant.gpus if grant.pod or grant.container else seen.domains.get(grant.domain, grant.gpus)


def crowd(
    grant: Grant, label: str, clients: Iterable[Client], ending: Container[ProcessIdentity]
) -> Iterator[ProcessFinding]:
    """The newest of a grant's processes on a GPU where there are more than it may have. ending: who does not count."""
    counted = [client for client in clients if client.process not in ending]
    if len(counted) > grant.clients:
        message = (
            f"is one process more on {label} than the {grant.clients} that its grant may have there "
            f"(requests.clients_per_grant)"
        )
        for client in sorted(counted, key=age)[grant.clients :]:
            yield ProcessFinding(ViolationKind.TOO_MANY_CLIENTS, client, grant.pod, message)


def age(client: Client) -> tuple[int, int]:
    """Larger for a process that started later."""
    return client.process.start_ticks, client.pid
