"""`mpsd up` as a process of one's own, in a run directory of its own, and programs under it.

One rule: it starts, asks and stops, and knows nothing of what should happen.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from mpsd.model.node_status import DomainStatus, NodeStatus
from mpsd.platform import local_api
from mpsd.platform.programs import JsonProgram
from mpsd.platform.settings import settings
from mpsd.platform.waiting import wait_until

_DEADLINE_S = 20.0
_MPSD = (sys.executable, "-m", "mpsd")


class OwnMpsd:
    """Its run directory is folder/run, its log folder/mpsd.log."""

    def __init__(self, folder: Path, options: Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
        """options: of `mpsd up`."""
        self._settings = settings(run_directory=str(folder / "run"), environment={})
        self._log = folder / "mpsd.log"
        self._environment = {**environment, "MPSD_RUN_DIR": str(self._settings.run_directory)}
        self._programs: list[JsonProgram] = []
        with self._log.open("ab") as log:
            self._up = subprocess.Popen(
                [*_MPSD, "up", "--log-format", "json", *options],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # so that Ctrl-C in the terminal reaches mpsd by way of stop() alone
            )

    @property
    def pid(self) -> int:
        """Of `mpsd up`."""
        return self._up.pid

    @property
    def run_directory(self) -> Path:
        return self._settings.run_directory

    def node(self) -> NodeStatus:
        """What it says of this machine. NotRunning, TimeoutError."""
        _status, body = local_api.ask(self._settings.socket, "GET", "/v1/node")
        return msgspec.json.decode(body, type=NodeStatus)

    def domain(self, name: str) -> DomainStatus:
        return next(domain for domain in self.node().domains if domain.name == name)

    def wait_until_ready(self, deadline_s: float = _DEADLINE_S) -> float:
        """Waits until every domain takes programs; the seconds that took. TimeoutError; EOFError where it has ended."""
        began = time.monotonic()
        wait_until(self._is_ready, deadline_s, f"every domain is ready; {self._log} says why not", 0.005)
        return time.monotonic() - began

    def _is_ready(self) -> bool:
        if self._up.poll() is not None:
            raise EOFError(f"mpsd ended with code {self._up.returncode}: {self._log.read_text()}")
        try:
            node = self.node()
        except local_api.NotRunning:
            return False
        return len(node.domains) == len(node.gpus) and all(domain.state == "ready" for domain in node.domains)

    def run_command(self, options: Sequence[str], command: Sequence[str]) -> JsonProgram:
        """Starts any command under `mpsd run` with these options."""
        program = JsonProgram([*_MPSD, "run", *options, "--", *command], self._environment)
        self._programs.append(program)
        return program

    def stop(self, deadline_s: float = _DEADLINE_S) -> int:
        """Ends every program, then mpsd as Ctrl-C would; its exit code. subprocess.TimeoutExpired."""
        for program in self._programs:
            program.end()
        if self._up.poll() is None:
            self._up.send_signal(signal.SIGINT)
        return self._up.wait(deadline_s)
