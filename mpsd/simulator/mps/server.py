"""The MPS server: the process in which clients have their contexts.

A client's process is gone when its connection is; until then all that the server knows of it still
holds. What was queued of one that is gone it reads off the card.
"""

import os
import selectors
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mpsd.simulator.card import (
    ILLEGAL_ADDRESS,
    LAUNCH_FAILED,
    MPS_CLIENT,
    MPS_CLIENT_TERMINATED,
    MPS_SERVER,
    MPS_SERVER_NOT_READY,
    OUT_OF_MEMORY,
    SUCCESS,
    CardRefusal,
    CardView,
    ContextClaim,
)
from mpsd.simulator.gpus import MIB, SimulatedGpu, card_path
from mpsd.simulator.kernel_queue import KernelQueue
from mpsd.simulator.memory_limits import MemoryLimits
from mpsd.simulator.mps import client_share, messages
from mpsd.simulator.mps import messages as listening
from mpsd.simulator.mps.client_share import ClientShare, Wish, device_table
from mpsd.simulator.mps.messages import Message, MpsLog, SocketPeer
from mpsd.simulator.process_status import process_status

_LOOK_AGAIN_S = 0.01  # whether a stopped client was continued
_INVALID_PROCESS = "Invalid process {}!\n1\n"

# A client as its MPS server knows it.


@dataclass(frozen=True, slots=True)
class ServerContext:
    """A context on the server's device `ordinal`; slot is its place on the card."""

    ordinal: int
    slot: int


@dataclass(eq=False, slots=True)
class ServerClient:
    """A client's process, from its first connection until it is gone.

    context: None before the first and after it was destroyed; contexts counts them all. number:
    what `ps` shows as ID, 0 before the first context. device: where the last context was.
    torn_down: a fault hit it. terminated: its context was.
    """

    connection: socket.socket
    peer: SocketPeer
    context: ServerContext | None = None
    contexts: int = 0
    number: int = 0
    device: int = 0
    torn_down: bool = False
    terminated: bool = False

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
        self.terminated = False
        self.device = context.ordinal
        self.contexts += 1
        self.number = self.number or number


# What the server's lists look like, and what it logs about a fault.


def process_table(
    clients: Sequence[ServerClient], server: int, gpus: Sequence[SimulatedGpu]
) -> str:
    """`ps`: a header and a row for each client; nothing at all without clients."""
    if not clients:
        return ""
    rows = [("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")]
    for client in clients:
        device = "-".join(gpus[client.device].uuid.split("-")[:4])
        namespace, command = _namespace_and_command(client.pid)
        rows.append((str(client.pid), str(client.number), str(server), device, namespace, command))
    return "".join(
        f"{row[0]:<10}{row[1]:<10}{row[2]:<15}{row[3]:<26}{row[4]:<15}{row[5]:<15}\n"
        for row in rows
    )


def _namespace_and_command(pid: int) -> tuple[str, str]:
    """Inode of the process's pid namespace and the first word of its command line; empty once it is
    dead."""
    process = Path(f"/proc/{pid}")
    try:
        command, _, _ = (process / "cmdline").read_bytes().partition(b"\0")
        return str((process / "ns" / "pid").stat().st_ino), command.decode(errors="replace")
    except OSError:
        return "", ""


def device_client_list(clients: Sequence[ServerClient], gpus: Sequence[SimulatedGpu]) -> str:
    """`get_device_client_list`: each device with clients; the real one shows every PCI address as
    00:00.0."""
    text = ""
    for ordinal, gpu in enumerate(gpus):
        rows = [
            f"{client.pid}.{client.contexts}\n" for client in clients if client.device == ordinal
        ]
        if rows:
            text += f"[{ordinal}] 00:00.0, {gpu.name}\n" + "".join(rows)
    return text


def devices(gpus: Sequence[SimulatedGpu], server: int, words: Sequence[str]) -> str:
    """`device_query` while a server runs: the daemon's devices and the server's."""
    table = device_table(gpus, csv="--csv" in words)
    return f"Default\n{table}\nServer {server}\n{table}"


def fault_lines(named: ServerClient, hit: Sequence[ServerClient], ordinal: int) -> Iterator[str]:
    """The log of a fault on device `ordinal` that hit these clients."""
    yield f"Client {{PID: {named.pid}, Context: {named.contexts}}} encountered a fatal GPU error."
    yield "Server is handling a fatal GPU error."
    for client in hit:
        yield f"Client {client.shown} on device {ordinal} to be torn down"
    for client in hit:
        yield f"All clients belonging to error triggering process {client.pid} will be torn down"
        yield f"Client {client.shown} on the error-trigging process {client.pid} to be torn down"
    yield "The following devices will be reset:"
    yield str(ordinal)
    yield "The following client process have a sticky error set:"
    for client in hit:
        yield str(client.pid)


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """What a server needs to know of its daemon."""

    folder: Path
    pipe_directory: Path
    gpus: tuple[SimulatedGpu, ...]
    log: MpsLog


def run_server(setup: ServerSetup, link: socket.socket) -> None:
    """Be a server until the daemon says stop or is gone; ends the process."""
    Path("/proc/self/comm").write_text("nvidia-cuda-mps-server")
    log = setup.log
    log.server("Startup", writer="Other")
    log.server(
        f"Connecting to control daemon on socket: {setup.pipe_directory}/control", writer="Other"
    )
    log.server("Initializing server process", writer="Other")
    try:
        server = MpsServer(setup, link)
    except CardRefusal as refused:
        log.server(f"Failed to create server context with status {refused.code}")
        os._exit(1)
    server.run()
    os._exit(0)


class MpsServer:
    """A server with a context on each of its GPUs."""

    def __init__(self, setup: ServerSetup, link: socket.socket) -> None:
        self._gpus = setup.gpus
        self._log, self._limits = setup.log, MemoryLimits(setup.folder)
        self._link = link
        self._cards = tuple(CardView(card_path(setup.folder, gpu)) for gpu in setup.gpus)
        for ordinal, (gpu, card) in enumerate(zip(setup.gpus, self._cards, strict=True)):
            self._log.server(f"Creating server context on device {ordinal} ({gpu.name})")
            card.claim(ContextClaim(os.getpid(), MPS_SERVER, gpu.server_mib * MIB))
        self._settings: Message = {"thread_percent": 100.0, "priority": 0, "limits": {}}
        self._started = False
        self._running = True
        self._clients: list[ServerClient] = []
        self._hanging: dict[int, ServerClient] = {}  # to terminate, by the number of the question
        self._unavailable: set[int] = set()  # devices of which the next context fails
        self._served = 0
        self._contexts_made = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(link, selectors.EVENT_READ, self._hear_daemon)

    @property
    def in_fault(self) -> bool:
        """Until the last torn-down process is gone, whatever became of its context."""
        return any(client.torn_down for client in self._clients)

    def run(self) -> None:
        while self._running:
            # Clients before the daemon, so that a client which had gone by the time of a question
            # is not in the answer.
            events = self._selector.select(_LOOK_AGAIN_S if self._hanging else None)
            for key, _ in sorted(events, key=lambda event: event[0].fileobj is self._link):
                if listening.still_open(key):
                    key.data()
            self._terminate_those_continued()

    def _hear_daemon(self) -> None:
        message, files = messages.receive_with_files(self._link)
        if message is None:
            # the daemon is dead, and takes the server and all its clients with it
            self._running = False
        elif "client" in message:
            self._accept(socket.socket(fileno=files[0]))
        elif "settings" in message:
            self._set(message["settings"])
        elif "ask" in message:
            self._answer(message["ask"], message["words"], message["number"])
        else:
            for text in (
                "Server has been notified to shutdown",
                "Waiting for current clients to finish",
                "Exiting",
            ):
                self._log.server(text)
            self._running = False

    def _set(self, settings: Message) -> None:
        for device, limit in settings["limits"].items():
            if limit != self._settings["limits"].get(device):
                self._log.server(
                    f"Device pinned memory limit for device {device} set to {limit:#x} bytes"
                )
        if not self._started or settings["thread_percent"] != self._settings["thread_percent"]:
            self._log.server(f"Active Threads Percentage set to {settings['thread_percent']:.1f}")
        self._settings = settings
        if not self._started:
            self._started = True
            self._log.server("Server has started")
            messages.send(self._link, {"ready": True})

    def _answer(self, command: str, words: Sequence[str], number: int) -> None:
        listed = sorted(
            (client for client in self._clients if client.number), key=lambda client: client.number
        )
        match command:
            case "get_server_status":
                text = "FAULT\n" if self.in_fault else "ACTIVE\n"
            case "get_client_list":
                text = "".join(f"{client.pid}\n" for client in listed)
            case "get_device_client_list":
                text = device_client_list(listed, self._gpus)
            case "ps":
                text = process_table(listed, os.getpid(), self._gpus)
            case "terminate_client":
                self._hear_terminate("".join(words[:1]), number)
                return
            case _:
                self._log.server(
                    f"Received device query command. There are {len(self._gpus)} devices"
                )
                text = devices(self._gpus, os.getpid(), words)
        self._say(text, number)

    def _say(self, text: str, number: int) -> None:
        messages.send(self._link, {"answer": text, "number": number})

    def _accept(self, connection: socket.socket) -> None:
        peer = listening.peer(connection)
        self._served += 1
        who = f"{{PID: {peer.pid}, Context ID: 0}}"
        self._log.server(f"Received new client request for {who}")
        if self.in_fault:
            self._log.server(f"Server teardown in progress. Refusing to accept new client {who}")
            self._log.server(f"Failed to accept client {who} with status {MPS_SERVER_NOT_READY}")
            messages.send(connection, {"status": MPS_SERVER_NOT_READY})
            connection.close()
            self._tell_if_idle()
            return
        client = ServerClient(connection, peer)
        self._log.server(f"Client {who} connected")
        self._log.server(f"Creating worker thread for client {who}")
        self._clients.append(client)
        self._selector.register(
            connection, selectors.EVENT_READ, partial(self._hear_client, client)
        )
        gpus = [gpu.uuid for gpu in self._gpus]
        messages.send(connection, {"status": SUCCESS, "pid": peer.pid, "gpus": gpus})

    def _hear_client(self, client: ServerClient) -> None:
        message = messages.receive(client.connection)
        try:
            self._obey(client, message)
        except (LookupError, TypeError, ValueError, StopIteration, struct.error):
            self._forget(client)  # no client of the simulator's talks so

    def _obey(self, client: ServerClient, message: Message | None) -> None:
        if message is None:
            self._forget(client)
        elif "context" in message:
            messages.send(client.connection, self._create_context(client, message["context"]))
        elif "destroy" in message:
            self._destroy_context(client)
            messages.send(client.connection, {"status": SUCCESS})
        elif client.context:
            self._fault(client, client.context.ordinal)

    def _create_context(self, client: ServerClient, asked: dict[str, Any]) -> Message:
        if self.in_fault:
            return {"status": MPS_SERVER_NOT_READY}
        ordinal = next(n for n, gpu in enumerate(self._gpus) if gpu.uuid == asked["uuid"])
        wanted = Wish(**asked["wish"])
        share = self._share(wanted, self._gpus[ordinal], asked["ordinal"])
        if quirks := self._cards[ordinal].quirks:
            share = client_share.with_quirks(share, quirks, self._gpus[ordinal])
        room = self._limits.room(self._gpus[ordinal].uuid, client.pid, self._cards[ordinal])
        if not share.holds_its_context or (room and share.context_bytes > room.free):
            return {"status": OUT_OF_MEMORY}
        if ordinal in self._unavailable:  # a client that is denied leaves it to the next
            self._unavailable.remove(ordinal)
            return {"status": LAUNCH_FAILED}
        most = self._gpus[ordinal].clients
        priority = self._priority(asked["wish"])
        claim = ContextClaim(client.pid, MPS_CLIENT, share.context_bytes, most, priority)
        try:
            slot = self._cards[ordinal].claim(claim)
        except CardRefusal as refused:
            return {"status": refused.code}
        self._contexts_made += not client.number
        client.take(ServerContext(ordinal, slot), self._contexts_made)
        gpu = self._gpus[ordinal]
        self._log.server(f"Device {gpu.name} (uuid {gpu.uuid}) is associated")
        self._log.server(f"Status of client {client.shown} is ACTIVE")
        return {"status": SUCCESS, "slot": slot, "sms": share.sms, "limit_bytes": share.limit_bytes}

    def _priority(self, wish: dict[str, Any]) -> int:
        """The client's own goes before the server's, in either direction."""
        return int(self._settings["priority"] if wish["priority"] is None else wish["priority"])

    def _share(self, wish: Wish, gpu: SimulatedGpu, clients_ordinal: int) -> ClientShare:
        """The server's limits go by the ordinal that the client gives the device, not by the
        server's own."""
        limit = self._settings["limits"].get(str(clients_ordinal))
        return client_share.share(wish, limit, self._settings["thread_percent"], gpu)

    def _on_device(self, ordinal: int) -> list[ServerClient]:
        return [
            client
            for client in self._clients
            if client.context and client.context.ordinal == ordinal
        ]

    def _fault(self, culprit: ServerClient, ordinal: int) -> None:
        """Every client with a context on the device is torn down; the log names one that need not
        be the culprit."""
        hit = self._on_device(ordinal)
        self._tear_down(
            next((client for client in hit if client is not culprit), culprit), hit, ordinal
        )

    def _strike_others(self, ordinal: int) -> None:
        """One went in mid-kernel, or was torn out of its products: the others on the device go
        too."""
        others = self._on_device(ordinal)
        hit = [client for client in others if not (client.torn_down or client.terminated)]
        if hit:
            self._tear_down(hit[0], hit, ordinal)

    def _tear_down(self, named: ServerClient, hit: Sequence[ServerClient], ordinal: int) -> None:
        for client in hit:
            client.torn_down = True
            messages.send(client.connection, {"broke": ILLEGAL_ADDRESS})
        for text in fault_lines(named, hit, ordinal):
            self._log.server(text)

    def _hear_terminate(self, pid: str, number: int) -> None:
        client = next(
            (client for client in self._clients if str(client.pid) == pid and client.context), None
        )
        if client is None:
            self._say(_INVALID_PROCESS.format(pid), number)
            return
        self._log.server(f"MPS server requesting client {client.shown} to exit")
        self._hanging[number] = client

    def _terminate_those_continued(self) -> None:
        """A client that is stopped does not do its part, and the command hangs until it is
        continued. What it says where the client is killed meanwhile was not observed."""
        for number, client in list(self._hanging.items()):
            gone = client not in self._clients
            process = process_status(client.pid)
            if not gone and (process.stopped or process.ending):
                continue
            del self._hanging[number]
            if gone:
                self._say(_INVALID_PROCESS.format(client.pid), number)
            else:
                self._terminate(client)
                self._say("0\n", number)

    def _terminate(self, client: ServerClient) -> None:
        queue = self._queue(client)
        context = client.context
        client.terminated = True
        messages.send(client.connection, {"broke": MPS_CLIENT_TERMINATED})
        self._log.server("Client termination succeeded.")
        if context and queue.termination_strikes(time.monotonic_ns()):
            self._strike_others(context.ordinal)

    def _queue(self, client: ServerClient) -> KernelQueue:
        """What is queued of its context; nothing where that is broken."""
        if client.context is None or client.torn_down or client.terminated:
            return KernelQueue()
        return self._cards[client.context.ordinal].queue(client.context.slot, client.pid)

    def _destroy_context(self, client: ServerClient) -> None:
        if client.context is None:
            return
        self._cards[client.context.ordinal].release(client.context.slot, client.pid)
        client.context = None
        active = sum(other.context is not None for other in self._clients)
        self._log_exit(client.shown)
        self._log.server(
            f"Client {client.shown} exiting. Number of active client contexts is {active}."
        )

    def _forget(self, client: ServerClient) -> None:
        """The process is gone."""
        queue = self._queue(client)
        context = client.context
        self._destroy_context(client)
        self._selector.unregister(client.connection)
        client.connection.close()
        self._clients.remove(client)
        if client.torn_down and not self.in_fault:
            self._log.server(
                f"Destroy server context on device {client.device}"
                f" ({self._gpus[client.device].name})"
            )
        self._log_exit(f"{{PID: {client.pid}, Context ID: 0}}")
        self._log.server(f"Client process {client.pid} disconnected")
        if context and queue.death_strikes(time.monotonic_ns()):
            if not self._on_device(context.ordinal):
                self._unavailable.add(context.ordinal)
            self._strike_others(context.ordinal)
        self._tell_if_idle()

    def _log_exit(self, who: str) -> None:
        self._log.server(
            f"Server failed to recevie command with status 806, assuming client {who} exit"
        )

    def _tell_if_idle(self) -> None:
        if not self._clients:
            messages.send(self._link, {"idle": self._served})
