"""One look at the processes on the GPUs: who takes more than was granted, and whom that is to end.

One rule: what is not known is never punished. A process whose memory or whose pod nobody can tell is left alone, nobody
is ended whose grant is within once others have ended, and mpsd's own processes are not looked at.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mpsd.core.escapes import Escape, Held, escapes
from mpsd.core.events import Reason
from mpsd.core.grants import Gpu, Grant
from mpsd.core.identity import PodName, ProcessIdentity
from mpsd.core.node_view import Client
from mpsd.core.policy import Policy, Response
from mpsd.core.violations import Kind, Violation, most_mib, named

AGAIN_S = 2.0  # a process that was signalled and is still listed counts again after this; memory is back in 0.07 s
SECOND_LOOK_S = 0.025  # a process that starts or ends may show outside MPS for a moment
_TWO_LOOKS = frozenset({Kind.OUTSIDE_MPS, Kind.WITHOUT_GRANT, Kind.IN_NO_POD})

_Place = tuple[ProcessIdentity, str]  # a process and the UUID of a GPU that it uses
_Key = tuple[Kind, ProcessIdentity | str, str]  # a process, or a grant, and the GPU
_Books = tuple[str, str]  # the id of a grant and the UUID of a GPU


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look goes by. now: seconds, of a clock that never goes back.

    grants: by id. domains: the UUIDs of each domain's GPUs, by name. ungranted: as in NodeView. own: mpsd's processes
    and those of its daemons. pods_known: whether pods are known by their cgroups; where not, nobody is in one.
    """

    now: float
    gpus: tuple[Gpu, ...]
    domains: Mapping[str, tuple[str, ...]]
    grants: Mapping[str, Grant]
    clients: tuple[Client, ...]
    ungranted: Mapping[str, PodName]
    own: frozenset[ProcessIdentity]
    pods_known: bool


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to be told that is nobody's violation. pods: those it concerns. reason: of its events; None: none."""

    gpu: str
    pods: tuple[PodName, ...]
    reason: Reason | None
    message: str


@dataclass(frozen=True, slots=True)
class _Examined:
    """What the environment of a client was found to lift, and what that went by."""

    environment: Mapping[str, str] | None
    held: Held
    found: tuple[Escape, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """What one look leaves to the next.

    within: what each process used when its grant was last within, by grant and GPU. ending: until when a process that
    is being ended does not count. since: when each thing that needs a second look was first seen. told: what was said
    and still holds.
    """

    within: Mapping[_Books, Mapping[ProcessIdentity, int]] = field(default_factory=dict)
    ending: Mapping[ProcessIdentity, float] = field(default_factory=dict)
    since: Mapping[_Key, float] = field(default_factory=dict)
    told: frozenset[_Key | str] = frozenset()
    examined: Mapping[_Place, _Examined] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """violations: each once, and again where its process does not end. look_again: soon, before anybody is punished."""

    violations: tuple[Violation, ...]
    notices: tuple[Notice, ...]
    look_again: bool


def judge(seen: Seen, memory: Memory, policy: Policy) -> tuple[Verdict, Memory]:
    """What is wrong now and was not said yet, with what the next look must remember."""
    look = _Look(seen, memory, policy)
    look.at_strangers()
    look.at_escapes()
    look.at_numbers()
    look.at_memory()
    look.at_full_gpus()
    return look.verdict(), look.memory()


def is_quiet(memory: Memory) -> bool:
    """Whether the same look again would find nothing new, however late."""
    return not memory.ending and not memory.since


class _Look:
    """A look under way. Who is to end for one reason is not counted for the next."""

    def __init__(self, seen: Seen, memory: Memory, policy: Policy) -> None:
        self._seen = seen
        self._before = memory
        self._policy = policy
        self._labels = {gpu.uuid: gpu.label for gpu in seen.gpus}
        self._clients = [client for client in seen.clients if client.process not in seen.own]
        listed = {client.process for client in seen.clients}
        self._ending = {who: until for who, until in memory.ending.items() if who in listed and seen.now < until}
        self._late = frozenset(memory.ending.keys() & listed) - self._ending.keys()
        self._within: dict[_Books, Mapping[ProcessIdentity, int]] = {}
        self._since: dict[_Key, float] = {}
        self._told: set[_Key | str] = set()
        self._examined: dict[_Place, _Examined] = {}
        self._violations: list[Violation] = []
        self._notices: list[Notice] = []
        self._look_again = False
        self._of_books: dict[_Books, list[Client]] = {}
        for client in self._clients:
            grant = seen.grants.get(client.grant or "")
            if grant and client.gpu in grant.gpus:
                self._of_books.setdefault((grant.id, client.gpu), []).append(client)

    def verdict(self) -> Verdict:
        return Verdict(tuple(self._violations), tuple(self._notices), self._look_again)

    def memory(self) -> Memory:
        return Memory(self._within, self._ending, self._since, frozenset(self._told), self._examined)

    # -- one kind after the other -----------------------------------------------------------------------------------

    def at_strangers(self) -> None:
        """Who is on a GPU that it was not given, and who is beside MPS."""
        for client in self._clients:
            grant = self._seen.grants.get(client.grant or "")
            if grant is None:
                self._without_grant(client)
            elif client.gpu not in grant.gpus:
                given = ", ".join(map(self._label, grant.gpus))
                message = f"uses {self._label(client.gpu)}, and was granted {given}"
                self._note(Kind.WITHOUT_GRANT, client, _pod_of(grant), message)
            elif not client.on_mps:
                message = (
                    f"runs beside MPS on {self._label(client.gpu)}, where no limit holds it; "
                    f"it must be started with CUDA_MPS_PIPE_DIRECTORY as it was given"
                )
                self._note(Kind.OUTSIDE_MPS, client, _pod_of(grant), message)

    def _without_grant(self, client: Client) -> None:
        label = self._label(client.gpu)
        if client.pod is None:
            where = "is in no pod and uses" if self._seen.pods_known else "has no grant and uses"
            self._note(Kind.IN_NO_POD, client, None, f"{where} {label}, which mpsd shares; {_beside(client)}")
        elif client.pod in self._seen.ungranted:
            pod = self._seen.ungranted[client.pod]
            resource = self._policy.resources.memory
            message = f"uses {label} without a grant, and its pod asks for no {resource}; {_beside(client)}"
            self._note(Kind.WITHOUT_GRANT, client, pod, message)

    def at_escapes(self) -> None:
        """Whose environment lifts its limits, of those on MPS: beside it there are none."""
        largest: dict[str, int] = {}
        for grant in self._seen.grants.values():
            largest[grant.domain] = max(grant.memory_mib, largest.get(grant.domain, 0))
        sees = {grant.id: self._sees(grant) for grant in self._seen.grants.values()}
        for (grant_id, gpu), clients in self._of_books.items():
            grant = self._seen.grants[grant_id]
            held = Held(grant, largest[grant.domain], sees[grant_id])
            for client in clients:
                if client.on_mps and client.environment is not None:
                    for escape in self._escapes(client, gpu, held, client.environment):
                        self._note(escape.kind, client, _pod_of(grant), f"lifts its limit: {escape.message}")

    def _sees(self, grant: Grant) -> tuple[str, ...]:
        """A container has its own GPUs only; a program of this machine all of its domain's."""
        return grant.gpus if isinstance(grant.holder, PodName) else self._seen.domains.get(grant.domain, grant.gpus)

    def _escapes(self, client: Client, gpu: str, held: Held, environment: Mapping[str, str]) -> tuple[Escape, ...]:
        place = (client.process, gpu)
        before = self._before.examined.get(place)
        if before is None or before.environment is not environment or before.held != held:
            before = _Examined(environment, held, escapes(environment, gpu, held))
        self._examined[place] = before
        return before.found

    def at_numbers(self) -> None:
        """Grants with more processes on a GPU than they may have: the newest are too many."""
        for (grant_id, gpu), clients in self._of_books.items():
            grant = self._seen.grants[grant_id]
            if len(clients) <= grant.clients:
                continue
            counted = sorted(self._counted(clients), key=_age)
            message = (
                f"is one more of its grant's processes on {self._label(gpu)} than the {grant.clients} it may have "
                f"(requests.clients_per_grant)"
            )
            for client in counted[grant.clients :]:
                self._note(Kind.TOO_MANY_CLIENTS, client, _pod_of(grant), message)

    def at_memory(self) -> None:
        """Grants whose processes together use more than it on a GPU, those that are being ended left out."""
        for (grant_id, gpu), clients in self._of_books.items():
            self._weigh(self._seen.grants[grant_id], gpu, self._counted(clients))

    def _weigh(self, grant: Grant, gpu: str, clients: list[Client]) -> None:
        key = (grant.id, gpu)
        used = {client.process: client.used_mib for client in clients if client.used_mib is not None}
        for client in clients:
            if client.used_mib is None:
                self._say_unknown(client)
        total_mib = sum(used.values())
        limit_mib = most_mib(grant, self._policy)
        if total_mib <= limit_mib:
            if len(used) == len(clients):
                self._within[key] = used
            elif key in self._before.within:
                self._within[key] = self._before.within[key]
            return
        before = self._within[key] = self._before.within.get(key, {})
        growth = {process: mib - before.get(process, 0) for process, mib in used.items()}
        culprits = sorted(
            (client for client in clients if client.used_mib is not None),
            key=lambda one: (growth[one.process], used[one.process], _age(one)),
            reverse=True,
        )
        left_mib = total_mib
        for client in culprits:
            message = (
                f"took {growth[client.process]} MiB since its grant was last within: "
                f"{total_mib} MiB of {self._label(gpu)} are used where {grant.memory_mib} MiB were granted"
            )
            self._note(Kind.MEMORY_OVER_GRANT, client, _pod_of(grant), message, as_one=grant.id)
            left_mib -= used[client.process]
            if left_mib <= limit_mib or not _ends(Kind.MEMORY_OVER_GRANT.response(self._policy)):
                return

    def at_full_gpus(self) -> None:
        """GPUs that take no further client of MPS."""
        on_mps: dict[str, list[Client]] = {}
        for client in self._seen.clients:
            if client.on_mps:
                on_mps.setdefault(client.gpu, []).append(client)
        for gpu in self._seen.gpus:
            clients = on_mps.get(gpu.uuid, [])
            if len(clients) >= gpu.capability.clients:
                grants = filter(None, (self._seen.grants.get(one.grant or "") for one in clients))
                pods = {_pod_of(grant) for grant in grants}
                message = (
                    f"{gpu.label} has {gpu.capability.clients} MPS clients, which is all that it takes: "
                    f"the next process gets CUDA error 808 (CUDA_ERROR_MPS_MAX_CLIENTS_REACHED)"
                )
                named = tuple(sorted((pod for pod in pods if pod), key=str))
                self._say(f"full {gpu.uuid}", Notice(gpu.uuid, named, Reason.TOO_MANY_CLIENTS, message))

    # -- what is said of it -----------------------------------------------------------------------------------------

    def _counted(self, clients: Iterable[Client]) -> list[Client]:
        return [client for client in clients if client.process not in self._ending]

    def _label(self, uuid: str) -> str:
        return self._labels.get(uuid, uuid)

    def _say_unknown(self, client: Client) -> None:
        message = f"NVML does not say how much {named(client)} uses of {self._label(client.gpu)}: that is not counted"
        self._say(f"unknown {client.process} {client.gpu}", Notice(client.gpu, (), None, message))

    def _say(self, key: str, notice: Notice) -> None:
        self._told.add(key)
        if key not in self._before.told:
            self._notices.append(notice)

    def _note(self, kind: Kind, client: Client, pod: PodName | None, message: str, as_one: str = "") -> None:
        """Something is wrong with a process. as_one: the grant of which only one of its processes is to be told."""
        key: _Key = (kind, as_one or client.process, client.gpu)
        if client.process in self._ending:
            self._told |= self._before.told & {key}
            return
        if kind in _TWO_LOOKS and key not in self._before.told:
            since = self._before.since.get(key, self._seen.now)
            if self._seen.now - since < SECOND_LOOK_S:
                self._since[key] = since
                self._look_again = True
                return
        response = self._response(kind, pod)
        was_told = key in self._before.told
        self._told.add(key)
        if _ends(response):
            self._ending[client.process] = self._seen.now + AGAIN_S
        elif was_told:
            return
        again = client.process in self._late
        self._violations.append(
            Violation(kind, response, client.gpu, client.grant, pod, client, message, again=again and _ends(response))
        )

    def _response(self, kind: Kind, pod: PodName | None) -> Response:
        """As the policy says, but that nobody without a pod can be evicted, and the exempt are only observed."""
        response = kind.response(self._policy)
        if kind is Kind.WITHOUT_GRANT and pod and pod.namespace in self._policy.admission.exempt_namespaces:
            return Response.OBSERVE
        return Response.KILL if response is Response.EVICT and pod is None else response


def _ends(response: Response) -> bool:
    return response in {Response.KILL, Response.EVICT}


def _pod_of(grant: Grant) -> PodName | None:
    return grant.holder if isinstance(grant.holder, PodName) else None


def _age(client: Client) -> tuple[int, int]:
    """Larger for a process that started later."""
    return client.process.start_ticks, client.pid


def _beside(client: Client) -> str:
    return "it is on MPS" if client.on_mps else "it runs beside MPS, without limits"
