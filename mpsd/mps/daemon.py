"""The control daemon of one domain: started or adopted, probed, followed in its log, ended. Its
last answers are kept; `DomainSupervisor` draws the conclusions."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from mpsd.model.domain import ServerStatus
from mpsd.model.identity import ProcessIdentity
from mpsd.model.metrics import COMMAND_BOUNDS_S, CommandTimes
from mpsd.model.policy import Graces
from mpsd.model.problem import printable
from mpsd.mps import control_daemon
from mpsd.mps.canary import CanarySetup, DomainCanary, FirstContext
from mpsd.mps.control_daemon import ControlPipe, DaemonSilent
from mpsd.mps.daemon_cgroup import CgroupRefused, DaemonCgroup
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import Command, ControlFailed, LogEvent, LogLine, read_line
from mpsd.platform import clock, processes
from mpsd.platform.event_loop import DeathWatch, until
from mpsd.platform.logs import Logger
from mpsd.platform.run_directory import DomainFolder

ROTATE_BYTES = 8 * 1024 * 1024


class LogTail:
    """The end of a log that another process appends to, by whole lines. The writer keeps the file
    open, so a long one is copied and cut in place."""

    def __init__(self, path: Path, *, from_end: bool) -> None:
        self._path = path
        self._position = 0
        if from_end and path.exists():
            self._position = path.stat().st_size
        self._rest = b""

    def has_grown(self) -> bool:
        try:
            return self._path.stat().st_size != self._position
        except FileNotFoundError:
            return False

    def lines(self) -> list[str]:
        """What was added since the last call, but a line that is not whole yet."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return []
        if size < self._position:
            self._position = 0
            self._rest = b""
        if size == self._position:
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            added = file.read()
        self._position += len(added)
        *whole, self._rest = (self._rest + added).split(b"\n")
        if self._position > ROTATE_BYTES:
            with contextlib.suppress(OSError):  # such as a full disk: later
                shutil.copyfile(self._path, self._path.with_name(self._path.name + ".1"))
                os.truncate(self._path, 0)
                self._position = 0
        return [line.decode(errors="replace") for line in whole]


_ASKS_FOR_A_PROBE = {
    LogEvent.SERVER_STARTING,
    LogEvent.SERVER_READY,
    LogEvent.SERVER_EXITED,
    LogEvent.FAULT,
}
_COME = {LogEvent.SERVER_READY, LogEvent.SERVER_EXITED}  # or not
_SAYS_WHY = {LogEvent.OTHER, LogEvent.FAULT, LogEvent.FATAL}  # of a server that does not come up
_LONGEST_WORDS = 200  # of a line of the log in a reason
Answer = TypeVar("Answer")
TROUBLES = (ControlFailed, OSError)  # TimeoutError is one of the latter


@dataclass(frozen=True, slots=True)
class DaemonPlace:
    """Where a domain's daemon lives. environment: of its programs. with_gate: whether gates can be
    made here. cgroup: None where the daemon stays in mpsd's own."""

    folder: DomainFolder
    environment: Mapping[str, str]
    with_gate: bool
    cgroup: DaemonCgroup | None
    canary: CanarySetup


class DomainDaemon:
    """identity: None for no daemon. servers, server, clients: as answered last; None where not
    known. asked_s: when, by CLOCK_BOOTTIME. unanswered: commands in a row without a proper answer;
    trouble: what came instead; silent_s: when the last of them was asked. settled: its settings
    were read back and a server started. coming: a server that is not ready yet. no_server: the last
    one did not start up; server_words: what the log says of that. on_line: gets each line of the
    log that means something. commands: times of answers since mpsd began."""

    def __init__(
        self, place: DaemonPlace, gpus: Sequence[str], on_end: Callable[[], None], log: Logger
    ) -> None:
        self._folder = place.folder
        self._cgroup = place.cgroup
        self._environment = place.environment
        self._gpus = gpus
        self._on_end = on_end
        self._log = log
        self.canary = DomainCanary(place.canary, place.environment, on_end, log)
        self.first_context = FirstContext(place.canary, place.environment, on_end, log)
        self.tail = LogTail(place.folder.log, from_end=True)
        self._watch: DeathWatch | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._last_words = self._refused = ""
        self.on_line: Callable[[LogLine], None] = lambda _line: None
        self.commands = CommandTimes(processes.boot_id())
        self.identity: ProcessIdentity | None = None
        self._forget_answers()

    def _forget_answers(self) -> None:
        self.unanswered = 0
        self.trouble = ""
        self.asked_s = self.silent_s = 0.0
        self.settled = self.no_server = False
        self.server_words = ""
        self.coming: int | None = None
        self.servers: tuple[int, ...] = ()
        self.server: ServerStatus | None = None
        self.clients: int | None = None

    # -- its life

    def adopt(self, recorded: ProcessIdentity | None) -> bool:
        """Takes over the daemon that listens in our directory, or the recorded one if it lives."""
        try:
            found = control_daemon.listener(self._folder)
        except OSError as error:
            if processes.is_shortage(error):
                raise
            # It is there and does not take us in: only its record can prove it.
            self._log.warning("control socket silent", reason=str(error))
            found = None
        if found is None and recorded and processes.is_alive(recorded):
            found = recorded
        if found:
            self._hold(found)
            if not self.foreign:
                self._move(found.pid, *processes.descendants_of(found.pid))
        return found is not None

    def start(self) -> None:
        """OSError."""
        self._last_words = ""
        child = control_daemon.start(self._folder, self._gpus, self._environment)
        try:
            # None: it is over already; its exit code says why at the next look.
            gone = ProcessIdentity(child.pid, 0, processes.boot_id())
            self._hold(processes.identity_of(child.pid) or gone)
        except OSError:  # it cannot be known again, and has no client yet
            child.kill()
            child.wait()
            raise
        self._child = child
        self._move(self._child.pid)

    def _move(self, *pids: int) -> None:
        """To a cgroup of its own, before it has a server; one that cannot be moved serves too."""
        if self._cgroup is None:
            return
        try:
            self._cgroup.take_in(pids)
        except CgroupRefused as refused:
            if str(refused) != self._refused:
                self._log.warning("daemon ends with this container", reason=str(refused))
            self._refused = str(refused)

    def _hold(self, daemon: ProcessIdentity) -> None:
        self._forget_answers()
        if self._watch:
            self._watch.close()
        self.identity = daemon
        self._watch = DeathWatch(daemon, self._on_end)

    @property
    def alive(self) -> bool:
        return self._watch is not None and self._watch.alive

    @property
    def adopted(self) -> bool:
        """Whether it is not one that we started; there may be none."""
        return self._child is None

    @property
    def foreign(self) -> bool:
        """Whether it is another's: adopted, and not started for exactly our GPUs."""
        if not self.adopted or self.identity is None or not self.alive:
            return False
        return not control_daemon.serves(self.identity, self._gpus)

    def is_own(self, pid: int) -> bool:
        """Whether it is, or was of late, a client of mpsd's own."""
        return pid in self.canary.pids or pid in self.first_context.pids

    @property
    def is_stopped(self) -> bool:
        """Whether a signal (SIGSTOP, SIGTSTP) has stopped it: it answers once it is continued."""
        return self.identity is not None and processes.state_of(self.identity) == "T"

    def forget(self) -> str:
        """After its end; returns how it ended."""
        control_daemon.withdraw_from_clients(self._folder)
        self.canary.cancel()
        self.first_context.cancel()
        self.read_log()
        who = f"the control daemon ({self.identity})"
        child = self._child
        self.identity = None
        self._child = None
        if child is None:
            return f"{who} is gone"
        code = child.wait()
        if code < 0:
            return f"{who} was killed by signal {-code}"
        last = printable(self._last_words, _LONGEST_WORDS)
        return f'{who} ended with code {code}; its last line: "{last}"'

    def kill(self) -> None:
        """SIGKILL, on proof that it is the one; its clients lose it."""
        if self.identity:
            processes.send_signal(self.identity, signal.SIGKILL)

    async def quit(self, timeout_s: int, graces: Graces) -> None:
        """Asks it to end once its clients have, at most `timeout_s` later; else SIGKILL."""
        control_daemon.withdraw_from_clients(self._folder)
        await self.canary.end()
        await self.first_context.end()
        daemon = self.identity
        deadline_s = timeout_s + graces.command_s
        if daemon and self.alive:

            async def has_ended() -> None:
                await until(lambda: not processes.is_alive(daemon), deadline_s, "the daemon ends")

            try:
                await self.pipe(deadline_s).ask(control_protocol.quit_daemon(timeout_s))
                await has_ended()
            except TROUBLES as error:
                self._log.warning("daemon killed", reason=f"it did not quit: {error}")
                self.kill()
                await has_ended()
        self.release()
        if self._child:
            self._child.wait()
        if self._cgroup:
            is_empty = "the daemon's server has left its cgroup"
            # an empty cgroup that is left behind harms nobody
            with contextlib.suppress(TimeoutError):
                await until(self._cgroup.remove, graces.command_s, is_empty)

    def release(self) -> None:
        """The daemon goes on."""
        self.canary.cancel()
        self.first_context.cancel()
        if self._watch:
            self._watch.close()

    # -- its answers and its log

    def pipe(self, deadline_s: float) -> ControlPipe:
        return ControlPipe(self._folder.pipe, self._environment, deadline_s)

    def read_log(self) -> bool:
        """Forwards its new log lines to our log; True where one calls for a probe."""
        asks = False
        for text in self.tail.lines():
            self._last_words = text.strip() or self._last_words
            if line := read_line(text):
                asks = asks or line.event in _ASKS_FOR_A_PROBE
                self._follow_server(line)
                self.on_line(line)
                if line.event.is_forwarded:
                    self._log.info("daemon says", kind=line.event.value, text=line.text)
        return asks

    def _follow_server(self, line: LogLine) -> None:
        if line.event is LogEvent.SERVER_STARTING:
            self.coming = line.pid
            self.server_words = ""
        elif self.coming is not None and line.event in _SAYS_WHY:
            self.server_words = printable(line.text, _LONGEST_WORDS)
        elif line.pid == self.coming and line.event in _COME:
            # A server that ends before it was ready could not start.
            self.coming = None
            self.no_server = line.event is LogEvent.SERVER_EXITED
            self.server_words = self.server_words or printable(line.text, _LONGEST_WORDS)
            self.settled = self.settled and not self.no_server

    async def probe(self, deadline_s: float, *, with_clients: bool) -> None:
        """Asks for its servers and their status, and for clients in a drain; has a server started
        where there is none, except in a drain. All but a proper answer counts as unanswered;
        OSError in a shortage."""
        pipe = self.pipe(deadline_s)
        asked_s = clock.boot_s()
        clients = None
        try:
            if self.identity and self.is_stopped:  # it would not answer within any deadline
                remedy = f"continue it: kill -CONT {self.identity.pid}"
                raise DaemonSilent(f"{self.identity} was stopped by a signal; {remedy}")
            servers, status = await self.ask_for_health(pipe)
            if with_clients:
                clients = len(await pipe.clients(servers))
            # it died: start another at once, so that nobody else takes the GPU
            elif not servers:
                await pipe.ask(control_protocol.start_server(os.geteuid()))
                servers = await pipe.ask(control_protocol.server_list())
        except TROUBLES as error:
            if processes.is_shortage(error):  # ours: the daemon was not asked
                raise
            self.unanswered += 1
            self.commands = replace(self.commands, unanswered=self.commands.unanswered + 1)
            self.trouble = str(error)
            self.silent_s = asked_s
            return
        self.unanswered = 0
        self.trouble = ""
        self.servers = servers
        self.asked_s = asked_s
        self.server = status
        self.clients = clients

    async def ask_for_health(self, pipe: ControlPipe) -> tuple[tuple[int, ...], ServerStatus]:
        """The servers, and the worst status among them; without a server there is nothing wrong."""
        servers: tuple[int, ...] = ()
        statuses = []
        if len(self.servers) == 1:
            servers, status = await self._timed(pipe, control_protocol.health(self.servers[0]))
            statuses = [status]
        if not servers or servers != self.servers:
            servers = await self._timed(pipe, control_protocol.server_list())
            statuses = [
                await self._timed(pipe, control_protocol.server_status(server))
                for server in servers
            ]
        if ServerStatus.FAULT in statuses:
            return servers, ServerStatus.FAULT
        return servers, ServerStatus.ACTIVE

    async def _timed(self, pipe: ControlPipe, command: Command[Answer]) -> Answer:
        began = time.monotonic()
        answer = await pipe.ask(command)
        answered = self.commands.answered.with_one(time.monotonic() - began, COMMAND_BOUNDS_S)
        self.commands = replace(self.commands, answered=answered)
        return answer
