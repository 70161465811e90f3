"""What is wrong with the processes on the GPUs in one look, but for their memory: `watchdog.rules.judge` says what follows.

One rule: what is not known is never wrong. A process whose pod nobody can tell, and mpsd's own, are left out.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mpsd.model.grants import Gpu, Grant
from mpsd.model.identity import PodName, ProcessIdentity
from mpsd.model.node_view import Client
from mpsd.model.violations import Kind
from mpsd.watchdog.rules.escapes import Escape, Held, escapes

Books = tuple[str, str]  # the id of a grant and the UUID of a GPU of it
Place = tuple[ProcessIdentity, str]  # a process and the UUID of a GPU that it uses


@dataclass(frozen=True, slots=True)
class Seen:
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

    def by_books(self) -> Mapping[Books, list[Client]]:
        """The processes that are where they were granted, by grant and GPU."""
        found: dict[Books, list[Client]] = {}
        for client in self.clients:
            grant = self.grants.get(client.grant or "")
            if grant and client.gpu in grant.gpus:
                found.setdefault((grant.id, client.gpu), []).append(client)
        return found


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a process. pod: None where none that is known by name holds it."""

    kind: Kind
    client: Client
    pod: PodName | None
    message: str


@dataclass(frozen=True, slots=True)
class Examined:
    """What the environment of a client was found to lift, and what that went by."""

    environment: Mapping[str, str]
    held: Held
    found: tuple[Escape, ...]


def strangers(seen: Seen, resource: str) -> Iterator[Finding]:
    """Who is on a GPU that it was not given, and who is beside MPS. resource: what a pod must hold."""
    for client in seen.clients:
        grant = seen.grants.get(client.grant or "")
        if grant and client.gpu in grant.gpus and client.on_mps:
            continue
        if client.process not in seen.own:
            yield from _misplaced(client, grant, seen) if grant else _ungranted(client, seen, resource)


def _misplaced(client: Client, grant: Grant, seen: Seen) -> Iterator[Finding]:
    label = seen.label(client.gpu)
    if client.gpu not in grant.gpus:
        given = ", ".join(map(seen.label, grant.gpus))
        yield Finding(Kind.WITHOUT_GRANT, client, grant.pod, f"uses {label}, and was granted {given}")
    else:
        message = (
            f"runs beside MPS on {label}, where no limit holds it; it must be started with the "
            f"CUDA_MPS_PIPE_DIRECTORY that it was given"
        )
        yield Finding(Kind.OUTSIDE_MPS, client, grant.pod, message)


def _ungranted(client: Client, seen: Seen, resource: str) -> Iterator[Finding]:
    how = "it is on MPS" if client.on_mps else "it runs beside MPS, without limits"
    label = seen.label(client.gpu)
    if client.pod is None or not seen.pods_known:
        where = "is in no pod and uses" if seen.pods_known else "has no grant and uses"
        yield Finding(Kind.IN_NO_POD, client, None, f"{where} {label}, which mpsd shares; {how}")
    elif client.pod in seen.ungranted:
        message = f"uses {label} without a grant: its pod holds no {resource}; {how}"
        yield Finding(Kind.WITHOUT_GRANT, client, seen.ungranted[client.pod], message)


def lifted(
    seen: Seen, by_books: Mapping[Books, list[Client]], before: Mapping[Place, Examined]
) -> dict[Place, Examined]:
    """What the environments of the clients on MPS lift; beside it there are no limits. before: of the last look."""
    largest: dict[str, int] = {}
    for grant in seen.grants.values():
        largest[grant.domain] = max(grant.memory_mib, largest.get(grant.domain, 0))
    examined = {}
    for (grant_id, gpu), clients in by_books.items():
        grant = seen.grants[grant_id]
        held = Held(grant, largest[grant.domain], _sees(grant, seen))
        for client in clients:
            if client.on_mps and client.environment is not None:
                known = before.get((client.process, gpu))
                if known is None or known.environment is not client.environment or known.held != held:
                    known = Examined(client.environment, held, escapes(client.environment, gpu, held))
                examined[client.process, gpu] = known
    return examined


def _sees(grant: Grant, seen: Seen) -> tuple[str, ...]:
    """A container has its own GPUs only; a program of this machine all of its domain's."""
    return grant.gpus if grant.pod or grant.container else seen.domains.get(grant.domain, grant.gpus)


def crowd(grant: Grant, label: str, clients: Iterable[Client], ending: Container[ProcessIdentity]) -> Iterator[Finding]:
    """The newest of a grant's processes on a GPU where there are more than it may have. ending: who does not count."""
    counted = [client for client in clients if client.process not in ending]
    if len(counted) > grant.clients:
        message = (
            f"is one process more on {label} than the {grant.clients} that its grant may have there "
            f"(requests.clients_per_grant)"
        )
        for client in sorted(counted, key=age)[grant.clients :]:
            yield Finding(Kind.TOO_MANY_CLIENTS, client, grant.pod, message)


def age(client: Client) -> tuple[int, int]:
    """Larger for a process that started later."""
    return client.process.start_ticks, client.pid
