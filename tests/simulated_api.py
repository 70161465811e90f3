"""The simulated API server in a thread of its own, which a test can take away and bring back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TypeVar

from mpsd.simulator.api_server.cluster import SimulatedCluster
from mpsd.simulator.api_server.kinds import Object, ObjectKind
from mpsd.simulator.api_server.server import ApiServer, write_kubeconfig
from tests.loop_thread import LoopThread

T = TypeVar("T")


class SimulatedApi:
    """bookmark_s: between two bookmarks of a watch."""

    def __init__(self, bookmark_s: float) -> None:
        self.cluster = SimulatedCluster()
        self._server = ApiServer(self.cluster, bookmark_s=bookmark_s)
        self._loop = LoopThread()

    def start(self) -> None:
        self._loop.do(self._server.start())

    def stop(self) -> None:
        """Nobody answers from now on; what is stored stays."""
        self._loop.do(self._server.stop())

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """It answers nothing meanwhile, and keeps its connections, as after a SIGSTOP."""
        released = Event()
        self._loop.hold(released)
        try:
            yield
        finally:
            released.set()

    def forget_history(self) -> None:
        """No watch can go on from where it was."""
        self.do(self.cluster.store.forget)

    def do(self, action: Callable[[], T]) -> T:
        """Runs something where the server runs."""

        async def run() -> T:
            return action()

        return self._loop.do(run())

    def all(self, kind: ObjectKind, namespace: str = "") -> list[Object]:
        return self.do(lambda: [thing for _key, thing in self.cluster.store.all(kind, namespace)])

    def kubeconfig(self, folder: Path) -> Path:
        return write_kubeconfig(self._server, folder)

    def close(self) -> None:
        self.stop()
        self._loop.end()


@contextmanager
def simulated_api(bookmark_s: float = 0.2) -> Iterator[SimulatedApi]:
    api = SimulatedApi(bookmark_s)
    api.start()
    try:
        yield api
    finally:
        api.close()
