"""A server on a Unix socket that answers what it is told to, as `mpsd up` does, and keeps what it
was asked."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path


@dataclass
class Asked:
    url: str
    body: dict[str, object]


@dataclass
class Answers:
    """by_url: the status and the body of each answer. asked: in the order it came. may_answer: set,
    unless a test has them wait."""

    by_url: dict[str, tuple[int, object]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_answer.set()


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


@contextmanager
def answering(run_directory: Path, answers: Answers) -> Iterator[Answers]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answers.asked.append(Asked(self.path, json.loads(body)))
            answers.may_answer.wait(60)
            status, said = answers.by_url.get(
                self.path, (404, {"reasons": ["not known"], "for_ever": True})
            )
            sent = b"" if said is None else json.dumps(said).encode()
            with suppress(BrokenPipeError):  # who asked waits no longer
                self.send_response(status)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None:
            pass

    run_directory.mkdir(exist_ok=True)
    with _Server(str(run_directory / "mpsd.sock"), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield answers
        finally:
            server.shutdown()
            thread.join(10)
            (run_directory / "mpsd.sock").unlink(missing_ok=True)
