"""How a diagnosis of a node or of a cluster is shown: to people the most serious finding first, to programs as JSON."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text

from mpsd.model.problem import printable
from mpsd.operations.doctor.rules.checks import CheckOutcome, CheckVerdict, Diagnosis, Severity
from mpsd.platform.console import ExitCode, Format, answers, print_json

Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Also list checks that passed or do not apply.")]
_STYLES = {
    CheckVerdict.FOUND: "red",
    CheckVerdict.UNKNOWN: "yellow",
    CheckVerdict.WELL: "green",
    CheckVerdict.NOT_APPLICABLE: "dim",
}
_SILENT = {CheckVerdict.WELL, CheckVerdict.NOT_APPLICABLE}
_LONGEST = 1000


def answer(diagnosis: Diagnosis, output: Format, *, verbose: bool) -> NoReturn:
    """Shows a diagnosis, and ends the program with the exit code that it means."""
    if output is Format.JSON:
        print_json(record(diagnosis))
    else:
        _show(diagnosis, verbose=verbose)
    sys.stdout.flush()
    sys.exit(ExitCode.YES if diagnosis.is_well else ExitCode.NO)


def record(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as JSON."""
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
                "wrong": [asdict(finding) for finding in outcome.findings],
                "why": outcome.why,
            }
            for outcome in diagnosis.outcomes
        ],
    }


def _show(diagnosis: Diagnosis, *, verbose: bool) -> None:
    to = answers()
    found = diagnosis.of(CheckVerdict.FOUND)
    style = "" if not found else "bold yellow" if found[0].check.severity is Severity.NOTE else "bold red"
    to.print(Text(_line(diagnosis.headline), style))
    for verdict in CheckVerdict:
        outcomes = diagnosis.of(verdict)
        if outcomes and (verbose or verdict not in _SILENT):
            to.print(Text.assemble("\n", (f"{verdict}: {len(outcomes)}", _STYLES[verdict])))
            for outcome in outcomes:
                for line in _lines(outcome):
                    to.print(line)
    silent = sum(len(diagnosis.of(verdict)) for verdict in _SILENT)
    if silent and not verbose and silent < len(diagnosis.outcomes):
        to.print(f"\n{silent} other checks passed or were skipped (-v)")


def _lines(outcome: CheckOutcome) -> Iterator[Text]:
    check = outcome.check
    match outcome.verdict:
        case CheckVerdict.FOUND:
            yield Text.assemble(f"  {check.id} ", (f"({check.severity}; seen in {check.how})", "dim"))
            for finding in outcome.findings:
                yield Text.assemble(f"    {_line(finding.what)}; ", (_line(finding.remedy), "green"))
            if outcome.why:
                yield Text(f"    and not known for the rest: {_line(outcome.why)}")
        case CheckVerdict.UNKNOWN | CheckVerdict.NOT_APPLICABLE:
            yield Text(f"  {check.id}: whether {check.well}: {_line(outcome.why)}")
        case CheckVerdict.WELL:
            yield Text.assemble(f"  {check.id}: {check.well} ", (f"({check.how})", "dim"))


def _line(text: str) -> str:
    """Text of a process or a driver may hold anything."""
    return printable(text, _LONGEST)
