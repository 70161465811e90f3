"""Judges the processes of a scan: which exceed their grant, and which must end. Each is reported
once, scanned twice where one scan may mislead, and left alone where its grant is kept without it.
What is not known is no violation."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mpsd.model.events import Reason
from mpsd.model.grants import Gpu, Grant
from mpsd.model.identity import HostContainer, PodName, ProcessIdentity
from mpsd.model.node_view import Client
from mpsd.model.policy import Policy, Response
from mpsd.model.violations import Violation, ViolationKind, most_mib, named
from mpsd.watchdog.rules.escapes import (
    RESERVED_APART_S,
    ClientLimits,
    Escape,
    escapes,
    threads_lifted,
)

_FULL = "CUDA error 808 (CUDA_ERROR_MPS_MAX_CLIENTS_REACHED)"
_START_ON_MPS = "start it with the CUDA_MPS_PIPE_DIRECTORY that mpsd set"
# a process that was signalled and is still listed counts again after this; memory is back in 0.07 s
AGAIN_S = 2.0
# after the first: a process that starts or ends may show outside MPS for a moment
SECOND_SCAN_S = 0.03
_APART_S = {  # that two scans must be for both to count, of what needs two
    **dict.fromkeys(
        (ViolationKind.OUTSIDE_MPS, ViolationKind.WITHOUT_GRANT, ViolationKind.IN_NO_POD), 0.02
    ),
    ViolationKind.THREADS_LIFTED: RESERVED_APART_S,
}

Share = tuple[str, str]  # the id of a grant and the UUID of a GPU of it
# what, of which process or grant, on which GPU
_Key = tuple[ViolationKind | str, ProcessIdentity | str, str]


@dataclass(frozen=True, slots=True)
class WatchdogView:
    """What a scan is judged by. now: monotonic seconds. grants: by id. domains: UUIDs of GPUs by
    name. ungranted: as in NodeView. own: mpsd's processes and its daemons'. pods_known: pods are
    known by cgroups. unseen: GPUs that NVML does not answer for. unexplained_mib: by GPU, in use of
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

    def by_share(self) -> Mapping[Share, list[Client]]:
        """The processes that are where they were granted, by grant and GPU."""
        found: dict[Share, list[Client]] = {}
        for client in self.clients:
            grant = self.grants.get(client.grant or "")
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


def _finding(kind: ViolationKind, client: Client, grant: Grant, message: str) -> ProcessFinding:
    return ProcessFinding(kind, client, grant.pod_of(client.pod), message)


@dataclass(frozen=True, slots=True)
class JudgedShare:
    """The clients of a grant on a GPU, and what they were judged by. escapes: of those on MPS, with
    the environment they were found in. is_kept: nothing was wrong."""

    held: ClientLimits
    policy: Policy
    clients: Sequence[Client]
    escapes: Mapping[ProcessIdentity, tuple[Mapping[str, str], tuple[Escape, ...]]]
    is_kept: bool


def foreign_processes(view: WatchdogView, resource: str) -> Iterator[ProcessFinding]:
    """Processes on GPUs that they were not granted, and outside MPS, as far as grants are known.
    resource: what a pod must hold."""
    for client in view.clients:
        grant = view.grants.get(client.grant or "")
        if grant and client.gpu in grant.gpus and client.on_mps:
            continue
        if client.process not in view.own and (grant or client.gpu not in view.doubtful):
            yield from (
                _misplaced(client, grant, view) if grant else _ungranted(client, view, resource)
            )


def _misplaced(client: Client, grant: Grant, view: WatchdogView) -> Iterator[ProcessFinding]:
    label = view.label(client.gpu)
    if client.gpu not in grant.gpus:
        given = ", ".join(map(view.label, grant.gpus))
        message = f"uses {label}, but was granted {given}"
        yield _finding(ViolationKind.WITHOUT_GRANT, client, grant, message)
    else:
        remedy = _START_ON_MPS
        if client.only_draws:
            remedy = "use a GPU that mpsd does not share, since MPS serves CUDA alone"
        message = f"uses {label} {_beside(client)}; {remedy}"
        yield _finding(ViolationKind.OUTSIDE_MPS, client, grant, message)


def _beside(client: Client) -> str:
    how = ", through a graphics interface (Vulkan, OpenGL)" if client.only_draws else ""
    return f"beside MPS, without limits{how}"


def _ungranted(client: Client, view: WatchdogView, resource: str) -> Iterator[ProcessFinding]:
    how = "it is an MPS client" if client.on_mps else f"it runs {_beside(client)}"
    label = view.label(client.gpu)
    if client.pod is None or not view.pods_known:
        where = "is in no pod and uses" if view.pods_known else "has no grant and uses"
        message = f"{where} {label}, which mpsd shares; {how}"
        yield ProcessFinding(ViolationKind.IN_NO_POD, client, None, message)
    elif client.pod in view.ungranted:
        message = f"uses {label} without a grant: its pod holds no {resource}; {how}"
        pod = view.ungranted[client.pod]
        yield ProcessFinding(ViolationKind.WITHOUT_GRANT, client, pod, message)


def limits_held(view: WatchdogView, shares: Iterable[Share]) -> Iterator[ClientLimits]:
    """What holds the clients of each of these."""
    largest: dict[str, int] = {}
    for grant in view.grants.values():
        largest[grant.domain] = max(grant.memory_mib, largest.get(grant.domain, 0))
    for grant_id, _gpu in shares:
        grant = view.grants[grant_id]
        # A container has its own GPUs only; a program of this machine all of its domain's.
        is_own = isinstance(grant.holder, PodName | HostContainer)
        sees = grant.gpus if is_own else view.domains.get(grant.domain, grant.gpus)
        yield ClientLimits(grant, largest[grant.domain], sees)


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
    if len(counted) > grant.clients:
        most = f"{grant.clients} process{'es' if grant.clients > 1 else ''}{_together(grant)}"
        for client in sorted(counted, key=age)[grant.clients :]:
            lack = "; another grant lacks its own because of it" if client.process in short else ""
            limit = f"its grant's limit of {most} on {label} (requests.clients_per_grant)"
            message = f"exceeds {limit}{lack}"
            yield _finding(ViolationKind.TOO_MANY_CLIENTS, client, grant, message)


def _together(grant: Grant) -> str:
    return f" for all pods of claim {grant.claim} together" if len(grant.pods) > 1 else ""


def crowding_out(
    gpu: Gpu, grants: Iterable[Grant], clients: Iterable[Client]
) -> Iterator[ProcessIdentity]:
    """The processes without which every grant could have its own clients on the GPU: each time the
    newest of the grant that is furthest over."""
    used: dict[str | None, list[Client]] = {grant.id: [] for grant in grants}
    own = {grant.id: grant.clients for grant in grants}
    for client in sorted(clients, key=age):
        used.setdefault(client.grant if client.grant in own else None, []).append(client)
    wanted = sum(max(len(theirs), own.get(grant or "", 0)) for grant, theirs in used.items())
    for _ in range(wanted - gpu.capability.clients):
        most = max(own, key=lambda grant: len(used[grant]) - own[grant], default="")
        if len(used.get(most, ())) <= own.get(most, 0):
            return
        yield used[most].pop().process


def age(client: Client) -> tuple[int, int]:
    return client.process.start_ticks, client.pid


@dataclass(frozen=True, slots=True)
class Notice:
    """A report that is no violation. pods: concerned. reason: of its events; None: none."""

    gpu: str
    pods: tuple[PodName, ...]
    reason: Reason | None
    message: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What one scan leaves to the next. within: by grant and GPU, each process's use when it was
    last within. ending: until when ended processes do not count. since: when what needs a second
    scan was first seen. reported: what is wrong, and whether it was reported. shares: as judged."""

    within: Mapping[Share, Mapping[ProcessIdentity, int]] = field(default_factory=dict)
    ending: Mapping[ProcessIdentity, float] = field(default_factory=dict)
    since: Mapping[_Key, float] = field(default_factory=dict)
    reported: Mapping[_Key, bool] = field(default_factory=dict)
    shares: Mapping[Share, JudgedShare] = field(default_factory=dict)

    @property
    def is_settled(self) -> bool:
        """Whether the same scan again would find nothing new, however late."""
        return not self.ending and not self.since


@dataclass(frozen=True, slots=True)
class WatchdogVerdict:
    """violations: once each, and again where a process does not end. scan_again: soon."""

    violations: tuple[Violation, ...]
    notices: tuple[Notice, ...]
    scan_again: bool


def judge(view: WatchdogView, memory: Memory, policy: Policy) -> tuple[WatchdogVerdict, Memory]:
    """What is wrong now and was not reported yet, and what the next scan needs."""
    state = _Judgement(view, memory, policy)
    for foreign in foreign_processes(view, policy.resources.memory):
        state.note(foreign)
    by_share = view.by_share()
    for (share, clients), held in zip(by_share.items(), limits_held(view, by_share), strict=True):
        state.check_share(share, clients, held)
    for shared in view.gpus:
        state.check_clients(shared)
        state.check_unexplained(shared)
    return state.result()


class _Judgement:
    """A scan being judged. A process that is to end for one reason is not counted for the next."""

    def __init__(self, view: WatchdogView, before: Memory, policy: Policy) -> None:
        self._view = view
        self._gpus = {gpu.uuid: gpu for gpu in view.gpus}
        self._before = before
        self._policy = policy
        listed = {client.process for client in view.clients if before.ending}
        left = {
            one: until
            for one, until in before.ending.items()
            if view.now < until and (one in listed or view.unseen)
        }
        self.ending = left | dict.fromkeys(view.ending, view.now + AGAIN_S)
        self._late = (before.ending.keys() & listed) - self.ending.keys()
        # What was known of a GPU holds while NVML does not answer for it.
        self._within = {
            one: was
            for one, was in before.within.items()
            if one[1] in view.unseen and one[0] in view.grants
        }
        self._shares: dict[Share, JudgedShare] = {}
        self._since: dict[_Key, float] = {}
        self._reported = {
            key: reported for key, reported in before.reported.items() if key[2] in view.unseen
        }
        self.short = frozenset(process for gpu in view.gpus for process in self._crowding_out(gpu))
        self._violations: list[Violation] = []
        self._notices: list[Notice] = []

    def result(self) -> tuple[WatchdogVerdict, Memory]:
        found = (tuple(self._violations), tuple(self._notices))
        verdict = WatchdogVerdict(*found, scan_again=bool(self._since))
        return verdict, Memory(self._within, self.ending, self._since, self._reported, self._shares)

    def _crowding_out(self, gpu: Gpu) -> Iterator[ProcessIdentity]:
        here = [client for client in self._view.clients if client.on_mps and client.gpu == gpu.uuid]
        counts = Counter([client.grant or "" for client in here])
        grants = self._view.grants
        most = {grant.id: grant.clients for grant in grants.values()}
        if any(count > most.get(grant, count) for grant, count in counts.items()):
            there = [grant for grant in grants.values() if gpu.uuid in grant.gpus]
            yield from crowding_out(
                gpu, there, [client for client in here if client.process not in self.ending]
            )

    def check_share(self, share: Share, clients: list[Client], held: ClientLimits) -> None:
        """The clients of a grant on a GPU. What was kept and has not changed is not looked at
        again."""
        (_grant, gpu), grant, known = share, held.grant, self._before.shares.get(share)
        known = known if known and known.held == held else None
        if (
            known
            and known.is_kept
            and known.clients == clients
            and known.policy is self._policy
            and not self.ending
        ):
            self._shares[share], self._within[share] = known, self._before.within[share]
            return
        found = {}
        is_lifted = False
        for client in clients:
            lifted: list[Escape] = []
            if client.on_mps and client.environment is not None:
                before = known.escapes.get(client.process) if known else None
                if before is None or before[0] is not client.environment:
                    before = client.environment, escapes(client.environment, gpu, held)
                found[client.process] = before
                lifted += before[1]
            if client.reserved_kib:
                lifted += threads_lifted(client, self._gpus[gpu], grant)
            for escape in lifted:
                self.note(_finding(escape.kind, client, grant, escape.message))
            is_lifted = is_lifted or bool(lifted)
        too_many = tuple(crowd(grant, self._view.label(gpu), clients, self.ending, self.short))
        for one_more in too_many:
            self.note(one_more)
        is_kept = self.check_memory(grant, gpu, clients) and not too_many
        is_kept = is_kept and not is_lifted
        self._shares[share] = JudgedShare(held, self._policy, clients, found, is_kept)

    def check_memory(self, grant: Grant, gpu: str, clients: list[Client]) -> bool:
        """Notes who takes a grant's memory over its limit; those that are being ended do not count.
        Whether all keep to it."""
        used: dict[ProcessIdentity, int] = {}
        counted = [client for client in clients if client.process not in self.ending]
        for client in counted:
            if client.used_mib is None:
                use = f"how much of {self._view.label(gpu)} {named(client)} uses"
                what = f"NVML does not report {use}; its memory is not counted"
                self._notice(("unknown", client.process, gpu), Notice(gpu, (), None, what))
            else:
                used[client.process] = client.used_mib
        before = self._before.within.get((grant.id, gpu), {})
        part = grant.part_of(gpu)
        total_mib = sum(used.values())
        limit_mib = most_mib(part, self._policy)
        if total_mib <= limit_mib:
            self._within[grant.id, gpu] = used if len(used) == len(counted) else before
            return len(used) == len(clients)
        self._within[grant.id, gpu] = before
        growth = {process: mib - before.get(process, 0) for process, mib in used.items()}
        culprits = [client for client in counted if client.process in used]
        left_mib = total_mib
        for client in sorted(
            culprits, key=lambda one: (growth[one.process], age(one)), reverse=True
        ):
            taken = f"allocated {growth[client.process]} MiB since the use last fitted the grant"
            how = taken if before else f"holds {used[client.process]} MiB"
            granted = f"{part.memory_mib} MiB are granted{_together(grant)}"
            held = f"{total_mib} MiB of {self._view.label(gpu)} are in use, {granted}"
            message = f"{how}: {held}"
            finding = _finding(ViolationKind.MEMORY_OVER_GRANT, client, grant, message)
            self.note(finding, as_one=grant.id)
            left_mib -= used[client.process]
            if left_mib <= limit_mib or not self._response(finding).ends:
                break
        return False

    def check_clients(self, gpu: Gpu) -> None:
        clients = [
            client for client in self._view.clients if client.on_mps and client.gpu == gpu.uuid
        ]
        if len(clients) < gpu.capability.clients:
            return
        holding = ((self._view.grants.get(client.grant or ""), client) for client in clients)
        pods = {pod for grant, client in holding if grant and (pod := grant.pod_of(client.pod))}
        message = (
            f"{gpu.label} has {gpu.capability.clients} MPS clients, which is its maximum: the next"
            f" process gets {_FULL}"
        )
        notice = Notice(gpu.uuid, tuple(sorted(pods, key=str)), Reason.TOO_MANY_CLIENTS, message)
        self._notice(("full", "", gpu.uuid), notice)

    def check_unexplained(self, gpu: Gpu) -> None:
        """Reported and not judged: nothing proves whose it is."""
        if mib := self._view.unexplained_mib.get(gpu.uuid):
            message = (
                f"{mib} MiB of {gpu.label} are in use, and no process there is known to use them:"
                " managed memory of a process that hides it, or of a pool; see which of its"
                " programs use managed memory"
            )
            notice = Notice(gpu.uuid, (), Reason.UNEXPLAINED_MEMORY, message)
            self._notice(("unexplained", "", gpu.uuid), notice)

    def _notice(self, key: _Key, notice: Notice) -> None:
        self._reported[key] = True
        if key not in self._before.reported:
            self._notices.append(notice)

    def note(self, finding: ProcessFinding, as_one: str = "") -> None:
        """Something is wrong with a process. as_one: the grant that it is reported once for."""
        client = finding.client
        key: _Key = (finding.kind, as_one or client.process, client.gpu)
        reported = self._before.reported.get(key)
        if client.process in self.ending:
            self._reported |= {} if reported is None else {key: reported}
            return
        if finding.kind in _APART_S and reported is None:
            since = self._before.since.get(key, self._view.now)
            if self._view.now - since < _APART_S[finding.kind]:
                self._since[key] = since
                return
        response = self._response(finding)
        self._reported[key] = response.reports or bool(reported)
        if response.ends:
            self.ending[client.process] = self._view.now + AGAIN_S
        # what was only counted is reported where the policy now says so
        elif reported or reported is response.reports:
            return
        again = response.ends and client.process in self._late
        kind = finding.kind
        pod = finding.pod
        grant = self._view.grants.get(client.grant or "")
        message = finding.message
        if grant and grant.claim and grant.claim not in message:
            message += f" (claim {grant.claim})"
        one = Violation(kind, response, client.gpu, client.grant, pod, client, message, again)
        self._violations.append(one)

    def _response(self, finding: ProcessFinding) -> Response:
        """The policy's, but only pods are evicted, and exempt namespaces only observed."""
        is_short = finding.client.process in self.short
        response = finding.kind.response(self._policy, short=is_short)
        pod = finding.pod
        exempt = self._policy.admission.exempt_namespaces
        if finding.kind is ViolationKind.WITHOUT_GRANT and pod and pod.namespace in exempt:
            return Response.OBSERVE
        return Response.KILL if response is Response.EVICT and pod is None else response
