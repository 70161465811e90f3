"""`mpsd control`: the part that holds the control daemons."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

from mpsd.cli.running import serve
from mpsd.model.node_view import DomainRecord, is_of_boot
from mpsd.mps import control_daemon
from mpsd.mps.compute_modes import put_back
from mpsd.mps.control_daemon import ControlFailed, ControlPipe
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import NotUnderstood
from mpsd.platform import processes, records, run_directory
from mpsd.platform.console import ExitCode, Format, answers, complaints, print_json
from mpsd.platform.domain_folder import DomainFolder
from mpsd.platform.nvml import Nvml, NvmlFailed
from mpsd.platform.options import LimitsDirectory, LogFormat, OutputFormat, RunDirectory, Simulate
from mpsd.platform.settings import Settings, settings
from mpsd.simulator.machine import find_tools

# `mpsd control --release`: puts back the compute modes that an mpsd which is gone has left behind.
#
# One rule: nothing is changed under a program. Who has one on MPS, or does not say, keeps the mode until it has ended.

_COMMAND_S = 2.0
_NAMES = {0: "DEFAULT", 1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}  # NVML's


class ReleaseOutcome(StrEnum):
    """What became of a GPU's compute mode."""

    PUT_BACK = "put back"
    WAS_SO = "was so already"
    LEFT = "left as it is"


@dataclass(frozen=True, slots=True)
class Released:
    """gpu, mode: None where the record cannot be read. mode: the name of what was found before mpsd. reason: why it was
    left as it is; empty where it was not.
    """

    domain: str
    gpu: str | None
    mode: str | None
    outcome: ReleaseOutcome
    reason: str = ""


def release(settings: Settings) -> tuple[Released, ...]:
    """What became of every GPU that a record of this boot names; none where nothing was left behind.

    The run directory must be held. NvmlFailed where there is no driver.
    """
    found, done = _records(settings)
    if not found:
        return tuple(done)
    tools = find_tools(settings)
    tools.nvml.open()
    try:
        for folder, record in found:
            why = asyncio.run(_in_use(folder, record, ControlPipe(folder.pipe, tools.environment, _COMMAND_S)))
            rows = tuple(_released(record, tools.nvml, why))
            left = {row.gpu for row in rows if row.outcome is ReleaseOutcome.LEFT}
            modes = {uuid: mode for uuid, mode in record.compute_modes.items() if uuid in left}
            records.write(folder.record, replace(record, compute_modes=modes), mode=0o644)
            done += rows
        return tuple(done)
    finally:
        tools.nvml.close()


def _records(settings: Settings) -> tuple[list[tuple[DomainFolder, DomainRecord]], list[Released]]:
    """Those of this boot with a mode to put back, and what is said of each that nobody can read."""
    found, unreadable = [], []
    for path in sorted(settings.run_directory.glob("gpu*/record.json")):
        try:
            record = records.read(path, DomainRecord)
        except records.UnreadableRecord as error:
            remedy = "set the mode by hand (nvidia-smi -i GPU -c DEFAULT), then remove the file"
            reason = f"{path} cannot be read: {error.reason}; {remedy}"
            unreadable.append(Released(path.parent.name, None, None, ReleaseOutcome.LEFT, reason))
            continue
        if record and record.compute_modes and is_of_boot(record, processes.boot_id()):
            found.append((DomainFolder(path.parent), record))
    return found, unreadable


def _released(record: DomainRecord, nvml: Nvml, in_use: str) -> Iterator[Released]:
    for uuid, mode in record.compute_modes.items():
        name = _NAMES.get(mode, str(mode))
        if in_use:
            yield Released(record.domain, uuid, name, ReleaseOutcome.LEFT, in_use)
            continue
        try:
            changed = put_back(nvml, uuid, mode)
        except NvmlFailed as error:
            yield Released(record.domain, uuid, name, ReleaseOutcome.LEFT, str(error))
        else:
            yield Released(record.domain, uuid, name, ReleaseOutcome.PUT_BACK if changed else ReleaseOutcome.WAS_SO)


async def _in_use(folder: DomainFolder, record: DomainRecord, pipe: ControlPipe) -> str:
    """Who would lose something, in words; empty where nobody would."""
    try:
        daemon = control_daemon.listener(folder)
        if daemon is None:
            alive = record.daemon is not None and processes.is_alive(record.daemon)
            return f"its control daemon ({record.daemon}) lives and does not listen; end it first" if alive else ""
        servers = await pipe.ask(control_protocol.server_list())
        clients = [pid for each in await pipe.clients(servers) for pid in each]
    except (ControlFailed, NotUnderstood, OSError) as error:
        return f"its control daemon does not say who is on it: {error}; end it first"
    if clients:
        return f"programs run on its control daemon ({daemon}): pid {', '.join(map(str, clients))}; end them first"
    return ""


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
    release: Annotated[
        bool,
        typer.Option("--release", help="Put back the compute modes that an mpsd which is gone left behind, and end."),
    ] = False,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Hold this node's MPS control daemons: start, adopt, restart and drain them, in the foreground.

    Programs die with their daemon, so this part is small and seldom restarted; `mpsd agent` does the rest. Killed
    without warning, its daemons go on, and the next `mpsd control` takes them over.

    Where there will be no next one, --release puts each GPU's compute mode back to what was found on it in this boot,
    says so of each (-o json for programs), and may be repeated. It exits with 0 when nothing is left to put back, and
    with 1 when something is: mpsd still runs, programs are on MPS, or NVML does not do it.

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
    serve(chosen, None, with_control=True)


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
            answers().print(f"nothing to put back: no record of this boot in {chosen.run_directory} has a compute mode")
    sys.exit(ExitCode.NO if any(row.outcome is ReleaseOutcome.LEFT for row in released) else ExitCode.YES)


def _of_this_directory(chosen: Settings) -> tuple[Released, ...]:
    if not chosen.run_directory.exists():
        return ()
    with run_directory.held(chosen.run_directory):
        return release(chosen)


def _line(row: Released) -> str:
    if row.gpu is None:
        return f"{row.domain}: compute mode not put back: {row.reason}"
    why = f": {row.reason}" if row.reason else ""
    return f"{row.domain} {row.gpu}: compute mode {row.mode} {_WORDS[row.outcome]}{why}"


_WORDS = {
    ReleaseOutcome.PUT_BACK: "put back",
    ReleaseOutcome.WAS_SO: "is what it has already",
    ReleaseOutcome.LEFT: "not put back",
}
