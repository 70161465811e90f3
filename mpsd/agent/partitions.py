"""The static SM partitions of the domains whose daemons have such: asked for, added, removed, and read back each time.

They live in the daemons, so that they outlive the agent; which of them is whose the ledger knows.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mpsd.grants.ledger import Ledger
from mpsd.model.domain import ANSWERING
from mpsd.model.grants import Grant, rooms
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import DomainRecord, LedgerView, NodeView
from mpsd.model.partitions import HeldPartition, Partition, PartitionTable, chunks_for, chunks_needed
from mpsd.model.policy import Policy
from mpsd.mps.control_daemon import ControlPipe
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import ControlFailed, NoPartition
from mpsd.platform.logs import Logger
from mpsd.platform.settings import Settings

_AGAIN_S = 10.0  # between two questions to a daemon: each costs a process, and a line of its log for each partition


@dataclass(slots=True)
class _Known:
    """Of one daemon. table: None where it has not said anything of use. trouble: why the last answer was none."""

    daemon: ProcessIdentity | None
    table: PartitionTable | None = None
    lost: frozenset[str] = frozenset()
    again_at: float = 0.0
    trouble: str = ""


@dataclass(slots=True)
class DomainPartitions:
    """environment: of the control commands."""

    settings: Settings
    environment: Mapping[str, str]
    policy: Callable[[], Policy]
    log: Logger
    _known: dict[str, _Known] = field(default_factory=dict)
    _staying: set[str] = field(default_factory=set)  # the partitions that were to be removed, and were not

    def table(self, record: DomainRecord) -> PartitionTable | None:
        """What this very daemon said last; None where it has no partitions, or has not said yet."""
        known = self._known.get(record.domain)
        if not record.partitioned or known is None or known.daemon != record.daemon or known.table is None:
            return None
        return replace(known.table, lost=known.lost)

    async def look(self, records: Iterable[DomainRecord], ledger: LedgerView) -> None:
        """Asks the daemons with partitions that answer, from time to time, and while some are to be removed: then it
        counts whether clients are in them."""
        ends = any(not held.holder_alive for held in ledger.held)
        owned = [one for held in ledger.held for one in held.grant.partitions]
        for record in records:
            if record.partitioned and record.daemon and record.state in ANSWERING:
                known = self._known.get(record.domain)
                if known is None or known.daemon != record.daemon:
                    known = self._known[record.domain] = _Known(record.daemon)
                due = ends or (known.table is not None and bool(known.table.strays(owned)))
                if time.monotonic() >= known.again_at or (due and not known.trouble):
                    await self._ask(record.domain, record.gpus[0], known)

    async def _ask(self, domain: str, gpu: str, known: _Known) -> None:
        try:
            known.table = await self._pipe(domain).ask(control_protocol.partitions(gpu))
            known.trouble = ""
        except (ControlFailed, OSError) as error:
            if known.trouble != str(error):
                self.log.warning("partitions not known", domain=domain, reason=str(error))
            known.trouble = str(error)
        known.again_at = time.monotonic() + _AGAIN_S

    async def add(self, domain: str, gpu: str, chunks: int) -> HeldPartition:
        """A new partition, once the daemon lists it with so many chunks. NoPartition; ControlFailed; OSError."""
        pipe = self._pipe(domain)
        try:
            name = await pipe.ask(control_protocol.add_partition(gpu, chunks))
        except NoPartition as error:
            before = known.table if (known := self._known.get(domain)) else None
            if await self._read_back(domain, gpu) != before:  # somebody else has changed them: to be decided again
                raise ControlFailed(str(error)) from error
            raise
        found = (await self._read_back(domain, gpu)).of([name])
        if [one.chunks for one in found] != [chunks]:
            await pipe.ask(control_protocol.remove_partition(name))
            raise ControlFailed(f"SM partition {name} of {chunks} chunks was made, and lspart lists {_shown(found)}")
        self.log.info("partition added", domain=domain, partition=name, chunks=chunks, sms=found[0].sms)
        return HeldPartition(name, chunks)

    async def add_for(self, view: NodeView, domain: str, gpu: str, percent: int) -> HeldPartition:
        """A new one for this share of its threads. view: of now; to be called while the agent's cycle_lock is held, and
        until the ledger has it. NoPartition with what is free; ControlFailed, OSError."""
        grants = [held.grant for held in view.grants]
        room = rooms(
            [one for one in view.gpus if one.uuid == gpu], {gpu: domain}, grants, self.policy(), (), view.tables
        )
        if not room or room[0].chunks is None:
            raise NoPartition(f"{domain} has not said yet which SM partitions it has")
        if not room[0].chunks.holds(percent):
            raise NoPartition(chunks_needed(percent, room[0].chunks))
        return await self.add(domain, gpu, chunks_for(percent, room[0].chunks.chunks))

    async def renew(self, grant: Grant, held: HeldPartition, ledger: Ledger) -> None:
        """The same programs go on with it where the daemon gives it the same name, or they can be told the new one."""
        try:
            new = await self.add(grant.domain, grant.gpus[0], held.chunks)
        except NoPartition:
            self._lose(grant.domain, held.name)
            return
        if new.name != held.name and not ledger.renew(grant, held, new):
            self._lose(grant.domain, held.name)
            await self.remove(grant.domain, new.name)

    async def remove(self, domain: str, name: str) -> None:
        """One that a client is still in stays, and is tried again in the next cycle. ControlFailed, OSError."""
        await self._pipe(domain).ask(control_protocol.remove_partition(name))
        if found := (await self._read_back(domain, name.partition("/")[0])).of([name]):
            if name not in self._staying:
                reason = f"lspart still lists {_shown(found)}"
                self.log.warning("partition not removed", domain=domain, partition=name, reason=reason)
            self._staying.add(name)
            return
        self._staying.discard(name)
        self.log.info("partition removed", domain=domain, partition=name)

    async def _read_back(self, domain: str, gpu: str) -> PartitionTable:
        table = await self._pipe(domain).ask(control_protocol.partitions(gpu))
        if known := self._known.get(domain):
            known.table = table
        return table

    def _lose(self, domain: str, name: str) -> None:
        """Counts a partition of an earlier daemon as gone for good."""
        if known := self._known.get(domain):
            known.lost |= {name}
        reason = "its control daemon was started anew, and its programs cannot be told of another partition"
        self.log.warning("partition lost", domain=domain, partition=name, reason=reason)

    def _pipe(self, domain: str) -> ControlPipe:
        return ControlPipe(self.settings.domain(domain).pipe, self.environment, self.policy().graces.command_s)


def _shown(found: tuple[Partition, ...]) -> str:
    return " and ".join(f"{one.chunks} chunks{', in use' if one.in_use else ''}" for one in found) or "none"
