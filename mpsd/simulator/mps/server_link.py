"""The control daemon's end of its server: its settings, who waits for its answers, and how it is
started and ended.

The daemon never waits for the server, so that it answers what it can while a server is stopped.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from mpsd.simulator.gpus import SimulatedGpu
from mpsd.simulator.mps import messages
from mpsd.simulator.mps.client_share import server_limit_bytes
from mpsd.simulator.mps.messages import SocketPeer


@dataclass(eq=False, slots=True)
class CommandSender:
    """A process that gives commands: who it is, through which socket it came, and the packets that
    it has sent."""

    connection: socket.socket
    peer: SocketPeer
    privileged: bool
    heard: list[bytes] = field(default_factory=list)

    @property
    def gone(self) -> bool:
        return self.connection.fileno() < 0


@dataclass(slots=True)
class ServerSettings:
    """Limits for clients. memory_limits: the text given, by the device named; read back by the same
    name."""

    thread_percent: float
    priority: int = 0
    memory_limits: MutableMapping[str, str] = field(default_factory=dict)

    def set_memory_limit(self, device: str, value: str) -> None:
        if server_limit_bytes(value) is None:
            self.memory_limits.pop(device, None)
        else:
            self.memory_limits[device] = value

    def for_server(self, gpus: Sequence[SimulatedGpu]) -> "ServerSettings":
        """The settings a new server starts with: a server knows its devices by ordinal."""
        limits = {
            server_device(device, gpus): value for device, value in self.memory_limits.items()
        }
        return ServerSettings(self.thread_percent, self.priority, limits)

    def as_message(self) -> Mapping[str, object]:
        limits = {device: server_limit_bytes(value) for device, value in self.memory_limits.items()}
        return {"thread_percent": self.thread_percent, "priority": self.priority, "limits": limits}


def server_device(device: str, gpus: Sequence[SimulatedGpu]) -> str:
    """A device as the server knows it: a UUID becomes its ordinal, anything else stays what it
    is."""
    return next((str(ordinal) for ordinal, gpu in enumerate(gpus) if gpu.uuid == device), device)


@dataclass(eq=False, slots=True)
class ServerLink:
    """A server that runs.

    askers: who waits for which answer, by the number of the question. idle: the server's word that
    every client handed to it has left again; closing: it is to end once that is so; ending: it has
    been told to, and takes no more clients.
    """

    pid: int
    uid: int
    connection: socket.socket
    settings: ServerSettings
    askers: MutableMapping[int, CommandSender] = field(default_factory=dict)
    questions: int = 0
    handed: int = 0
    idle: bool = True
    closing: bool = False
    ending: bool = False

    def ask(self, asker: CommandSender, command: str, words: Sequence[str]) -> None:
        """Put a question; the answer comes back over the link, with its number."""
        self.questions += 1
        self.askers[self.questions] = asker
        messages.send(
            self.connection, {"ask": command, "words": list(words), "number": self.questions}
        )

    def hand_over(self, client: socket.socket) -> None:
        """Give the server a client's connection; from here on the two talk to each other."""
        self.handed += 1
        self.idle = False
        messages.send(self.connection, {"client": True}, [client.fileno()])
        client.close()

    def apply_settings(self) -> None:
        messages.send(self.connection, {"settings": self.settings.as_message()})

    def close_when_idle(self) -> None:
        self.closing = True
        if self.idle and not self.ending:
            self.ending = True
            messages.send(self.connection, {"exit": True})

    def heard_idle(self, served: int) -> None:
        """The server had no client left after `served` of them; later ones may be on their way to
        it."""
        self.idle = served == self.handed
        if self.closing:
            self.close_when_idle()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Wait for the process, which is dead or about to be, and return its exit status."""
        self.connection.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def fork_server(
    uid: int, settings: ServerSettings, serve: Callable[[socket.socket], None]
) -> ServerLink:
    """Fork a server: `serve` runs in it, with its end of the link, and never returns to the
    daemon's code."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            serve(theirs)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    theirs.close()
    link = ServerLink(pid, uid, ours, settings)
    link.apply_settings()
    return link
