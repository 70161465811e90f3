"""The control daemon: accepts clients and commands, keeps one server running for them.

It never blocks on anybody but its own selector.
"""

import fcntl
import os
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from mpsd.model.cuda_limit_parser import (
    CUDA_VISIBLE_DEVICES,
    PIPE_DIRECTORY,
    THREAD_PERCENT,
    thread_percent_as_read,
)
from mpsd.simulator.card import MPS_SERVER_NOT_READY
from mpsd.simulator.gpus import SimulatedGpu, present_gpus, simulated_folder, visible_gpus
from mpsd.simulator.mps import commands, messages, question
from mpsd.simulator.mps import messages as listening
from mpsd.simulator.mps.control_daemon import PIPE_DIRECTORY as USUAL_PIPE_DIRECTORY
from mpsd.simulator.mps.control_daemon import VERSION
from mpsd.simulator.mps.messages import MpsLog, SocketPeer
from mpsd.simulator.mps.server import ServerSetup, run_server
from mpsd.simulator.mps.server_link import CommandSender, ServerLink, ServerSettings, fork_server


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """What the daemon was started with."""

    folder: Path
    pipe_directory: Path
    gpus: tuple[SimulatedGpu, ...]
    thread_percent: float
    multiuser: bool
    uid: int


@dataclass(frozen=True, slots=True)
class Quit:
    """A `quit` under way: who waits for it, and when the clients' patience ends (None: never)."""

    asker: CommandSender
    deadline: float | None


class ControlDaemon:
    """The daemon, from the moment it has its pipe directory to itself."""

    def __init__(self, settings: DaemonSettings, log: MpsLog, lock: int) -> None:
        self.settings = settings
        self.log = log
        self._lock = lock
        self.defaults = ServerSettings(settings.thread_percent)
        self.server: ServerLink | None = None  # None: no client came yet, or it ended
        self._waiting: deque[tuple[socket.socket, SocketPeer]] = deque()
        self._quit: Quit | None = None  # None: not asked to
        self._finished = False
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        pipe = self.settings.pipe_directory
        for name, mode in (("control", 0o666), ("control_privileged", 0o755)):
            listener = listening.listen(pipe / name, mode)
            self._watch(listener, partial(self._accept, listener, name == "control_privileged"))
        fifo = pipe / "log"
        pid_file = pipe / "nvidia-cuda-mps-control.pid"
        fifo.unlink(missing_ok=True)
        os.mkfifo(fifo)
        fifo.chmod(0o777)
        pid_file.unlink(missing_ok=True)
        pid_file.write_text(str(os.getpid()))
        pid_file.chmod(0o666)
        self.log.control(f"Starting control daemon using socket {pipe}/control")
        self.log.control(
            f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={pipe}"
        )
        self.log.control(f"CUDA MPS Control binary version: {VERSION}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close_all()

    def run(self) -> None:
        """Serve until a `quit` has run its course."""
        while not self._finished:
            for key, _ in self._selector.select(self._patience_s()):
                if listening.still_open(key):
                    key.data()
            if (
                self._quit
                and self._quit.deadline is not None
                and time.monotonic() >= self._quit.deadline
            ):
                self.end_server()

    def start_server(self, uid: int) -> ServerLink:
        """Start the server for clients of this uid; nothing but a log line tells when it is
        ready."""
        setup = ServerSetup(
            self.settings.folder, self.settings.pipe_directory, self.settings.gpus, self.log
        )
        settings = self.defaults.for_server(self.settings.gpus)
        self.server = link = fork_server(uid, settings, partial(self._become_server, setup))
        self.log.control(f"Starting new server {link.pid} for user {uid}")
        self._watch(link.connection, partial(self._hear_server, link))
        return link

    def end_server(self) -> None:
        """End the server whatever its clients do."""
        if self.server:
            self.log.control(f"Force shutting down server {self.server.pid}")
            self.server.kill()
            self._server_gone(self.server)

    def quit(self, asker: CommandSender, timeout_s: float | None) -> None:
        """Stop serving once all clients are gone, or after timeout_s; the asker is answered
        then."""
        self._quit = Quit(asker, None if timeout_s is None else time.monotonic() + timeout_s)
        if self.server:
            self.log.control(f"Try shutting down server {self.server.pid}, backoff is disabled")
            self.server.close_when_idle()
        else:
            self._finish()

    def _become_server(self, setup: ServerSetup, link: socket.socket) -> None:
        # The daemon's sockets are the server's too after the fork; kept open they would outlive the
        # daemon.
        self._close_all()
        run_server(setup, link)

    def _watch(self, watched: socket.socket, hear: Callable[[], None]) -> None:
        self._selector.register(watched, selectors.EVENT_READ, hear)

    def _drop(self, watched: socket.socket) -> None:
        self._selector.unregister(watched)
        watched.close()

    def _patience_s(self) -> float | None:
        """How long the loop may sleep; None for as long as nothing happens."""
        if self._quit is None or self._quit.deadline is None:
            return None
        return max(0.0, self._quit.deadline - time.monotonic())

    def _accept(self, listener: socket.socket, privileged: bool) -> None:
        connection, _ = listener.accept()
        self.log.control("Accepting connection...")
        asker = CommandSender(connection, listening.peer(connection), privileged)
        messages.send_packet(connection, question.HELLO)
        self._watch(connection, partial(self._hear, asker))
        self._hear(asker)

    def _hear(self, asker: CommandSender) -> None:
        """Waits for who it is, and for the text of a command, and hears nobody else meanwhile, as
        on an H200."""
        while self._hears_on(asker):
            pass

    def _hears_on(self, asker: CommandSender) -> bool:
        """The next packet: credentials, who it is, and of a commander the length of its command,
        the command, and that there is no more. Else the connection ends. Whether the next is waited
        for."""
        packet = messages.receive_packet(asker.connection)
        asker.heard.append(packet)
        match asker.heard:
            case [question.CREDENTIALS]:
                return True
            case [_, question.CLIENT]:
                self._selector.unregister(asker.connection)
                self._waiting.append((asker.connection, asker.peer))
                self._serve_waiting()
            case [_, question.COMMANDER]:
                self.log.control("NEW UI")
            case [_] | [_, _]:
                self.log.control("Unable to read new connection type information")
                self._drop(asker.connection)
            case [_, _, length] if len(length) == question.LENGTH_BYTES:
                return True
            case [_, _, length, text] if text and len(text) == int.from_bytes(length, "little"):
                if len(text) > question.LONGEST_TEXT:
                    os.abort()  # as on an H200
            case [_, _, _, text, question.NO_MORE]:
                self._obey(asker, text.decode(errors="surrogateescape").rstrip("\n\0"))
            case _:
                self._close(asker)
        return False

    def _close(self, asker: CommandSender) -> None:
        self.log.control("UI closed")
        self._drop(asker.connection)

    def _obey(self, asker: CommandSender, text: str) -> None:
        self.log.control(f"Cmd:{text}")
        answer = commands.answer(self, asker, text)
        if answer is not None:
            self._answer(asker, answer)

    def _answer(self, asker: CommandSender, text: str) -> None:
        for line in text.splitlines():
            self.log.control(line)
        if not asker.gone:
            messages.send_answer(asker.connection, text)
            self._close(asker)

    def _serve_waiting(self) -> None:
        """First come first served; without -M a client of another user waits until the server has
        no client left."""
        while self._waiting:
            connection, peer = self._waiting[0]
            uid = self.settings.uid if self.settings.multiuser else peer.uid
            came = f"NEW CLIENT {peer.pid} from user {peer.uid}"
            if self._quit:
                messages.send(connection, {"status": MPS_SERVER_NOT_READY})
                connection.close()
            elif self.server is None:
                self.log.control(f"{came}: Server is not ready, push client to pending list")
                self.start_server(uid).hand_over(connection)
            elif self.server.ending:
                return
            elif self.server.uid == uid:
                self.log.control(f"{came}: Server already exists")
                self.server.hand_over(connection)
            else:
                self.log.control(
                    f"{came}: Server is in use by another user, push client to pending list"
                )
                self.server.close_when_idle()
                return
            self._waiting.popleft()

    def _hear_server(self, link: ServerLink) -> None:
        message = messages.receive(link.connection)
        if message is None:
            self._server_gone(link)
        elif "answer" in message:
            self._answer(link.askers.pop(message["number"]), message["answer"])
        elif "idle" in message:
            link.heard_idle(message["idle"])
        else:
            self.log.control(f"NEW SERVER {link.pid}: Ready")

    def _server_gone(self, link: ServerLink) -> None:
        self._selector.unregister(link.connection)
        self.log.control(f"Server {link.pid} exited with status {link.reap()}")
        self.server = None
        for asker in link.askers.values():
            self._answer(asker, f"Server {link.pid} not found\n")
        if self._quit:
            self._finish()
        else:
            self._serve_waiting()

    def _finish(self) -> None:
        pipe = self.settings.pipe_directory
        self._finished = True
        (pipe / "log").unlink(missing_ok=True)
        (pipe / "nvidia-cuda-mps-control.pid").unlink(missing_ok=True)
        self.log.control("Exit with status 0")
        if self._quit is None or self._quit.asker.gone:
            return
        # Answered last: after the answer there must be no daemon any more.
        with self._quit.asker.connection.dup() as asker:
            self._close_all()
            messages.send_answer(asker, "")

    def _close_all(self) -> None:
        for key in list(self._selector.get_map().values() if self._selector.get_map() else ()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        for connection, _ in self._waiting:
            connection.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


# -- start: one daemon a pipe directory, which the lock on `control_lock` ensures

LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
USUAL_LOG_DIRECTORY = "/var/log/nvidia-mps"


@dataclass(frozen=True, slots=True)
class _Directories:
    pipe: Path
    log: Path


def start(environment: Mapping[str, str], *, multiuser: bool, foreground: bool) -> int:
    """Run the daemon; returns its exit code, in the background at once."""
    directories = _directories(environment)
    if not directories.pipe.is_dir():
        print(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={directories.pipe}", file=sys.stderr)
        return 1
    lock = _lock(directories.pipe / "control_lock")
    if lock is None:
        print("An instance of this daemon is already running", file=sys.stderr)
        return 1
    log = MpsLog(1, 1) if foreground else _log_files(directories.log)
    folder = simulated_folder(environment)
    settings = DaemonSettings(
        folder=folder,
        pipe_directory=directories.pipe,
        gpus=visible_gpus(environment.get(CUDA_VISIBLE_DEVICES), present_gpus(folder, environment)),
        thread_percent=thread_percent_as_read(environment.get(THREAD_PERCENT)),
        multiuser=multiuser,
        uid=os.geteuid(),
    )
    if not foreground and not _in_background():
        return 0
    Path("/proc/self/comm").write_text("nvidia-cuda-mps-control")
    with ControlDaemon(settings, log, lock) as daemon:
        if not foreground:
            _leave_starter()
        daemon.run()
    return 0


def _directories(environment: Mapping[str, str]) -> _Directories:
    """The two directories; only the usual ones are made where they are missing."""
    pipe = Path(environment.get(PIPE_DIRECTORY) or USUAL_PIPE_DIRECTORY)
    log = Path(environment.get(LOG_DIRECTORY) or USUAL_LOG_DIRECTORY)
    if pipe == Path(USUAL_PIPE_DIRECTORY):
        pipe.mkdir(exist_ok=True)
    return _Directories(pipe, log)


def _lock(path: Path) -> int | None:
    """The lock file, locked for as long as it stays open; None when another daemon has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    if os.fstat(file).st_uid == os.geteuid():
        os.fchmod(file, 0o666)
    return file


def _in_background() -> bool:
    """Fork: True in the daemon; False in the starter, once the daemon serves (or has died)."""
    serving, serves = os.pipe()
    if os.fork():
        os.close(serves)
        os.read(serving, 1)
        return False
    os.close(serving)
    os.setsid()
    os.dup2(serves, sys.stdout.fileno())
    os.close(serves)
    return True


def _leave_starter() -> None:
    """Let go of the starter's terminal, and of the pipe on which it waits."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        os.dup2(nothing, stream.fileno())


def _log_files(directory: Path) -> MpsLog:
    directory.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return MpsLog(
        os.open(directory / "control.log", flags, 0o644),
        os.open(directory / "server.log", flags, 0o644),
    )
