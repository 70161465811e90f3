"""A simulated machine as the tests use it: its programs started, spoken to and stopped."""

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from mpsd.model.gpu_facts import GpuFacts
from mpsd.platform.limits_files import read_gpu_facts
from mpsd.simulator.node import SimulatedNode, cards_asked, create_node
from mpsd.simulator.nvml import SimulatedNvml

PATIENCE_S = 40.0


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
        patience_s: float = PATIENCE_S,
    ) -> Answer:
        """Commands on standard input; TimeoutError when they are not answered."""
        given = "".join(f"{command}\n" for command in commands)
        argv = [str(self.folder / "bin" / "nvidia-cuda-mps-control")]
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
        through: Sequence[str] = (),
    ) -> Client:
        """A client that runs; `through` is a command to start it with."""
        process = subprocess.Popen(
            [*through, self.folder / "bin" / "sim-cuda", *actions],
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
    ) -> Client:
        """A client that has come to its end."""
        client = self.start_client(*actions, environment=environment, pipe=pipe)
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
