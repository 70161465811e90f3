"""Judges the processes of a scan: which exceed their grant, and which must end. Each is reported
once, scanned twice where one scan may mislead, and left alone where its grant is kept without it.
What is not known is no violation."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from mpsd.model.events import Reason
from mpsd.model.grants import Gpu, Grant
from mpsd.model.identity import PodName, ProcessIdentity
from mpsd.model.node_view import Client
from mpsd.model.policy import Policy, Response
from mpsd.model.violations import Violation, ViolationKind, most_mib, named
from mpsd.watchdog.rules.escapes import (
    RESERVED_APART_S,
    ClientBounds,
    Escape,
    escapes,
    threads_lifted,
)
from mpsd.watchdog.rules.findings import (
    ProcessFinding,
    Share,
    WatchdogView,
    age,
    bounds_of,
    crowd,
    crowding_out,
    finding_of,
    foreign_processes,
    together,
)

_FULL = "CUDA error 808 (CUDA_ERROR_MPS_MAX_CLIENTS_REACHED)"
AGAIN_S = 2.0  # after which a signalled process counts again; memory is back in 0.07 s
# after the first: a process that starts or ends may show outside MPS for a moment
SECOND_SCAN_S = 0.03
_APART_S = {  # that two scans must be for both to count, of what needs two
    **dict.fromkeys(
        (ViolationKind.OUTSIDE_MPS, ViolationKind.WITHOUT_GRANT, ViolationKind.IN_NO_POD), 0.02
    ),
    ViolationKind.THREADS_LIFTED: RESERVED_APART_S,
}

# what, of which process or grant, on which GPU
_Key = tuple[ViolationKind | str, ProcessIdentity | str, str]


@dataclass(frozen=True, slots=True)
class JudgedShare:
    """The clients of a grant on a GPU, and what they were judged by. escapes: of those on MPS, with
    the environment they were found in. is_kept: nothing was wrong."""

    bounds: ClientBounds
    policy: Policy
    clients: Sequence[Client]
    escapes: Mapping[ProcessIdentity, tuple[Mapping[str, str], tuple[Escape, ...]]]
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Notice:
    """A report that is no violation. pods: concerned. reason: of its events; None: none."""

    gpu: str
    pods: tuple[PodName, ...]
    reason: Reason | None
    message: str


class Noted(IntEnum):
    """How much was made of something that is wrong."""

    NEW = 0
    COUNTED = 1  # and not reported, as the policy had it
    REPORTED = 2


@dataclass(frozen=True, slots=True)
class JudgedScan:
    """What one scan leaves to the next. within: by grant and GPU, each process's use when it was
    last within. ending: until when ended processes do not count. since: when what needs a second
    scan was first seen. noted: what is wrong. shares: as judged."""

    within: Mapping[Share, Mapping[ProcessIdentity, int]] = field(default_factory=dict)
    ending: Mapping[ProcessIdentity, float] = field(default_factory=dict)
    since: Mapping[_Key, float] = field(default_factory=dict)
    noted: Mapping[_Key, Noted] = field(default_factory=dict)
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


def judge(
    view: WatchdogView, before: JudgedScan, policy: Policy
) -> tuple[WatchdogVerdict, JudgedScan]:
    """What is wrong now and was not reported yet, and what the next scan needs."""
    now = _Judgement(view, before, policy)
    for foreign in foreign_processes(view, policy.resources.memory):
        now.note(foreign)
    by_share = view.by_share()
    for (share, clients), bounds in zip(by_share.items(), bounds_of(view, by_share), strict=True):
        now.check_share(share, clients, bounds)
    for gpu in view.gpus:
        now.check_clients(gpu)
        now.check_unexplained(gpu)
    now.check_unread()
    return now.result()


class _Judgement:
    """A scan being judged. A process that is to end for one reason is not counted for the next."""

    def __init__(self, view: WatchdogView, before: JudgedScan, policy: Policy) -> None:
        self._view = view
        self._gpus = {gpu.uuid: gpu for gpu in view.gpus}
        self._before = before
        self._policy = policy
        self._late: set[ProcessIdentity] = set()  # still there, after their time to end
        self.ending = dict.fromkeys(view.ending, view.now + AGAIN_S)
        if before.ending:
            self._take_over_ends()
        # What was known of a GPU holds while NVML does not answer for it.
        self._within = {
            share: before.within[share]
            for share in before.within
            if share[1] in view.unseen and share[0] in view.grants
        }
        self._noted = {key: noted for key, noted in before.noted.items() if key[2] in view.unseen}
        self._shares: dict[Share, JudgedShare] = {}
        self._since: dict[_Key, float] = {}
        self._short = frozenset(process for gpu in view.gpus for process in self._crowding_out(gpu))
        self._violations: list[Violation] = []
        self._notices: list[Notice] = []

    def _take_over_ends(self) -> None:
        listed = {client.process for client in self._view.clients}
        for process, until in self._before.ending.items():
            if self._view.now >= until:
                if process in listed and process not in self.ending:
                    self._late.add(process)
            elif process in listed or self._view.unseen:
                self.ending.setdefault(process, until)

    def result(self) -> tuple[WatchdogVerdict, JudgedScan]:
        verdict = WatchdogVerdict(
            tuple(self._violations), tuple(self._notices), scan_again=bool(self._since)
        )
        after = JudgedScan(self._within, self.ending, self._since, self._noted, self._shares)
        return verdict, after

    def _crowding_out(self, gpu: Gpu) -> Iterable[ProcessIdentity]:
        here = self._view.on_mps(gpu)
        grants = self._view.grants.values()
        counts = Counter([client.grant for client in here])
        if all(counts[grant.id] <= grant.clients for grant in grants):
            return ()
        there = [grant for grant in grants if gpu.uuid in grant.gpus]
        counted = [client for client in here if client.process not in self.ending]
        return crowding_out(gpu, there, counted)

    def check_share(self, share: Share, clients: list[Client], bounds: ClientBounds) -> None:
        """The clients of a grant on a GPU. What was kept and has not changed is not looked at
        again."""
        known = self._before.shares.get(share)
        earlier: Mapping[ProcessIdentity, tuple[Mapping[str, str], tuple[Escape, ...]]] = {}
        if known and known.bounds == bounds:
            is_same = known.clients == clients and known.policy is self._policy
            if known.is_kept and is_same and not self.ending:
                self._shares[share] = known
                self._within[share] = self._before.within[share]
                return
            earlier = known.escapes
        grant = bounds.grant
        gpu = self._gpus[share[1]]
        found = {}
        wrong: list[ProcessFinding] = []
        for client in clients:
            lifted: list[Escape] = []
            if client.on_mps and client.environment is not None:
                environment, own = earlier.get(client.process, (None, ()))
                if environment is not client.environment:
                    own = escapes(client.environment, gpu.uuid, bounds)
                found[client.process] = client.environment, own
                lifted += own
            if client.reserved_kib:
                lifted += threads_lifted(client, gpu, grant)
            wrong += [finding_of(escape.kind, client, grant, escape.message) for escape in lifted]
        for one in wrong:
            self.note(one)
        too_many = list(crowd(grant, gpu.label, clients, self.ending, self._short))
        for one in too_many:
            self.note(one)
        is_within = self.check_memory(grant, gpu, clients)
        is_kept = is_within and not wrong and not too_many
        self._shares[share] = JudgedShare(bounds, self._policy, clients, found, is_kept)

    def check_memory(self, grant: Grant, gpu: Gpu, clients: list[Client]) -> bool:
        """Notes who takes a grant's memory over its limit; those that are being ended do not count.
        Whether all keep to it."""
        used: dict[ProcessIdentity, int] = {}
        culprits: list[Client] = []
        counted = [client for client in clients if client.process not in self.ending]
        for client in counted:
            if client.used_mib is None:
                use = f"how much of {gpu.label} {named(client)} uses"
                what = f"NVML does not report {use}; its memory is not counted"
                notice = Notice(gpu.uuid, (), None, what)
                self._notice(("unknown", client.process, gpu.uuid), notice)
            else:
                used[client.process] = client.used_mib
                culprits.append(client)
        share = grant.id, gpu.uuid
        before = self._before.within.get(share, {})
        part = grant.part_of(gpu.uuid)
        left_mib = total_mib = sum(used.values())
        limit_mib = most_mib(part, self._policy)
        self._within[share] = before
        if total_mib <= limit_mib:
            if len(used) == len(counted):
                self._within[share] = used
            return len(used) == len(clients)
        granted = f"{part.memory_mib} MiB are granted{together(grant)}"
        held = f"{total_mib} MiB of {gpu.label} are in use, {granted}"
        growth = {process: mib - before.get(process, 0) for process, mib in used.items()}
        culprits.sort(key=lambda one: (growth[one.process], age(one)), reverse=True)
        for client in culprits:
            how = f"holds {used[client.process]} MiB"
            if before:
                taken = f"allocated {growth[client.process]} MiB"
                how = f"{taken} since the use last fitted the grant"
            finding = finding_of(ViolationKind.MEMORY_OVER_GRANT, client, grant, f"{how}: {held}")
            self.note(finding, as_one=grant.id)
            left_mib -= used[client.process]
            if left_mib <= limit_mib or not self._response(finding).ends:
                break
        return False

    def check_clients(self, gpu: Gpu) -> None:
        clients = self._view.on_mps(gpu)
        most = gpu.capability.clients
        if len(clients) < most:
            return
        pods = set()
        for client in clients:
            grant = self._view.grant_of(client)
            if grant and (pod := grant.pod_of(client.pod)):
                pods.add(pod)
        full = f"{gpu.label} has {most} MPS clients, which is its maximum"
        message = f"{full}: the next process gets {_FULL}"
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

    def check_unread(self) -> None:
        """Reported and not judged: what it uses by NVML is, as always."""
        for client in self._view.clients:
            if client.is_unread:
                what = f"what {named(client)} was started with, or maps, cannot be read to its end"
                message = f"{what}: only its memory by NVML is judged; see what keeps it from that"
                notice = Notice(client.gpu, (), None, message)
                self._notice(("unread", client.process, client.gpu), notice)

    def _notice(self, key: _Key, notice: Notice) -> None:
        self._noted[key] = Noted.REPORTED
        if key not in self._before.noted:
            self._notices.append(notice)

    def note(self, finding: ProcessFinding, as_one: str = "") -> None:
        """Something is wrong with a process. as_one: the grant that it is reported once for."""
        client = finding.client
        kind = finding.kind
        key: _Key = (kind, as_one or client.process, client.gpu)
        before = self._before.noted.get(key, Noted.NEW)
        if client.process in self.ending:
            if before:
                self._noted[key] = before
            return
        if kind in _APART_S and not before:
            since = self._before.since.get(key, self._view.now)
            if self._view.now - since < _APART_S[kind]:
                self._since[key] = since
                return
        response = self._response(finding)
        noted = before or Noted.COUNTED
        if response.reports:
            noted = Noted.REPORTED
        self._noted[key] = noted
        if response.ends:
            self.ending[client.process] = self._view.now + AGAIN_S
        elif noted is before:
            return
        grant = self._view.grant_of(client)
        message = finding.message
        if grant and grant.claim and grant.claim not in message:
            message += f" (claim {grant.claim})"
        again = response.ends and client.process in self._late
        self._violations.append(
            Violation(kind, response, client.gpu, client.grant, finding.pod, client, message, again)
        )

    def _response(self, finding: ProcessFinding) -> Response:
        """The policy's, but only pods are evicted, and exempt namespaces only observed."""
        is_short = finding.client.process in self._short
        response = finding.kind.response(self._policy, short=is_short)
        pod = finding.pod
        if pod is None:
            return Response.KILL if response is Response.EVICT else response
        exempt = self._policy.admission.exempt_namespaces
        if finding.kind is ViolationKind.WITHOUT_GRANT and pod.namespace in exempt:
            return Response.OBSERVE
        return response
