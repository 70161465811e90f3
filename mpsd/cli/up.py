"""`mpsd up`: control and agent in one process."""

from mpsd.cli.running import AgentPlace, serve
from mpsd.platform.options import LimitsDirectory, ListenAt, LogFormat, RunDirectory, Simulate
from mpsd.platform.settings import listen_settings, settings


def up(
    simulate: Simulate = None,
    limits: LimitsDirectory = None,
    run_dir: RunDirectory = None,
    listen: ListenAt = None,
    log_format: LogFormat = None,
) -> None:
    """Share this machine's GPUs through MPS: supervise the daemons, grant shares, in the foreground.

    Ctrl-C (or SIGTERM) takes no new programs, waits for those that run, stops the daemons and puts everything back;
    a second Ctrl-C does not wait. Killed without warning, its daemons and programs go on, and the next `mpsd up`
    takes them over.

        mpsd up
        mpsd up --simulate H200x2     # no GPU needed
    """
    readers = listen_settings({"listen": listen}, in_cluster=False)
    chosen = settings(run_directory=run_dir, limits_directory=limits, simulate=simulate, log_format=log_format)
    serve(chosen, AgentPlace(readers), with_control=True)
