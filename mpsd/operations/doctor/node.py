"""`mpsd doctor`. Nothing is made, changed or asked of a daemon; every wait has a deadline, and what
cannot be read is Unknown with the reason.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from mpsd.kubelet.settings import kubelet_directory
from mpsd.model.node_report import NodeReport
from mpsd.model.problem import InvalidInput, printable
from mpsd.mps import control_daemon
from mpsd.mps.records import of_this_boot
from mpsd.operations.doctor.host import Host, daemons, kubelet, other_namespace
from mpsd.operations.doctor.report import VERBOSE, answer
from mpsd.operations.doctor.rules.checks import Fact, NotApplicable, Unknown, diagnose, known_or
from mpsd.operations.doctor.rules.node_checks import NODE_CHECKS
from mpsd.operations.doctor.rules.node_facts import (
    AgentSilent,
    DomainSeen,
    GpuSeen,
    NodeFacts,
    RunDirectorySeen,
)
from mpsd.platform import local_api, processes, records, run_directory
from mpsd.platform.command_line import LIMITS, OUTPUT, RUN_DIR, SIMULATED, option, takes
from mpsd.platform.console import Format
from mpsd.platform.limits_files import read_limits, shipped_folder
from mpsd.platform.nvml import Nvml, NvmlFailed
from mpsd.platform.settings import SYSTEM_DIRECTORY, Settings, settings
from mpsd.simulator.machine import find_tools
from mpsd.simulator.node import open_node

# what is seen of a host
_AROUND = ("uvm", "default_pipe", "selinux", "engines", "launcher", "toolkit", "unlinked")
_AGENT_S = 5.0
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NodeSurvey:
    """What is to be looked at."""

    settings: Settings
    #: Not open yet; the reason where there is none.
    nvml: Nvml | str
    environment: Mapping[str, str]
    #: None where the GPUs are simulated, as `kubelet_directory`.
    host: Host | None
    kubelet_directory: Path | None


def look(survey: NodeSurvey) -> NodeFacts:
    """The facts of this node; takes seconds where something does not answer."""
    chosen = survey.settings
    socket = chosen.socket_to_ask
    directory = socket.parent
    agent = _agent(socket)
    other = other_namespace(socket)
    nvml, driver, gpus = _driver(survey.nvml)
    domains, unreadable = _records(directory)
    folder = _limits_folder(chosen, agent)
    reading = read_limits(folder)
    wrong = [held for held in (reading.policy, reading.facts) if isinstance(held, InvalidInput)]
    skipped = NotApplicable("skipped: GPUs are simulated; use --root to inspect a host filesystem")
    around: dict[str, Any] = dict.fromkeys((*_AROUND, "kubelet"), skipped)
    if survey.host:
        around |= survey.host.look(directory)
    if survey.kubelet_directory:
        around["kubelet"] = kubelet(survey.kubelet_directory)
    return NodeFacts(
        limits_folder=str(folder),
        limits_faults=tuple(
            f"{error.subject}: {problem}" for error in wrong for problem in error.problems
        ),
        policy=_sound(reading.policy, folder),
        gpu_facts=_sound(reading.facts, folder),
        nvml=nvml,
        driver=driver,
        gpus=gpus,
        control_program=control_daemon.program_found(survey.environment),
        run_directory=_run_directory(directory),
        holder=other or run_directory.holder(directory),
        domains=other or domains,
        unreadable=unreadable,
        daemons=other or daemons(_simulation(chosen)),
        agent=agent,
        **around,
    )


def _simulation(chosen: Settings) -> str:
    """The folder of simulated GPUs; empty for real ones."""
    if chosen.simulate:
        return str(chosen.simulation)
    return ""


def _limits_folder(chosen: Settings, agent: Fact[NodeReport]) -> Path:
    """That which is named, else that of the mpsd that runs here."""
    if chosen.limits_directory:
        return chosen.limits_directory
    if isinstance(agent, NodeReport) and agent.limits_directory:
        running = Path(agent.limits_directory)
        if running.is_dir():
            return running
    return shipped_folder()


def _sound(read: Answer | InvalidInput, folder: Path) -> Fact[Answer]:
    if isinstance(read, InvalidInput):
        return Unknown(f"a limits file in {folder} is not sound")
    return read


def _agent(socket: Path) -> Fact[NodeReport]:
    if socket.exists() and not os.access(socket, os.W_OK):
        return Unknown(f"you may not use {socket}; ask again as root")
    try:
        _code, body = local_api.ask(socket, "GET", "/v1/node", timeout_s=_AGENT_S)
        return local_api.read(body, NodeReport)
    except local_api.NotRunning as error:
        return AgentSilent(str(error))
    except TimeoutError:
        late = f"answers none within {_AGENT_S:g} s; restart `mpsd agent`"
        return AgentSilent(f"the agent accepts calls on {socket} and {late}")
    except OSError as error:
        return Unknown(f"{socket} cannot be used: {error.strerror}")


# -- the driver


DriverSeen = tuple[str, Fact[str], Fact[tuple[GpuSeen, ...]]]


def _driver(nvml: Nvml | str) -> DriverSeen:
    """Why NVML does not answer, or empty; the driver's version; the GPUs."""
    silent = Unknown("the driver does not answer")
    if isinstance(nvml, str):
        return nvml, silent, silent
    try:
        nvml.open()
        gpus = _fact(lambda: tuple(_gpu(nvml, ordinal) for ordinal in range(nvml.count())))
        return "", _fact(nvml.driver), gpus
    except NvmlFailed as error:
        return str(error), silent, silent
    finally:
        nvml.close()


def _gpu(nvml: Nvml, ordinal: int) -> GpuSeen:
    try:
        seen = nvml.at(ordinal)
    except NvmlFailed as error:
        unknown = Unknown(f"gpu{ordinal} does not answer")
        return GpuSeen(ordinal, "", "", str(error), unknown, unknown)
    mode = _fact(lambda: nvml.compute_mode(seen.uuid))
    return GpuSeen(ordinal, seen.uuid, seen.name, "", seen, mode)


def _fact(ask: Callable[[], Answer]) -> Fact[Answer]:
    try:
        return ask()
    except NvmlFailed as error:
        return Unknown(str(error))


# -- mpsd's own files


def _records(directory: Path) -> tuple[Fact[tuple[DomainSeen, ...]], tuple[str, ...]]:
    """The domains of this boot, by name, and why records cannot be read."""
    seen = []
    unreadable = []
    for folder, record in of_this_boot(directory):
        if isinstance(record, records.UnreadableRecord):
            unreadable.append(f"{folder.record}: {record.reason}")
        else:
            lives = record.daemon is not None and processes.is_alive(record.daemon)
            seen.append(DomainSeen(record, lives))
    if directory.exists() and not os.access(directory, os.R_OK | os.X_OK):
        return Unknown(f"you may not read {directory}"), tuple(unreadable)
    return tuple(seen), tuple(unreadable)


def _run_directory(directory: Path) -> Fact[RunDirectorySeen]:
    path = str(directory)
    try:
        owner = directory.stat().st_uid
    except FileNotFoundError:
        return RunDirectorySeen(path, 0, 0, "")
    except OSError as error:
        return Unknown(f"{path} cannot be read: {error.strerror}")
    wanted_owner = os.geteuid()
    if directory == SYSTEM_DIRECTORY:
        wanted_owner = 0
    with suppress(OSError):  # the holder ended meanwhile
        if holder := run_directory.holder(directory):
            wanted_owner = Path(f"/proc/{holder}").stat().st_uid
    return RunDirectorySeen(path, owner, wanted_owner, _unwritable(directory, owner))


def _unwritable(directory: Path, owner: int) -> str:
    """Why it takes no files; empty where it does. Of another user's only what holds for
    everybody."""
    try:
        found = os.statvfs(directory)
    except OSError as error:
        return error.strerror or str(error)
    if found.f_flag & os.ST_RDONLY:
        return "its file system is read-only"
    if is_full(found):
        return f"its file system is full (df -h {directory}; df -i {directory})"
    if owner == os.geteuid() != 0 and not os.access(directory, os.W_OK | os.X_OK):
        return "its mode does not let its owner write"
    return ""


def is_full(found: os.statvfs_result) -> bool:
    """Whether no blocks are left, not even those kept for root, or no files; one that counts none
    is not full."""
    return bool(found.f_blocks and not found.f_bfree) or bool(found.f_files and not found.f_ffree)


# -- the verb


ROOT = option("--root", metavar="DIR", help="A folder to use as /, such as a container's /host.")
KUBELET_DIR = option(
    "--kubelet-dir", metavar="DIR", help="Kubelet's root (MPSD_KUBELET_DIR; /var/lib/kubelet)."
)


@takes(SIMULATED, LIMITS, RUN_DIR, ROOT, KUBELET_DIR, VERBOSE, OUTPUT)
def doctor(
    *,
    simulate: str | None = None,
    limits: str | None = None,
    run_dir: str | None = None,
    root: str | None = None,
    kubelet_dir: str | None = None,
    verbose: bool = False,
    output: Format = Format.TEXT,
) -> None:
    """Say why MPS does not start or limits are not enforced on this machine, the worst first, and
    the one thing to do.

    The first line is the worst finding with its remedy; then every finding with its source, then
    what could not be determined, and with -v what passed. It only looks: nothing is started,
    changed or asked of a daemon. Ask as root; what another user may not see is reported as unknown.
    A simulated `mpsd up` is recognized by its records.

    Exits with 0 when nothing was found but notes ("worth knowing"), 1 when something was found or
    could not be determined, 2 for a usage error.

        mpsd doctor
        mpsd doctor -v
        mpsd doctor --simulate H200x2
        mpsd doctor --root /host -o json | jq '.checks[] | select(.verdict == "found")'
    """
    chosen = settings(run_directory=run_dir, limits_directory=limits, simulate=simulate)
    facts = look(survey_of(chosen, root, kubelet_dir))
    answer(diagnose(facts, NODE_CHECKS), output, verbose=verbose)


def survey_of(chosen: Settings, root: str | None, kubelet_dir: str | None) -> NodeSurvey:
    """What to look at. Around simulated GPUs there is no host, unless its root is named."""
    chosen = _as_it_runs(chosen)
    host = None
    kubelet_root = None
    if root or not chosen.simulate:
        host = Host(Path(root or "/").absolute())
        if not host.root.is_dir():
            named = printable(root or "")
            message = "is no folder that exists"
            raise InvalidInput.of("settings", "setting", "--root", named, message, "name another")
    if kubelet_dir:
        kubelet_root = kubelet_directory(kubelet_dir)
    elif host:
        kubelet_root = host.root / str(kubelet_directory(None)).lstrip("/")
    survey = NodeSurvey(chosen, "", {}, host, kubelet_root)
    try:
        tools = find_tools(chosen)
    except OSError:
        make = f"`mpsd up --simulate {chosen.simulate}` makes them"
        return replace(survey, nvml=f"no simulated GPUs are in {chosen.simulation}; {make}")
    return replace(survey, nvml=tools.nvml, environment=tools.environment)


def _as_it_runs(chosen: Settings) -> Settings:
    """The settings, with the simulation of the mpsd that runs here: its records of this boot name
    simulated GPUs."""
    here = replace(chosen, run_directory=chosen.socket_to_ask.parent)
    try:
        simulated = {gpu.uuid: gpu.name for gpu in open_node(here.simulation).gpus}
    except OSError:
        return chosen
    domains, _unreadable = _records(here.run_directory)
    recorded = {uuid for one in known_or(domains, ()) for uuid in one.record.gpus}
    if chosen.simulate or recorded.isdisjoint(simulated):
        return chosen
    return replace(here, simulate=",".join(simulated.values()))
