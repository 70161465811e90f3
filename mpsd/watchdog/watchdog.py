"""The watchdog: scans the processes on the GPUs several times a second, and ends those that exceed their grant.

It waits for nothing else: while an agent's cycle waits for kubelet or for a daemon that does not answer, scans go on by
what the ledger knew last; and ending one process never delays another.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from mpsd.grants.ledger import ContainerGrant, Ledger
from mpsd.model.events import Reason
from mpsd.model.grants import Grant
from mpsd.model.identity import PodName
from mpsd.model.node_status import ViolationsStatus
from mpsd.model.node_view import DomainRecord
from mpsd.model.policy import Policy, Response
from mpsd.model.violations import Violation, ViolationKind
from mpsd.mps.node import Node
from mpsd.mps.records import DomainRecords
from mpsd.platform.logs import logger
from mpsd.platform.settings import GRANT, Settings
from mpsd.watchdog.ending import ClientEnd, NotEnded, NotKilled, OomScripts
from mpsd.watchdog.history import ViolationHistory, ViolationRecord
from mpsd.watchdog.rules.judge import SECOND_SCAN_S, Memory, Notice, WatchdogView, judge
from mpsd.watchdog.rules.reported import NodeViolations
from mpsd.watchdog.scanner import GpuProcessScanner, Owners, OwnProcesses, Scan

SCAN_S = 0.2  # from the beginning of one scan to the next
_MIN_PAUSE_S = 0.05  # for the rest of the process, however slow NVML is
_INCOMPLETE_S = 5.0  # how long an incomplete ledger, as at every start, is no warning
_STOP_S = 3.0  # for processes that are being ended when it stops


@dataclass(frozen=True, slots=True)
class ClusterReporter:
    """What a cluster adds. report: an event on a pod, or on the node where that is None."""

    report: Callable[[PodName | None, Reason, str], None]
    evict: Callable[[PodName, str], Awaitable[None]]


class Watchdog:
    """It owns the scanner: whoever else needs the clients calls `scan`. records: of this node's domains."""

    def __init__(
        self, settings: Settings, node: Node, policy: Callable[[], Policy], ledger: Ledger, records: DomainRecords
    ) -> None:
        self._node = node
        self._policy = policy
        self._ledger = ledger
        self._records = records
        self._log = logger(role="watchdog")
        mark = None if ledger.pods_known else GRANT
        self._scanner = GpuProcessScanner(node.nvml, [gpu.uuid for gpu in node.gpus], mark, ledger.whereabouts)
        self._own = OwnProcesses(settings.run_directory)
        self._scripts = OomScripts(settings.run_directory)
        self._end = ClientEnd(settings, node, ledger.whereabouts)
        self._memory = Memory()
        self._judged: tuple[object, ...] = ()  # what was judged last
        self._unjudged = ""  # why nothing is judged; empty while everything is
        self._unjudged_since: float | None = None  # None once that was logged
        self._ending: set[asyncio.Task[None]] = set()
        self._history = ViolationHistory(time.time())
        self.cluster: ClusterReporter | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Scans until `stop`. The ledger must have been loaded."""
        again = False
        while not stop.is_set():
            began = time.monotonic()
            again = self._cycle(began, sure=again)
            self._history.scanned(began)
            left_s = began + SCAN_S - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SECOND_SCAN_S if again else max(left_s, _MIN_PAUSE_S)):
                    await stop.wait()
        if self._ending:
            await asyncio.wait(self._ending, timeout=_STOP_S)
        await self._scripts.stop()

    def scan(self) -> Scan:
        """The clients as they are now."""
        records = self._records.read()
        return self._scanner.scan(self._owners(self._grants(), records))

    def status(self) -> ViolationsStatus:
        return self._history.status(self._node.nvml.spent_s, self._unjudged)

    def violations(self) -> NodeViolations:
        """The same for the MPSNode."""
        return self._history.violations()

    def _grants(self) -> Mapping[str, Grant]:
        return {held.grant.id: held.grant for held in self._ledger.held()}

    def _owners(self, grants: Mapping[str, Grant], records: tuple[DomainRecord, ...]) -> Owners:
        servers = frozenset(server for record in records for server in record.servers)
        marks = frozenset(grant.id for grant in grants.values() if not grant.container)
        return Owners(servers, marks, self._ledger.holders(), self._ledger.pods())

    def _cycle(self, now: float, *, sure: bool) -> bool:
        """One scan, its judgement and what follows; whether another scan must follow soon."""
        records, grants = self._records.read(), self._grants()
        scan = self._scanner.scan(self._owners(grants, records), sure=sure)
        self._log_unjudged("; ".join(self._ledger.unknown), now)
        if self._unjudged:
            return False
        self._history.keep(grants)
        judged = (scan, grants, self._ledger.ungranted, self._policy())
        if judged == self._judged and self._memory.is_settled:
            return False
        self._judged = judged
        strangers = (client.process for client in scan.clients if client.grant is None)
        view = WatchdogView(
            now=now,
            gpus=self._node.gpus,
            domains={record.domain: record.gpus for record in records},
            grants=grants,
            clients=scan.clients,
            ungranted=self._ledger.ungranted,
            own=self._own.among(strangers, records),
            pods_known=self._ledger.pods_known,
            unseen=scan.unseen,
        )
        verdict, self._memory = judge(view, self._memory, self._policy())
        for notice in verdict.notices:
            self._report_notice(notice)
        for violation in verdict.violations:
            self._respond(violation, records, view)
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

    def _report_notice(self, notice: Notice) -> None:
        self._log.warning("noticed", gpu=notice.gpu, message=notice.message)
        if self.cluster and notice.reason:
            for subject in (None, *notice.pods):
                self.cluster.report(subject, notice.reason, notice.message)

    def _respond(self, violation: Violation, records: tuple[DomainRecord, ...], view: WatchdogView) -> None:
        entry = self._history.add(violation, time.time())
        if violation.ends:
            record = next((one for one in records if violation.gpu in one.gpus), None)
            task = asyncio.create_task(self._end_process(entry, record, view))
            self._ending.add(task)
            task.add_done_callback(self._ended)
        elif violation.told:
            self._report(violation, str(violation))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (fault := task.exception()):
            self._log.error("not ended", reason="a fault of mpsd's own", exc_info=fault)

    async def _end_process(self, entry: ViolationRecord, record: DomainRecord | None, view: WatchdogView) -> None:
        """Ends the process, reports it, and waits until its memory is back.

        One that cannot be ended is tried again as long as it is there, and reported once, and again once it can be.
        """
        violation, client = entry.violation, entry.violation.client
        about = {"kind": violation.kind.value, "pid": client.pid}
        is_proven = False
        try:
            await self._call_script(violation, view)
            await self._end.signal(violation, record)
            is_proven = True
            self._report_once(entry, "it is ended")
            took_s = round(await self._end.until_gone(client, view.now), 3)
        except NotEnded as error:
            if entry.outcome != str(error):
                self._log.warning("not ended", **about, reason=str(error))
            entry.outcome = str(error)
            if isinstance(error, NotKilled):
                is_proven = True
                self._report_once(entry, f"it continues: {error}")
        else:
            self._history.ended(entry, took_s)
            self._log.info("ended", **about, used_mib=client.used_mib, took_s=took_s)
        evict = is_proven and violation.response is Response.EVICT and not violation.again
        if evict and violation.pod and self.cluster:
            await self.cluster.evict(violation.pod, str(violation))

    async def _call_script(self, violation: Violation, view: WatchdogView) -> None:
        """Calls the script that a container named for this, and waits for it briefly."""
        grant, gpu = view.grants.get(violation.grant or ""), violation.gpu
        is_first = violation.kind is ViolationKind.MEMORY_OVER_GRANT and not violation.again
        if is_first and isinstance(grant, ContainerGrant) and grant.oom_script:
            used_mib = sum(client.used_mib or 0 for client in view.by_share().get((grant.id, gpu), ()))
            await self._scripts.call(grant, violation.client.pid, used_mib, grant.part_of(gpu).memory_mib)

    def _report_once(self, entry: ViolationRecord, fate: str) -> None:
        if entry.reported != fate:
            entry.reported = fate
            self._report(entry.violation, f"{entry.violation}; {fate}")

    def _report(self, violation: Violation, message: str) -> None:
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
            self.cluster.report(violation.pod, violation.kind.reason, message)
