"""What a Service is in a cluster: one address, behind it the replicas that say that they are
ready."""

import itertools
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

_READY_S = 1.0


@dataclass(frozen=True, slots=True)
class Backend:
    port: int
    probes: int

    @property
    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.probes}/readyz", timeout=_READY_S
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def balancing(host: str, backends: Callable[[], Sequence[Backend]]) -> Iterator[int]:
    """Forwards to the backends in turn, and refuses where none is ready. Gives its port."""
    turn = itertools.count()
    with closing(socket.create_server((host, 0))) as listening:

        def accept() -> None:
            while True:
                try:
                    client, _address = listening.accept()
                except OSError:
                    return  # closed: the test is over
                threading.Thread(
                    target=_serve, args=(client, backends, next(turn)), daemon=True
                ).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join(timeout=5)


def _serve(client: socket.socket, backends: Callable[[], Sequence[Backend]], turn: int) -> None:
    with closing(client):
        ready = [backend for backend in backends() if backend.is_ready]
        if not ready:
            return
        with (
            suppress(OSError),
            closing(
                socket.create_connection(("127.0.0.1", ready[turn % len(ready)].port))
            ) as server,
        ):
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
