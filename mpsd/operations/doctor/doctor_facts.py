"""Looks at this node for `mpsd doctor`: mpsd's own files, the driver, and the agent.

One rule: everything is only looked at, nothing is made, changed or asked of a daemon; every wait has a deadline, and
what cannot be read is Unknown with the reason.
"""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import mpsd
from mpsd.model.node_status import NodeStatus
from mpsd.model.node_view import DomainRecord, is_of_boot
from mpsd.model.problem import InvalidInput
from mpsd.mps import control_process
from mpsd.operations.doctor import doctor_daemons, doctor_host
from mpsd.operations.doctor.doctor_host import Host
from mpsd.operations.doctor.rules.doctor_facts import (
    AgentSeen,
    DomainSeen,
    Elsewhere,
    Fact,
    GpuSeen,
    LimitsSeen,
    NodeFacts,
    RunDirectorySeen,
    Unknown,
)
from mpsd.platform import local_api, processes, records, run_directory
from mpsd.platform.limits_files import limits_folder, read_limits
from mpsd.platform.nvml import Nvml, NvmlFailed
from mpsd.platform.settings import SYSTEM_DIRECTORY, Settings

NVML_S = 15.0  # a GPU that nobody has used for long takes seconds to wake
_AGENT_S = 5.0
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Place:
    """What is looked at. nvml: not open yet; why where there is none. is_here: whether a process with this environment
    is of this machine, played or real. host, kubelet_directory: None for nothing of it, for the GPUs are played.
    """

    settings: Settings
    nvml: Nvml | str
    environment: Mapping[str, str]
    is_here: Callable[[Mapping[str, str]], bool]
    host: Host | None
    kubelet_directory: Path | None


@dataclass(frozen=True, slots=True)
class _Driver:
    nvml: Fact[str]
    version: Fact[str]
    gpus: Fact[tuple[GpuSeen, ...]]


def look(place: Place) -> NodeFacts:
    """The whole picture; seconds where something does not answer."""
    chosen = place.settings
    agent = agent_says(chosen.socket_to_ask)
    directory = chosen.socket_to_ask.parent
    stranger = doctor_daemons.other_namespace(chosen.socket_to_ask)
    driver = _driver(place.nvml)
    domains, unreadable = _records(directory)
    host = place.host
    none = Elsewhere("these GPUs are played; name a folder that stands for / to look there (--root)")
    return NodeFacts(
        limits=_limits(_limits_folder(chosen, agent)),
        nvml=driver.nvml,
        driver=driver.version,
        gpus=driver.gpus,
        control_program=control_process.program_found(place.environment),
        run_directory=_run_directory(directory),
        holder=stranger or run_directory.holder(directory),
        domains=stranger or domains,
        unreadable=unreadable,
        daemons=stranger or doctor_daemons.daemons(place.is_here),
        agent=agent,
        uvm=host.uvm() if host else none,
        default_pipe=host.default_pipe() if host else none,
        selinux=host.selinux(directory) if host else none,
        engines=host.engines() if host else none,
        launcher=host.launcher() if host else none,
        toolkit=host.toolkit() if host else none,
        kubelet=doctor_host.kubelet(place.kubelet_directory) if place.kubelet_directory else none,
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
        return AgentSeen(
            None, f"the agent takes calls on {socket} and answers none within {_AGENT_S:g} s; restart `mpsd agent`"
        )
    except OSError as error:
        return Unknown(f"{socket} cannot be used: {error.strerror}")


def _limits_folder(chosen: Settings, agent: AgentSeen | Unknown) -> Path:
    """The one that was named, else that of the mpsd that runs here where it can be seen, else the shipped one."""
    told = agent.told.limits_directory if isinstance(agent, AgentSeen) and agent.told else ""
    running = Path(told) if told and Path(told).is_dir() else None
    return limits_folder(chosen.limits_directory or running)


def _limits(folder: Path) -> LimitsSeen:
    reading = read_limits(folder)
    facts, policy = reading.facts, reading.policy
    wrong = [held for held in (policy, facts) if isinstance(held, InvalidInput)]
    said = Unknown(f"a limits file in {folder} is not sound")
    return LimitsSeen(
        folder=str(folder),
        wrong=tuple(f"{error.subject}: {problem}" for error in wrong for problem in error.problems),
        capabilities=said
        if isinstance(facts, InvalidInput)
        else tuple(r.compute_capability for r in facts.capabilities),
        policy=said if isinstance(policy, InvalidInput) else policy,
    )


# -- the driver ------------------------------------------------------------------------------------------------------


def _driver(nvml: Nvml | str) -> _Driver:
    if isinstance(nvml, str):
        return _no_driver(nvml)
    seen = within(NVML_S, lambda: _ask_driver(nvml))
    return seen or _no_driver(f"NVML does not answer within {NVML_S:g} s; see `dmesg | grep -i nvrm`")


def _no_driver(why: str) -> _Driver:
    unknown = Unknown("the driver does not answer")
    return _Driver(why, unknown, unknown)


def _ask_driver(nvml: Nvml) -> _Driver:
    try:
        nvml.open()
    except NvmlFailed as error:
        return _no_driver(str(error))
    try:
        gpus = _fact(lambda: tuple(_gpu(nvml, ordinal) for ordinal in range(nvml.count())))
        return _Driver("", _fact(nvml.driver), gpus)
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
    """None after the deadline: NVML has none of its own, and a call into a driver that hangs cannot be ended."""
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
        return RunDirectorySeen(str(directory), False, 0, 0, "", is_system, Unknown("it is not there"))
    except OSError as error:
        return Unknown(f"{directory} cannot be looked at: {error.strerror}")
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
    """Of another's folder only what holds for everybody."""
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
    """Without blocks, not even those kept for root, or without files; one that counts none runs out of none."""
    return bool(found.f_blocks and not found.f_bfree) or bool(found.f_files and not found.f_ffree)


def _filesystem(directory: Path) -> str | Unknown:
    """proc(5), mounts: device, place, kind; the last of the longest places that lead there."""
    try:
        rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError as error:
        return Unknown(f"/proc/self/mounts cannot be read: {error.strerror}")
    leading = [(len(row[1]), row[2]) for row in rows if directory.is_relative_to(row[1])]
    longest = max((length for length, _kind in leading), default=0)
    return next((kind for length, kind in reversed(leading) if length == longest), Unknown("no mount leads there"))
