"""`mpsd up`: control and agent in one process."""

from mpsd.cli.running import AgentPlace, serve
from mpsd.platform.options import taking
from mpsd.platform.settings import LISTEN_SETTINGS, LOG_FORMAT, NODE_SETTINGS, listen_settings, settings

_OF_NODE = {name: NODE_SETTINGS[name] for name in ("simulate", "limits_directory", "run_directory")}


@taking({**_OF_NODE, "listen": LISTEN_SETTINGS["listen"], "log_format": LOG_FORMAT})
def up(**flags: str | None) -> None:
    """Share this machine's GPUs through MPS: supervise the daemons, grant shares, in the foreground.

    After Ctrl-C (or SIGTERM) it accepts no new programs, waits for those that run, stops the daemons and restores the
    GPUs; a second Ctrl-C does not wait. If it is killed, its daemons and programs continue, and the next `mpsd up`
    takes them over.

        mpsd up
        mpsd up --simulate H200x2     # no GPU needed
    """
    readers = listen_settings(flags, in_cluster=False)
    chosen = settings(
        run_directory=flags["run_directory"],
        limits_directory=flags["limits_directory"],
        simulate=flags["simulate"],
        log_format=flags["log_format"],
    )
    serve(chosen, AgentPlace(readers), with_control=True)
