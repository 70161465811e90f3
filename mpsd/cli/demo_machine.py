"""A simulated machine for the demo: the real programs, in a folder of their own.

One rule: nothing here knows what should happen; it starts, asks and stops, and the story looks at what came of it.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mpsd.core.node_status import DomainStatus, NodeStatus
from mpsd.edge import local_api
from mpsd.edge.settings import settings
from mpsd.edge.waiting import wait_until

_DEADLINE_S = 20.0


class Program:
    """A program under `mpsd run`. It writes one JSON object a line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def line(self, deadline_s: float = _DEADLINE_S) -> dict[str, Any]:
        """Its next line; TimeoutError when none comes, EOFError when it has ended without one."""
        assert self._process.stdout is not None  # it was started with a pipe
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            if not select.select([descriptor], [], [], deadline_s)[0]:
                raise TimeoutError(f"program {self.pid} said nothing for {deadline_s:g} s")
            added = os.read(descriptor, 65536)
            if not added:
                raise EOFError(self.complaint())
            self._unread += added
        text, _newline, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(text)
        return found

    def complaint(self) -> str:
        """What it, or mpsd for it, wrote to standard error; waits for its end."""
        _output, errors = self._process.communicate(timeout=_DEADLINE_S)
        return errors.decode().strip()

    def exit_code(self) -> int:
        return self._process.wait(_DEADLINE_S)

    def end(self) -> None:
        """Ends it with every child of it, and closes its pipes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=_DEADLINE_S)


class DemoMachine:
    """`mpsd up` with simulated GPUs in `folder`, and programs under it."""

    def __init__(self, folder: Path, gpus: str, limits: Path | None = None) -> None:
        self._settings = settings(run_directory=str(folder / "run"), environment={})
        self._log = folder / "mpsd.log"
        self._environment: Mapping[str, str] = os.environ | {"MPSD_RUN_DIR": str(self._settings.run_directory)}
        self._programs: list[Program] = []
        chosen = ["--limits", str(limits)] if limits else []
        with self._log.open("wb") as log:
            self._up = subprocess.Popen(
                [*_MPSD, "up", "--simulate", gpus, "--log-format", "json", *chosen],
                env=self._environment,
                stderr=log,
                start_new_session=True,  # so that Ctrl-C in the terminal reaches mpsd by way of stop() alone
            )

    def node(self) -> NodeStatus:
        _status, body = local_api.ask(self._settings.socket, "GET", "/v1/node")
        return msgspec.json.decode(body, type=NodeStatus)

    def domain(self, name: str) -> DomainStatus:
        return next(domain for domain in self.node().domains if domain.name == name)

    def wait_until_ready(self) -> float:
        """Waits until every domain takes programs; the seconds that took."""
        began = time.monotonic()
        wait_until(self._is_ready, _DEADLINE_S, f"every domain is ready; {self._log} says why not", 0.005)
        return time.monotonic() - began

    def _is_ready(self) -> bool:
        if self._up.poll() is not None:
            raise EOFError(f"mpsd ended with code {self._up.returncode}: {self._log.read_text()}")
        try:
            node = self.node()
        except local_api.NotRunning:
            return False
        return len(node.domains) == len(node.gpus) and all(domain.state == "ready" for domain in node.domains)

    @property
    def pid(self) -> int:
        """Of `mpsd up`."""
        return self._up.pid

    @property
    def run_directory(self) -> Path:
        return self._settings.run_directory

    def run(self, gpu_mem: int, actions: Sequence[str], gpu_core: int | None = None) -> Program:
        """Starts the simulator's CUDA program under `mpsd run`."""
        share = [] if gpu_core is None else ["--gpu-core", str(gpu_core)]
        return self.run_command(["--gpu-mem", str(gpu_mem), *share], ["sim-cuda", *actions])

    def run_command(self, options: Sequence[str], command: Sequence[str]) -> Program:
        """Starts any command under `mpsd run` with these options."""
        program = Program(
            subprocess.Popen(
                [*_MPSD, "run", *options, "--", *command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        )
        self._programs.append(program)
        return program

    def stop(self) -> int:
        """Ends every program, then mpsd as Ctrl-C would; its exit code."""
        for program in self._programs:
            program.end()
        if self._up.poll() is None:
            self._up.send_signal(signal.SIGINT)
        return self._up.wait(_DEADLINE_S)


_MPSD = (sys.executable, "-m", "mpsd")
