"""Scans the processes on the GPUs several times a second, and ends those that exceed their grant.
It waits for nothing else: scans go on by what the ledger knew last, and ending one process delays
no other."""

import asyncio
import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import msgspec

from mpsd.grants.kept import ContainerGrant
from mpsd.grants.ledger import Ledger
from mpsd.model.events import Reason
from mpsd.model.grants import Grant
from mpsd.model.identity import PodName, ProcessIdentity
from mpsd.model.node_report import (
    GrantViolations,
    SeenViolations,
    ViolationCount,
    ViolationReport,
    ViolationsReport,
)
from mpsd.model.node_view import DomainRecord, LedgerView, Queue
from mpsd.model.policy import Policy, Response
from mpsd.model.times import utc
from mpsd.model.violations import Violation, ViolationKind
from mpsd.mps.ends import ClientEnds, EndAsked, NotEnded, NotKilled
from mpsd.mps.heartbeats import Heartbeats
from mpsd.mps.node_gpus import Node
from mpsd.mps.records import DomainRecords
from mpsd.platform import clock, life
from mpsd.platform.event_loop import Shortages
from mpsd.platform.logs import logger
from mpsd.platform.run_directory import ENDS
from mpsd.platform.settings import GRANT, Settings
from mpsd.watchdog.oom_scripts import OomScripts
from mpsd.watchdog.rules.escapes import shows_lifted
from mpsd.watchdog.rules.findings import WatchdogView
from mpsd.watchdog.rules.judge import SECOND_SCAN_S, JudgedScan, judge
from mpsd.watchdog.scanner import GpuProcessScanner, Owners, OwnProcesses, Scan

SCAN_S = 0.2  # from the beginning of one scan to the next
_MIN_PAUSE_S = 0.05  # for the rest of the process, however slow NVML is
_INCOMPLETE_S = 5.0  # how long an incomplete ledger, as at every start, is no warning
_STOP_S = 3.0  # for the memory of processes that were ended when it stops
_REMEMBERED = 1024  # processes that may be there again; one that is, is seen every two seconds
_LATE_S = 0.25  # at least four scans a second are documented


@dataclass(frozen=True, slots=True)
class ClusterReporter:
    """What a cluster adds. add_event: on a pod, or on the node where that is None."""

    add_event: Callable[[PodName | None, Reason, str], None]
    evict: Callable[[PodName, str], Awaitable[None]]


@dataclass(slots=True)
class ViolationRecord:
    """at: seconds since 1970. response: the policy's at the time. outcome: how it ended; empty
    until known. announced: the outcome as announced last."""

    violation: Violation
    at: float
    response: Response
    outcome: str = ""
    announced: str = ""
    is_ended: bool = False

    @property
    def counted_as(self) -> tuple[ViolationKind, Response]:
        return self.violation.kind, self.response

    @property
    def as_reported(self) -> ViolationReport:
        one = self.violation
        return ViolationReport(
            at=utc(self.at),
            kind=one.kind.value,
            action=self.response.value,
            gpu=one.gpu,
            pid=one.client.pid,
            command=one.client.command,
            grant=one.grant,
            pod=str(one.pod or ""),
            message=str(one),
            outcome=self.outcome,
        )


@dataclass(slots=True)
class _Tally:
    """Of one grant: counts by kind, and the last violation."""

    last: ViolationRecord
    counts: Counter[ViolationKind] = field(default_factory=Counter)

    @property
    def as_reported(self) -> GrantViolations:
        counts = [
            ViolationCount(kind=kind.value, count=self.counts[kind]) for kind in sorted(self.counts)
        ]
        return GrantViolations(tuple(counts), self.last.as_reported)


class ViolationHistory:
    """Counts of scans and violations, and the last of these. since: seconds since 1970."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._counts: Counter[tuple[ViolationKind, Response]] = Counter()
        self._ended: Counter[tuple[ViolationKind, Response]] = Counter()
        self._last: deque[ViolationRecord] = deque(maxlen=20)
        self._of_grants: dict[str, _Tally] = {}  # the one with the last violation is last
        # what was seen last is last
        self._known: dict[tuple[ViolationKind, ProcessIdentity], ViolationRecord] = {}
        self._scans = 0
        self._scanned_at = math.inf
        self._longest_pause_s = 0.0
        self._late_scans = 0

    def scanned(self, began: float) -> None:
        """began: monotonic seconds."""
        pause_s = began - self._scanned_at
        self._scanned_at = began
        self._scans += 1
        self._longest_pause_s = max(self._longest_pause_s, pause_s)
        if pause_s > _LATE_S:
            self._late_scans += 1

    def add(self, violation: Violation, at: float) -> ViolationRecord:
        """One that is still there is the same entry, and is not counted again."""
        key = violation.kind, violation.client.process
        if violation.again and (known := self._known.pop(key, None)):
            known.violation = violation
            self._known[key] = known
            return known
        entry = ViolationRecord(violation, at, violation.response)
        self._counts[entry.counted_as] += 1
        self._last.append(entry)
        if violation.grant:
            tally = self._of_grants.pop(violation.grant, None) or _Tally(entry)
            self._of_grants[violation.grant] = tally
            tally.counts[violation.kind] += 1
            tally.last = entry
        if violation.response.ends:  # only these are seen again
            self._known.pop(key, None)
            self._known[key] = entry
            if len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]
        return entry

    def keep(self, grants: Collection[str]) -> None:
        """Drops the counts of all other grants; the node's own counts keep them."""
        self._of_grants = {one: tally for one, tally in self._of_grants.items() if one in grants}

    def stopped(self, entry: ViolationRecord, took_s: float) -> None:
        entry.outcome = f"stopped {took_s:g} s after it was seen, ends once what it queued has run"

    def ended(self, entry: ViolationRecord, took_s: float, queue: Queue) -> None:
        entry.outcome = f"ended, its memory back {took_s:g} s after it was seen"
        if queue is Queue.IN_USE:
            entry.outcome += "; its GPU was in use until then, so neighbours may have been struck"
        if not entry.is_ended:
            self._ended[entry.counted_as] += 1
        entry.is_ended = True

    def seen(self) -> SeenViolations:
        """What happened, to whom; not how often it looked, which is more at every look."""
        counts = [
            ViolationCount(kind.value, action.value, count, self._ended[kind, action])
            for (kind, action), count in sorted(self._counts.items())
        ]
        last = tuple([entry.as_reported for entry in self._last])
        node = ViolationsReport(since=utc(self._since), counts=tuple(counts), last=last)
        grants = {grant: own.as_reported for grant, own in self._of_grants.items()}
        return SeenViolations(node, grants)

    def whole(self, nvml_s: float, unjudged: str) -> SeenViolations:
        """nvml_s: processor time spent in NVML. unjudged: why no process is judged, or empty."""
        seen = self.seen()
        node = msgspec.structs.replace(
            seen.node,
            looks=self._scans,
            longest_pause_s=round(self._longest_pause_s, 3),
            late_looks=self._late_scans,
            nvml_s=round(nvml_s, 3),
            unjudged=unjudged,
        )
        return SeenViolations(node, seen.grants)


class Watchdog:
    """It owns the scanner: whoever needs the clients calls `scan`. records: of the node's
    domains."""

    def __init__(
        self,
        settings: Settings,
        node: Node,
        policy: Callable[[], Policy],
        ledger: Ledger,
        records: DomainRecords,
    ) -> None:
        self._node = node
        self._policy = policy
        self._ledger = ledger
        self._records = records
        self._log = logger(role="watchdog")
        self._shortages = Shortages(self._log)
        self._gpus = {gpu.uuid: gpu for gpu in node.gpus}
        self._counted: LedgerView | None = None  # what these two were made of
        self._marks = self._capped = frozenset[str]()
        mark = None
        if not ledger.pods_known:
            mark = GRANT
        self._scanner = GpuProcessScanner(node.nvml, node.gpus, mark, ledger.whereabouts)
        self._own = OwnProcesses(settings.run_directory)
        self._scripts = OomScripts(settings.run_directory, self._log)
        folder = settings.run_directory / ENDS
        self._heartbeats = Heartbeats(settings.run_directory)
        self._beaten: dict[str, float] = {}
        self.ends = ClientEnds(folder, node, ledger.whereabouts, records.read, self._log)
        self._before = JudgedScan()
        self._judged: tuple[object, ...] = ()  # what was judged last
        self._unjudged = ""  # why nothing is judged; empty while everything is
        self._unjudged_since: float | None = None  # None once that was logged
        self._ending: set[asyncio.Task[None]] = set()
        self._history = ViolationHistory(clock.wall_s())
        self.cluster: ClusterReporter | None = None
        self.on_scan: Callable[[Scan], None] = lambda _scan: None  # called after each

    async def run(self, stop: asyncio.Event) -> None:
        """Scans until `stop`. The ledger must have been loaded."""
        self.ends.resume()
        again = False
        while not stop.is_set():
            began = time.monotonic()
            sure = again
            again = False
            with self._shortages.survived("scan"):
                again = self._cycle(began, sure=sure)
                self.on_scan(self._scanner.last)
                self._beat()
            self._history.scanned(began)
            pause_s = SECOND_SCAN_S
            if not again:
                pause_s = max(began + SCAN_S - time.monotonic(), _MIN_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()
        self._heartbeats.end()
        await self.ends.finish()
        if self._ending:
            await asyncio.wait(self._ending, timeout=_STOP_S)
        await self._scripts.stop()

    def _beat(self) -> None:
        for gpu, scanned_s in self._scanner.scanned_s.items():
            if self._beaten.get(gpu) != scanned_s:
                self._heartbeats.beat(gpu, scanned_s)
                self._beaten[gpu] = scanned_s

    def scan(self) -> Scan:
        self._scanner.follow(self._node.gpus)
        return self._scanner.scan(self._owners(self._ledger.view, self._records.read()))

    def own(self, scan: Scan) -> frozenset[ProcessIdentity]:
        """Those of its processes that are mpsd's own."""
        foreign = (client.process for client in scan.clients if client.grant is None)
        return self._own.among(foreign, self._records.read)

    def grant_around(self, pid: int) -> Grant | None:
        """Of the pod or container that this process is in; None where it has none."""
        place = None
        if self._ledger.whereabouts is not None:
            place = self._ledger.whereabouts.owner_of(pid)
        ledger = self._ledger.view
        grant_id = ledger.by_place.get(place or "")
        return next((held.grant for held in ledger.held if held.grant.id == grant_id), None)

    def violations(self) -> SeenViolations:
        return self._history.whole(self._node.nvml.spent_s, self._unjudged)

    def seen(self) -> SeenViolations:
        """Without what is another at every look."""
        return self._history.seen()

    def _cycle(self, now: float, *, sure: bool) -> bool:
        """One scan, its judgement and what follows; whether another scan must follow soon."""
        records = self._records.read()
        ledger = self._ledger.view
        self._scanner.follow(self._node.gpus)
        scan = self._scanner.scan(self._owners(ledger, records), sure=sure)
        self._log_unjudged("; ".join(ledger.unknown), now)
        if self._unjudged:
            return False
        policy = self._policy()
        grants = {held.grant.id: held.grant for held in ledger.held}
        self._history.keep(grants)
        gpus = {gpu.uuid for gpu in self._node.gpus}
        domains = {record.domain: record.gpus for record in records}
        doubtful = self._records.doubtful(gpus)  # their servers are not known
        for one in ledger.unreadable:
            doubtful.update(one.gpus(domains, gpus))
        judged = (scan, grants, ledger.ungranted, doubtful, policy)
        if judged == self._judged and self._before.is_settled:
            return False
        self._judged = judged
        view = WatchdogView(
            now=now,
            gpus=self._node.gpus,
            domains=domains,
            grants=grants,
            clients=scan.clients,
            ungranted=ledger.ungranted,
            own=self.own(scan),
            ending=self.ends.under_way,
            pods_known=self._ledger.pods_known,
            unseen=frozenset(scan.unseen),
            unexplained_mib=scan.unexplained_mib,
            doubtful=frozenset(doubtful),
        )
        verdict, self._before = judge(view, self._before, policy)
        for notice in verdict.notices:
            self._log.warning("noticed", gpu=notice.gpu, message=notice.message)
            if self.cluster and notice.reason:
                for subject in (None, *notice.pods):
                    self.cluster.add_event(subject, notice.reason, notice.message)
        for violation in verdict.violations:
            self._respond(violation, view)
        return verdict.scan_again

    def _log_unjudged(self, why: str, now: float) -> None:
        if bool(why) != bool(self._unjudged):
            if self._unjudged and self._unjudged_since is None:
                self._log.info("judging resumed")
            self._unjudged_since = now
        self._unjudged = why
        if why and self._unjudged_since is not None and now - self._unjudged_since >= _INCOMPLETE_S:
            self._log.warning("not judging", reason=why)
            self._unjudged_since = None

    def _respond(self, violation: Violation, view: WatchdogView) -> None:
        entry = self._history.add(violation, clock.wall_s())
        if violation.response.ends:
            task = life.background(self._end_process(entry, view))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        elif violation.response.reports:
            self._announce(violation)

    async def _end_process(self, entry: ViolationRecord, view: WatchdogView) -> None:
        with self._shortages.survived("end a process"):
            await self._try_to_end(entry, view)

    async def _try_to_end(self, entry: ViolationRecord, view: WatchdogView) -> None:
        """Ends the process, announces it, and waits until its memory is back. One that cannot be
        ended is tried again while it is there, announced once, and again once it can be."""
        violation = entry.violation
        client = violation.client
        about: dict[str, object] = {"kind": violation.kind.value, "pid": client.pid}
        is_proven = False
        try:
            await self._call_script(violation, view)
            end = self.ends.begin(self._asked(violation))
            is_proven = True
            stopped_s = round(end.stopped_at - view.now, 3)
            self._history.stopped(entry, stopped_s)
            self._announce_once(entry, "it is ended")
            await end.killed()
            took_s = round(await self.ends.until_gone(client, view.now), 3)
        except NotEnded as error:
            if entry.outcome != str(error):
                self._log.warning("not ended", **about, reason=str(error))
            entry.outcome = str(error)
            if isinstance(error, NotKilled):
                is_proven = True
                self._announce_once(entry, f"it continues: {error}")
        else:
            self._history.ended(entry, took_s, end.queue)
            about |= {"used_mib": client.used_mib, "stopped_s": stopped_s, "took_s": took_s}
            self._log.info("ended", **about, queue=end.queue)
        evict = is_proven and violation.response is Response.EVICT and not violation.again
        if evict and violation.pod and self.cluster:
            await self.cluster.evict(violation.pod, str(violation))

    def _asked(self, violation: Violation) -> EndAsked:
        drain_s = self._policy().graces.end_drain_s
        spares = violation.kind is ViolationKind.IN_NO_POD
        return EndAsked(violation.client, violation.kind.value, drain_s, spares_displays=spares)

    async def _call_script(self, violation: Violation, view: WatchdogView) -> None:
        grant = view.grant_of(violation.client)
        is_first = violation.kind is ViolationKind.MEMORY_OVER_GRANT and not violation.again
        if is_first and isinstance(grant, ContainerGrant) and grant.oom_script:
            gpu = violation.gpu
            clients = view.by_share().get((grant.id, gpu), ())
            used_mib = sum(client.used_mib or 0 for client in clients)
            granted_mib = grant.part_of(gpu).memory_mib
            await self._scripts.call(grant, violation.client.pid, used_mib, granted_mib)

    def _announce_once(self, entry: ViolationRecord, outcome: str) -> None:
        if entry.announced != outcome:
            entry.announced = outcome
            self._announce(entry.violation, f"; {outcome}")

    def _announce(self, violation: Violation, outcome: str = "") -> None:
        """By a line in the log and an event."""
        message = f"{violation}{outcome}"
        self._log.warning(
            "violation",
            kind=violation.kind.value,
            action=violation.response.value,
            gpu=violation.gpu,
            grant=violation.grant,
            pod=str(violation.pod or ""),
            message=message,
        )
        if self.cluster:
            self.cluster.add_event(violation.pod, violation.kind.reason, message)

    def _owners(self, ledger: LedgerView, records: tuple[DomainRecord, ...]) -> Owners:
        servers = frozenset(server for record in records for server in record.servers)
        if ledger is not self._counted:
            grants = [held.grant for held in ledger.held]
            # of those the kernel says who is in
            self._marks = frozenset(one.id for one in grants) - ledger.by_place.keys()
            self._capped = frozenset(one.id for one in grants if shows_lifted(one, self._gpus))
            self._counted = ledger
        return Owners(servers, self._marks, ledger.holders, ledger.by_place, self._capped)
