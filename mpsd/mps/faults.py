"""The faults of one domain: finds out which processes are affected, and ends those that stay, so that the GPU recovers.

Only the very processes that a fault affected are ended (pid, start time, boot id), and of these only those that the
faulty server still lists. Clients are identified when they connect: after a fault many are gone at once.
"""

import signal
import time
from collections.abc import Collection, Iterable
from datetime import datetime
from pathlib import Path

from mpsd.model.domain import ServerStatus
from mpsd.model.node_status import program_of
from mpsd.model.node_view import Fault, FaultHit
from mpsd.model.policy import Graces
from mpsd.mps.daemon import DomainDaemon
from mpsd.mps.rules import faults
from mpsd.mps.rules.control_protocol import ControlFailed, LogEvent, LogLine, read_line
from mpsd.platform import processes
from mpsd.platform.containers import PodProcesses
from mpsd.platform.logs import Logger

_LOG_BYTES = 1024 * 1024  # of the log's end, in which a fault is looked for that happened while no mpsd ran
_SOON_S = 0.05  # between two looks while somebody who was ended may still be there
_READ_WITHIN_S = 1.0  # how old a line of the log is at most when it is read
_LONGEST_COMMAND = 120  # characters


class DomainFaults:
    """The faults of a domain. all, total: as in its record. one_gpu: whether all clients share one GPU."""

    def __init__(self, daemon: DomainDaemon, log_file: Path, log: Logger, *, one_gpu: bool) -> None:
        self._daemon, self._one_gpu = daemon, one_gpu
        self._log_file, self._log = log_file, log
        daemon.on_line = self._hear
        self._pods = PodProcesses()
        self._clients: dict[int, FaultHit] = {}  # by pid, whoever connected to this daemon and has not gone
        self._read = faults.Reading()
        self._known_until = ""  # the time in the log up to which an mpsd has seen all faults
        self._asked = False  # whether this daemon was asked for the clients that it had when it was taken over
        self._ended_at = 0.0
        self._kept: dict[int, str] = {}  # why nobody may end a process, by pid
        self.all: tuple[Fault, ...] = ()
        self.total = 0

    def take_over(self, earlier: tuple[Fault, ...], total: int, daemon_since: float, *, same_daemon: bool) -> None:
        """Starts from the record of an earlier mpsd. daemon_since: when it started this daemon, seconds since 1970."""
        self.all = earlier if same_daemon else faults.healed(earlier, time.time())
        self.total = total
        last = max([daemon_since, *(fault.at for fault in earlier)])
        last += 0.001  # the log has whole milliseconds, in the time of this machine
        self._known_until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last)) + f".{int(last % 1 * 1000):03}"
        if same_daemon:
            self._read = self._unseen()

    def _unseen(self) -> faults.Reading:
        """The log's last fault, where it happened while no mpsd ran."""
        try:
            with self._log_file.open("rb") as file:
                file.seek(max(0, self._log_file.stat().st_size - _LOG_BYTES))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return faults.Reading()
        lines = filter(None, map(read_line, text.split("\n")))  # splitlines() would end one at a tenant's \x0b, too
        return faults.last_fault(lines, self._known_until)

    @property
    def as_recorded(self) -> dict[str, object]:
        """The fields of the domain's record that are about them."""
        return {"faults": self.all, "faults_total": self.total}

    def daemon_gone(self) -> None:
        """Its server is gone with it, and with that every fault."""
        self._note((), in_fault=False)
        self.all = faults.healed(self.all, time.time())
        self._clients.clear()
        self._asked = True  # of the next one all clients are seen as they come

    # -- look ----------------------------------------------------------------------------------------------------

    def _hear(self, line: LogLine) -> None:
        if line.event is LogEvent.CLIENT_CONNECTED and line.pid:
            self._meet(line.pid)
        elif line.event is LogEvent.CLIENT_GONE and line.pid and not self._read.of_fault:
            self._clients.pop(line.pid, None)
        else:
            if line.event is LogEvent.SERVER_EXITED:
                self._clients.clear()  # its log does not report each of them
            self._read = faults.read_on(self._read, line)

    def _meet(self, pid: int) -> None:
        try:
            self._know(pid)
        except OSError as error:
            if not processes.is_shortage(error):
                raise
            self._asked = False  # for all clients, once mpsd can look at them

    def _know(self, pid: int) -> None:
        identity = processes.identity_of(pid)
        known = self._clients.get(pid)
        if identity is None or (known and known.process == identity):
            return
        pod = self._pods.owner_of(pid)
        command = program_of(processes.command_of(pid))[:_LONGEST_COMMAND]  # logs and records keep no arguments
        if processes.is_alive(identity):  # else what was read may be another's
            self._clients[pid] = FaultHit(identity, command, pod)

    async def look(self, graces: Graces) -> None:
        """After each proper answer of the daemon: what there is of faults, and who is to be ended for it."""
        in_fault = self._daemon.server is ServerStatus.FAULT
        if in_fault or self._read.of_fault:
            self._daemon.read_log()  # the rest of what it has to say
        open_faults = faults.unhealed(self.all)
        everyone = frozenset(pid for fault in open_faults for pid in fault.pids)
        lingers = bool(faults.to_end(open_faults, everyone, time.time(), graces))
        # each list costs a process
        must_list = not self._asked or (self._read.of_fault if not in_fault else lingers or not open_faults)
        listed = await self._listed(graces) if must_list else ()
        self._note(listed, in_fault=in_fault)
        if in_fault:
            self._end(faults.to_end(self.all, listed or (), time.time(), graces))
        elif open_faults := faults.unhealed(self.all):
            self.all = faults.healed(self.all, time.time())
            self._log.info("fault healed", after_s=round(time.time() - open_faults[0].at, 2))

    async def _listed(self, graces: Graces) -> frozenset[int] | None:
        """The pids that its servers list; None where they do not answer."""
        pipe = self._daemon.pipe(graces.command_s)
        try:
            lists = await pipe.clients(self._daemon.servers)
        except (ControlFailed, OSError) as error:
            self._log.warning("clients not listed", reason=str(error))
            return None
        listed = frozenset(pid for each in lists for pid in each)
        if not self._asked:
            for pid in listed:
                self._meet(pid)
            self._asked = True
        return listed

    def _note(self, listed: Collection[int] | None, *, in_fault: bool) -> None:
        """From the log where the server agrees, or one that only the server's state shows."""
        read, self._read = self._read, faults.rest_of(self._read)
        if read.of_fault and not faults.is_known(self.all, read.pids):
            if in_fault or faults.is_over(read, listed):
                self._add(read.pids or listed or (), _moment(read.when, time.time()))
            else:
                reason = (
                    "the log reports it, but the server is ACTIVE and the processes that it names are still clients"
                )
                self._log.warning("fault not recorded", reason=reason, pids=sorted(read.pids))
        elif in_fault and not faults.unhealed(self.all):
            self._add(listed or () if self._one_gpu else (), time.time())
        elif faults.unhealed(self.all) and not faults.is_known(self.all, read.pids):
            hit, strangers = self._who(read.pids)
            self.all = faults.with_more_hit(self.all, hit, strangers)
            self._log_fault("fault, more of it", hit, strangers)

    def _add(self, pids: Collection[int], at: float) -> None:
        hit, strangers = self._who(pids)
        self.all = faults.noted(self.all, Fault(at, hit, strangers))
        self.total += 1
        self._log_fault("fault", hit, strangers)
        self._clients = {pid: one for pid, one in self._clients.items() if processes.is_alive(one.process)}

    def _who(self, pids: Collection[int]) -> tuple[tuple[FaultHit, ...], tuple[int, ...]]:
        """Those who are known, and the pids of those who are gone already."""
        for pid in pids:
            if pid not in self._clients:
                self._meet(pid)
        hit = tuple(self._clients[pid] for pid in sorted(pids) if pid in self._clients)
        return hit, tuple(pid for pid in sorted(pids) if pid not in self._clients)

    def _log_fault(self, what: str, hit: Collection[FaultHit], strangers: Collection[int]) -> None:
        gone = [f"pid {pid}: already gone" for pid in strangers]
        self._log.warning(what, hit=[*(f"{one.process}: {one.command}" for one in hit), *gone])

    # -- act -----------------------------------------------------------------------------------------------------

    def _end(self, lingering: Iterable[FaultHit]) -> None:
        """SIGKILL for those; the server learns of their end within milliseconds."""
        for hit in lingering:
            try:
                signalled = processes.send_signal(hit.process, signal.SIGKILL)
            except PermissionError as error:
                if self._kept.get(hit.process.pid) != str(error):
                    self._log.warning("client not ended", pid=hit.process.pid, reason=f"{error}; end it by hand")
                self._kept[hit.process.pid] = str(error)
                continue
            if signalled:
                self._ended_at = time.monotonic()
                self.all = faults.ended(self.all, hit.process, time.time())
                why = "a fault has ended its work, and its server admits no client until it is gone"
                self._log.warning("client ended", pid=hit.process.pid, command=hit.command, pod=hit.pod, reason=why)

    def reason(self, graces: Graces) -> str:
        how = f"processes that remain are killed {graces.fault_grace_s:g} s after it"
        return f"a program's fault has ended the work of every program on the GPU; {how}"

    def why_stuck(self, graces: Graces) -> str:
        """Why only another daemon can help; empty where this one may heal yet."""
        return faults.why_stuck(self.all, time.time(), graces)

    def look_again_s(self, graces: Graces) -> float | None:
        """Seconds until the next look is worth it; None where no fault is to heal."""
        if not faults.unhealed(self.all):
            return None
        if time.monotonic() - self._ended_at < graces.command_s:
            return _SOON_S
        return faults.next_due_s(self.all, time.time(), graces)


def _moment(when: str, now: float) -> float:
    """When it was, by the log where that says so within the time of a look; its clock may be set otherwise."""
    try:
        written = datetime.strptime(when, "%Y-%m-%d %H:%M:%S.%f").timestamp()  # noqa: DTZ007 - local, as it is written
    except ValueError:
        return now
    return written if 0 <= now - written < _READ_WITHIN_S else now
