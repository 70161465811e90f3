"""`mpsd bench`: measures what MPS and mpsd do on one GPU, saves it, and compares it with what mpsd
promises."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mpsd.bench import tables
from mpsd.bench.rules.claims import BenchClaim, ClaimVerdict, claims
from mpsd.bench.rules.rows import VERSION, BenchGroup, Benchmark
from mpsd.bench.run import BenchOptions, measure
from mpsd.bench.testbeds import BenchContext
from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform import records
from mpsd.platform.command_line import (
    LIMITS,
    OUTPUT,
    SIMULATED,
    Between,
    OneOf,
    flag,
    option,
    takes,
)
from mpsd.platform.console import ExitCode, Format, complaints, print_json
from mpsd.platform.limits_files import load_limits, shipped_folder
from mpsd.platform.settings import settings
from mpsd.platform.terminal import console


@takes(
    option(
        "groups",
        nargs="*",
        type=OneOf(BenchGroup),
        metavar="GROUP",
        help="Only these groups; else all.",
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
        metavar="FILE.json",
        help="Measure nothing, show saved results.",
    ),
    LIMITS,
)
def bench(
    *,
    groups: list[BenchGroup] | None = None,
    window: float = 2.0,
    rounds: int = 20,
    simulate: str | None = None,
    beside_others: bool = False,
    output: Format = Format.TEXT,
    save: Path | None = None,
    show: Path | None = None,
    limits: str | None = None,
) -> None:
    """Measure what MPS and mpsd do on one GPU of this machine, and compare it with what mpsd
    promises.

    The GPU is the first of those with the least memory.

    Each group answers one question. The number is its duration in minutes with the default window
    of 2 s:

        sharing     5   what many programs get done: in turns, MPS, mpsd
        shares      3   whether 30 % of the threads do 30 % of the work
        cost        5   what mpsd costs against MPS alone
        reactions   1   how soon mpsd ends escapes, dead daemons and faults

    It starts its own mpsd and MPS daemons, in folders of its own, and needs the GPUs for itself: it
    is refused while other programs use them. It changes no setting of a card. Ctrl-C at any moment
    leaves nothing behind.

        mpsd bench --save all.json            measure everything and save it
        mpsd bench shares --simulate H200     simulated, without a GPU
        mpsd bench --show all.json            tables of an earlier run

    Exits with 0 where every claim that was measured holds, 1 where one does not or it could not be
    measured.
    """
    of_a_run: dict[str, object] = {
        "GROUP": groups,
        "--simulate": simulate,
        "--beside-others": beside_others,
    }
    _check(save, [word for word, value in of_a_run.items() if value and show])
    if show:
        found = _load(show)
        code = ExitCode.YES
        _save(found, save)
    else:
        chosen = settings(simulate=simulate, limits_directory=limits)
        folder = chosen.limits_directory or shipped_folder()
        context = BenchContext(
            chosen.simulate, load_limits(folder).facts, window, rounds, _say_step, folder
        )
        socket = None if chosen.simulate else chosen.socket_to_ask
        found, code = measure(
            BenchOptions(
                context,
                tuple(groups or BenchGroup),
                socket,
                lambda run: _save(run, save),
                beside_others,
            )
        )
    judged = claims(found)
    _print(found, judged, output)
    broken = any(claim.verdict is ClaimVerdict.BROKEN for claim in judged)
    sys.exit(ExitCode.NO if broken else code)


def _say_step(what: str) -> None:
    complaints().print(f"mpsd bench: {what}")


def _check(save: Path | None, not_with_show: Iterable[str]) -> None:
    """Everything that would be found out too late. InvalidInput."""
    problems = [*_unwritable("--save", save)]
    for word in not_with_show:
        remedy = "leave it out, or leave --show out to measure"
        problems.append(
            Problem("not-with-show", word, "", "cannot be combined with --show", remedy)
        )
    if problems:
        raise InvalidInput("mpsd bench", problems)


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
    return (
        [Problem("cannot-save", option, str(path), message, "name a file that can be made")]
        if message
        else []
    )


def _print(found: Benchmark, judged: tuple[BenchClaim, ...], output: Format) -> None:
    if output is Format.JSON:
        judgements = [msgspec.to_builtins(claim) | {"verdict": claim.verdict} for claim in judged]
        print_json(msgspec.to_builtins(found) | {"claims": judgements})
        return
    screen = console()
    for part in tables.shown(found, judged):
        screen.print(part)


# -- files: what --save writes and --show reads

_READABLE = 0o644
_REMEDY = "name a file that `mpsd bench --save FILE.json` or `-o json` has written"


class _Versioned(msgspec.Struct):
    version: int


def _save(benchmark: Benchmark, path: Path | None) -> None:
    """The whole file or nothing; path None: nowhere. OSError."""
    if path:
        records.write(path, benchmark, _READABLE)


def _load(path: Path) -> Benchmark:
    """InvalidInput with what is wrong with the file."""
    found = _read(path)
    if isinstance(found, Problem):
        raise InvalidInput("mpsd bench --show", [found])
    return found


def _read(path: Path) -> Benchmark | Problem:
    try:
        text = path.read_bytes()
        version = msgspec.json.decode(text, type=_Versioned).version
        if version != VERSION:
            message = f"this mpsd reads version {VERSION}"
            return Problem(
                "other-version",
                f"{path}: version",
                str(version),
                message,
                "use the mpsd that wrote it",
            )
        return msgspec.json.decode(text, type=Benchmark)
    except OSError as error:
        return Problem("unreadable-file", str(path), "", error.strerror or str(error), _REMEDY)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        message, _at, place = str(error).partition(" - at `$")
        where = f"{path}: {place.strip('.`')}" if place else str(path)
        return Problem("not-a-benchmark", where, "", f"is not a benchmark: {message}", _REMEDY)
