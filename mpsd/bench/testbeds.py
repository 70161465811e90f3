"""Where programs are measured: time-sliced without MPS, under MPS alone, or under mpsd; and groups
of programs there.

A testbed is a context manager: when it is closed, none of its processes and files are left, however
that ends.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

import yaml

from mpsd.bench.rules.rows import SharingMode, WorkKind
from mpsd.model import client_limits
from mpsd.model.client_limits import ClientLimit
from mpsd.model.cuda_limit_parser import CUDA_VISIBLE_DEVICES, PIPE_DIRECTORY
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.grants import Gpu
from mpsd.mps import cuda_client
from mpsd.mps.control_daemon import ControlPipe, start
from mpsd.mps.node_gpus import Node
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import ControlFailed
from mpsd.platform.limits_files import GPU_FACTS_FILE, POLICY_FILE, shipped_folder
from mpsd.platform.nvml import Nvml
from mpsd.platform.run_directory import DomainFolder
from mpsd.platform.settings import settings
from mpsd.simulator.machine import find_node
from mpsd.simulator.own_mpsd import OwnMpsd
from mpsd.simulator.programs import JsonProgram, wait_until

FOLDERS = "mpsd-bench-{}-"  # in /tmp, with the pid of whose they are
_START_S = 60.0
_COMMAND_S = 5.0
_STOP_S = 60.0
_READY_S = 90.0  # for forty-eight contexts one after the other
_GRACE_S = 30.0  # beyond a window, for its line to be printed


@dataclass(frozen=True, slots=True)
class BenchShare:
    """What a program may have: whole GiB, and percent of the threads."""

    memory_gib: int
    percent: int = 100

    def __str__(self) -> str:
        return f"{self.percent} % and {self.memory_gib} GiB"


class Testbed(ABC):
    """A folder of its own, with this machine's GPUs or simulated ones. `mode`: how programs share
    them."""

    mode: SharingMode

    def __init__(self, simulate: str, facts: GpuFacts) -> None:
        """simulate: as of `mpsd up`, "" for real GPUs. NvmlFailed, InvalidInput."""
        # short: for sockets
        self.folder = Path(tempfile.mkdtemp(prefix=FOLDERS.format(os.getpid()), dir="/tmp"))
        self._programs: list[JsonProgram] = []
        try:
            self.settings = settings(
                run_directory=str(self.folder / "run"), simulate=simulate or None, environment={}
            )
            self.node: Node = find_node(self.settings, facts)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def gpu(self) -> Gpu:
        """The one that is measured: the first, of those with the least memory, since mpsd fills
        these first."""
        return min(self.node.gpus, key=lambda gpu: (gpu.memory_mib, gpu.ordinal))

    @property
    def nvml(self) -> Nvml:
        return self.node.nvml

    @property
    def client(self) -> tuple[str, ...]:
        """The command line of mpsd's CUDA client, or of the simulator's, which takes the same
        actions.

        By its path, without site-packages, so that it starts in a few milliseconds.
        """
        return (
            ("sim-cuda",)
            if self.settings.simulate
            else (sys.executable, "-I", "-S", cuda_client.__file__)
        )

    def start(self, actions: Sequence[str], share: BenchShare | None = None) -> JsonProgram:
        """mpsd's CUDA client with these actions. share: None for as much as there is."""
        return self.start_command((*self.client, *actions), share)

    @abstractmethod
    def start_command(self, command: Sequence[str], share: BenchShare | None = None) -> JsonProgram:
        """Any program. share: None for as much as there is."""

    def end_programs(self) -> None:
        """Ends all that were started here so far."""
        while self._programs:
            self._programs.pop().end()

    def close(self) -> None:
        """Ends everything and removes the folder."""
        try:
            self.end_programs()
            self._stop()
        finally:
            with suppress(Exception):
                self.nvml.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    @abstractmethod
    def _stop(self) -> None:
        """Ends what there is beside programs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self, program: JsonProgram) -> JsonProgram:
        self._programs.append(program)
        return program


def _inherited() -> dict[str, str]:
    """This process's environment, but for what would say how to be on MPS, or where an mpsd is."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CUDA_MPS_", "MPSD_"))
    }


class WithoutMpsd(Testbed):
    """Programs are started as they are."""

    def start_command(self, command: Sequence[str], share: BenchShare | None = None) -> JsonProgram:
        """The share is in its environment, if anywhere."""
        path = {"PATH": self.node.environment["PATH"]} if "PATH" in self.node.environment else {}
        ours = self.node.extra | {CUDA_VISIBLE_DEVICES: self.gpu.uuid} | self._limits(share)
        return self._started(JsonProgram(command, _inherited() | path | ours))

    @abstractmethod
    def _limits(self, share: BenchShare | None, /) -> dict[str, str]:
        """The variables that put a program on this testbed, under its share."""


class TimeSliced(WithoutMpsd):
    """No MPS: the GPU gives each program a slice of its time."""

    mode = SharingMode.TIME_SLICED

    def _limits(self, _share: BenchShare | None, /) -> dict[str, str]:
        """Shares do not exist here."""
        return {PIPE_DIRECTORY: str(self.folder / "nowhere")}

    def _stop(self) -> None:
        """There is nothing."""


class UnderMps(WithoutMpsd):
    """One control daemon for the GPU, with no limit on the server, as people run MPS without
    mpsd."""

    mode = SharingMode.MPS

    def __init__(self, simulate: str, facts: GpuFacts) -> None:
        """TimeoutError where the daemon does not answer."""
        super().__init__(simulate, facts)
        self._domain = DomainFolder(self.folder / "gpu0")
        self._domain.make()
        try:
            self._daemon: subprocess.Popen[bytes] = start(
                self._domain, [self.gpu.uuid], self.node.environment
            )
            wait_until(
                self._answers,
                _START_S,
                f"the control daemon answers; {self._domain.log} says why not",
                0.02,
            )
        except BaseException:
            self.close()
            raise

    def _answers(self) -> bool:
        pipe = ControlPipe(self._domain.pipe, self.node.environment, _COMMAND_S)
        with suppress(ControlFailed):
            asyncio.run(pipe.ask(control_protocol.server_list()))
            return True
        return False

    def _limits(self, share: BenchShare | None, /) -> dict[str, str]:
        """Those of a share are in the program's environment alone."""
        pipe = str(self._domain.pipe)
        if share is None:
            return {PIPE_DIRECTORY: pipe}
        return client_limits.environment(ClientLimit(share.memory_gib * 1024, share.percent), pipe)

    def _stop(self) -> None:
        self._daemon.terminate()
        try:
            self._daemon.wait(_STOP_S)
        finally:
            self._daemon.kill()
            self._daemon.wait()


class UnderMpsd(Testbed):
    """`mpsd up` with the policy of `limits`, but for the compute mode, which is left alone, a
    domain a GPU, a client a grant."""

    mode = SharingMode.MPSD

    def __init__(self, simulate: str, facts: GpuFacts, limits: Path, **changes: Any) -> None:
        """changes: of the policy's top-level entries; a mapping is laid over what is there.
        TimeoutError, EOFError."""
        super().__init__(simulate, facts)
        self._write_limits(limits, changes)
        options = [
            "--limits",
            str(self.folder / "limits"),
            *(["--simulate", simulate] if simulate else []),
        ]
        self.mpsd = OwnMpsd(self.folder, options, _inherited())
        try:
            self.mpsd.wait_until_ready(_START_S)
        except BaseException:
            self.close()
            raise

    def _write_limits(self, limits: Path, changes: Mapping[str, Any]) -> None:
        folder = self.folder / "limits"
        folder.mkdir()
        for file in (POLICY_FILE, GPU_FACTS_FILE):
            shutil.copy(limits / file, folder)
        policy: dict[str, Any] = yaml.safe_load((folder / POLICY_FILE).read_text(encoding="utf-8"))
        ours = {
            "exclusive_process": False,
            "placement": "binpack",
            "domains": [],
            "requests": {"clients_per_grant": 1},
        }
        for change in (ours, changes):
            for name, value in change.items():
                policy[name] = policy[name] | value if isinstance(value, Mapping) else value
        (folder / POLICY_FILE).write_text(yaml.safe_dump(policy), encoding="utf-8")

    def start_command(self, command: Sequence[str], share: BenchShare | None = None) -> JsonProgram:
        """share None: what small kernels and arithmetic need, so that eight fit on a small card; no
        cap of threads."""
        share = share or BenchShare(1)
        core = [] if share.percent == 100 else ["--gpu-core", str(share.percent)]
        return self._started(
            self.mpsd.run_command(["--gpu-mem", str(share.memory_gib), *core], command)
        )

    def _stop(self) -> None:
        self.mpsd.stop(_STOP_S)


@dataclass(frozen=True, slots=True)
class BenchContext:
    """What every group of a benchmark is given.

    simulate: "" for real GPUs. window_s: of each measurement. rounds: how often what is given as a
    median is timed. step: called with what is measured next. limits: the folder of the policy to
    measure under, and of the GPU facts.
    """

    simulate: str
    facts: GpuFacts
    window_s: float
    rounds: int
    step: Callable[[str], None]
    limits: Path = field(default_factory=shipped_folder)

    def under_mpsd(self, **changes: Any) -> UnderMpsd:
        """changes: of the policy."""
        return UnderMpsd(self.simulate, self.facts, self.limits, **changes)

    def testbed(self, mode: SharingMode) -> Testbed:
        if mode is SharingMode.MPSD:
            return self.under_mpsd()
        return (TimeSliced if mode is SharingMode.TIME_SLICED else UnderMps)(
            self.simulate, self.facts
        )


class CannotMeasure(Exception):
    """This group cannot be measured here; the message completes "GROUP was not measured: "."""


class LimitBroken(Exception):
    """What mpsd promises did not happen while it was timed, so there is no figure; the message is a
    whole sentence."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one program printed of itself and of a window; or the sum of several programs. sms:
    those it may use."""

    sms: int
    launches_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class ProgramGroup:
    """Programs that all have a context and wait to begin at the same moment.

    first: the line that each printed when it had its context. starts_s: until all had one.
    """

    programs: tuple[JsonProgram, ...]
    first: tuple[dict[str, Any], ...]
    starts_s: float
    window_s: float

    def window(self) -> tuple[Measured, ...]:
        """Lets all begin now; the next window of each."""
        for program in self.programs:
            program.go_on()
        lines = [
            program.line_with("launches_per_s", self.window_s + _GRACE_S)
            for program in self.programs
        ]
        return tuple(
            Measured(first["sms"], line["launches_per_s"], line["p50_ms"], line["p99_ms"])
            for first, line in zip(self.first, lines, strict=True)
        )

    def total(self, windows: int = 1) -> Measured:
        """The launches of all programs, and the times of the slowest; each figure's median over so
        many windows."""
        found = [self.window() for _ in range(windows)]
        return Measured(
            sms=max(one.sms for one in found[0]),
            launches_per_s=median(sum(one.launches_per_s for one in window) for window in found),
            p50_ms=median(max(one.p50_ms for one in window) for window in found),
            p99_ms=median(max(one.p99_ms for one in window) for window in found),
        )


def gather(
    testbed: Testbed,
    work: WorkKind,
    shares: Sequence[BenchShare | None],
    window_s: float,
    windows: int = 1,
) -> ProgramGroup:
    """Starts one program for each share, to be measured for so many windows.

    TimeoutError; EOFError with what a program that ended has printed; CannotMeasure as of
    first_line.
    """
    began = time.monotonic()
    actions = [f"prepare={work}", *["step", f"measure={window_s:g}"] * windows]
    programs = tuple(testbed.start(actions, share) for share in shares)
    first = tuple(first_line(testbed, program) for program in programs)
    starts_s = time.monotonic() - began
    for program in programs:
        program.line_with("ready", _READY_S)
    return ProgramGroup(programs, first, starts_s, window_s)


def first_line(testbed: Testbed, program: JsonProgram) -> dict[str, Any]:
    """What mpsd's CUDA client prints once it has its context.

    TimeoutError, EOFError; CannotMeasure where it is on another GPU than the one that is measured.
    """
    first = program.line_with("uuid", _READY_S)
    if first["uuid"] != testbed.gpu.uuid:
        measured = testbed.gpu.label
        other = next(
            (gpu.label for gpu in testbed.node.gpus if gpu.uuid == first["uuid"]), first["uuid"]
        )
        why = f"{measured} is measured, but a program was placed on {other}"
        raise CannotMeasure(f"{why}: {measured} is in use by others, or too small for this")
    return first
