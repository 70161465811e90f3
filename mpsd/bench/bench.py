"""`mpsd bench`: what MPS and mpsd do on this machine's GPU.

One rule: it measures and cleans up, however it ends; what was measured until then is not lost.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mpsd.bench import kept, tables
from mpsd.bench.bench_measuring import Asked, measure
from mpsd.bench.here import Here
from mpsd.bench.rules.bench_claim import Claim, Verdict
from mpsd.bench.rules.bench_claims import claims
from mpsd.bench.rules.bench_rows import Benchmark, Part
from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform.limits_files import limits_folder, load_limits
from mpsd.platform.options import LimitsDirectory, Simulate
from mpsd.platform.output import ExitCode, Format, OutputFormat, print_json
from mpsd.platform.settings import settings
from mpsd.platform.verbs import extra_needed
from mpsd.status.frames import console

_PICTURES = (".png", ".svg")
_DRAWN = frozenset({Part.SHARING, Part.SHARES, Part.RATIO, Part.CLIENTS, Part.REACTIONS, Part.TORCH})


def bench(
    parts: Annotated[
        list[Part] | None, typer.Argument(metavar="PART", help="Only these parts; else all.", show_default=False)
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
        here = Here(chosen.simulate, load_limits(folder).facts, window, rounds, lambda _what: None, folder)
        socket = None if chosen.simulate else chosen.socket_to_ask
        found, code = measure(Asked(here, tuple(parts or Part), socket, save, beside_others))
    judged = claims(found)
    _print(found, judged, output)
    if plot:
        _draw(found, plot)
    broken = any(claim.verdict is Verdict.BROKEN for claim in judged)
    sys.exit(ExitCode.NO if broken else code)


# -- before --------------------------------------------------------------------------------------------------------


def _check(save: Path | None, plot: Path | None, parts: list[Part] | None, not_with_show: dict[str, object]) -> None:
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


def _print(found: Benchmark, judged: tuple[Claim, ...], output: Format) -> None:
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
