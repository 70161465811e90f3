"""How a diagnosis is shown: to people the most serious finding first, to programs as JSON."""

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from rich.text import Text

from mpsd.operations.doctor.rules.checks import CheckOutcome, CheckVerdict, Diagnosis, Severity
from mpsd.platform.command_line import flag
from mpsd.platform.console import ExitCode, Format, answers, one_line, print_json

VERBOSE = flag("-v", "--verbose", help="Also list checks that passed or do not apply.")
_STYLES = dict(zip(CheckVerdict, ("red", "yellow", "green", "dim"), strict=True))
_SILENT = {CheckVerdict.WELL, CheckVerdict.NOT_APPLICABLE}


def answer(diagnosis: Diagnosis, output: Format, *, verbose: bool) -> NoReturn:
    if output is Format.JSON:
        print_json(record(diagnosis))
    else:
        _show(diagnosis, verbose=verbose)
    sys.stdout.flush()
    sys.exit(ExitCode.of(diagnosis.is_well))


def record(diagnosis: Diagnosis) -> dict[str, Any]:
    checks = [
        {
            "id": outcome.check.id,
            "verdict": outcome.verdict,
            "severity": outcome.check.severity.name.lower(),
            "well": outcome.check.well,
            "how": outcome.check.how,
            "wrong": outcome.findings,
            "why": outcome.why,
        }
        for outcome in diagnosis.outcomes
    ]
    return {"well": diagnosis.is_well, "headline": diagnosis.headline, "checks": checks}


def _show(diagnosis: Diagnosis, *, verbose: bool) -> None:
    to = answers()
    found = diagnosis.of(CheckVerdict.FOUND)
    style = ""
    if found:
        style = "bold red"
        if found[0].check.severity is Severity.NOTE:
            style = "bold yellow"
    to.print(Text(one_line(diagnosis.headline), style))
    for verdict in CheckVerdict:
        outcomes = diagnosis.of(verdict)
        if outcomes and (verbose or verdict not in _SILENT):
            to.print(Text.assemble("\n", (f"{verdict}: {len(outcomes)}", _STYLES[verdict])))
            for outcome in outcomes:
                to.print(*_lines(outcome), sep="\n")
    silent = sum(len(diagnosis.of(verdict)) for verdict in _SILENT)
    if silent and not verbose and silent < len(diagnosis.outcomes):
        to.print(f"\n{silent} other checks passed or were skipped (-v)")


def _lines(outcome: CheckOutcome) -> Iterator[Text]:
    # what processes and drivers write may hold anything
    check = outcome.check
    why = one_line(outcome.why)
    match outcome.verdict:
        case CheckVerdict.FOUND:
            seen = f"({check.severity}; seen in {check.how})"
            yield Text.assemble(f"  {check.id} ", (seen, "dim"))
            for finding in outcome.findings:
                remedy = (one_line(finding.remedy), "green")
                yield Text.assemble(f"    {one_line(finding.what)}; ", remedy)
            if why:
                yield Text(f"    and not known for the rest: {why}")
        case CheckVerdict.WELL:
            yield Text.assemble(f"  {check.id}: {check.well} ", (f"({check.how})", "dim"))
        case _:
            yield Text(f"  {check.id}: whether {check.well}: {why}")
