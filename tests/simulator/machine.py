"""A simulated machine as the tests use it: its programs started, spoken to and stopped."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from mpsd.model.gpu_facts import GpuFacts
from mpsd.platform.limits_files import read_gpu_facts
from mpsd.simulator.card import process_start_ticks
from mpsd.simulator.node import SimulatedNode, cards_asked, create_node
from mpsd.simulator.nvml import SimulatedNvml

PATIENCE_S = 40.0

_AS_USER = Path(__file__).with_name("as_user.py")
_MODULES = {
    "nvidia-cuda-mps-control": "mpsd.simulator.mps.control_daemon",
    "sim-cuda": "mpsd.simulator.cuda_client",
}


def gpu_facts() -> GpuFacts:
    """The facts that ship with mpsd."""
    path = Path(__file__).parents[2] / "limits" / "gpus.yaml"
    return read_gpu_facts(yaml.safe_load(path.read_text()), str(path))


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Look again and again until it is so; fail when it takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.002)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed, without the white space around it."""

    output: str
    error: str
    exit: int


class Client:
    """A running sim-cuda; `lines` are those read so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[Mapping[str, Any]] = []
        self._rest = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def heard(self, key: str, patience_s: float = PATIENCE_S) -> Mapping[str, Any]:
        """The first line with this key, waiting for it; it fails when the process ends without
        one."""
        deadline = time.monotonic() + patience_s
        while True:
            for line in self.lines:
                if key in line:
                    return line
            assert self._read(deadline), f"no {key} in {self.lines}"

    def silent(self, for_s: float) -> bool:
        """Whether it says nothing for so long."""
        before = len(self.lines)
        self._read(time.monotonic() + for_s)
        return len(self.lines) == before and self.process.poll() is None

    def proceed(self) -> None:
        """Let it go on from its first `step`."""
        assert self.process.stdin
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def finish(self) -> int:
        """Read to its end; its exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(deadline):
            pass
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        """Whatever it is at, it is over."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()

    def _read(self, deadline: float) -> bool:
        """Take in what it says next; False at the end of its output or of the time."""
        stdout: IO[bytes] | None = self.process.stdout
        assert stdout
        ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
        more = os.read(stdout.fileno(), 1 << 16) if ready else b""
        *whole, self._rest = (self._rest + more).split(b"\n")
        self.lines += [json.loads(line) for line in whole]
        return bool(more)


class Daemon:
    """A running control daemon."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: Path, output: Path) -> None:
        self.process = process
        self.pipe = pipe
        self._output = output

    @property
    def log(self) -> str:
        return self._output.read_text()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Machine:
    """A node with one pipe directory, `pipe`, unless a call names another."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.folder = node.folder
        self.pipe = self._made("pipe")
        self.nvml = SimulatedNvml(node.folder)
        self._running: list[Client | Daemon] = []

    @property
    def uuids(self) -> Sequence[str]:
        return [gpu.uuid for gpu in self.node.gpus]

    def environment(
        self, pipe: Path | None = None, extra: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CUDA_", "MPSD_"))
        }
        return {
            **clean,
            **self.node.environment,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe or self.pipe),
            **(extra or {}),
        }

    def start_daemon(
        self, *flags: str, pipe: str = "pipe", environment: Mapping[str, str] | None = None
    ) -> Daemon:
        """A daemon in the foreground, once it takes commands."""
        directory, output = self._made(pipe), self.folder / f"{pipe}.out"
        with output.open("ab") as file:
            process = subprocess.Popen(
                ["nvidia-cuda-mps-control", "-f", *flags],
                env=self.environment(directory, environment),
                stdout=file,
                stderr=file,
                executable=self.folder / "bin" / "nvidia-cuda-mps-control",
            )
        daemon = Daemon(process, directory, output)
        self._running.append(daemon)
        wait_until((directory / "control").exists, "the daemon listens")
        wait_until(
            lambda: self.ask("get_server_list", pipe=directory).exit == 0,
            "the daemon takes commands",
        )
        return daemon

    def ask(
        self,
        *commands: str,
        pipe: Path | None = None,
        uid: int | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Answer:
        """Commands on standard input, as this user (None: as ourselves); TimeoutError when they are
        not answered."""
        given = "".join(f"{command}\n" for command in commands)
        argv = self._argv("nvidia-cuda-mps-control", uid)
        environment = self.environment(pipe)
        try:
            done = subprocess.run(
                argv,
                input=given,
                env=environment,
                capture_output=True,
                text=True,
                timeout=patience_s,
            )
        except subprocess.TimeoutExpired as expired:
            raise TimeoutError from expired
        return Answer(done.stdout.strip(), done.stderr.strip(), done.returncode)

    def start_client(
        self,
        *actions: str,
        environment: Mapping[str, str] | None = None,
        pipe: Path | None = None,
        uid: int | None = None,
        through: Sequence[str] = (),
    ) -> Client:
        """A client that runs; `through` is a command to start it with."""
        process = subprocess.Popen(
            [*through, *self._argv("sim-cuda", uid), *actions],
            env=self.environment(pipe, environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        client = Client(process)
        self._running.append(client)
        return client

    def run_client(
        self,
        *actions: str,
        environment: Mapping[str, str] | None = None,
        pipe: Path | None = None,
        uid: int | None = None,
    ) -> Client:
        """A client that has come to its end."""
        client = self.start_client(*actions, environment=environment, pipe=pipe, uid=uid)
        client.finish()
        return client

    def server(self, pipe: Path | None = None) -> int:
        """The pid of the server that runs."""
        return int(self.ask("get_server_list", pipe=pipe).output)

    def start_server(self) -> int:
        self.ask("start_server -uid 0")
        return self.server()

    def free_mib(self, ordinal: int = 0) -> int:
        """Free on the card, as NVML tells it."""
        handle = self.nvml.nvmlDeviceGetHandleByIndex(ordinal)
        return self.nvml.nvmlDeviceGetMemoryInfo(handle, self.nvml.nvmlMemory_v2).free // 2**20

    def mps_pids(self, ordinal: int = 0) -> list[int]:
        """The MPS clients on a GPU, as NVML tells them."""
        handle = self.nvml.nvmlDeviceGetHandleByIndex(ordinal)
        return [
            process.pid for process in self.nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)
        ]

    def end(self) -> None:
        for running in reversed(self._running):
            running.end()
        self._end_background_daemon()

    def _end_background_daemon(self) -> None:
        """One that was started with -d and has not quit; its pid file may be an earlier one's."""
        pid_file = self.pipe / "nvidia-cuda-mps-control.pid"
        pid = int(pid_file.read_text()) if pid_file.exists() else 0
        if pid and process_start_ticks(pid) and "nvidia" in Path(f"/proc/{pid}/comm").read_text():
            os.kill(pid, signal.SIGKILL)

    def _argv(self, program: str, uid: int | None) -> list[str]:
        if uid in {None, os.getuid()}:
            return [str(self.folder / "bin" / program)]
        return [sys.executable, str(_AS_USER), str(uid), _MODULES[program]]

    def _made(self, name: str) -> Path:
        directory = self.folder / name
        directory.mkdir(exist_ok=True)
        return directory


@contextmanager
def machine(folder: Path, gpus: str) -> Iterator[Machine]:
    """A machine with these GPUs, such as `H200×2`; everything started on it is stopped at the
    end."""
    facts = gpu_facts()
    folder.chmod(0o755)
    made = Machine(create_node(folder / "node", cards_asked(gpus, facts), facts.capabilities))
    made.nvml.nvmlInit()
    try:
        yield made
    finally:
        made.end()
        made.nvml.nvmlShutdown()
