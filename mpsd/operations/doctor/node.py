"""`mpsd doctor`: why MPS does not start or limits are not enforced on this machine, each with the one thing to do.

Everything is only looked at: nothing is made, changed or asked of a daemon. Every wait has a deadline, and what cannot
be read is Unknown with the reason.
"""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import typer

import mpsd
from mpsd.kubelet.settings import kubelet_directory
from mpsd.model.node_status import NodeStatus
from mpsd.model.node_view import DomainRecord, is_of_boot
from mpsd.model.problem import InvalidInput, Problem, printable
from mpsd.mps import control_daemon
from mpsd.operations.doctor.host import Host, daemons, kubelet, other_namespace
from mpsd.operations.doctor.report import Verbose, answer
from mpsd.operations.doctor.rules.checks import Fact, NotApplicable, Unknown, diagnose
from mpsd.operations.doctor.rules.node_checks import NODE_CHECKS
from mpsd.operations.doctor.rules.node_facts import (
    AgentSeen,
    DomainSeen,
    GpuSeen,
    LimitsSeen,
    NodeFacts,
    RunDirectorySeen,
)
from mpsd.platform import local_api, processes, records, run_directory
from mpsd.platform.console import Format
from mpsd.platform.limits_files import limits_folder, read_limits
from mpsd.platform.nvml import Nvml, NvmlFailed
from mpsd.platform.options import LimitsDirectory, OutputFormat, RunDirectory, Simulate
from mpsd.platform.settings import SYSTEM_DIRECTORY, Settings, settings
from mpsd.simulator.gpus import FOLDER
from mpsd.simulator.machine import find_tools
from mpsd.simulator.node import open_node

NVML_S = 15.0  # a GPU that nobody has used for long takes seconds to wake
_AGENT_S = 5.0
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NodeSurvey:
    """What is to be looked at. nvml: not open yet; the reason where there is none. is_here: whether a process with this
    environment belongs to this machine, simulated or real. host, kubelet_directory: None where the GPUs are simulated.
    """

    settings: Settings
    nvml: Nvml | str
    environment: Mapping[str, str]
    is_here: Callable[[Mapping[str, str]], bool]
    host: Host | None
    kubelet_directory: Path | None


def look(survey: NodeSurvey) -> NodeFacts:
    """The facts of this node; takes seconds where something does not answer."""
    chosen = survey.settings
    agent = agent_says(chosen.socket_to_ask)
    directory = chosen.socket_to_ask.parent
    stranger = other_namespace(chosen.socket_to_ask)
    nvml, driver, gpus = _driver(survey.nvml)
    domains, unreadable = _records(directory)
    host = survey.host
    skipped = NotApplicable("skipped: GPUs are simulated; use --root to inspect a host filesystem")
    return NodeFacts(
        limits=_limits(_limits_folder(chosen, agent)),
        nvml=nvml,
        driver=driver,
        gpus=gpus,
        control_program=control_daemon.program_found(survey.environment),
        run_directory=_run_directory(directory),
        holder=stranger or run_directory.holder(directory),
        domains=stranger or domains,
        unreadable=unreadable,
        daemons=stranger or daemons(survey.is_here),
        agent=agent,
        uvm=host.uvm() if host else skipped,
        default_pipe=host.default_pipe() if host else skipped,
        selinux=host.selinux(directory) if host else skipped,
        engines=host.engines() if host else skipped,
        launcher=host.launcher() if host else skipped,
        toolkit=host.toolkit() if host else skipped,
        kubelet=kubelet(survey.kubelet_directory) if survey.kubelet_directory else skipped,
        ours=mpsd.__version__,
    )


def agent_says(socket: Path) -> AgentSeen | Unknown:
    if socket.exists() and not os.access(socket, os.W_OK):
        return Unknown(f"you may not use {socket}; ask again as root")
    try:
        _code, body = local_api.ask(socket, "GET", "/v1/node", timeout_s=_AGENT_S)
        return AgentSeen(local_api.read(body, NodeStatus))
    except local_api.NotRunning as error:
        return AgentSeen(None, str(error))
    except TimeoutError:
        why = f"the agent accepts calls on {socket} and answers none within {_AGENT_S:g} s; restart `mpsd agent`"
        return AgentSeen(None, why)
    except OSError as error:
        return Unknown(f"{socket} cannot be used: {error.strerror}")


def _limits_folder(chosen: Settings, agent: AgentSeen | Unknown) -> Path:
    """The folder that was named, else that of the mpsd that runs here where it can be seen, else the shipped one."""
    reported = agent.status.limits_directory if isinstance(agent, AgentSeen) and agent.status else ""
    running = Path(reported) if reported and Path(reported).is_dir() else None
    return limits_folder(chosen.limits_directory or running)


def _limits(folder: Path) -> LimitsSeen:
    reading = read_limits(folder)
    facts, policy = reading.facts, reading.policy
    wrong = [held for held in (policy, facts) if isinstance(held, InvalidInput)]
    unsound = Unknown(f"a limits file in {folder} is not sound")
    return LimitsSeen(
        folder=str(folder),
        wrong=tuple(f"{error.subject}: {problem}" for error in wrong for problem in error.problems),
        capabilities=unsound
        if isinstance(facts, InvalidInput)
        else tuple(row.compute_capability for row in facts.capabilities),
        policy=unsound if isinstance(policy, InvalidInput) else policy,
    )


# -- the driver --------------------------------------------------------------------------------------------------------

_Driver: TypeAlias = tuple[str, Fact[str], Fact[tuple[GpuSeen, ...]]]  # why it does not answer, its version, its GPUs


def _driver(nvml: Nvml | str) -> _Driver:
    if isinstance(nvml, str):
        return _no_driver(nvml)
    seen = within(NVML_S, lambda: _ask_driver(nvml))
    return seen or _no_driver(f"NVML does not answer within {NVML_S:g} s; see `dmesg | grep -i nvrm`")


def _no_driver(why: str) -> _Driver:
    unknown = Unknown("the driver does not answer")
    return why, unknown, unknown


def _ask_driver(nvml: Nvml) -> _Driver:
    try:
        nvml.open()
    except NvmlFailed as error:
        return _no_driver(str(error))
    try:
        gpus = _fact(lambda: tuple(_gpu(nvml, ordinal) for ordinal in range(nvml.count())))
        return "", _fact(nvml.driver), gpus
    finally:
        nvml.close()


def _gpu(nvml: Nvml, ordinal: int) -> GpuSeen:
    try:
        uuid, name, capability = nvml.found(ordinal)
    except NvmlFailed as error:
        unknown = Unknown(f"gpu{ordinal} does not answer")
        return GpuSeen(ordinal, "", "", str(error), unknown, unknown, unknown)
    mig, mode = _fact(lambda: nvml.mig_enabled(uuid)), _fact(lambda: nvml.compute_mode(uuid))
    return GpuSeen(ordinal, uuid, name, "", capability, mig, mode)


def _fact(ask: Callable[[], Answer]) -> Answer | Unknown:
    try:
        return ask()
    except NvmlFailed as error:
        return Unknown(str(error))


def within(deadline_s: float, ask: Callable[[], Answer]) -> Answer | None:
    """None after the deadline. NVML has none of its own, and a call into a driver that hangs cannot be ended."""
    answers: list[Answer] = []
    asking = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    asking.start()
    asking.join(deadline_s)
    return answers[0] if answers else None


# -- mpsd's own files ------------------------------------------------------------------------------------------------


def _records(directory: Path) -> tuple[Fact[tuple[DomainSeen, ...]], tuple[str, ...]]:
    """The domains of this boot, by name, and why records cannot be read."""
    seen, unreadable = [], []
    for path in sorted(directory.glob("gpu*/record.json"), key=lambda path: (len(path.parent.name), path)):
        try:
            record = records.read(path, DomainRecord)
        except records.UnreadableRecord as error:
            unreadable.append(f"{path}: {error.reason}")
            continue
        if record and is_of_boot(record, processes.boot_id()):
            lives = record.daemon is not None and processes.is_alive(record.daemon)
            seen.append(DomainSeen(record, lives))
    if directory.exists() and not os.access(directory, os.R_OK | os.X_OK):
        return Unknown(f"you may not read {directory}"), tuple(unreadable)
    return tuple(seen), tuple(unreadable)


def _run_directory(directory: Path) -> RunDirectorySeen | Unknown:
    is_system = directory == SYSTEM_DIRECTORY
    try:
        found = directory.stat()
    except FileNotFoundError:
        return RunDirectorySeen(str(directory), False, 0, 0, "", is_system, Unknown("it does not exist"))
    except OSError as error:
        return Unknown(f"{directory} cannot be read: {error.strerror}")
    return RunDirectorySeen(
        path=str(directory),
        is_there=True,
        owner=found.st_uid,
        wanted_owner=_wanted_owner(directory, is_system=is_system),
        unwritable=_unwritable(directory, ours=found.st_uid == os.geteuid()),
        is_system=is_system,
        filesystem=_filesystem(directory),
    )


def _wanted_owner(directory: Path, *, is_system: bool) -> int:
    holder = run_directory.holder(directory)
    try:
        return Path(f"/proc/{holder}").stat().st_uid if holder else 0 if is_system else os.geteuid()
    except OSError:  # it ended meanwhile
        return 0 if is_system else os.geteuid()


def _unwritable(directory: Path, *, ours: bool) -> str:
    """Why the run directory takes no files; of another user's only what holds for everybody."""
    try:
        found = os.statvfs(directory)
        if found.f_flag & os.ST_RDONLY:
            return "its file system is read-only"
        if is_full(found):
            return f"its file system is full (df -h {directory}; df -i {directory})"
    except OSError as error:
        return error.strerror or str(error)
    is_shut = ours and os.geteuid() and not os.access(directory, os.W_OK | os.X_OK)
    return "its mode does not let its owner write" if is_shut else ""


def is_full(found: os.statvfs_result) -> bool:
    """Whether a file system has no blocks left, not even those kept for root, or no files; one that counts none is not
    full.
    """
    return bool(found.f_blocks and not found.f_bfree) or bool(found.f_files and not found.f_ffree)


def _filesystem(directory: Path) -> str | Unknown:
    """The kind of file system. proc(5), mounts: device, place, kind; the last of the longest places leading there."""
    try:
        rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError as error:
        return Unknown(f"/proc/self/mounts cannot be read: {error.strerror}")
    leading = [(len(row[1]), row[2]) for row in rows if directory.is_relative_to(row[1])]
    longest = max((length for length, _kind in leading), default=0)
    return next((kind for length, kind in reversed(leading) if length == longest), Unknown("no mount leads there"))


# -- the verb ---------------------------------------------------------------------------------------------------------


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
    """Say why MPS does not start or limits are not enforced on this machine, the worst first, and the one thing to do.

    The first line is the worst finding with its remedy; then every finding with its source, then what could not be
    determined, and with -v what passed. It only looks: nothing is started, changed or asked of a daemon. Ask as root;
    what another user may not see is reported as unknown. A simulated `mpsd up` is recognized by its records.

    Exits with 0 when nothing was found but notes ("worth knowing"), 1 when something was found or could not be
    determined, 2 for a usage error.

        mpsd doctor
        mpsd doctor -v
        mpsd doctor --simulate H200x2
        mpsd doctor --root /host -o json | jq '.checks[] | select(.verdict == "found")'
    """
    chosen = settings(run_directory=run_dir, limits_directory=limits, simulate=simulate)
    answer(diagnose(look(survey_of(chosen, root, kubelet_dir)), NODE_CHECKS), output, verbose=verbose)


def survey_of(chosen: Settings, root: str | None, kubelet_dir: str | None) -> NodeSurvey:
    """What to look at. Around simulated GPUs there is no host, unless its root is named."""
    chosen = _as_it_runs(chosen)
    host = Host(Path(root).absolute()) if root else None if chosen.simulate else Host(Path("/"))
    if host and not host.root.is_dir():
        problem = Problem("setting", "--root", printable(root or ""), "is no folder that exists", "name another")
        raise InvalidInput("settings", [problem])
    kubelet_root = kubelet_directory(kubelet_dir) if host or kubelet_dir else None
    if kubelet_root and host and not kubelet_dir:
        kubelet_root = host.root / str(kubelet_root).lstrip("/")
    simulation = str(chosen.simulation) if chosen.simulate else ""

    def is_here(environment: Mapping[str, str]) -> bool:
        return environment.get(FOLDER, "") == simulation

    try:
        tools = find_tools(chosen)
    except OSError:
        why = f"no simulated GPUs are in {chosen.simulation}; `mpsd up --simulate {chosen.simulate}` makes them"
        return NodeSurvey(chosen, why, {}, is_here, host, kubelet_root)
    return NodeSurvey(chosen, tools.nvml, tools.environment, is_here, host, kubelet_root)


def _as_it_runs(chosen: Settings) -> Settings:
    """The settings, with the simulation of the mpsd that runs here: its records of this boot name simulated GPUs."""
    directory = chosen.socket_to_ask.parent
    here = replace(chosen, run_directory=directory)
    try:
        simulated = {gpu.uuid: gpu.name for gpu in open_node(here.simulation).gpus}
    except OSError:
        return chosen
    domains, _unreadable = _records(directory)
    recorded = () if isinstance(domains, Unknown | NotApplicable) else domains
    runs = any(not simulated.keys().isdisjoint(one.record.gpus) for one in recorded)
    return replace(here, simulate=",".join(simulated.values())) if runs and not chosen.simulate else chosen
