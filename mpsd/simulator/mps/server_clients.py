"""A client as its MPS server knows it."""

import socket
from dataclasses import dataclass

from mpsd.simulator.mps.messages import SocketPeer


@dataclass(frozen=True, slots=True)
class ServerContext:
    """A context on the server's device `ordinal`; slot is its place on the card."""

    ordinal: int
    slot: int


@dataclass(eq=False, slots=True)
class ServerClient:
    """A client's process, from its first connection until it is gone.

    context: None before the first and after it was destroyed; contexts counts them all. number: what `ps` shows as
    ID, 0 before the first context. device: where the last context was. torn_down: a fault hit it.
    """

    connection: socket.socket
    peer: SocketPeer
    context: ServerContext | None = None
    contexts: int = 0
    number: int = 0
    device: int = 0
    torn_down: bool = False

    @property
    def pid(self) -> int:
        return self.peer.pid

    @property
    def shown(self) -> str:
        """As the log names it."""
        return f"{{PID: {self.pid}, Context ID: {self.contexts}}}"

    def take(self, context: ServerContext, number: int) -> None:
        """Have this context; `number` counts only for the first one."""
        self.context = context
        self.device = context.ordinal
        self.contexts += 1
        self.number = self.number or number
