"""`mpsd bench`: what MPS and mpsd do on this machine's GPU.

One rule: it measures and cleans up, however it ends; what was measured until then is not lost.
"""

import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from os import getpid
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mpsd.bench import kept, tables
from mpsd.bench.ground import FOLDERS
from mpsd.bench.here import BenchContext, CannotBegin
from mpsd.bench.rules.claims import BenchClaim, ClaimVerdict, claims
from mpsd.bench.rules.rows import Benchmark, BenchPart
from mpsd.bench.run import BenchRun, look
from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform.console import ExitCode, Format, complaints, print_json
from mpsd.platform.imports import STOP_SIGNALS, Stopped, first_signal_stops
from mpsd.platform.limits_files import limits_folder, load_limits
from mpsd.platform.nvml import NvmlFailed
from mpsd.platform.options import LimitsDirectory, OutputFormat, Simulate
from mpsd.platform.settings import settings
from mpsd.platform.verbs import extra_needed
from mpsd.simulator import own_mpsd
from mpsd.status.terminal import console

# How far a benchmark is: a bar on a terminal, else a line a step.
#
# One rule: on standard error alone, so that tables and JSON can be redirected.

_A_SECOND = 2  # seldom: what is measured next to it must not notice


class Steps:
    """Told of each step before it begins."""

    def __init__(self, bar: Progress | None = None) -> None:
        """bar: None where there is no terminal."""
        self._bar = bar
        self._task = None if bar is None else bar.add_task("looks at this machine", total=None)
        self._begun, self._total = 0, 0
        self.now = "the beginning"  # what is being measured

    def expect(self, total: int) -> None:
        self._total = total

    def step(self, what: str) -> None:
        self._begun, self.now = self._begun + 1, what
        total = max(self._total, self._begun)  # a part may be mistaken about itself
        if self._bar is None or self._task is None:
            complaints().print(f"mpsd bench: {self._begun}/{total} {what}")
        else:
            self._bar.update(self._task, description=what, completed=self._begun - 1, total=total)


@contextmanager
def steps() -> Iterator[Steps]:
    """The bar is gone afterwards."""
    if not sys.stderr.isatty():
        yield Steps()
        return
    words = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), words)
    console = Console(stderr=True, markup=False)
    with Progress(*columns, console=console, transient=True, refresh_per_second=_A_SECOND) as bar:
        yield Steps(bar)


# A run of `mpsd bench` from its first look to its last record, and how it ends.
#
# One rule: whatever ends it, no process and no folder of it is left, and what was measured until then is kept.

_TEMPORARY = Path("/tmp")  # noqa: S108 - where the grounds are


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """socket: of an mpsd that may run here; None where that is no matter. save: None to keep it nowhere."""

    here: BenchContext
    parts: tuple[BenchPart, ...]
    socket: Path | None
    save: Path | None
    beside_others: bool


def measure(asked: BenchOptions) -> tuple[Benchmark, ExitCode]:
    """What was measured, and NO where something broke off. Ends the program where nothing was, or at a signal."""
    run: BenchRun | None = None
    at = "its first look"
    try:
        with _nothing_left(), steps() as told:
            try:
                here = replace(asked.here, step=told.step)
                run = BenchRun(here, look(here, asked.socket, beside_others=asked.beside_others), asked.parts)
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


def _go(run: BenchRun, told: Steps, save: Path | None) -> None:
    told.expect(run.steps())
    for _part in run.measure():
        _keep(run, save)


def _broken(run: BenchRun | None, at: str, error: Exception, save: Path | None) -> tuple[Benchmark, ExitCode]:
    said = f"{type(error).__name__}: {error}"
    if run is None:
        _give_up(f"broke off at {at}: {said}", ExitCode.NO)
    complaints().print(f"mpsd bench: broke off at {at}: {said}; what was measured before counts")
    _keep(run, save)
    return run.so_far, ExitCode.NO


def _keep(run: BenchRun | None, save: Path | None) -> None:
    if run and save:
        kept.save(save, run.so_far)


def _give_up(message: str, code: int) -> NoReturn:
    complaints().print(f"mpsd bench: {message}")
    sys.exit(code)


@contextmanager
def _nothing_left() -> Iterator[None]:
    """Stopped in this block at a signal. What a signal has torn out of its own clean-up is cleared away here."""
    before = {signum: signal.getsignal(signum) for signum in STOP_SIGNALS}
    others = own_mpsd.processes()  # of the shell that became this process by exec, and of a container's first process
    own_mpsd.adopt_orphans()
    try:
        with first_signal_stops():
            yield
    finally:
        own_mpsd.end_all(spared=others)
        for folder in _TEMPORARY.glob(FOLDERS.format(getpid()) + "*"):
            shutil.rmtree(folder, ignore_errors=True)
        for signum, handler in before.items():
            signal.signal(signum, handler)


_PICTURES = (".png", ".svg")
_DRAWN = frozenset(
    {BenchPart.SHARING, BenchPart.SHARES, BenchPart.RATIO, BenchPart.CLIENTS, BenchPart.REACTIONS, BenchPart.TORCH}
)


def bench(
    parts: Annotated[
        list[BenchPart] | None, typer.Argument(metavar="PART", help="Only these parts; else all.", show_default=False)
    ] = None,
    window: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long each measurement lasts.", min=0.05, max=600)
    ] = 2.0,
    rounds: Annotated[int, typer.Option(metavar="N", help="How often each reaction is timed.", min=1, max=1000)] = 20,
    simulate: Simulate = None,
    beside_others: Annotated[
        bool, typer.Option("--beside-others", help="Measure although others use the GPUs; it counts what they take.")
    ] = False,
    output: OutputFormat = Format.TEXT,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Keep it, also if it ends early.", show_default=False)
    ] = None,
    show: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.json", help="Measure nothing, show what was kept; again for more parts.", show_default=False
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png|svg", help="Draw it too.", show_default=False)] = None,
    limits: LimitsDirectory = None,
) -> None:
    """Measure what MPS and mpsd do on one GPU of this machine, and hold it against what mpsd promises.

    It is the first, of those with the least memory.

    Each part answers one question; with the windows of 2 s that are usual, in about so many minutes:

        sharing     1.5   what many programs get done: in turns, MPS, mpsd
        shares      1.5   whether 30 % of the threads do 30 % of the work
        ratio       0.5   whether two programs with shares of 1:2 get 1:2
        sizes       1     whether a grant's memory changes what it computes
        need        0.2   whether a program that needs too much is stopped
        cost        5     what mpsd costs against MPS alone
        clients     1     what becomes of it with more and more programs
        reactions   1     how soon escapes, dead daemons and faults are over
        torch       2     whether ResNet-50 gets 1:2 (needs torchvision)

    It starts its own mpsd and MPS daemons, in folders of its own, and needs the GPUs for itself: it refuses where other
    programs use them. It changes no setting of a card. Ctrl-C at any moment leaves nothing.

        mpsd bench --save all.json            everything, and keep it
        mpsd bench shares --plot shares.png   one part, and a picture
        mpsd bench need --simulate H200       played, without a GPU
        mpsd bench --show all.json            tables of an earlier run

    Exits with 0 where every claim that was measured holds, 1 where one does not or it could not be measured.
    """
    of_a_run: dict[str, object] = {"PART": parts, "--simulate": simulate, "--beside-others": beside_others}
    _check(save, plot, parts, of_a_run if show else {})
    if show:
        found, code = kept.load(show), ExitCode.YES
        if save:
            kept.save(save, found)
    else:
        chosen = settings(simulate=simulate, limits_directory=limits)
        folder = limits_folder(chosen.limits_directory)
        here = BenchContext(chosen.simulate, load_limits(folder).facts, window, rounds, lambda _what: None, folder)
        socket = None if chosen.simulate else chosen.socket_to_ask
        found, code = measure(BenchOptions(here, tuple(parts or BenchPart), socket, save, beside_others))
    judged = claims(found)
    _print(found, judged, output)
    if plot:
        _draw(found, plot)
    broken = any(claim.verdict is ClaimVerdict.BROKEN for claim in judged)
    sys.exit(ExitCode.NO if broken else code)


# -- before --------------------------------------------------------------------------------------------------------


def _check(
    save: Path | None, plot: Path | None, parts: list[BenchPart] | None, not_with_show: dict[str, object]
) -> None:
    """Everything that would be found out too late. InvalidInput."""
    problems = [
        problem
        for option, path in (("--save", save), ("--plot", plot))
        if path and (problem := kept.problem_with_saving(option, path))
    ]
    if plot and plot.suffix not in _PICTURES:
        remedy = f"end the name with {' or '.join(_PICTURES)}"
        problems.append(Problem("picture-format", "--plot", str(plot), "is no picture that can be drawn", remedy))
    if plot and parts and not _DRAWN.intersection(parts):
        remedy = f"leave it out, or measure {', '.join(sorted(_DRAWN))} too"
        problems.append(Problem("nothing-to-draw", "--plot", str(plot), "has nothing to show of these parts", remedy))
    for option in [option for option, value in not_with_show.items() if value]:
        remedy = "leave it out, or leave --show out to measure"
        problems.append(Problem("not-with-show", option, "", "is for a run, and --show shows one that is over", remedy))
    if problems:
        raise InvalidInput("mpsd bench", problems)
    if plot:
        with extra_needed("mpsd bench --plot", "bench"):
            if find_spec("matplotlib") is None:
                raise ModuleNotFoundError(name="matplotlib")


# -- after ---------------------------------------------------------------------------------------------------------


def _print(found: Benchmark, judged: tuple[BenchClaim, ...], output: Format) -> None:
    if output is Format.JSON:
        records = [msgspec.to_builtins(claim) | {"verdict": claim.verdict} for claim in judged]
        print_json(kept.record(found, {"claims": records}))
        return
    screen = console()
    for part in tables.parts(found, judged):
        screen.print(part)


def _draw(found: Benchmark, plot: Path) -> None:
    with extra_needed("mpsd bench --plot", "bench"):
        from mpsd.bench import plot as bench_plot
    bench_plot.draw(found, plot)
