"""`mpsd agent`: the part that grants and watches."""

from mpsd.cli.options import LimitsDirectory, LogFormat, RunDirectory, Simulate
from mpsd.cli.running import serve


def agent(
    simulate: Simulate = None,
    limits: LimitsDirectory = None,
    run_dir: RunDirectory = None,
    log_format: LogFormat = None,
) -> None:
    """Grant shares of this node's GPUs and keep the limits of `mpsd control`'s daemons, in the foreground.

    It may be killed or restarted at any time: no program notices, and grants are found again.
    """
    serve(simulate, limits, run_dir, log_format, with_control=False, with_agent=True)
