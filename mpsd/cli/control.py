"""`mpsd control`: the part that holds the control daemons."""

from typing import Annotated

import typer

from mpsd.cli.options import LimitsDirectory, LogFormat, RunDirectory, Simulate
from mpsd.cli.running import serve


def control(
    simulate: Simulate = None,
    limits: LimitsDirectory = None,
    run_dir: RunDirectory = None,
    log_format: LogFormat = None,
    daemon_cgroup: Annotated[
        str | None,
        typer.Option(
            "--daemon-cgroup",
            metavar="DIR",
            help="The host's /sys/fs/cgroup: there each daemon gets a cgroup of its own, so that it outlives this "
            "container (MPSD_DAEMON_CGROUP; else it stays in this one's).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Hold this node's MPS control daemons: start, adopt, restart and drain them, in the foreground.

    Programs die with their daemon, so this part is small and seldom restarted; `mpsd agent` does the rest. Killed
    without warning, its daemons go on, and the next `mpsd control` takes them over.
    """
    serve(simulate, limits, run_dir, log_format, with_control=True, with_agent=False, daemon_cgroup=daemon_cgroup)
