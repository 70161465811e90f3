"""`mpsd doctor`: what keeps MPS from starting or from holding on this machine, each with the one thing to do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from mpsd.kubelet.settings import kubelet_directory
from mpsd.model.problem import InvalidInput, Problem, printable
from mpsd.mps.node import find_tools
from mpsd.operations.doctor import doctor_facts
from mpsd.operations.doctor.doctor_host import Host
from mpsd.operations.doctor.doctor_report import Verbose, answer
from mpsd.operations.doctor.rules.doctor import diagnose
from mpsd.operations.doctor.rules.doctor_checks import CHECKS
from mpsd.platform.options import LimitsDirectory, RunDirectory, Simulate
from mpsd.platform.output import Format, OutputFormat
from mpsd.platform.settings import Settings, settings
from mpsd.simulator.gpus import FOLDER

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
    answer(diagnose(doctor_facts.look(place_of(chosen, root, kubelet_dir)), CHECKS), output, verbose=verbose)


def place_of(chosen: Settings, root: str | None, kubelet_dir: str | None) -> doctor_facts.Place:
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
        return doctor_facts.Place(chosen, why, {}, is_here, host, kubelet)
    return doctor_facts.Place(chosen, tools.nvml, tools.environment, is_here, host, kubelet)
