"""Control daemons and CUDA clients in a folder of their own, on the simulator or on a real GPU.

One rule: when the world is closed nothing of it is left, and no setting of a card was changed.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.contract.gpus import Gpu, OutOfMemory, Seen
from tests.contract.journal import Journal
from tests.contract.platforms import Platform, Program, as_user
from tests.contract.processes import SOON_S, Answer, Client, eventually
from tests.contract.raw_control import Talk
from tests.contract.tenants import ReadOnlyMount

OTHER_UID = 65534
SPEAK_S = 60.0  # some hundred talks; only a failing test takes it
# only root may start a daemon for several users
FLAGS = ("-f", "-M") if os.getuid() == 0 else ("-f",)

# A variable of None is taken out of the environment.
Environment = Mapping[str, str | None]
Directory = Path | ReadOnlyMount


class Daemon:
    def __init__(
        self, world: "World", process: "subprocess.Popen[bytes]", pipe: Path, output: Path
    ) -> None:
        self._world = world
        self._directories = 0
        self._clients: list[Client] = []
        self.process = process
        self.pipe = pipe
        self.output = output

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def server(self) -> int:
        (pid,) = self.command("get_server_list").pids
        return pid

    @property
    def status(self) -> str:
        return self.command(f"get_server_status {self.server}").text

    def command(
        self,
        text: str,
        *,
        directory: Directory | None = None,
        uid: int | None = None,
        deadline_s: float = SOON_S,
    ) -> Answer:
        return self._world.command(
            text, directory=directory or self.pipe, uid=uid, deadline_s=deadline_s
        )

    @property
    def log_size(self) -> int:
        return self.output.stat().st_size

    def log_since(self, size: int) -> str:
        with self.output.open("rb") as log:
            log.seek(size)
            return log.read().decode(errors="replace")

    def speak(self, talks: Sequence[Talk], uid: int) -> list[list[bytes]]:
        """To its socket `control`, one after the other; what each was answered."""
        return self._world.speak(talks, self.pipe / "control", uid)

    def client(
        self,
        *actions: str,
        environment: Environment | None = None,
        uid: int | None = None,
        directory: Directory | None = None,
        cgroup: Path | None = None,
    ) -> Client:
        client = self._world.client(
            *actions,
            environment=environment,
            uid=uid,
            directory=directory or self.pipe,
            cgroup=cgroup,
        )
        self._clients.append(client)
        return client

    def ready_client(
        self, *actions: str, environment: Environment | None = None, uid: int | None = None
    ) -> Client:
        """Once it is at its first `hold` or `step`."""
        client = self.client(*actions, environment=environment, uid=uid)
        client.next_line("ready")
        return client

    def shows(
        self,
        expected: Seen | OutOfMemory,
        *actions: str,
        environment: Environment | None = None,
        uid: int | None = None,
        directory: Directory | None = None,
    ) -> bool:
        client = self.client(*actions, environment=environment, uid=uid, directory=directory)
        return client.finished().saw(expected)

    def start_server(self) -> int:
        self.command(f"start_server -uid {os.getuid()}")
        eventually(lambda: self.command("get_server_list").pids)
        server = self.server
        eventually(lambda: self.command(f"get_server_status {server}").text == "ACTIVE")
        return server

    def directory_with(self, *sockets: str) -> Path:
        """Anybody may enter it; it holds hard links to these sockets alone."""
        self._directories += 1
        directory = self.pipe.parent / f"{self.pipe.name}-part{self._directories}"
        directory.mkdir(mode=0o755)
        for name in sockets:
            (directory / name).hardlink_to(self.pipe / name)
        return directory

    def mounted(self, directory: Path) -> ReadOnlyMount:
        """As a pod has it."""
        target = directory.with_name(f"{directory.name}-mount")
        target.mkdir(mode=0o755, exist_ok=True)
        return ReadOnlyMount(directory, target)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """Its clients first, which it would wait for."""
        for client in self._clients:
            client.close()
        for pid in [self.pid, *self._world.processes_of(self.pipe)] if self.running else []:
            _signal(pid, signal.SIGCONT)
        if self.running and not self.command("quit").answered:
            self.process.kill()
        try:
            self.process.wait(SOON_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class World:
    def __init__(self, platform: Platform, folder: Path, journal: Journal) -> None:
        self._platform = platform
        self._folder = folder
        self._journal = journal
        self._daemons: list[Daemon] = []
        self._clients: list[Client] = []
        self._started = 0
        journal.hide(str(folder))
        self.gpus: tuple[Gpu, ...] = platform.gpus
        self.nowhere = folder / "nowhere"  # a pipe directory in which no daemon is
        self.nowhere.mkdir(mode=0o755)

    @property
    def nvml(self) -> Any:
        return self._platform.nvml

    @property
    def platform(self) -> Platform:
        return self._platform

    @property
    def gpu(self) -> Gpu:
        return self.gpus[0]

    def daemon(
        self,
        flags: Sequence[str] = FLAGS,
        environment: Environment | None = None,
        gpus: Sequence[Gpu] | None = None,
        pipe: Path | None = None,
    ) -> Daemon:
        """gpus: the first, where none is named. pipe: a fresh directory, where none is named."""
        pipe = pipe or self._fresh("pipe")
        pipe.mkdir(mode=0o755, exist_ok=True)
        output = self._fresh("output")
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [*self._platform.control(os.getuid()).argv, *flags],
                env=self._environment(pipe, environment, gpus),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        daemon = Daemon(self, process, pipe, output)
        self._daemons.append(daemon)
        eventually(lambda: self._answers(daemon))
        return daemon

    def _answers(self, daemon: Daemon) -> bool:
        assert daemon.running, daemon.output.read_text(errors="replace")
        if not (daemon.pipe / "control").exists():
            return False  # and the processor is free for its start
        return self._ask("get_server_list", daemon.pipe, os.getuid(), SOON_S).exit_code == 0

    def start_in(self, pipe: Path, flags: Sequence[str]) -> Answer:
        argv = [*self._platform.control(os.getuid()).argv, *flags]
        return self._run(" ".join(flags), argv, self._environment(pipe, None, None), "", SOON_S, {})

    def command(
        self, text: str, *, directory: Directory, uid: int | None = None, deadline_s: float = SOON_S
    ) -> Answer:
        uid = os.getuid() if uid is None else uid
        answer = self._ask(text, directory, uid, deadline_s)
        self._journal.note_answer(answer, directory.name, uid)
        return answer

    def _ask(self, text: str, directory: Directory, uid: int, deadline_s: float) -> Answer:
        program, pipe = _seen_from(directory, self._platform.control(uid))
        environment = self._environment(pipe, {"CUDA_VISIBLE_DEVICES": None}, None)
        return self._run(text, program.argv, environment, text + "\n", deadline_s, program.options)

    def speak(self, talks: Sequence[Talk], socket: Path, uid: int) -> list[list[bytes]]:
        lines = [json.dumps([packet.hex() for packet in talk]) for talk in talks]
        program = as_user(uid, "tests.contract.raw_control")
        argv = [*program.argv, str(socket)]
        spoken = "\n".join(lines)
        environment = self._environment(self.nowhere, None, None)
        answer = self._run("raw", argv, environment, spoken, SPEAK_S, program.options)
        assert answer.exit_code == 0, answer.stderr
        found = [_packets(line) for line in answer.stdout.splitlines()]
        assert len(found) == len(talks)
        said = f"{len(talks)} raw talks, the first {talks[0]!r:.400}"
        self._journal.note_answer(Answer(said, 0, f"{found[0]!r:.400}", ""), "control", uid)
        return found

    def run(self, program: Program) -> Answer:
        environment = self._environment(self.nowhere, None, None)
        return self._run(program.argv[0], program.argv, environment, "", SOON_S, program.options)

    def _run(
        self,
        command: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        spoken: str,
        deadline_s: float,
        options: Mapping[str, Any],
    ) -> Answer:
        try:
            done = subprocess.run(
                argv,
                env=dict(environment),
                input=spoken,
                capture_output=True,
                text=True,
                timeout=deadline_s,
                **options,
            )
        except subprocess.TimeoutExpired:
            return Answer(command, None, "", "")
        return Answer(command, done.returncode, done.stdout, done.stderr)

    def client(
        self,
        *actions: str,
        environment: Environment | None = None,
        uid: int | None = None,
        directory: Directory | None = None,
        gpus: Sequence[Gpu] | None = None,
        cgroup: Path | None = None,
    ) -> Client:
        """Without a directory it finds no daemon. cgroup: the one that it is in from its start."""
        uid = os.getuid() if uid is None else uid
        directory = directory or self.nowhere
        program, pipe = _seen_from(directory, self._platform.client(uid))
        entering = (
            ("/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', f"{cgroup}/cgroup.procs")
            if cgroup
            else ()
        )
        client = Client(
            [*entering, *program.argv, *actions],
            self._environment(pipe, environment, gpus),
            self._fresh("errors"),
        )
        self._clients.append(client)
        self._journal.note_client(client, actions, environment or {}, directory.name, uid)
        return client

    def mib_on_mps(self, gpu: Gpu | None = None) -> dict[int, int]:
        """Of MPS clients, by pid."""
        return self._mib_by_pid("nvmlDeviceGetMPSComputeRunningProcesses", gpu)

    def mib_on(self, gpu: Gpu | None = None) -> dict[int, int]:
        """Of every compute process, by pid."""
        return self._mib_by_pid("nvmlDeviceGetComputeRunningProcesses", gpu)

    def mib_drawing(self, gpu: Gpu) -> dict[int, int]:
        """By pid, of those that show something."""
        return self._mib_by_pid("nvmlDeviceGetGraphicsRunningProcesses", gpu)

    def sm_percents(self, gpu: Gpu, since_us: int) -> dict[int, int]:
        """By pid; none where NVML finds nobody."""
        nvml = self._platform.nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(
                nvml.nvmlDeviceGetHandleByUUID(gpu.uuid), since_us
            )
        except nvml.NVMLError_NotFound:
            return {}
        return {sample.pid: sample.smUtil for sample in samples if sample.timeStamp > since_us}

    def busy_percent(self, gpu: Gpu) -> int:
        """How much of the last time a kernel ran on this GPU."""
        nvml = self._platform.nvml
        return int(nvml.nvmlDeviceGetUtilizationRates(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)).gpu)

    def used_mib(self, gpu: Gpu) -> int:
        nvml = self._platform.nvml
        return (
            int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)).used)
            // 1024**2
        )

    def _mib_by_pid(self, function: str, gpu: Gpu | None) -> dict[int, int]:
        nvml = self._platform.nvml
        handle = nvml.nvmlDeviceGetHandleByUUID((gpu or self.gpu).uuid)
        return {
            process.pid: process.usedGpuMemory // 1024**2
            for process in getattr(nvml, function)(handle)
        }

    def environment_in(self, directory: Path, changes: Environment) -> dict[str, str]:
        return self._environment(directory, changes, None)

    def _environment(
        self, pipe: Path, changes: Environment | None, gpus: Sequence[Gpu] | None
    ) -> dict[str, str]:
        base: dict[str, str | None] = {
            **self._platform.environment,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder),
            "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus or self.gpus[:1]),
            **(changes or {}),
        }
        return {name: value for name, value in base.items() if value is not None}

    def _fresh(self, name: str) -> Path:
        self._started += 1
        return self._folder / f"{name}{self._started}"

    def processes_of(self, folder: Path) -> list[int]:
        """Whoever their parent is."""
        return [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/environ")
            if _mentions(path, str(folder))
        ]

    def end_clients(self, since: int = 0) -> None:
        ended = self._clients[since:]
        del self._clients[since:]
        for client in ended:
            client.close()
        pids = {client.pid for client in ended}
        eventually(lambda: not any(pids & self.mib_on(gpu).keys() for gpu in self.gpus))

    @property
    def clients(self) -> int:
        return len(self._clients)

    def close(self) -> None:
        try:
            self.end_clients()
            for daemon in self._daemons:
                daemon.stop()
            eventually(lambda: not self.processes_of(self._folder))
        finally:
            for pid in self.processes_of(self._folder):
                _signal(pid, signal.SIGKILL)
            self._platform.close()
            shutil.rmtree(self._folder)


def _packets(line: str) -> list[bytes]:
    return [bytes.fromhex(packet) for packet in json.loads(line)]


def _seen_from(directory: Directory, program: Program) -> tuple[Program, Path]:
    if isinstance(directory, ReadOnlyMount):
        return directory.inside(program), directory.target
    return program, directory


def child_of(pid: int) -> int:
    """The only one, once there is one: a container's first process, as the host sees it."""
    children: list[int] = []

    def found() -> bool:
        parents = {path.parent.name: _parent(path) for path in Path("/proc").glob("[0-9]*/stat")}
        children[:] = [int(child) for child, parent in parents.items() if parent == pid]
        return len(children) == 1

    eventually(found)
    return children[0]


def _parent(stat: Path) -> int | None:
    try:
        return int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, ProcessLookupError):  # ended meanwhile
        return None


def open_folder() -> Path:
    """Any user may enter it; short, for the sockets in it."""
    folder = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))
    folder.chmod(0o755)
    return folder


def _mentions(environ: Path, text: str) -> bool:
    try:
        return text.encode() in environ.read_bytes()
    except (OSError, ProcessLookupError):  # ended meanwhile, or another user's
        return False


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
