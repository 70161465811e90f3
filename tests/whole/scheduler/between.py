"""A server between a scheduler and the API server, which cuts a call off or lets a watch fall
silent; until then it passes on everything as it is."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import urllib3

from mpsd.platform.kube import Access, Kube
from mpsd.platform.kube_access import of_kubeconfig

_DEADLINE_S = 20.0


@dataclass(frozen=True)
class Cut:
    """call: which of the calls from now on, without lists and watches, from 0. done: whether it
    still reaches the API server. lost: the caller hears at once that the connection is gone;
    else nothing at all."""

    call: int
    done: bool
    lost: bool = False

    def __str__(self) -> str:
        return f"{'after' if self.done else 'before'} call {self.call}"


class Between:
    """calls: what came since the last `cut_at`, such as `PATCH mpsnodes`."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.calls: list[str] = []
        self.silent: set[str] = set()  # kinds whose watches tell nothing
        self.reached = threading.Event()  # the call that is cut off
        self.over = threading.Event()
        self._cut: Cut | None = None
        self._lock = threading.Lock()

    def cut_at(self, cut: Cut | None) -> None:
        with self._lock:
            self.calls, self._cut = [], cut

    def note(self, call: str) -> Cut | None:
        """The cut, where it is this call's."""
        with self._lock:
            self.calls.append(call)
            return self._cut if self._cut and self._cut.call == len(self.calls) - 1 else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    between: Between

    def _pass_on(self) -> None:
        path, _mark, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if query:
            self._pass_on_what_lasts(path)
            return
        *_rest, kind, name = path.split("/")
        cut = self.between.note(f"{self.command} {name if name == 'binding' else kind}")
        if cut and not cut.done:
            self._end(cut)
            return
        answer = self._ask(body)
        data = answer.data
        if cut:
            self._end(cut)
            return
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PATCH = do_POST = _pass_on  # noqa: N815 - the server looks for these names

    def _pass_on_what_lasts(self, path: str) -> None:
        """A list or a watch."""
        kind = path.rpartition("/")[2]
        answer = self._ask(b"")
        self.close_connection = True
        self.send_response(answer.status)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(OSError, urllib3.exceptions.HTTPError):  # one of the two has gone
            for piece in answer.stream():
                if "watch=1" in self.path and kind in self.between.silent:
                    self.between.over.wait(_DEADLINE_S)
                    return
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

    def _ask(self, body: bytes) -> urllib3.BaseHTTPResponse:
        access = self.between.access
        return access.pool.request(
            self.command,
            f"{access.host}{self.path}",
            body=body,
            headers={"Content-Type": self.headers["Content-Type"], **access.authorization()},
            retries=False,
            preload_content=False,
        )

    def _end(self, cut: Cut) -> None:
        self.close_connection = True
        self.between.reached.set()
        if not cut.lost:
            self.between.over.wait(_DEADLINE_S)

    def log_message(
        self,
        format: str,  # noqa: A002 - its name there
        *args: object,
    ) -> None:
        """Nothing: a test tells by what it asserts."""


@contextmanager
def between(kubeconfig: Path) -> Iterator[tuple[Between, Kube]]:
    here = Between(of_kubeconfig(kubeconfig))
    handler = type("Handler", (_Handler,), {"between": here})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    serving = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    serving.start()
    pool = urllib3.PoolManager(maxsize=8)
    kube = Kube(Access(f"http://127.0.0.1:{server.server_port}", pool, dict))
    try:
        yield here, kube
    finally:
        here.over.set()
        kube.close()
        server.shutdown()
        server.server_close()
        serving.join()
