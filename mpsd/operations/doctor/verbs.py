"""`mpsd doctor`: what keeps MPS from starting or from holding on this machine, each with the one thing to do."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text

from mpsd.kubelet.settings import kubelet_directory
from mpsd.model.problem import InvalidInput, Problem, printable
from mpsd.operations.doctor import node
from mpsd.operations.doctor.node import Host
from mpsd.operations.doctor.rules.facts import CheckOutcome, CheckVerdict, Diagnosis, diagnose
from mpsd.operations.doctor.rules.host_checks import CHECKS
from mpsd.platform.console import ExitCode, Format, answers, print_json
from mpsd.platform.options import LimitsDirectory, OutputFormat, RunDirectory, Simulate
from mpsd.platform.settings import Settings, settings
from mpsd.simulator.gpus import FOLDER
from mpsd.simulator.machine import find_tools

# A diagnosis for people and for programs, of a node or of a cluster.
#
# One rule: the first line is the worst finding with the one thing to do about it.

Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Also what is well, and what does not apply here.")]
_STYLES = {
    CheckVerdict.FOUND: "red",
    CheckVerdict.UNKNOWN: "yellow",
    CheckVerdict.WELL: "green",
    CheckVerdict.ELSEWHERE: "dim",
}
_SILENT = {CheckVerdict.WELL, CheckVerdict.ELSEWHERE}
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
    is_worst_found = bool(diagnosis.of(CheckVerdict.FOUND))
    to.print(Text(_line(diagnosis.headline), "bold red" if is_worst_found else ""))
    for verdict in CheckVerdict:
        outcomes = diagnosis.of(verdict)
        if outcomes and (verbose or verdict not in _SILENT):
            to.print(Text.assemble("\n", (f"{verdict}: {len(outcomes)}", _STYLES[verdict])))
            for outcome in outcomes:
                for line in _lines(outcome):
                    to.print(line)
    silent = sum(len(diagnosis.of(verdict)) for verdict in _SILENT)
    if silent and not verbose and not diagnosis.is_well:
        to.print(f"\n{silent} more checks are well or do not apply (-v)")


def _lines(outcome: CheckOutcome) -> Iterator[Text]:
    check = outcome.check
    match outcome.verdict:
        case CheckVerdict.FOUND:
            yield Text.assemble(f"  {check.id} ", (f"({check.severity}; seen in {check.how})", "dim"))
            for wrong in outcome.wrong:
                yield Text.assemble(f"    {_line(wrong.what)}; ", (_line(wrong.remedy), "green"))
            if outcome.why:
                yield Text(f"    and not known for the rest: {_line(outcome.why)}")
        case CheckVerdict.UNKNOWN | CheckVerdict.ELSEWHERE:
            yield Text(f"  {check.id}: whether {check.well}: {_line(outcome.why)}")
        case CheckVerdict.WELL:
            yield Text.assemble(f"  {check.id}: {check.well} ", (f"({check.how})", "dim"))


def _line(text: str) -> str:
    """What a process or a driver said may hold anything."""
    return printable(text, _LONGEST)


Root = Annotated[
    str | None,
    typer.Option(
        "--root", metavar="DIR", help="A folder that stands for /, such as a container's /host.", show_default=False
    ),
]
KubeletDirectory = Annotated[
    str | None,
    typer.Option(
        "--kubelet-dir",
        metavar="DIR",
        help="Kubelet's root (MPSD_KUBELET_DIR; /var/lib/kubelet).",
        show_default=False,
    ),
]


def doctor(
    simulate: Simulate = None,
    limits: LimitsDirectory = None,
    run_dir: RunDirectory = None,
    root: Root = None,
    kubelet_dir: KubeletDirectory = None,
    verbose: Verbose = False,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Say what keeps MPS from starting or from holding on this machine, the worst first, and the one thing to do.

    The first line is the worst finding with its remedy; then every finding with how it was found, then what could not
    be known, and with -v what is well. It only looks: nothing is started, changed or asked of a daemon. Ask as root;
    what another user may not see is said to be unknown.

    Exits with 0 when all is well, 1 when something was found or cannot be known, 2 for a wrong question.

        mpsd doctor
        mpsd doctor -v
        mpsd doctor --simulate H200x2
        mpsd doctor --root /host -o json | jq '.checks[] | select(.verdict == "found")'
    """
    chosen = settings(run_directory=run_dir, limits_directory=limits, simulate=simulate)
    answer(diagnose(node.look(place_of(chosen, root, kubelet_dir)), CHECKS), output, verbose=verbose)


def place_of(chosen: Settings, root: str | None, kubelet_dir: str | None) -> node.NodeSurvey:
    """Played GPUs have nothing of a host's around them, unless a root for them is named."""
    host = Host(Path(root).absolute()) if root else None if chosen.simulate else Host(Path("/"))
    if host and not host.root.is_dir():
        problem = Problem("setting", "--root", printable(root or ""), "is no folder that is there", "name another")
        raise InvalidInput("settings", [problem])
    kubelet = kubelet_directory(kubelet_dir) if host or kubelet_dir else None
    if kubelet and host and not kubelet_dir:
        kubelet = host.root / str(kubelet).lstrip("/")
    played = str(chosen.simulation) if chosen.simulate else ""

    def is_here(seen: Mapping[str, str]) -> bool:
        return seen.get(FOLDER, "") == played

    try:
        tools = find_tools(chosen)
    except OSError:
        why = f"no simulated GPUs are in {chosen.simulation}; `mpsd up --simulate {chosen.simulate}` makes them"
        return node.NodeSurvey(chosen, why, {}, is_here, host, kubelet)
    return node.NodeSurvey(chosen, tools.nvml, tools.environment, is_here, host, kubelet)
