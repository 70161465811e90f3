"""Watches the processes on the GPUs, several times a second, and ends those that take more than was granted.

One rule: it waits for nobody. Whatever the agent's turn waits for (kubelet, a daemon that does not answer), looks go
on, by what the ledger said last; and no process that is being ended holds up another.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mpsd.grants.ledger import ContainerGrant, Ledger
from mpsd.model.events import Reason
from mpsd.model.grants import Grant
from mpsd.model.identity import PodName, ProcessIdentity
from mpsd.model.node_status import ViolationsStatus
from mpsd.model.node_view import DomainRecord
from mpsd.model.policy import Policy, Response
from mpsd.model.violations import Violation, ViolationKind
from mpsd.mps.node import Node
from mpsd.mps.records import DomainRecords
from mpsd.platform import processes, run_directory
from mpsd.platform.logs import logger
from mpsd.platform.settings import GRANT, Settings
from mpsd.watchdog.ending import ClientEnd, NotEnded, NotKilled, OomScripts
from mpsd.watchdog.history import ViolationHistory, ViolationRecord
from mpsd.watchdog.rules.judge import SECOND_LOOK_S, Memory, Notice, judge
from mpsd.watchdog.rules.processes import WatchdogView
from mpsd.watchdog.rules.reported import NodeViolations
from mpsd.watchdog.scanner import GpuProcessScanner, Owners, Scan

# Which processes on the GPUs are mpsd's own: MPS servers that just started, and the clients it tries a driver with.
#
# One rule: own is what the kernel says descends from mpsd or from a control daemon of its records, and whatever mpsd
# itself descends from; what a process claims counts for nothing.


class OwnProcesses:
    """directory: mpsd's run directory, whose holder is `mpsd control`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._above = frozenset(processes.line_of(os.getpid()))
        self._known: frozenset[ProcessIdentity] = frozenset()

    def among(self, asked: Iterable[ProcessIdentity], records: Iterable[DomainRecord]) -> frozenset[ProcessIdentity]:
        """Those of `asked` that are mpsd's own. One that was is as long as it lives."""
        asked = frozenset(asked)
        unknown = asked - self._known
        if unknown:
            roots = self._roots(records)
            found = {
                one for one in unknown if one.pid in self._above or not roots.isdisjoint(processes.line_of(one.pid))
            }
            self._known = (self._known & asked) | found
        else:
            self._known &= asked
        return self._known

    def _roots(self, records: Iterable[DomainRecord]) -> frozenset[int]:
        roots = {os.getpid(), run_directory.holder(self._directory) or os.getpid()}
        for record in records:
            roots.update(record.servers, [record.daemon.pid] if record.daemon else [])
        return frozenset(roots)


LOOK_S = 0.2  # from the beginning of one look to the next
_BREATH_S = 0.05  # for the rest of the process, however slow NVML is
_PATIENCE_S = 5.0  # with ledger that do not know yet who holds what, as they are for a moment at every start
_LAST_WORDS_S = 3.0  # for what is being ended when it stops


@dataclass(frozen=True, slots=True)
class ClusterReporter:
    """Whom to tell, where there is a cluster. tell: of a pod, or of the node where that is None."""

    tell: Callable[[PodName | None, Reason, str], None]
    evict: Callable[[PodName, str], Awaitable[None]]


class Watchdog:
    """It owns the eyes: whoever else needs the clients takes them from here. records: of this node's domains."""

    def __init__(
        self, settings: Settings, node: Node, policy: Callable[[], Policy], ledger: Ledger, records: DomainRecords
    ) -> None:
        self._node = node
        self._policy = policy
        self._ledger = ledger
        self._records = records
        self._log = logger(role="watchdog")
        mark = None if ledger.pods_known else GRANT
        self._eyes = GpuProcessScanner(node.nvml, [gpu.uuid for gpu in node.gpus], mark, ledger.whereabouts)
        self._own = OwnProcesses(settings.run_directory)
        self._scripts = OomScripts(settings.run_directory)
        self._end = ClientEnd(settings, node, ledger.whereabouts)
        self._memory = Memory()
        self._judged: tuple[object, ...] = ()  # what was judged last
        self._unjudged = ""  # why nobody is judged; empty while everybody is
        self._unjudged_since: float | None = None  # None once that was said
        self._ending: set[asyncio.Task[None]] = set()
        self._book = ViolationHistory(time.time())
        self.cluster: ClusterReporter | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Looks until `stop`. The ledger must have been loaded."""
        sure = False
        while not stop.is_set():
            began = time.monotonic()
            sure = self._turn(began, sure=sure)
            self._book.looked(began)
            left_s = began + LOOK_S - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SECOND_LOOK_S if sure else max(left_s, _BREATH_S)):
                    await stop.wait()
        if self._ending:
            await asyncio.wait(self._ending, timeout=_LAST_WORDS_S)
        await self._scripts.stop()

    def look(self) -> Scan:
        """The clients as they are now."""
        records = self._records.read()
        return self._eyes.look(self._owners(self._grants(), records))

    def status(self) -> ViolationsStatus:
        return self._book.status(self._node.nvml.spent_s, self._unjudged)

    def told(self) -> NodeViolations:
        """The same for the cluster."""
        return self._book.seen()

    def _grants(self) -> Mapping[str, Grant]:
        return {held.grant.id: held.grant for held in self._ledger.held()}

    def _owners(self, grants: Mapping[str, Grant], records: tuple[DomainRecord, ...]) -> Owners:
        servers = frozenset(server for record in records for server in record.servers)
        marks = frozenset(grant.id for grant in grants.values() if not grant.container)
        return Owners(servers, marks, self._ledger.holders(), self._ledger.pods())

    def _turn(self, now: float, *, sure: bool) -> bool:
        """One look, and what follows from it; whether another must follow soon."""
        records, grants = self._records.read(), self._grants()
        sight = self._eyes.look(self._owners(grants, records), sure=sure)
        self._say_unjudged("; ".join(self._ledger.unknown), now)
        if self._unjudged:
            return False
        self._book.keep(grants)
        judged = (sight, grants, self._ledger.ungranted, self._policy())
        if judged == self._judged and self._memory.is_settled:
            return False
        self._judged = judged
        seen = self._seen(now, sight, grants, records)
        verdict, self._memory = judge(seen, self._memory, self._policy())
        for notice in verdict.notices:
            self._tell_notice(notice)
        for violation in verdict.violations:
            self._act(violation, records, seen)
        return verdict.look_again

    def _seen(
        self, now: float, sight: Scan, grants: Mapping[str, Grant], records: tuple[DomainRecord, ...]
    ) -> WatchdogView:
        strangers = (client.process for client in sight.clients if client.grant is None)
        return WatchdogView(
            now=now,
            gpus=self._node.gpus,
            domains={record.domain: record.gpus for record in records},
            grants=grants,
            clients=sight.clients,
            ungranted=self._ledger.ungranted,
            own=self._own.among(strangers, records),
            pods_known=self._ledger.pods_known,
            unseen=sight.unseen,
        )

    def _say_unjudged(self, why: str, now: float) -> None:
        if bool(why) != bool(self._unjudged):
            if self._unjudged and self._unjudged_since is None:
                self._log.info("judges again")
            self._unjudged_since = now
        self._unjudged = why
        if why and self._unjudged_since is not None and now - self._unjudged_since >= _PATIENCE_S:
            self._log.warning("nobody is judged", reason=why)
            self._unjudged_since = None

    def _tell_notice(self, notice: Notice) -> None:
        self._log.warning("noticed", gpu=notice.gpu, message=notice.message)
        if self.cluster and notice.reason:
            for subject in (None, *notice.pods):
                self.cluster.tell(subject, notice.reason, notice.message)

    def _act(self, violation: Violation, records: tuple[DomainRecord, ...], seen: WatchdogView) -> None:
        entry = self._book.add(violation, time.time())
        if violation.ends:
            record = next((one for one in records if violation.gpu in one.gpus), None)
            task = asyncio.create_task(self._punish(entry, record, seen))
            self._ending.add(task)
            task.add_done_callback(self._ended)
        elif violation.told:
            self._tell(violation, str(violation))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (fault := task.exception()):
            self._log.error("not ended", reason="a fault of mpsd's own", exc_info=fault)

    async def _punish(self, entry: ViolationRecord, record: DomainRecord | None, seen: WatchdogView) -> None:
        """Ends the process; then it is told, and then waited for until its memory is back.

        One that cannot be ended is tried again as long as it is there, and told of once, and again once it can be.
        """
        violation, client = entry.violation, entry.violation.client
        about = {"kind": violation.kind.value, "pid": client.pid}
        is_proven = False
        try:
            await self._warn(violation, seen)
            await self._end.signal(violation, record)
            is_proven = True
            self._tell_once(entry, "it is ended")
            took_s = round(await self._end.until_gone(client, seen.now), 3)
        except NotEnded as error:
            if entry.outcome != str(error):
                self._log.warning("not ended", **about, reason=str(error))
            entry.outcome = str(error)
            if isinstance(error, NotKilled):
                is_proven = True
                self._tell_once(entry, f"it goes on: {error}")
        else:
            self._book.ended(entry, took_s)
            self._log.info("ended", **about, used_mib=client.used_mib, took_s=took_s)
        evict = is_proven and violation.response is Response.EVICT and not violation.again
        if evict and violation.pod and self.cluster:
            await self.cluster.evict(violation.pod, str(violation))

    async def _warn(self, violation: Violation, seen: WatchdogView) -> None:
        """Calls the script that a container named for this, and waits for it a little."""
        grant, gpu = seen.grants.get(violation.grant or ""), violation.gpu
        is_first = violation.kind is ViolationKind.MEMORY_OVER_GRANT and not violation.again
        if is_first and isinstance(grant, ContainerGrant) and grant.oom_script:
            used_mib = sum(client.used_mib or 0 for client in seen.by_ledger().get((grant.id, gpu), ()))
            await self._scripts.call(grant, violation.client.pid, used_mib, grant.part_of(gpu).memory_mib)

    def _tell_once(self, entry: ViolationRecord, fate: str) -> None:
        if entry.told != fate:
            entry.told = fate
            self._tell(entry.violation, f"{entry.violation}; {fate}")

    def _tell(self, violation: Violation, message: str) -> None:
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
            self.cluster.tell(violation.pod, violation.kind.reason, message)
