"""Judges the processes of one scan: which exceed their grant, and which of those must end.

Nothing is ended without need: a process is reported once, gets a second scan where the first may mislead, and is left
alone where its grant is kept once others have ended. What is not known is never a violation: processes whose pod is
unknown, and mpsd's own, are left out.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
from mpsd.model.events import Reason
from mpsd.model.grants import Gpu, Grant
from mpsd.model.identity import PodName, ProcessIdentity
from mpsd.model.node_view import Client
from mpsd.model.policy import Policy, Response
from mpsd.model.problem import shown
from mpsd.model.violations import Violation, ViolationKind, most_mib, named

_MIB = 1024**2
AGAIN_S = 2.0  # a process that was signalled and is still listed counts again after this; memory is back in 0.07 s
SECOND_SCAN_S = 0.03  # after the first: a process that starts or ends may show outside MPS for a moment
_APART_S = 0.02  # that two scans must be to count as two
_TWO_SCANS = frozenset({ViolationKind.OUTSIDE_MPS, ViolationKind.WITHOUT_GRANT, ViolationKind.IN_NO_POD})

Share = tuple[str, str]  # the id of a grant and the UUID of a GPU of it
Use = tuple[ProcessIdentity, str]  # a process and the UUID of a GPU that it uses
_Key = tuple[ViolationKind | str, ProcessIdentity | str, str]  # what, of which process or grant, on which GPU


@dataclass(frozen=True, slots=True)
class WatchdogView:
    """What a scan is judged by. now: seconds, of a monotonic clock.

    grants: by id. domains: the UUIDs of each domain's GPUs, by name. ungranted: as in NodeView. own: mpsd's processes
    and those of its daemons. pods_known: whether pods are known by their cgroups; where not, no process is in one.
    unseen: the UUIDs of the GPUs that NVML does not answer for.
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

    def by_share(self) -> Mapping[Share, list[Client]]:
        """The processes that are where they were granted, by grant and GPU."""
        found: dict[Share, list[Client]] = {}
        for client in self.clients:
            grant = self.grants.get(client.grant or "")
            if grant and client.gpu in grant.gpus:
                found.setdefault((grant.id, client.gpu), []).append(client)
        return found


# -- what an environment lifts -------------------------------------------------------------------------------------


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
    if gpu not in visible:  # it sees other GPUs than is known here, so the meaning of its ordinals is unknown
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


def strangers(view: WatchdogView, resource: str) -> Iterator[ProcessFinding]:
    """The processes on GPUs that they were not granted, and those outside MPS. resource: what a pod must hold."""
    for client in view.clients:
        grant = view.grants.get(client.grant or "")
        if grant and client.gpu in grant.gpus and client.on_mps:
            continue
        if client.process not in view.own:
            yield from _misplaced(client, grant, view) if grant else _ungranted(client, view, resource)


def _misplaced(client: Client, grant: Grant, view: WatchdogView) -> Iterator[ProcessFinding]:
    label = view.label(client.gpu)
    if client.gpu not in grant.gpus:
        given = ", ".join(map(view.label, grant.gpus))
        yield ProcessFinding(ViolationKind.WITHOUT_GRANT, client, grant.pod, f"uses {label}, and was granted {given}")
    else:
        message = (
            f"runs beside MPS on {label}, where no limit holds it; it must be started with the "
            f"CUDA_MPS_PIPE_DIRECTORY that it was given"
        )
        yield ProcessFinding(ViolationKind.OUTSIDE_MPS, client, grant.pod, message)


def _ungranted(client: Client, view: WatchdogView, resource: str) -> Iterator[ProcessFinding]:
    how = "it is on MPS" if client.on_mps else "it runs beside MPS, without limits"
    label = view.label(client.gpu)
    if client.pod is None or not view.pods_known:
        where = "is in no pod and uses" if view.pods_known else "has no grant and uses"
        yield ProcessFinding(ViolationKind.IN_NO_POD, client, None, f"{where} {label}, which mpsd shares; {how}")
    elif client.pod in view.ungranted:
        message = f"uses {label} without a grant: its pod holds no {resource}; {how}"
        yield ProcessFinding(ViolationKind.WITHOUT_GRANT, client, view.ungranted[client.pod], message)


def lifted(
    view: WatchdogView, by_share: Mapping[Share, list[Client]], before: Mapping[Use, Examined]
) -> dict[Use, Examined]:
    """What the environments of the clients on MPS lift; beside it there are no limits. before: of the last state."""
    largest: dict[str, int] = {}
    for grant in view.grants.values():
        largest[grant.domain] = max(grant.memory_mib, largest.get(grant.domain, 0))
    examined = {}
    for (grant_id, gpu), clients in by_share.items():
        grant = view.grants[grant_id]
        held = ClientLimits(grant, largest[grant.domain], _sees(grant, view))
        for client in clients:
            if client.on_mps and client.environment is not None:
                known = before.get((client.process, gpu))
                if known is None or known.environment is not client.environment or known.held != held:
                    known = Examined(client.environment, held, escapes(client.environment, gpu, held))
                examined[client.process, gpu] = known
    return examined


def _sees(grant: Grant, view: WatchdogView) -> tuple[str, ...]:
    """A container has its own GPUs only; a program of this machine all of its domain's."""
    return grant.gpus if grant.pod or grant.container else view.domains.get(grant.domain, grant.gpus)


def crowd(
    grant: Grant, label: str, clients: Iterable[Client], ending: Container[ProcessIdentity]
) -> Iterator[ProcessFinding]:
    """The newest of a grant's processes on a GPU where it has too many. ending: those that do not count."""
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


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to report that is no violation. pods: those it concerns. reason: of its events; None: none."""

    gpu: str
    pods: tuple[PodName, ...]
    reason: Reason | None
    message: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What one scan leaves to the next.

    within: what each process used when its grant was last within, by grant and GPU. ending: until when a process that
    is being ended does not count. since: when each thing that needs a second scan was first seen. reported: what
    was seen to be wrong and still is, and whether it was reported.
    """

    within: Mapping[Share, Mapping[ProcessIdentity, int]] = field(default_factory=dict)
    ending: Mapping[ProcessIdentity, float] = field(default_factory=dict)
    since: Mapping[_Key, float] = field(default_factory=dict)
    reported: Mapping[_Key, bool] = field(default_factory=dict)
    examined: Mapping[Use, Examined] = field(default_factory=dict)

    @property
    def is_settled(self) -> bool:
        """Whether the same scan again would find nothing new, however late."""
        return not self.ending and not self.since


@dataclass(frozen=True, slots=True)
class WatchdogVerdict:
    """violations: each once, and again where its process does not end. scan_again: soon, before anybody is punished."""

    violations: tuple[Violation, ...]
    notices: tuple[Notice, ...]
    scan_again: bool


def judge(view: WatchdogView, memory: Memory, policy: Policy) -> tuple[WatchdogVerdict, Memory]:
    """What is wrong now and was not reported yet, and what the next scan needs."""
    state = _Judgement(view, memory, policy)
    for stranger in strangers(view, policy.resources.memory):
        state.note(stranger)
    by_share = view.by_share()
    examined = lifted(view, by_share, memory.examined)
    for (grant_id, gpu), clients in by_share.items():
        grant = view.grants[grant_id]
        state.check_limits(grant, gpu, clients, examined)
        for one_more in crowd(grant, view.label(gpu), clients, state.ending) if len(clients) > grant.clients else ():
            state.note(one_more)
        state.check_memory(grant, gpu, clients)
    for shared in view.gpus:
        state.check_clients(shared)
    return state.verdict(), state.memory(examined)


class _Judgement:
    """A scan being judged. A process that is to end for one reason is not counted for the next."""

    def __init__(self, view: WatchdogView, before: Memory, policy: Policy) -> None:
        self._view = view
        self._before = before
        self._policy = policy
        listed = {client.process for client in view.clients} if before.ending else set[ProcessIdentity]()
        self.ending = {
            one: until for one, until in before.ending.items() if view.now < until and (one in listed or view.unseen)
        }
        self._late = (before.ending.keys() & listed) - self.ending.keys()
        # What was known of a GPU holds while NVML does not answer for it.
        self._within = {
            one: was for one, was in before.within.items() if one[1] in view.unseen and one[0] in view.grants
        }
        self._since: dict[_Key, float] = {}
        self._reported = {key: reported for key, reported in before.reported.items() if key[2] in view.unseen}
        self._violations: list[Violation] = []
        self._notices: list[Notice] = []

    def verdict(self) -> WatchdogVerdict:
        return WatchdogVerdict(tuple(self._violations), tuple(self._notices), scan_again=bool(self._since))

    def memory(self, examined: Mapping[Use, Examined]) -> Memory:
        return Memory(self._within, self.ending, self._since, self._reported, examined)

    def check_limits(self, grant: Grant, gpu: str, clients: list[Client], examined: Mapping[Use, Examined]) -> None:
        for client in clients:
            known = examined.get((client.process, gpu))
            for escape in known.found if known else ():
                self.note(ProcessFinding(escape.kind, client, grant.pod, f"lifts its limit: {escape.message}"))

    def check_memory(self, grant: Grant, gpu: str, clients: list[Client]) -> None:
        """A grant whose processes together use more than it of a GPU, those that are being ended left out."""
        used: dict[ProcessIdentity, int] = {}
        counted = [client for client in clients if client.process not in self.ending] if self.ending else clients
        for client in counted:
            if client.used_mib is None:
                self._notice_unknown(client)
            else:
                used[client.process] = client.used_mib
        before = self._before.within.get((grant.id, gpu), {})
        part = grant.part_of(gpu)
        total_mib, limit_mib = sum(used.values()), most_mib(part, self._policy)
        if total_mib <= limit_mib:
            self._within[grant.id, gpu] = used if len(used) == len(counted) else before
            return
        self._within[grant.id, gpu] = before
        growth = {process: mib - before.get(process, 0) for process, mib in used.items()}
        culprits = [client for client in counted if client.process in used]
        left_mib = total_mib
        for client in sorted(culprits, key=lambda one: (growth[one.process], age(one)), reverse=True):
            taken = f"took {growth[client.process]} MiB since its grant was last within"
            message = (
                f"{taken if before else f'holds {used[client.process]} MiB'}: "
                f"{total_mib} MiB of {self._view.label(gpu)} are used where {part.memory_mib} MiB were granted"
            )
            finding = ProcessFinding(ViolationKind.MEMORY_OVER_GRANT, client, grant.pod, message)
            self.note(finding, as_one=grant.id)
            left_mib -= used[client.process]
            if left_mib <= limit_mib or not self._response(finding).ends:
                return

    def check_clients(self, gpu: Gpu) -> None:
        """A GPU that takes no further client of MPS."""
        clients = [client for client in self._view.clients if client.on_mps and client.gpu == gpu.uuid]
        if len(clients) < gpu.capability.clients:
            return
        grants = filter(None, (self._view.grants.get(client.grant or "") for client in clients))
        pods = {grant.pod for grant in grants if grant.pod}
        message = (
            f"{gpu.label} has {gpu.capability.clients} MPS clients, which is all that it takes: "
            f"the next process gets CUDA error 808 (CUDA_ERROR_MPS_MAX_CLIENTS_REACHED)"
        )
        notice = Notice(gpu.uuid, tuple(sorted(pods, key=str)), Reason.TOO_MANY_CLIENTS, message)
        self._notice(("full", "", gpu.uuid), notice)

    def _notice_unknown(self, client: Client) -> None:
        label = self._view.label(client.gpu)
        message = f"NVML does not report how much of {label} {named(client)} uses; its use is not counted"
        self._notice(("unknown", client.process, client.gpu), Notice(client.gpu, (), None, message))

    def _notice(self, key: _Key, notice: Notice) -> None:
        self._reported[key] = True
        if key not in self._before.reported:
            self._notices.append(notice)

    def note(self, finding: ProcessFinding, as_one: str = "") -> None:
        """Something is wrong with a process. as_one: the grant whose processes it is reported once for."""
        client = finding.client
        key: _Key = (finding.kind, as_one or client.process, client.gpu)
        reported = self._before.reported.get(key)
        if client.process in self.ending:
            self._reported |= {} if reported is None else {key: reported}
            return
        if finding.kind in _TWO_SCANS and reported is None:
            since = self._before.since.get(key, self._view.now)
            if self._view.now - since < _APART_S:
                self._since[key] = since
                return
        response = self._response(finding)
        self._reported[key] = response.tells or bool(reported)
        if response.ends:
            self.ending[client.process] = self._view.now + AGAIN_S
        elif reported or reported is response.tells:  # what was only counted is reported where the policy now says so
            return
        self._violations.append(
            Violation(
                kind=finding.kind,
                response=response,
                gpu=client.gpu,
                grant=client.grant,
                pod=finding.pod,
                client=client,
                message=finding.message,
                again=response.ends and client.process in self._late,
            )
        )

    def _response(self, finding: ProcessFinding) -> Response:
        """As the policy says, except that only pods can be evicted, and exempt namespaces are only observed."""
        response, pod = finding.kind.response(self._policy), finding.pod
        if (
            finding.kind is ViolationKind.WITHOUT_GRANT
            and pod
            and pod.namespace in self._policy.admission.exempt_namespaces
        ):
            return Response.OBSERVE
        return Response.KILL if response is Response.EVICT and pod is None else response
