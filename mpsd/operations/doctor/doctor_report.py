"""A diagnosis for people and for programs, of a node or of a cluster.

One rule: the first line is the worst finding with the one thing to do about it.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text

from mpsd.model.problem import printable
from mpsd.operations.doctor.rules.doctor import Diagnosis, Outcome, Verdict
from mpsd.platform.output import ExitCode, Format, answers, print_json

Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Also what is well, and what does not apply here.")]
_STYLES = {Verdict.FOUND: "red", Verdict.UNKNOWN: "yellow", Verdict.WELL: "green", Verdict.ELSEWHERE: "dim"}
_SILENT = {Verdict.WELL, Verdict.ELSEWHERE}
_LONGEST = 1000


def answer(diagnosis: Diagnosis, output: Format, *, verbose: bool) -> NoReturn:
    """Shows it, and ends the program with what it says."""
    if output is Format.JSON:
        print_json(record(diagnosis))
    else:
        _show(diagnosis, verbose=verbose)
    sys.stdout.flush()
    sys.exit(ExitCode.YES if diagnosis.is_well else ExitCode.NO)


def record(diagnosis: Diagnosis) -> dict[str, Any]:
    """For programs."""
    return {
        "well": diagnosis.is_well,
        "headline": diagnosis.headline,
        "checks": [
            {
                "id": outcome.check.id,
                "verdict": outcome.verdict,
                "severity": outcome.check.severity.name.lower(),
                "well": outcome.check.well,
                "how": outcome.check.how,
                "wrong": [asdict(wrong) for wrong in outcome.wrong],
                "why": outcome.why,
            }
            for outcome in diagnosis.outcomes
        ],
    }


def _show(diagnosis: Diagnosis, *, verbose: bool) -> None:
    to = answers()
    is_worst_found = bool(diagnosis.of(Verdict.FOUND))
    to.print(Text(_line(diagnosis.headline), "bold red" if is_worst_found else ""))
    for verdict in Verdict:
        outcomes = diagnosis.of(verdict)
        if outcomes and (verbose or verdict not in _SILENT):
            to.print(Text.assemble("\n", (f"{verdict}: {len(outcomes)}", _STYLES[verdict])))
            for outcome in outcomes:
                for line in _lines(outcome):
                    to.print(line)
    silent = sum(len(diagnosis.of(verdict)) for verdict in _SILENT)
    if silent and not verbose and not diagnosis.is_well:
        to.print(f"\n{silent} more checks are well or do not apply (-v)")


def _lines(outcome: Outcome) -> Iterator[Text]:
    check = outcome.check
    match outcome.verdict:
        case Verdict.FOUND:
            yield Text.assemble(f"  {check.id} ", (f"({check.severity}; seen in {check.how})", "dim"))
            for wrong in outcome.wrong:
                yield Text.assemble(f"    {_line(wrong.what)}; ", (_line(wrong.remedy), "green"))
            if outcome.why:
                yield Text(f"    and not known for the rest: {_line(outcome.why)}")
        case Verdict.UNKNOWN | Verdict.ELSEWHERE:
            yield Text(f"  {check.id}: whether {check.well}: {_line(outcome.why)}")
        case Verdict.WELL:
            yield Text.assemble(f"  {check.id}: {check.well} ", (f"({check.how})", "dim"))


def _line(text: str) -> str:
    """What a process or a driver said may hold anything."""
    return printable(text, _LONGEST)
