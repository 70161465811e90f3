"""What every part of a benchmark works with: the grounds of this machine, how long to measure, and whom to tell.

One rule: a part calls `step` before each thing that takes time, as often as it said it would, so that a bar can
move; or less often, where a card is too small for some.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from mpsd.bench.ground import BenchShare, Ground, InTurns, UnderMps, UnderMpsd
from mpsd.bench.rules.rows import Row, SharingMode, WorkKind
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.grants import Gpu
from mpsd.model.problem import printable
from mpsd.mps import control_daemon
from mpsd.platform import local_api, processes, run_directory
from mpsd.platform.limits_files import shipped_folder
from mpsd.platform.nvml import Nvml
from mpsd.platform.programs import JsonProgram


@dataclass(frozen=True, slots=True)
class BenchContext:
    """simulate: "" for real GPUs. window_s: of each measurement. rounds: of what is given as a median.

    step: told what is being measured next. limits: the folder of the policy to measure under, and of the facts.
    """

    simulate: str
    facts: GpuFacts
    window_s: float
    rounds: int
    step: Callable[[str], None]
    limits: Path = field(default_factory=shipped_folder)

    def in_turns(self) -> InTurns:
        return InTurns(self.simulate, self.facts)

    def under_mps(self) -> UnderMps:
        return UnderMps(self.simulate, self.facts)

    def under_mpsd(self, **changes: Any) -> UnderMpsd:
        """changes: of the policy."""
        return UnderMpsd(self.simulate, self.facts, self.limits, **changes)

    def ground(self, mode: SharingMode) -> Ground:
        match mode:
            case SharingMode.TIME_SLICED:
                return self.in_turns()
            case SharingMode.MPS:
                return self.under_mps()
            case SharingMode.MPSD:
                return self.under_mpsd()


class CannotMeasure(Exception):
    """This part cannot be measured here, and why: a sentence's end."""


class LimitBroken(Exception):
    """What mpsd promises did not happen while it was timed, so that there is no figure: a whole sentence."""


class PartOfBench(Protocol):
    """A module of mpsd.bench that measures one part."""

    def steps(self, here: BenchContext, /) -> int:
        """How often `measure` will call `here.step`."""

    def measure(self, here: BenchContext, /) -> Iterator[Row]:
        """Measures; CannotMeasure where that is not possible here, NotAsPromised where it makes no sense to go on."""


# Whether this machine's GPUs are free for a benchmark.
#
# One rule: it looks and changes nothing; what is in the way is named, with what to do about it.

_DEFAULT_MODE = 0  # of NVML
_LONGEST_COMMAND = 100
_ANSWER_S = 3.0


class CannotBegin(Exception):
    """Nothing was started; the message has a line for each obstacle."""


def require_alone(nvml: Nvml, gpus: Sequence[Gpu], socket: Path | None) -> None:
    """socket: where an mpsd of this machine would answer; None where that does not matter. CannotBegin, NvmlFailed."""
    found = [*_on_gpus(nvml, gpus), *(_on_socket(socket) if socket else ())]
    if found:
        begin = "others use this machine's GPUs, and what they do would be measured too:"
        remedy = "end them, or measure beside them with --beside-others"
        raise CannotBegin("\n  ".join([begin, *found, remedy]))


def _on_gpus(nvml: Nvml, gpus: Sequence[Gpu]) -> Iterator[str]:
    for gpu in gpus:
        for pid, _used in nvml.uses(gpu.uuid):
            command = printable(processes.command_of(pid), _LONGEST_COMMAND)
            yield f"{gpu.label}: pid {pid}: {command or 'a process that is not seen from here'}"


def _on_socket(socket: Path) -> Iterator[str]:
    try:
        local_api.ask(socket, "GET", "/v1/node", timeout_s=_ANSWER_S)
        yield f"mpsd runs here and answers on {socket}"
    except TimeoutError:
        yield f"mpsd listens on {socket}, though it does not answer"
    except local_api.NotRunning:
        holder = run_directory.holder(socket.parent)
        if holder is not None:
            yield f"mpsd holds daemons here: pid {holder}, in {socket.parent}"


def require_mps(environment: Mapping[str, str]) -> None:
    """That control daemons can be started in this environment. CannotBegin."""
    if not control_daemon.program_found(environment):
        message = f"{control_daemon.PROGRAM} is not on PATH ({environment.get('PATH', '')})"
        raise CannotBegin(f"{message}: it comes with NVIDIA's driver; put its folder on PATH")


def require_turns(nvml: Nvml, gpu: Gpu) -> None:
    """That programs may use the GPU side by side without MPS. CannotBegin, NvmlFailed."""
    mode = nvml.compute_mode(gpu.uuid)
    if mode == _DEFAULT_MODE:
        return
    name = {nvml.exclusive_process: "EXCLUSIVE_PROCESS"}.get(mode, str(mode))
    message = f"{gpu.label} is in compute mode {name}, in which programs cannot take turns; mpsd bench changes no card"
    raise CannotBegin(f"{message}: set it to Default (nvidia-smi -i {gpu.ordinal} -c DEFAULT), and back afterwards")


# Programs that begin at the same moment, and what they then say.
#
# One rule: nobody is told to begin before all are ready, so that none is measured while another starts.

_READY_S = 90.0  # forty-eight contexts one after the other, and a framework's import
_GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one program said of itself first, and of its window; or the same of several."""

    sms: int
    launches_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Crowd:
    """Programs that are ready and wait. first: the line each said when it had its context. starts_s: until all had."""

    programs: tuple[JsonProgram, ...]
    first: tuple[dict[str, Any], ...]
    starts_s: float

    def middle(self, window_s: float, windows: int) -> Measured:
        """All programs together: their launches, and the times of the slowest. Of so many windows, for each figure by
        itself, the median."""
        found = [_together(self.measure(window_s)) for _ in range(windows)]
        rates, p50s, p99s = zip(*((one.launches_per_s, one.p50_ms, one.p99_ms) for one in found), strict=True)
        return Measured(found[0].sms, median(rates), median(p50s), median(p99s))

    def measure(self, window_s: float) -> tuple[Measured, ...]:
        """Has all of them begin now; one window of each."""
        for program in self.programs:
            program.go_on()
        said = [program.line_with("launches_per_s", window_s + _GRACE_S) for program in self.programs]
        return tuple(
            Measured(first["sms"], line["launches_per_s"], line["p50_ms"], line["p99_ms"])
            for first, line in zip(self.first, said, strict=True)
        )


def _together(found: Sequence[Measured]) -> Measured:
    return Measured(
        sms=max(one.sms for one in found),
        launches_per_s=sum(one.launches_per_s for one in found),
        p50_ms=max(one.p50_ms for one in found),
        p99_ms=max(one.p99_ms for one in found),
    )


def gather(
    ground: Ground, work: WorkKind, shares: Sequence[BenchShare | None], window_s: float, windows: int = 1
) -> Crowd:
    """Starts a program a share, each for so many windows.

    TimeoutError; EOFError with what one that ended said; CannotMeasure where one is on another GPU than the ground's.
    """
    began = time.monotonic()
    actions = [f"prepare={work}", *["step", f"measure={window_s:g}"] * windows]
    programs = tuple(ground.start(actions, share) for share in shares)
    first = tuple(first_line(ground, program) for program in programs)
    starts_s = time.monotonic() - began
    for program in programs:
        program.line_with("ready", _READY_S)
    return Crowd(programs, first, starts_s)


def first_line(ground: Ground, program: JsonProgram) -> dict[str, Any]:
    """What mpsd's CUDA client says once it has its context. TimeoutError, EOFError, CannotMeasure as of gather."""
    first = program.line_with("uuid", _READY_S)
    if first["uuid"] != ground.gpu.uuid:
        where = next((gpu.label for gpu in ground.node.gpus if gpu.uuid == first["uuid"]), first["uuid"])
        why = f"{ground.gpu.label} is measured, and a program was put on {where}, which had the room for it"
        raise CannotMeasure(f"{why}: others use {ground.gpu.label}, or it is too small for this part")
    return first
