"""`mpsd bench`: measures what MPS and mpsd do on one GPU, saves it, and compares it with what mpsd promises."""

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from mpsd.bench import tables
from mpsd.bench.rules.claims import BenchClaim, ClaimVerdict, claims
from mpsd.bench.rules.rows import VERSION, Benchmark, BenchPart, together
from mpsd.bench.run import BenchOptions, measure
from mpsd.bench.testbeds import BenchContext
from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform import records
from mpsd.platform.command_line import LIMITS, OUTPUT, SIMULATED, Between, OneOf, flag, option, takes
from mpsd.platform.console import ExitCode, Format, extra_needed, print_json
from mpsd.platform.limits_files import load_limits, shipped_folder
from mpsd.platform.settings import settings
from mpsd.platform.terminal import console

_PICTURES = (".png", ".svg")
_DRAWN = frozenset(
    {BenchPart.SHARING, BenchPart.SHARES, BenchPart.RATIO, BenchPart.CLIENTS, BenchPart.REACTIONS, BenchPart.TORCH}
)


@takes(
    option(
        "parts",
        nargs="*",
        type=OneOf(BenchPart),
        metavar="PART",
        help="Only these parts; else all.",
    ),
    option(
        "--window",
        type=Between(0.05, 600),
        metavar="SECONDS",
        help="How long each measurement lasts.",
    ),
    option(
        "--rounds",
        type=Between(1, 1000, int),
        metavar="N",
        help="How often each reaction is timed.",
    ),
    SIMULATED,
    flag("--beside-others", help="Measure although others use the GPUs; it affects the results."),
    OUTPUT,
    option(
        "--save",
        type=Path,
        metavar="FILE.json",
        help="Save the results, also of an interrupted run.",
    ),
    option(
        "--show",
        type=Path,
        action="append",
        metavar="FILE.json",
        help="Measure nothing, show saved results; repeat for more files.",
    ),
    option("--plot", type=Path, metavar="FILE.png|svg", help="Draw the results too."),
    LIMITS,
)
def bench(
    *,
    parts: list[BenchPart] | None = None,
    window: float = 2.0,
    rounds: int = 20,
    simulate: str | None = None,
    beside_others: bool = False,
    output: Format = Format.TEXT,
    save: Path | None = None,
    show: list[Path] | None = None,
    plot: Path | None = None,
    limits: str | None = None,
) -> None:
    """Measure what MPS and mpsd do on one GPU of this machine, and compare it with what mpsd promises.

    The GPU is the first of those with the least memory.

    Each part answers one question. The number is its duration in minutes with the default window of 2 s:

        sharing     1.5   what many programs get done: in turns, MPS, mpsd
        shares      1.5   whether 30 % of the threads do 30 % of the work
        ratio       0.5   whether two programs with shares of 1:2 get 1:2
        sizes       1     whether a grant's memory changes what it computes
        need        0.2   whether a program that needs too much is stopped
        cost        5     what mpsd costs against MPS alone
        clients     1     how throughput changes with more and more programs
        priority    0.5   whether requests keep their latency beside batch
        reactions   1     how soon mpsd ends escapes, dead daemons and faults
        torch       2     whether ResNet-50 gets 1:2 (needs torchvision)

    It starts its own mpsd and MPS daemons, in folders of its own, and needs the GPUs for itself: it is refused while
    other programs use them. It changes no setting of a card. Ctrl-C at any moment leaves nothing behind.

        mpsd bench --save all.json            measure everything and save it
        mpsd bench shares --plot shares.png   one part, and a picture
        mpsd bench need --simulate H200       simulated, without a GPU
        mpsd bench --show all.json            tables of an earlier run

    Exits with 0 where every claim that was measured holds, 1 where one does not or it could not be measured.
    """
    of_a_run: dict[str, object] = {"PART": parts, "--simulate": simulate, "--beside-others": beside_others}
    not_with_show = [option for option, value in of_a_run.items() if value and show]
    _check(save, plot, parts, not_with_show)
    if show:
        found, code = _load(show), ExitCode.YES
        _save(found, save)
    else:
        chosen = settings(simulate=simulate, limits_directory=limits)
        folder = chosen.limits_directory or shipped_folder()
        context = BenchContext(chosen.simulate, load_limits(folder).facts, window, rounds, lambda _what: None, folder)
        socket = None if chosen.simulate else chosen.socket_to_ask
        found, code = measure(
            BenchOptions(context, tuple(parts or BenchPart), socket, lambda run: _save(run, save), beside_others)
        )
    judged = claims(found)
    _print(found, judged, output)
    if plot:
        _draw(found, plot)
    broken = any(claim.verdict is ClaimVerdict.BROKEN for claim in judged)
    sys.exit(ExitCode.NO if broken else code)


def _check(
    save: Path | None, plot: Path | None, parts: Sequence[BenchPart] | None, not_with_show: Iterable[str]
) -> None:
    """Everything that would be found out too late. InvalidInput."""
    problems = [*_unwritable("--save", save), *_unwritable("--plot", plot)]
    if plot and plot.suffix not in _PICTURES:
        remedy = f"end the name with {' or '.join(_PICTURES)}"
        problems.append(Problem("picture-format", "--plot", str(plot), "is not a supported picture format", remedy))
    if plot and parts and not _DRAWN.intersection(parts):
        remedy = f"leave it out, or measure {', '.join(sorted(_DRAWN))} too"
        problems.append(Problem("nothing-to-draw", "--plot", str(plot), "has nothing to show of these parts", remedy))
    for word in not_with_show:
        remedy = "leave it out, or leave --show out to measure"
        problems.append(Problem("not-with-show", word, "", "cannot be combined with --show", remedy))
    if problems:
        raise InvalidInput("mpsd bench", problems)
    if plot:
        with extra_needed("mpsd bench --plot", "bench"):
            if find_spec("matplotlib") is None:
                raise ModuleNotFoundError(name="matplotlib")


def _unwritable(option: str, path: Path | None) -> list[Problem]:
    """Why nothing could be written there, asked before anything is measured."""
    if path is None:
        return []
    message = ""
    if not path.parent.is_dir():
        message = f"there is no folder {path.parent}"
    elif path.is_dir():
        message = "is a folder"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        message = f"you may not write to {path.parent}"
    return [Problem("cannot-save", option, str(path), message, "name a file that can be made")] if message else []


def _print(found: Benchmark, judged: tuple[BenchClaim, ...], output: Format) -> None:
    if output is Format.JSON:
        judgements = [msgspec.to_builtins(claim) | {"verdict": claim.verdict} for claim in judged]
        print_json(msgspec.to_builtins(found) | {"claims": judgements})
        return
    screen = console()
    for part in tables.parts(found, judged):
        screen.print(part)


def _draw(found: Benchmark, plot: Path) -> None:
    with extra_needed("mpsd bench --plot", "bench"):
        from mpsd.bench import plot as bench_plot
    bench_plot.draw(found, plot)


# -- files: what --save writes and --show reads ----------------------------------------------------------------------

_READABLE = 0o644
_REMEDY = "name a file that `mpsd bench --save FILE.json` or `-o json` has written"


class _Versioned(msgspec.Struct):
    version: int


def _save(benchmark: Benchmark, path: Path | None) -> None:
    """The whole file or nothing; path None: nowhere. OSError."""
    if path:
        records.write(path, benchmark, _READABLE)


def _load(paths: Sequence[Path]) -> Benchmark:
    """The runs in these files, at least one, as one. InvalidInput with what is wrong with each file."""
    found = [(str(path), _read(path)) for path in paths]
    if problems := [run for _file, run in found if isinstance(run, Problem)]:
        raise InvalidInput("mpsd bench --show", problems)
    return together([(file, run) for file, run in found if isinstance(run, Benchmark)])


def _read(path: Path) -> Benchmark | Problem:
    try:
        text = path.read_bytes()
        version = msgspec.json.decode(text, type=_Versioned).version
        if version != VERSION:
            message = f"this mpsd reads version {VERSION}"
            return Problem("other-version", f"{path}: version", str(version), message, "use the mpsd that wrote it")
        return msgspec.json.decode(text, type=Benchmark)
    except OSError as error:
        return Problem("unreadable-file", str(path), "", error.strerror or str(error), _REMEDY)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        message, _at, place = str(error).partition(" - at `$")
        where = f"{path}: {place.strip('.`')}" if place else str(path)
        return Problem("not-a-benchmark", where, "", f"is not a benchmark: {message}", _REMEDY)
