"""`mpsd control`: supervises the control daemons, and can put back what an mpsd that is gone has left behind.

Its composition is its own and small: this process must seldom change, because programs end with their daemon.
"""

import asyncio
import shutil
import sys
from dataclasses import asdict
from typing import Annotated, NoReturn

import typer

from mpsd.cli import foreground
from mpsd.cli.domains import ControlRole
from mpsd.model.domain import domains
from mpsd.model.policy import Policy
from mpsd.mps import compute_modes
from mpsd.mps.compute_modes import Released, ReleaseOutcome
from mpsd.platform import event_loop, logs, run_directory
from mpsd.platform.console import ExitCode, Format, answers, complaints, print_json
from mpsd.platform.limits_files import LimitsFiles, watch_limits
from mpsd.platform.nvml import NvmlFailed
from mpsd.platform.options import LimitsDirectory, LogFormat, OutputFormat, RunDirectory, Simulate, option
from mpsd.platform.settings import DAEMON_CGROUP, Settings, settings
from mpsd.simulator.machine import find_node, find_tools


def control(
    simulate: Simulate = None,
    limits: LimitsDirectory = None,
    run_dir: RunDirectory = None,
    log_format: LogFormat = None,
    daemon_cgroup: Annotated[str | None, option(DAEMON_CGROUP)] = None,
    release: Annotated[
        bool,
        typer.Option("--release", help="Restore the compute modes that an earlier mpsd left behind, and exit."),
    ] = False,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Supervise this node's MPS control daemons: start, adopt, restart and drain them, in the foreground.

    Programs end with their daemon, so this part is small and seldom restarted; `mpsd agent` does the rest. If it is
    killed, its daemons continue, and the next `mpsd control` takes them over.

    If there will be no next one, --release restores the compute mode that each GPU had when mpsd first found it in this
    boot, and reports each GPU (-o json for programs); it may be repeated. It exits with 0 when nothing is left to
    restore, and with 1 when something is: mpsd still runs, programs use MPS, or NVML refuses the change.

        mpsd control --release
    """
    if release:
        _release(settings(run_directory=run_dir, limits_directory=limits, simulate=simulate), output)
    chosen = settings(
        run_directory=run_dir,
        limits_directory=limits,
        simulate=simulate,
        log_format=log_format,
        daemon_cgroup=daemon_cgroup,
    )
    foreground.serve(chosen, lambda: _run(chosen), with_control=True)


async def _run(chosen: Settings) -> int:
    """Until a signal; then the daemons are drained and stopped."""
    files, log = LimitsFiles(chosen.limits_directory), logs.logger()
    node = find_node(chosen, files.facts)

    def policy() -> Policy:
        return files.policy

    role = ControlRole(chosen, domains(node.gpus, policy()), node, policy)
    stop = asyncio.Event()
    event_loop.on_stop_signals(stop.set, role.hurry)
    with foreground.directory_in_sight(chosen.run_directory) as directory:
        async with asyncio.TaskGroup() as tasks:
            watches = [
                tasks.create_task(watch_limits(files, log)),
                tasks.create_task(foreground.watch_directory(directory)),
            ]
            await role.run(stop)
            for watch in watches:
                watch.cancel()
    node.nvml.close()
    if chosen.simulate:
        shutil.rmtree(chosen.simulation)
    return ExitCode.YES


def _release(chosen: Settings, output: Format) -> NoReturn:
    try:
        released = _of_this_directory(chosen)
    except (run_directory.AlreadyHeld, NvmlFailed, OSError) as error:
        complaints().print(f"mpsd control --release: {error}")
        sys.exit(ExitCode.NO)
    if output is Format.JSON:
        print_json([asdict(row) for row in released])
    else:
        for line in map(_line, released):
            answers().print(line)
        if not released:
            answers().print(f"nothing to restore: no record of this boot in {chosen.run_directory} has a compute mode")
    sys.exit(ExitCode.NO if any(row.outcome is ReleaseOutcome.LEFT for row in released) else ExitCode.YES)


def _of_this_directory(chosen: Settings) -> tuple[Released, ...]:
    if not chosen.run_directory.exists():
        return ()
    with run_directory.held(chosen.run_directory):
        return compute_modes.release(chosen.run_directory, lambda: find_tools(chosen))


def _line(row: Released) -> str:
    if row.gpu is None:
        return f"{row.domain}: compute mode not restored: {row.reason}"
    why = f": {row.reason}" if row.reason else ""
    return f"{row.domain} {row.gpu}: compute mode {row.mode} {_WORDS[row.outcome]}{why}"


_WORDS = {
    ReleaseOutcome.PUT_BACK: "restored",
    ReleaseOutcome.WAS_SO: "is already set",
    ReleaseOutcome.LEFT: "not restored",
}
