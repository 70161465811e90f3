"""A run of `mpsd bench` from its first look to its last record, and how it ends.

One rule: whatever ends it, no process and no folder of it is left, and what was measured until then is kept.
"""

import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import getpid
from pathlib import Path
from typing import NoReturn

from mpsd.bench import kept
from mpsd.bench.alone import CannotBegin
from mpsd.bench.bench_progress import Steps, steps
from mpsd.bench.ground import FOLDERS
from mpsd.bench.here import Here
from mpsd.bench.rules.bench_rows import Benchmark, Part
from mpsd.bench.run import Run, look
from mpsd.model.problem import InvalidInput
from mpsd.platform.nvml import NvmlFailed
from mpsd.platform.output import ExitCode, complaints
from mpsd.platform.stopping import STOP_SIGNALS, Stopped, first_signal_stops
from mpsd.simulator import leftovers

_TEMPORARY = Path("/tmp")  # noqa: S108 - where the grounds are


@dataclass(frozen=True, slots=True)
class Asked:
    """socket: of an mpsd that may run here; None where that is no matter. save: None to keep it nowhere."""

    here: Here
    parts: tuple[Part, ...]
    socket: Path | None
    save: Path | None
    beside_others: bool


def measure(asked: Asked) -> tuple[Benchmark, ExitCode]:
    """What was measured, and NO where something broke off. Ends the program where nothing was, or at a signal."""
    run: Run | None = None
    at = "its first look"
    try:
        with _nothing_left(), steps() as told:
            try:
                here = replace(asked.here, step=told.step)
                run = Run(here, look(here, asked.socket, beside_others=asked.beside_others), asked.parts)
                _go(run, told, asked.save)
            finally:
                at = told.now
    except InvalidInput:
        raise
    except (CannotBegin, NvmlFailed) as error:
        if run is None:
            _give_up(str(error), ExitCode.NO)
        return _broken(run, at, error, asked.save)
    except Stopped as stopped:
        _keep(run, asked.save)
        _give_up("stopped, and everything it had started with it", 128 + stopped.signum)
    except Exception as error:  # whatever it is, hours of figures are not lost for it
        return _broken(run, at, error, asked.save)
    return run.so_far, ExitCode.YES


def _go(run: Run, told: Steps, save: Path | None) -> None:
    told.expect(run.steps())
    for _part in run.measure():
        _keep(run, save)


def _broken(run: Run | None, at: str, error: Exception, save: Path | None) -> tuple[Benchmark, ExitCode]:
    said = f"{type(error).__name__}: {error}"
    if run is None:
        _give_up(f"broke off at {at}: {said}", ExitCode.NO)
    complaints().print(f"mpsd bench: broke off at {at}: {said}; what was measured before counts")
    _keep(run, save)
    return run.so_far, ExitCode.NO


def _keep(run: Run | None, save: Path | None) -> None:
    if run and save:
        kept.save(save, run.so_far)


def _give_up(message: str, code: int) -> NoReturn:
    complaints().print(f"mpsd bench: {message}")
    sys.exit(code)


@contextmanager
def _nothing_left() -> Iterator[None]:
    """Stopped in this block at a signal. What a signal has torn out of its own clean-up is cleared away here."""
    before = {signum: signal.getsignal(signum) for signum in STOP_SIGNALS}
    others = leftovers.processes()  # of the shell that became this process by exec, and of a container's first process
    leftovers.adopt_orphans()
    try:
        with first_signal_stops():
            yield
    finally:
        leftovers.end_all(spared=others)
        for folder in _TEMPORARY.glob(FOLDERS.format(getpid()) + "*"):
            shutil.rmtree(folder, ignore_errors=True)
        for signum, handler in before.items():
            signal.signal(signum, handler)
