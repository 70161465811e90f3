"""One run of `mpsd bench`: what must be so before it begins, its groups one after the other, and
how it ends.

Whatever ends a run, none of its processes and folders are left, and what was measured until then is
saved.
"""

import os
import platform
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, cast

import mpsd
from mpsd.bench.groups import GROUPS
from mpsd.bench.rules.rows import (
    FIELD_OF,
    VERSION,
    BenchGroup,
    Benchmark,
    MachineRow,
    Row,
    SharingMode,
    rows_of,
)
from mpsd.bench.testbeds import FOLDERS, BenchContext, CannotMeasure, Testbed
from mpsd.model.grants import Gpu
from mpsd.model.problem import InvalidInput, printable
from mpsd.model.times import stamp
from mpsd.mps import control_daemon
from mpsd.platform import clock, local_api, processes, run_directory
from mpsd.platform.console import ExitCode, complaints
from mpsd.platform.imports import STOP_SIGNALS, Stopped, first_signal_stops
from mpsd.platform.nvml import EXCLUSIVE_PROCESS, Nvml, NvmlFailed
from mpsd.simulator import own_mpsd

# -- before a run: whether this machine's GPUs are free for it

_DEFAULT_MODE = 0  # of NVML
_LONGEST_COMMAND = 100
_ANSWER_S = 3.0


class CannotBegin(Exception):
    """Nothing was started; the message has a line for each obstacle."""


def look(context: BenchContext, socket: Path | None, *, beside_others: bool) -> MachineRow:
    """This machine, once nothing is in the way. socket: of an mpsd that may run here; None where
    that is no matter.

    CannotBegin; NvmlFailed; InvalidInput for simulated GPUs that cannot be.
    """
    with context.testbed(SharingMode.TIME_SLICED) as testbed:
        require_mps(testbed.node.environment)
        require_turns(testbed.nvml, testbed.gpu)
        if not beside_others:
            require_alone(testbed.nvml, testbed.node.gpus, socket)
        return _machine(testbed, simulated=bool(context.simulate))


def _machine(testbed: Testbed, *, simulated: bool) -> MachineRow:
    return MachineRow(
        date=stamp(clock.wall_s()),
        mpsd=mpsd.__version__,
        gpu=testbed.gpu.name,
        memory_mib=testbed.gpu.memory_mib,
        sms=testbed.gpu.sms,
        driver=testbed.nvml.driver(),
        cuda=testbed.nvml.cuda(),
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        simulated=simulated,
    )


def require_alone(nvml: Nvml, gpus: Sequence[Gpu], socket: Path | None) -> None:
    """socket: where an mpsd of this machine would answer; None where that does not matter.
    CannotBegin, NvmlFailed."""
    found = [*_on_gpus(nvml, gpus), *(_on_socket(socket) if socket else ())]
    if found:
        begin = "this machine's GPUs are in use, and the load of others would be measured too:"
        remedy = "end them, or measure beside them with --beside-others"
        raise CannotBegin("\n  ".join([begin, *found, remedy]))


def _on_gpus(nvml: Nvml, gpus: Sequence[Gpu]) -> Iterator[str]:
    for gpu in gpus:
        for pid, _used in nvml.uses(gpu.uuid):
            command = printable(processes.command_of(pid), _LONGEST_COMMAND)
            yield f"{gpu.label}: pid {pid}: {command or 'a process that is not visible from here'}"


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
    name = {EXCLUSIVE_PROCESS: "EXCLUSIVE_PROCESS"}.get(mode, str(mode))
    message = (
        f"{gpu.label} is in compute mode {name}, in which programs cannot take turns; mpsd bench"
        " changes no card"
    )
    raise CannotBegin(
        f"{message}: set it to Default (nvidia-smi -i {gpu.ordinal} -c DEFAULT), and back"
        " afterwards"
    )


# -- the groups


class BenchRun:
    """so_far: what has been measured, as it is saved. now: what is being measured."""

    def __init__(
        self, context: BenchContext, machine: MachineRow, groups: Sequence[BenchGroup]
    ) -> None:
        """groups: those to measure, in any order."""
        self._context = context
        self._groups = [group for group in BenchGroup if group in groups]
        self.so_far = Benchmark(version=VERSION, machine=machine, window_s=context.window_s)
        self.now = "the beginning"

    def measure(self) -> Iterator[BenchGroup]:
        """Measures; yields each group once it is over. A group that cannot be measured does not
        stop the others."""
        for group in self._groups:
            context = self._named(group)
            try:
                # closes its testbed too
                with closing(cast("Generator[Row]", GROUPS[group](context))) as rows:
                    for row in rows:
                        self._keep(row)
            except CannotMeasure as error:
                self.so_far = replace(
                    self.so_far, skipped=(*self.so_far.skipped, (group, str(error)))
                )
            yield group

    def _named(self, group: BenchGroup) -> BenchContext:
        def step(what: str) -> None:
            self.now = f"{group}: {what}"
            self._context.step(self.now)

        return replace(self._context, step=step)

    def _keep(self, row: Row) -> None:
        field = FIELD_OF[type(row)]
        added: dict[str, Any] = {field: (*rows_of(self.so_far, field), row)}
        self.so_far = replace(self.so_far, **added)


# -- from the first look to the last record

_TEMPORARY = Path("/tmp")  # noqa: S108 - where testbeds are


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """socket: of an mpsd that may run here; None where that is no matter. save: called after every
    group."""

    context: BenchContext
    groups: tuple[BenchGroup, ...]
    socket: Path | None
    save: Callable[[Benchmark], None]
    beside_others: bool


def measure(options: BenchOptions) -> tuple[Benchmark, ExitCode]:
    """What was measured, and NO where something broke off. Ends the program where nothing was, or
    at a signal."""
    run: BenchRun | None = None
    try:
        with _nothing_left():
            machine = look(options.context, options.socket, beside_others=options.beside_others)
            run = BenchRun(options.context, machine, options.groups)
            for _group in run.measure():
                options.save(run.so_far)
    except InvalidInput:
        raise
    except Stopped as stopped:
        if run:
            options.save(run.so_far)
        _give_up("stopped, and everything it had started with it", 128 + stopped.signum)
    except Exception as error:  # whatever it is, hours of figures are not lost for it
        if run is None and isinstance(error, CannotBegin | NvmlFailed):
            _give_up(str(error), ExitCode.NO)
        what = f"{type(error).__name__}: {error}"
        if run is None:
            _give_up(f"broke off at its first look: {what}", ExitCode.NO)
        message = f"broke off at {run.now}: {what}; what was measured before counts"
        complaints().print(f"mpsd bench: {message}")
        options.save(run.so_far)
        return run.so_far, ExitCode.NO
    return run.so_far, ExitCode.YES


def _give_up(message: str, code: int) -> NoReturn:
    complaints().print(f"mpsd bench: {message}")
    sys.exit(code)


@contextmanager
def _nothing_left() -> Iterator[None]:
    """Stopped in this block at a signal. What a signal has torn out of its own clean-up is cleared
    away here."""
    before = {signum: signal.getsignal(signum) for signum in STOP_SIGNALS}
    # of the shell that became this process by exec, and of a container's first process
    others = own_mpsd.processes()
    own_mpsd.adopt_orphans()
    try:
        with first_signal_stops():
            yield
    finally:
        own_mpsd.end_all(spared=others)
        own_mpsd.adopt_orphans(adopted=False)
        for folder in _TEMPORARY.glob(FOLDERS.format(os.getpid()) + "*"):
            shutil.rmtree(folder, ignore_errors=True)
        for signum, handler in before.items():
            signal.signal(signum, handler)
