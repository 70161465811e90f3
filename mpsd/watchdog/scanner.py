"""Scans the processes on the GPUs: who they are, under which grant, and which are mpsd's own. What
a process was started with, and its pod or container, is read once, except that on a machine it may
go into another grant's cgroup. In a pod, container or program's cgroup a process has the grant of
that alone: who could choose its mark could hide behind another's. Use by graphics interfaces counts
too. Nothing new costs two calls to NVML a GPU, and gives the same clients."""

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from mpsd.model.cuda_limit_parser import FORGED, VARIABLES
from mpsd.model.grants import Gpu
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import Client, DomainRecord
from mpsd.platform import clock, processes, run_directory
from mpsd.platform.containers import Whereabouts
from mpsd.platform.mappings import first_mappings
from mpsd.platform.nvml import Nvml, NvmlFailed, NvmlLate, Uses
from mpsd.platform.process_environment import (
    ForgedEnvironment,
    NoEnvironment,
    claims_environment,
    read_environment,
)
from mpsd.platform.processes import ProcessSet
from mpsd.platform.threaded_read import ThreadedRead, Value
from mpsd.watchdog.managed_memory import ManagedMemory
from mpsd.watchdog.rules.escapes import RESERVED_APART_S, reserved_kib

_MIB = 1024 * 1024
# how long the lists of processes on MPS, and of those that draw, count while no process comes
_ON_MPS_S = 2.0
# to read an environment that is empty, as it is during an exec, and what a context reserves
_TRIES = 10
_PATIENCE_S = 0.05  # in all, for the reads of one scan; those that last longer go on meanwhile


@dataclass(frozen=True, slots=True)
class Owners:
    """Whose a process can be. servers: pids of MPS servers, which are skipped. grants: those that a
    mark may name: of programs without a cgroup. holders: from a holder's pid to its grant. pods:
    from what `Whereabouts` says to a grant. capped: grants of whose clients reservations are
    read."""

    servers: frozenset[int] = frozenset()
    grants: frozenset[str] = frozenset()
    holders: Mapping[int, str] = field(default_factory=dict)
    pods: Mapping[str, str] = field(default_factory=dict)
    capped: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Scan:
    """clients: living processes on the GPUs that could be seen, but MPS servers. unseen: by UUID of
    each other GPU, why its processes are not known. unexplained_mib: by GPU, in use of no known
    process for a second."""

    clients: tuple[Client, ...]
    unseen: Mapping[str, str] = field(default_factory=dict)
    unexplained_mib: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Reservation:
    """What a process reserves, and since when. used_bytes: its use of the GPU then, as it is there
    before it has a context. tries: left while that stays. is_final: it stays for the process's
    life. reading: under way."""

    reading: ThreadedRead[int] | None = None
    kib: int = 0
    since: float = 0.0
    used_bytes: int | None = None
    tries: int = _TRIES
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class _KnownProcess:
    identity: ProcessIdentity
    mark: str | None
    command: str
    pod: str | None
    environment: Mapping[str, str] | None
    tries: int  # that are left at an environment that was empty, or is not read yet
    reading: "ThreadedRead[_Started] | None"  # that has not ended, or could not begin
    is_read: bool
    reservation: _Reservation = field(default_factory=_Reservation)

    @property
    def is_settled(self) -> bool:
        """Whether nothing of it is to be read before what is under way ends."""
        return not self.tries and (self.reading is None or self.reading.goes_on)

    @property
    def is_unread(self) -> bool:
        """Whether it keeps what it was started with from being read."""
        return not self.is_read and not self.tries


@dataclass(frozen=True, slots=True)
class _Started:
    """What a process was started with: the variables that count, None where they are not ours to
    read. is_read: False where it had not finished its exec, or it is not read yet."""

    command: str = ""
    variables: Mapping[str, str] | None = None
    is_read: bool = False


def _read_started(pid: int, names: Collection[str], tries: int) -> _Started:
    """tries: that are left. It may never end."""
    command = processes.read_command(pid)
    try:
        return _Started(command, read_environment(pid, names), is_read=True)
    except NoEnvironment:
        if tries > 1 or not claims_environment(pid):
            return _Started(command)
        return _Started(command, {FORGED: "addresses that it does not map"}, is_read=True)
    except ForgedEnvironment as error:
        return _Started(command, {FORGED: str(error)}, is_read=True)


@dataclass(slots=True)
class _GpuScan:
    """The last scan of a GPU. is_seen: whether there was one, and it holds. managed: MiB
    by pid, what is unexplained, and whose mappings are not read. uses: of all. pids: of who
    computes."""

    memory: ManagedMemory
    is_seen: bool = False
    managed: tuple[Mapping[int, int], int, frozenset[int]] = ({}, 0, frozenset())
    uses: Uses = ()
    computing: Uses = ()
    drawing: Uses = ()
    pids: frozenset[int] = frozenset()
    on_mps: frozenset[int] = frozenset()
    mps_asked_at: float = -math.inf
    clients: dict[int, Client] = field(default_factory=dict)
    failed: str = ""


class GpuProcessScanner:
    """mark: the variable with a grant's id, which children inherit; None where programs have none.
    whereabouts: None where nobody is in a pod or container."""

    def __init__(
        self,
        nvml: Nvml,
        gpus: Iterable[Gpu],
        mark: str | None,
        whereabouts: Whereabouts | None = None,
    ) -> None:
        self._nvml = nvml
        self._of: Iterable[Gpu] = ()
        self._gpus: dict[str, _GpuScan] = {}
        self._mark = mark
        self._whereabouts = whereabouts
        self._owners = Owners()
        self._known: dict[int, _KnownProcess] = {}
        self._living = ProcessSet()  # of those that are known
        # whether nothing about them is left to read, and each is held by a pidfd
        self._settled = True
        self._patience_s = _PATIENCE_S  # what is left of it
        self._names = (*VARIABLES, *filter(None, (mark,)))
        self.scanned_s: dict[str, float] = {}  # by GPU: when last, of CLOCK_BOOTTIME
        self.last = Scan(())
        self.follow(gpus)

    def follow(self, gpus: Iterable[Gpu]) -> None:
        """Scans these GPUs from now on: MIG instances come and go."""
        if gpus is not self._of:
            before = self._gpus
            self._gpus = {}
            for gpu in gpus:
                known = before.get(gpu.uuid)
                self._gpus[gpu.uuid] = known or _GpuScan(ManagedMemory(gpu.memory_mib))
            self._of = gpus
            self._settled = False

    def scan(self, owners: Owners, *, sure: bool = False) -> Scan:
        """The same object where nothing has changed. sure: asks NVML who is on MPS in any case."""
        self._patience_s = _PATIENCE_S
        ended = self._living.ask()
        for pid in ended:
            self._known.pop(pid, None)
        now = time.monotonic()
        sure = sure or owners.servers != self._owners.servers
        anew = bool(ended) or owners != self._owners or not self._settled
        anew |= not all(known.is_settled for known in self._known.values())
        if self._mark is not None and owners.pods.keys() - self._owners.pods.keys():
            self._find_again()
        self._settled = True
        self._owners = owners
        changed = anew
        for uuid, one in self._gpus.items():
            changed |= self._scan_gpu(uuid, one, now, sure=sure, anew=anew)
        if changed:
            self.last = self._seen()
            seen = {client.pid for client in self.last.clients}
            if len(seen) != len(self._known):  # some are on no GPU any more
                self._known = {pid: known for pid, known in self._known.items() if pid in seen}
                self._living.keep_only(seen)
        return self.last

    def _seen(self) -> Scan:
        clients: list[Client] = []
        unseen = {}
        unexplained_mib = {}
        for uuid, one in self._gpus.items():
            clients += one.clients.values()
            if one.failed:
                unseen[uuid] = one.failed
            if one.managed[1]:
                unexplained_mib[uuid] = one.managed[1]
        return Scan(tuple(clients), unseen, unexplained_mib)

    def _scan_gpu(self, uuid: str, one: _GpuScan, now: float, *, sure: bool, anew: bool) -> bool:
        """Whether anything has changed."""
        try:
            changed = self._look(uuid, one, now, sure=sure, anew=anew)
            one.is_seen = True
            self.scanned_s[uuid] = clock.boot_s()
            return changed
        except (NvmlFailed, OSError) as error:
            if isinstance(error, NvmlLate) and one.is_seen:
                one.mps_asked_at = -math.inf  # what was half read is asked for again
                self._settled = False
                return False
            why = str(error)
            if isinstance(error, OSError) and error.errno:
                why = f"a process there cannot be read: {os.strerror(error.errno)}"
            self._gpus[uuid] = _GpuScan(one.memory, failed=why)
            return one.failed != why

    def _look(self, uuid: str, one: _GpuScan, now: float, *, sure: bool, anew: bool) -> bool:
        """NvmlFailed; OSError where a process cannot be read for want of descriptors or memory."""
        uses, on_mps, used_mib = self._ask(uuid, one, now, sure=sure)
        one.memory.look(used_mib, uses, self._count_gpus, now)
        managed = one.memory.of, one.memory.unexplained_mib, one.memory.unread
        is_same = (uses, on_mps, managed) == (one.uses, one.on_mps, one.managed)
        if is_same and not anew and not one.failed:
            return False
        before = one.clients
        one.clients = {}
        one.uses = uses
        one.on_mps = on_mps
        one.managed = managed
        one.failed = ""
        for pid, used_bytes in _each_once(uses).items():
            if pid in self._owners.servers or not (known := self._who(pid)):
                continue
            if pid not in before and self._count_gpus(pid) > 1:
                self._settled = False  # what its other GPUs said of it was of one GPU
            client = self._client(uuid, one, known, used_bytes, now)
            earlier = before.get(pid)
            if earlier == client:
                client = earlier
            one.clients[pid] = client
        return True

    def _client(
        self, uuid: str, one: _GpuScan, known: _KnownProcess, used_bytes: int | None, now: float
    ) -> Client:
        pid = known.identity.pid
        used_mib = None
        if used_bytes is not None:
            used_mib = used_bytes // _MIB + one.managed[0].get(pid, 0)
        grant = self._grant_of(known)
        is_on = pid in one.on_mps
        kib = 0
        if is_on and grant in self._owners.capped and self._count_gpus(pid) == 1:
            kib = self._reserved_kib(known, used_bytes, now)
        what = (known.command, grant, known.pod, known.environment)
        is_unread = known.is_unread or pid in one.managed[2]
        return Client(
            known.identity, uuid, used_mib, is_on, *what, pid not in one.pids, kib, is_unread
        )

    def _count_gpus(self, pid: int) -> int:
        return sum(
            pid in one.pids or any(pid == other for other, _ in one.drawing)
            for one in self._gpus.values()
        )

    def _ask(
        self, uuid: str, one: _GpuScan, now: float, *, sure: bool
    ) -> tuple[Uses, frozenset[int], int]:
        """Who uses the GPU, who is on MPS, and MiB in use; the second is asked first where it may
        have changed."""
        if not sure and now - one.mps_asked_at < _ON_MPS_S:
            computing, used_mib = self._nvml.in_use(uuid)
            if computing == one.computing:
                return one.uses, one.on_mps, used_mib
            before = one.pids
            one.pids = frozenset([pid for pid, _ in computing])
            one.computing = computing
            # one that leaves and comes back, as at an exec, is asked for again
            if before >= one.pids:
                return self._with_drawing(one), one.on_mps & one.pids, used_mib
        one.mps_asked_at = now
        on_mps, one.computing, one.drawing, used_mib = self._nvml.everything_in_use(uuid)
        one.pids = frozenset([pid for pid, _ in one.computing])
        return self._with_drawing(one), on_mps, used_mib

    def _with_drawing(self, one: _GpuScan) -> Uses:
        return (*one.computing, *[use for use in one.drawing if use[0] not in one.pids])

    def _grant_of(self, known: _KnownProcess) -> str | None:
        if known.pod is not None or self._mark is None:
            return self._owners.pods.get(known.pod or "")
        if known.mark in self._owners.grants:
            return known.mark
        return self._owners.holders.get(known.identity.pid)

    def _find_again(self) -> None:
        """After new grants: one that is in no cgroup of a grant any more stays in the last."""
        for pid, known in self._known.items():
            if pod := self._pod_of(pid):
                self._known[pid] = replace(known, pod=pod)

    def _pod_of(self, pid: int) -> str | None:
        if self._whereabouts is None:
            return None
        return self._whereabouts.owner_of(pid)

    def _who(self, pid: int) -> _KnownProcess | None:
        known = self._known.get(pid)
        if known and known.is_settled and pid in self._living:
            return known
        identity = processes.identity_of(pid)
        if identity is None:
            return None
        if known is None or known.identity != identity:
            known = self._read(identity, _TRIES)
        elif not known.is_settled:
            known = self._read(identity, known.tries, known.reading)
        self._known[pid] = known
        self._living.add(identity)
        if not known.is_settled or pid not in self._living:
            self._settled = False
        return known

    def _reserved_kib(self, known: _KnownProcess, used_bytes: int | None, now: float) -> int:
        one = known.reservation
        if one.is_final:
            return one.kib
        if used_bytes != one.used_bytes:
            one.used_bytes = used_bytes
            one.tries = _TRIES
        if one.tries:
            one.tries -= 1
            pid = known.identity.pid
            reading = one.reading or ThreadedRead(
                lambda: reserved_kib(first_mappings(pid)), self._whose(pid, known.pod)
            )
            kib = self._waited_for(reading, one.kib)
            one.reading = reading if reading.goes_on else None
            if kib != one.kib:
                one.kib = kib
                one.since = now
            one.is_final = kib > 0 and now - one.since >= RESERVED_APART_S
            self._settled = False
        return one.kib

    def _waited_for(self, reading: ThreadedRead[Value], default: Value) -> Value:
        """default: while it has not ended, or failed for want of memory or descriptors."""
        began = time.monotonic()
        try:
            return reading.value(self._patience_s)
        except (OSError, MemoryError):  # TimeoutError is one
            return default
        finally:
            self._patience_s = max(0.0, self._patience_s - (time.monotonic() - began))

    def _read(
        self, identity: ProcessIdentity, tries: int, reading: ThreadedRead[_Started] | None = None
    ) -> _KnownProcess:
        pid = identity.pid
        pod = self._pod_of(pid)
        if not reading or not reading.has_begun:
            whose = self._whose(pid, pod)
            reading = ThreadedRead(partial(_read_started, pid, self._names, tries), whose)
        started = self._waited_for(reading, _Started())
        found = started.variables
        environment = mark = None
        if found is not None:
            mark = found.get(self._mark or "")
            environment = {name: value for name, value in found.items() if name != self._mark}
        return _KnownProcess(
            identity,
            mark,
            started.command or processes.name_of(pid),
            pod,
            environment,
            tries=0 if started.is_read else max(0, tries - 1),
            reading=None if reading.has_ended else reading,
            is_read=started.is_read,
        )

    def _whose(self, pid: int, pod: str | None) -> str | int | None:
        """Whose reads it takes part in: its pod's or container's, or its user's."""
        return pod or processes.user_of(pid)


def _each_once(uses: Uses) -> dict[int, int | None]:
    """By pid; the use of a process that is listed twice is summed."""
    found: dict[int, int | None] = {}
    for pid, used_bytes in uses:
        before = found.get(pid, 0)
        found[pid] = None
        if used_bytes is not None and before is not None:
            found[pid] = before + used_bytes
    return found


class OwnProcesses:
    """Which processes on the GPUs are mpsd's own: what descends from mpsd, from the `mpsd control`
    that its run directory names or from a daemon of its records, and what mpsd descends from."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._above = frozenset(processes.line_of(os.getpid()))
        self._known: frozenset[ProcessIdentity] = frozenset()

    def among(
        self, asked: Iterable[ProcessIdentity], records: Callable[[], Iterable[DomainRecord]]
    ) -> frozenset[ProcessIdentity]:
        """Those of `asked` that are mpsd's own, for life. records: read only for unknown ones."""
        asked = frozenset(asked)
        if unknown := asked - self._known:
            roots = {os.getpid(), run_directory.holder(self._directory) or os.getpid()}
            for record in records():
                roots.update(record.servers)
                if record.daemon:
                    roots.add(record.daemon.pid)
            for one in unknown:
                if one.pid in self._above or not roots.isdisjoint(processes.line_of(one.pid)):
                    self._known |= {one}
        self._known &= asked
        return self._known
