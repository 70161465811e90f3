"""A machine with simulated GPUs on which the real programs run: `mpsd up`, `control`, `agent`,
`run`.

Nobody waits by sleeping. When it is stopped nothing of it may be left: no process, no socket, no
record.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import yaml

from mpsd.model.client_limits import DENY_MIB
from mpsd.model.domain import State
from mpsd.model.node_report import DomainReport, GrantReport, NodeReport
from mpsd.model.node_view import RECORD_VERSION, Canary, DomainRecord
from mpsd.mps.drain import limit_mib
from mpsd.mps.node_gpus import KNOWN_FILE
from mpsd.mps.rules import control_protocol
from mpsd.platform import clock, local_api, processes, records
from mpsd.platform.limits_files import load_limits, shipped_folder
from mpsd.platform.run_directory import LOCK, DomainFolder
from mpsd.simulator.card import CardView
from mpsd.simulator.gpus import SimulatedGpu
from mpsd.simulator.node import cards_asked, create_node
from mpsd.simulator.nvml import SimulatedNvml
from tests.world.fork import MPSD, WAITS, started

CONTROL = "nvidia-cuda-mps-control"
# far above what anything takes, however busy the machine; only a failing test waits so long
SOON_S = 60.0

# The shipped policy with deadlines that a test can wait for.
_QUICK: Mapping[str, Any] = {
    "graces": {"command_s": 1, "start_s": 5, "drain_s": 30, "end_drain_s": 0.3},
    "restarts": {"longest_s": 2},
}

Value = TypeVar("Value")
Kind = TypeVar("Kind", bound="Program")
Line = Mapping[str, Any]


def quick(policy: dict[str, Any], **changes: Any) -> dict[str, Any]:
    for change in (_QUICK, changes):
        for name, value in change.items():
            policy[name] = policy[name] | value if isinstance(value, Mapping) else value
    return policy


def eventually(look: Callable[[], Value], what: str, within_s: float = SOON_S) -> Value:
    """The longer it has waited, the longer its pauses: a look may cost the agent an answer, and
    others want the processor."""
    began = time.monotonic()
    while not (seen := look()):
        waited_s = time.monotonic() - began
        assert waited_s < within_s, f"not within {within_s:g} s: {what}"
        time.sleep(min(max(waited_s / 10, 0.01), 0.05))
    return seen


class Program:
    """A process that a test started; what it says goes into files, so that it never waits for a
    reader."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        said: Path,
        stderr: IO[bytes] | None = None,
    ) -> None:
        """stderr: in place of a file."""
        self._output, self._errors = said.with_suffix(".out"), said.with_suffix(".err")
        with self._output.open("ab") as output, self._errors.open("ab") as errors:
            self.process = started(argv, environment, output, stderr or errors)

    def __str__(self) -> str:
        return (
            f"pid {self.pid}, exit code {self.process.poll()}, said {self.output!r} and"
            f" {self.errors!r}"
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    @property
    def lines(self) -> list[Line]:
        """One JSON object a line; a line that is not whole yet is left out."""
        return [
            json.loads(line)
            for line in self.output.splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def heard(self, key: str) -> Any:
        """The value of `key` in the first line that has it, waited for."""

        def look() -> list[Any]:
            ended = not self.running
            found = [line[key] for line in self.lines if key in line]
            assert found or not ended, f"never said {key!r}: {self}"
            return found

        return eventually(look, f"{key!r} from {self}")[0]

    def exit_code(self, within_s: float = SOON_S) -> int:
        """128 and the signal's number for one that was killed."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within_s:g} s: {self}") from None
        return code if code >= 0 else 128 - code

    def send(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Service(Program):
    """One of the long-running programs of mpsd; its standard error is its log."""

    @property
    def log(self) -> list[Line]:
        return [
            json.loads(line)
            for line in self.errors.splitlines(keepends=True)
            if line.endswith("}\n")
        ]

    def logged(self, event: str, **fields: object) -> list[Line]:
        return [
            line for line in self.log if line["event"] == event and fields.items() <= line.items()
        ]


class Machine:
    def __init__(
        self, gpus: str = "A30", *, tried: bool = True, cards: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """tried: whether a canary passed there earlier in this boot, which saves each first start
        some processes.

        cards: rows that gpus.yaml has here beside its own.
        """
        # short: sockets are in it
        self._folder = Path(tempfile.mkdtemp(prefix="mpsd-", dir="/tmp"))
        self._limits = self._folder / "limits"
        self._gpus = gpus
        self._programs: list[Program] = []
        self._services: list[tuple[str, Service]] = []
        self._cards: list[CardView] = []
        self.waits: Mapping[str, float] = {}  # of mpsd's programs: tests.world.fork
        self._limits.mkdir()
        self._write_facts(cards)
        self.set_policy()
        self.run_directory = self._folder / "run"
        self.facts = load_limits(self._limits).facts
        self.simulation = create_node(
            self.run_directory / "simulation",
            cards_asked(gpus, self.facts),
            self.facts.capabilities,
        )
        self._tried = tried

    @property
    def environment(self) -> dict[str, str]:
        ours = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CUDA_", "MPSD_", "NVIDIA_"))
        }
        return ours | {
            "MPSD_RUN_DIR": str(self.run_directory),
            "MPSD_LIMITS": str(self._limits),
            "MPSD_SIMULATE": self._gpus,
            "MPSD_LOG_FORMAT": "json",
            WAITS: json.dumps(self.waits),
        }

    def set_policy(self, **changes: Any) -> None:
        """The shipped one with quick deadlines and these changes, in one step."""
        policy = quick(yaml.safe_load((shipped_folder() / "policy.yaml").read_text()), **changes)
        self.write_policy(yaml.safe_dump(policy))
        self._plain = not policy["domains"]

    def _write_facts(self, cards: Sequence[Mapping[str, Any]]) -> None:
        there = self._limits / "gpus.yaml"
        shutil.copy(shipped_folder() / "gpus.yaml", there)
        if cards:
            facts = yaml.safe_load(there.read_text())
            there.write_text(yaml.safe_dump(facts | {"cards": [*facts["cards"], *cards]}))

    def write_policy(self, text: str) -> None:
        self._plain = False  # nobody knows what domains it has
        beside = self._limits / "policy.yaml.new"
        beside.write_text(text)
        beside.replace(self._limits / "policy.yaml")

    # -- programs

    def start(
        self, argv: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> Program:
        """In mpsd's environment with these changes."""
        return self._started(
            Program(
                [str(word) for word in argv], self.environment | dict(environment or {}), self._said
            )
        )

    def service(
        self,
        verb: str,
        environment: Mapping[str, str] | None = None,
        stderr: IO[bytes] | None = None,
        *,
        wrap: Sequence[str] = (),
    ) -> Service:
        """`mpsd up`, `control` or `agent`, not waited for. wrap: a command that becomes it."""
        if self._tried and self._plain and verb in {"up", "control"}:
            self._write_canaries()
        argv = [*wrap, str(MPSD), verb]
        service = self._started(
            Service(argv, self.environment | dict(environment or {}), self._said, stderr)
        )
        self._services.append((verb, service))
        return service

    def part(self, verb: str) -> Service:
        (running,) = (
            service for started, service in self._services if started == verb and service.running
        )
        return running

    def _write_canaries(self) -> None:
        """What mpsd leaves of a canary in the records of domains that have none."""
        boot_id = processes.boot_id()
        joined: set[str] = set()
        for path in self.run_directory.glob("gpu*/record.json"):
            with suppress(records.UnreadableRecord):
                record = records.read(path, DomainRecord)
                joined |= {*record.gpus} if record and len(record.gpus) > 1 else set()
        for name, gpus in self._domains_of():
            passed = Canary(boot_id, SimulatedNvml.driver, time.time(), "", 57, 8)
            past = (RECORD_VERSION, name, gpus, State.DOWN, 0.0, "", None, (), 0, 0, 0.0)
            if joined.isdisjoint(gpus) and not self.folder_of(name).record.exists():
                self.folder_of(name).make()
                records.write(
                    self.folder_of(name).record,
                    DomainRecord(*past, {}, canary=passed, boot_id=boot_id),
                )

    def _domains_of(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        return ((label_of(gpu), (gpu.uuid,)) for gpu in self.shared)

    @property
    def shared(self) -> tuple[SimulatedGpu, ...]:
        """The GPUs that programs can have a part of: MIG instances, and in their place no whole
        GPU."""
        divided = {gpu.parent for gpu in self.simulation.gpus}
        return tuple(gpu for gpu in self.simulation.gpus if gpu.uuid not in divided)

    @property
    def uuids(self) -> set[str]:
        return {gpu.uuid for gpu in self.shared}

    def divide(self, *profiles: str, ordinal: int = 0) -> tuple[str, ...]:
        """The labels of the new instances."""
        whole = self.simulation.gpus[ordinal]
        card = next(card for card in self.facts.cards if card.name == whole.name)
        rows = {row.profile: row for row in self.facts.profiles(card)}
        capability = self.facts.capability(card.compute_capability)
        assert capability is not None
        self.simulation = self.simulation.divide(
            ordinal, [rows[profile] for profile in profiles], capability
        )
        return tuple(label_of(gpu) for gpu in self.simulation.gpus if gpu.parent == whole.uuid)

    def up(self) -> Service:
        """Once every domain is ready."""
        service = self.service("up")
        self.until_ready()
        return service

    def apart(self) -> tuple[Service, Service]:
        """Once every domain is ready."""
        control, agent = self.service("control"), self.service("agent")
        self.until_ready()
        return control, agent

    def run(
        self, options: str, *command: str, environment: Mapping[str, str] | None = None
    ) -> Program:
        """`mpsd run OPTIONS -- COMMAND`."""
        return self.start([MPSD, "run", *shlex.split(options), "--", *command], environment)

    def client(self, gib: int, *actions: str) -> Program:
        """sim-cuda, once it has done its actions and holds its context."""
        program = self.run(f"--gpu-mem {gib}", "sim-cuda", *actions, "hold")
        program.heard("ready")
        return program

    @property
    def _said(self) -> Path:
        return self._folder / f"program{len(self._programs)}"

    def _started(self, program: Kind) -> Kind:
        self._programs.append(program)
        return program

    # -- what is seen

    def node(self) -> NodeReport:
        """What the agent says; local_api.NotRunning where none does."""
        _status, body = local_api.ask(self.run_directory / "mpsd.sock", "GET", "/v1/node")
        return msgspec.json.decode(body, type=NodeReport)

    def domain(self, name: str = "gpu0") -> DomainReport:
        (found,) = (domain for domain in self.node().domains if domain.name == name)
        return found

    def in_state(self, state: State, name: str = "gpu0") -> DomainReport:
        eventually(lambda: self.domain(name).state == state, f"{name} is {state}")
        return self.domain(name)

    def answer_to_nobody(self, path: str, asks: object) -> str:
        """Status line, headers and body, where another user than root asks."""
        words = [sys.executable, "-c", _ASKS, self.run_directory, path, json.dumps(asks)]
        said = self.start(words)
        assert said.exit_code() == 0, said
        return said.output

    def until_ready(self) -> None:
        """The agent answers, and every domain serves and lets programs in."""
        eventually(self._is_ready, "every domain is ready")

    def until_known(self) -> None:
        eventually(self._known, "every domain is known")

    def _is_ready(self) -> bool:
        known = self._known()
        if not known or self._is_held(known):
            return False
        return all(domain.state == State.READY for domain in known)

    def _is_held(self, domains: Sequence[DomainReport]) -> bool:
        """Whether one of them lets nobody in for a moment, since its last client was killed."""
        return any(self.record(domain.name).held_until_s > clock.boot_s() for domain in domains)

    def _known(self) -> Sequence[DomainReport]:
        """The domains, once they hold every GPU."""
        with suppress(local_api.NotRunning):
            domains = self.node().domains
            return domains if {gpu for one in domains for gpu in one.gpus} == self.uuids else ()
        return ()

    def daemon(self, name: str = "gpu0") -> int:
        pid = self.domain(name).daemon_pid
        assert pid is not None, self.domain(name)
        return pid

    def new_daemon(self, old: int, name: str = "gpu0") -> int:
        eventually(
            lambda: self.domain(name).daemon_pid not in {None, old}, f"{name} has another daemon"
        )
        self.in_state(State.READY, name)
        return self.daemon(name)

    def grant_of(self, program: Program) -> GrantReport:
        (found,) = (grant for grant in self.node().grants if grant.holder_pid == program.pid)
        return found

    def gpu_of(self, program: Program) -> str:
        """The label of its one GPU."""
        (uuid,) = self.grant_of(program).gpus
        return next(gpu.label for gpu in self.node().gpus if gpu.uuid == uuid)

    @property
    def holders(self) -> set[int]:
        return {grant.holder_pid for grant in self.node().grants}

    @property
    def queue(self) -> list[int]:
        """The pids that wait, in their order."""
        return [waiting.holder_pid for waiting in self.node().waiting]

    def until_no_grants(self) -> None:
        eventually(lambda: not self.node().grants, "every grant has come back")

    def until_watched(self) -> None:

        def looks() -> int:
            seen = self.node().violations
            return (seen.looks if seen else None) or 0

        before = looks()
        eventually(lambda: looks() > before + 3, "the watchdog has looked")

    def folder_of(self, name: str = "gpu0") -> DomainFolder:
        return DomainFolder(self.run_directory / name)

    def record(self, name: str = "gpu0") -> DomainRecord:
        found = records.read(self.folder_of(name).record, DomainRecord)
        assert found is not None
        return found

    def recorded_daemon(self, name: str = "gpu0") -> int:
        daemon = self.record(name).daemon
        assert daemon is not None
        return daemon.pid

    def limit_mib(self, name: str = "gpu0") -> int | None:
        """Of the servers to come, as the daemon reads it back."""
        command = control_protocol.memory_limit(None, 0)
        return command.answer(self.ask_daemon(command.text, name))

    def ask_daemon(self, command: str, name: str = "gpu0") -> str:
        environment = {
            **os.environ,
            **self.simulation.environment,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.folder_of(name).pipe),
        }
        asked = [self.program(CONTROL)]
        done = subprocess.run(
            asked,
            input=f"{command}\n",
            env=environment,
            capture_output=True,
            text=True,
            timeout=SOON_S,
        )
        return done.stdout.strip()

    def until_listed(self, *pids: int, name: str = "gpu0") -> None:
        """As clients of the server, which mpsd asks for soon after they have connected."""
        answer = re.compile(r"^\[[^\]]+ Control +[0-9]+\] ([0-9]+)$", re.MULTILINE)

        def are_listed() -> bool:
            return {*map(str, pids)} <= {*answer.findall(self.folder_of(name).log.read_text())}

        eventually(are_listed, f"{pids} are listed")

    def kill(self, pid: int) -> None:
        killed = processes.identity_of(pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not killed or not processes.is_alive(killed), f"pid {pid} has ended")

    def program(self, name: str) -> Path:
        return self.run_directory / "simulation" / "bin" / name

    def replace_control_program(self, script: str) -> None:
        """By a shell script; the real one is beside it, as `real`."""
        there = self.program(CONTROL)
        if not there.with_name("real").exists():
            there.rename(there.with_name("real"))
        beside = there.with_name("new")
        beside.write_text(f"#!/bin/sh\n{script}\n")
        beside.chmod(0o755)
        beside.replace(there)

    def restore_control_program(self) -> None:
        there = self.program(CONTROL)
        there.with_name("real").replace(there)

    def card(self, ordinal: int = 0) -> CardView:
        """A GPU's state; it can be read even after the simulation was removed."""
        card = self.simulation.card(ordinal)
        self._cards.append(card)
        return card

    # -- the end

    def stop(self) -> None:
        """As an operator would; fails where anything of it is left."""
        self.end_programs()
        services = [
            program
            for program in self._programs
            if isinstance(program, Service) and program.running
        ]
        if any(self._answers(service) for service in services):
            self.until_no_grants()
            eventually(self._denied, "nobody is let onto a GPU")
        for service in services:
            service.send(signal.SIGTERM)
        for service in services:
            assert service.exit_code() == 0, str(service)
        self.until_nothing_runs()
        if services:
            assert self.files_left() == []

    def _denied(self) -> bool:
        """Whether no domain that serves lets anybody in."""
        names = [domain.name for domain in self.node().domains if domain.state == State.READY]
        return all(limit_mib(self.folder_of(name)) == DENY_MIB for name in names)

    def end_programs(self) -> None:
        """SIGKILL for whatever is no part of mpsd."""
        for program in self._programs:
            if not isinstance(program, Service):
                program.kill()

    def _answers(self, service: Service) -> bool:
        with suppress(local_api.NotRunning):
            return service.running and bool(self.node())
        return False

    def until_nothing_runs(self) -> None:
        """The server of a daemon that has ended may take a moment longer."""
        with suppress(AssertionError):
            eventually(lambda: not self.processes_left(), "everything has ended")
        failed = [str(one) for _verb, one in self._services if one.process.poll() not in {None, 0}]
        assert self.processes_left() == {}, f"{self.processes_left()}; {failed}"

    def processes_left(self) -> dict[int, str]:
        """Command lines by pid, of all with this machine in their environment."""
        return {
            int(path.parent.name): processes.command_of(int(path.parent.name))
            for path in Path("/proc").glob("[0-9]*/environ")
            if _mentions(path, str(self._folder))
        }

    def files_left(self) -> list[Path]:
        """What is in the run directory beside the daemons' logs, what GPUs were seen, and the lock:
        sockets, records, links."""
        return [
            path
            for path in self.run_directory.rglob("*")
            if not path.is_dir()
            and path.parent.name != "log"
            and path.name not in {KNOWN_FILE, LOCK}
        ]

    def destroy(self) -> None:
        for program in self._programs:
            program.kill()
        for pid in self.processes_left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for card in self._cards:
            card.close()
        shutil.rmtree(self._folder)


# Another user may not enter the folder that the socket is in.
_ASKS = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setresuid(65534, 65534, 65534)
there, said = socket.socket(socket.AF_UNIX), sys.argv[3]
there.connect("mpsd.sock")
head = f"POST {sys.argv[2]} HTTP/1.0\\r\\nContent-Length: {len(said)}\\r\\n\\r\\n"
there.sendall(f"{head}{said}".encode())
while piece := there.recv(4096):
    sys.stdout.buffer.write(piece)
"""


def label_of(gpu: SimulatedGpu) -> str:
    return f"gpu{gpu.ordinal}-mig{gpu.gpu_instance}" if gpu.parent else f"gpu{gpu.ordinal}"


def _mentions(environ: Path, text: str) -> bool:
    try:
        return text.encode() in environ.read_bytes()
    except OSError:  # it ended meanwhile
        return False
