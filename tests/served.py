"""A role of mpsd as a process of its own, with its probes and metrics on a port without TLS."""

import atexit
import http.client
import json
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mpsd.simulator.programs import wait_until
from tests.world.fork import MPSD, started

Object = dict[str, Any]
# far above what anything takes, however busy the machine; only a failing test waits so long
DEADLINE_S = 40.0


_kept: list[socket.socket] = []
atexit.register(lambda: [one.close() for one in _kept])


def free_port() -> int:
    """A port of 127.0.0.1 that the kernel gives to nobody else while this process runs.

    It stays bound here and does not listen: whoever binds it by its number with SO_REUSEADDR, as
    servers do, may.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _kept.append(kept)
    return int(kept.getsockname()[1])


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """`mpsd VERB` on 127.0.0.1. flags: such as `{"drain": "0s"}` for --drain 0s. stderr: in place
    of a file."""

    def __init__(
        self, verb: str, folder: Path, flags: Mapping[str, str], stderr: IO[bytes] | None = None
    ) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        folder.mkdir(exist_ok=True)
        self._log = folder / f"{verb}-{self.port}.log"
        ours = {
            "port": self.port,
            "metrics-port": self.metrics_port,
            "address": "127.0.0.1",
            "log-format": "json",
        }
        given = [f"--{name}={value}" for name, value in {**ours, **flags}.items()]
        with self._log.open("wb") as log:
            self.process = started([str(MPSD), verb, *given], os.environ, None, stderr or log)

    def log(self, event: str | None = None) -> list[Object]:
        """What it said so far; None for everything."""
        lines: list[Object] = [
            json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")
        ]
        return [line for line in lines if event in (None, line["event"])]

    @property
    def log_text(self) -> str:
        return self._log.read_text()

    def public(self, path: str) -> Answer:
        """Asks the port without TLS; status 0 where nobody listens yet."""
        try:
            return ask(
                http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=DEADLINE_S),
                "GET",
                path,
            )
        except ConnectionRefusedError:
            return Answer(0, {}, b"")

    def wait_until_ready(self) -> None:
        wait_until(
            lambda: self.public("/readyz").status == 200,
            DEADLINE_S,
            f"ready:\n{self.log_text}",
            0.02,
        )

    def metric(self, name: str) -> float:
        """The value of a metric with its labels, written as Prometheus does; 0 where there is none
        yet."""
        lines = [
            line
            for line in self.public("/metrics").text.splitlines()
            if line.startswith(f"{name} ")
        ]
        return float(lines[0].rsplit(" ", 1)[1]) if lines else 0.0

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        """Unless it has ended before."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE_S)


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One question over a connection that is closed then."""
    try:
        connection.request(
            method, path, body, dict(headers or {"Content-Type": "application/json"})
        )
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.headers), answer.read())
    finally:
        connection.close()
