"""The control daemon of one domain: started or adopted, probed, followed in its log, ended. Its
last answers are kept; `DomainSupervisor` draws the conclusions."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from mpsd.mps.log_tail import MOST_BYTES, LogTail
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import Command, ControlFailed, LogEvent, LogLine, read_line
from mpsd.platform import clock, peers, processes
from mpsd.platform.event_loop import DeathWatch, until
from mpsd.platform.logs import Logger
from mpsd.platform.run_directory import DomainFolder

# No more than that follows from a line: any tenant can write each of them.
_ASKS_FOR_A_PROBE = {
    LogEvent.SERVER_STARTING,
    LogEvent.SERVER_READY,
    LogEvent.SERVER_EXITED,
    LogEvent.FAULT,
    LogEvent.LEFT_OUT,
}
_LEFT_OUT = LogLine(LogEvent.LEFT_OUT, None, f"only the last {MOST_BYTES} bytes are read")
_SAYS_WHY = {LogEvent.OTHER, LogEvent.FAULT, LogEvent.FATAL}  # a server does not come up
_LONGEST_WORDS = 200  # of a line of the log in a reason
_MOST_SAID = 20  # lines of the log that are forwarded to mpsd's own, in so many seconds
_SAID_S = 1.0
_LOOK_S = 0.1  # between two questions whether a server is up
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
    were read back and a server started. no_server: one that this daemon had started ended before it
    answered; server_words: how, and what the log says. on_line: gets each line of the log that may
    call for a look. commands: times of answers since mpsd began."""

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
        self._last_words = self._refused = self._server_said = ""
        self._said = deque[float](maxlen=_MOST_SAID)  # when the last lines were forwarded
        self.on_line: Callable[[LogLine], None] = lambda _line: None
        self.commands = CommandTimes(processes.boot_id())
        self.identity: ProcessIdentity | None = None
        self._held: dict[int, DeathWatch] = {}  # its servers, by pid
        self._forget_answers()

    def _forget_answers(self) -> None:
        self.unanswered = 0
        self.trouble = ""
        self.asked_s = self.silent_s = 0.0
        self.settled = self.no_server = self._end_noted = False
        self.server_words = ""
        self._connected = frozenset[ProcessIdentity]()  # to its socket, at the last silence
        self._looked_s = 0.0  # when that began
        self._missing_since_s: float | None = None  # None: one is listed
        self._forget_servers()
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

    def _forget_servers(self) -> None:
        for watch in self._held.values():
            watch.close()
        self._held = {}
        self._answering: set[int] = set()

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

    def end_holders(self) -> None:
        """SIGKILL for who keeps it from answering: it serves one connection until that has said who
        it is, and a command until its text has come (docs/mps-observed.md, section 4). Who was
        connected before and after a question that it did not answer is that."""
        if self.identity is None or self.is_stopped or self.silent_s == self._looked_s:
            return
        self._looked_s = self.silent_s
        connected = peers.connected_to(self.identity)
        for one in connected & self._connected:
            why = "it holds the daemon's socket and says nothing, so that nobody else is answered"
            command = processes.command_of(one.pid)
            if processes.send_signal(one, signal.SIGKILL):
                self._log.warning("client ended", pid=one.pid, command=command, reason=why)
        self._connected = connected

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
        self._forget_servers()
        self.canary.cancel()
        self.first_context.cancel()
        if self._watch:
            self._watch.close()

    # -- its answers and its log

    def pipe(self, deadline_s: float) -> ControlPipe:
        return ControlPipe(self._folder.pipe, self._environment, deadline_s)

    def read_log(self) -> bool:
        """Forwards its new log lines to our log; True where one calls for a probe."""
        added = self.tail.lines()
        found = []
        if added and self.tail.has_left_out:
            found.append(_LEFT_OUT)
        for text in added:
            self._last_words = text.strip() or self._last_words
            if line := read_line(text):
                found.append(line)
        for line in found:
            if line.event in _SAYS_WHY:
                self._server_said = printable(line.text, _LONGEST_WORDS)
            self.on_line(line)
            self._forward(line)
        return any(line.event in _ASKS_FOR_A_PROBE for line in found)

    def _forward(self, line: LogLine) -> None:
        now = time.monotonic()
        is_full = len(self._said) == _MOST_SAID and self._said[0] > now - _SAID_S
        if line.event.is_forwarded and not is_full:
            self._said.append(now)
            self._log.info("daemon says", kind=line.event.value, text=line.text)

    # -- its servers

    async def start_server(self, pipe: ControlPipe) -> None:
        """Has one started where there is none. As `ControlPipe.ask`."""
        self.server_words = self._server_said = ""
        await pipe.ask(control_protocol.start_server(os.geteuid()))

    async def list_servers(self, pipe: ControlPipe) -> tuple[int, ...]:
        """As `ControlPipe.ask`."""
        servers = await pipe.ask(control_protocol.server_list())
        self._watch_servers(servers)
        return servers

    async def until_server_is_up(self, pipe: ControlPipe, deadline_s: float) -> None:
        """After `start_server`. ControlFailed where none comes up; as `ControlPipe.ask`."""
        began = time.monotonic()
        while not self._answering:
            if time.monotonic() >= began + deadline_s:
                self._could_not_start(f"none answers {deadline_s:g} s after its start")
            if self.server_words:
                raise ControlFailed(f"no MPS server starts: {self.server_words}")
            await asyncio.sleep(_LOOK_S)
            self.servers, _status = await self.ask_for_health(pipe)

    @property
    def is_server_due(self) -> bool:
        """Whether there should be one that has not answered yet."""
        return not self._answering

    def _watch_servers(self, servers: Iterable[int]) -> None:
        """Until they end: those that the daemon has started, as the kernel has it."""
        for pid in self._answering.difference(servers):  # gone, by the daemon's word
            self._answering.discard(pid)
            if watch := self._held.pop(pid, None):
                watch.close()
        for pid in servers:
            server = processes.identity_of(pid)
            is_its = self.identity is not None and processes.parent_of(pid) == self.identity.pid
            if server and is_its and pid not in self._held:
                self._held[pid] = DeathWatch(server, partial(self._server_ended, pid))

    def _server_ended(self, pid: int) -> None:
        watch = self._held.pop(pid, None)
        if watch is None:  # its daemon is gone
            return
        if pid not in self._answering:
            self._could_not_start(f"process {pid}: {processes.how_ended(watch.status)}")
        self._answering.discard(pid)
        self.note_end()

    def _could_not_start(self, why: str) -> None:
        self.no_server = True
        self.settled = False
        self.read_log()
        said = self._server_said or printable(self._last_words, _LONGEST_WORDS)
        self.server_words = f'{why}; the log has "{said}" ({self._folder.log})'

    def _note_missing(self, servers: Collection[int], now_s: float, longest_s: float) -> None:
        """servers: as listed just after one was to start."""
        if servers:
            self._missing_since_s = None
        elif self._missing_since_s is None:
            self._missing_since_s = now_s
        elif now_s - self._missing_since_s > longest_s:
            self._could_not_start(f"none is listed for {longest_s:g} s")

    def note_end(self) -> None:
        """Of a server or a client: the daemon is to be asked."""
        self._end_noted = True
        self._on_end()

    def is_news(self) -> bool:
        """Whether the daemon is to be asked, for a line in its log or for an end."""
        is_noted = self._end_noted
        self._end_noted = False
        return self.read_log() or is_noted

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
                await self.start_server(pipe)
                servers = await self.list_servers(pipe)
                self._note_missing(servers, asked_s, deadline_s)
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
        self._watch_servers(servers)
        for server, status in zip(servers, statuses, strict=True):
            if status is not ServerStatus.GONE:
                self._answering.add(server)
                self.no_server = False
        if ServerStatus.FAULT in statuses:
            return servers, ServerStatus.FAULT
        return servers, ServerStatus.ACTIVE

    async def _timed(self, pipe: ControlPipe, command: Command[Answer]) -> Answer:
        began = time.monotonic()
        answer = await pipe.ask(command)
        answered = self.commands.answered.with_one(time.monotonic() - began, COMMAND_BOUNDS_S)
        self.commands = replace(self.commands, answered=answered)
        return answer
