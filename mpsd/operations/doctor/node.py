"""Looks at this node for `mpsd doctor`: mpsd's own files, the driver, and the agent.

One rule: everything is only looked at, nothing is made, changed or asked of a daemon; every wait has a deadline, and
what cannot be read is Unknown with the reason.
"""

import errno
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import mpsd
from mpsd.containers import engine_files
from mpsd.containers.engines.change import CONFIGURATION, LAUNCHER, Engine
from mpsd.containers.engines.launcher import launched
from mpsd.model.cuda_limit_parser import PIPE_DIRECTORY
from mpsd.model.node_status import NodeStatus
from mpsd.model.node_view import DomainRecord, is_of_boot
from mpsd.model.problem import InvalidInput
from mpsd.mps import control_daemon
from mpsd.mps.control_daemon import PROGRAM
from mpsd.operations.doctor.rules.facts import (
    AgentSeen,
    DaemonSeen,
    DomainSeen,
    Elsewhere,
    EngineSeen,
    Fact,
    GpuSeen,
    KubeletSeen,
    LauncherSeen,
    LimitsSeen,
    NodeFacts,
    RunDirectorySeen,
    SelinuxSeen,
    Unknown,
)
from mpsd.platform import local_api, processes, records, run_directory
from mpsd.platform.http_server import peer_of
from mpsd.platform.limits_files import limits_folder, read_limits
from mpsd.platform.nvml import Nvml, NvmlFailed
from mpsd.platform.settings import SYSTEM_DIRECTORY, Settings

# Which MPS control daemons run on this machine, whoever has started them.
#
# One rule: a process counts by its command line alone, as anybody's daemon would show it; none is asked anything.

_SERVES = re.compile(r"-[A-Za-z]*[df]|--(daemon|forground|foreground)")  # without one it only passes commands on
_WORDS_BEFORE = 4  # of an interpreter
_CONNECT_S = 1.0


def daemons(is_here: Callable[[Mapping[str, str]], bool]) -> tuple[DaemonSeen, ...] | Unknown:
    """Those of this machine, by pid; Unknown where other users' processes are hidden, or whose machine they are of is.

    is_here: asked with a process's environment; where that cannot be read with an empty one, as of no played machine.
    """
    if not Path("/proc/1").exists():
        return Unknown("/proc hides the processes of other users; ask again as root")
    found = dict(_serving())
    seen = []
    for pid, command in sorted(found.items()):
        environment = processes.environment_of(pid)
        is_fork, has_ended = processes.parent_of(pid) in found, processes.identity_of(pid) is None
        if is_fork or has_ended:
            continue
        if environment is None and not is_here({}):
            return Unknown(f"the environment of pid {pid} may not be read; ask again as root")
        if is_here(environment or {}):
            pipe = (environment or {}).get(PIPE_DIRECTORY, "")
            seen.append(DaemonSeen(pid, command, pipe, pipe_is_there=_is_there(pipe)))
    return tuple(seen)


def _is_there(pipe: str) -> bool:
    """Whether there is a socket in it for whoever is here; a daemon goes on listening on one that was removed."""
    try:
        return bool(pipe) and Path(pipe, "control").exists()
    except OSError:
        return False


def _serving() -> Iterator[tuple[int, str]]:
    """Pid and command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        except OSError:  # it has ended
            continue
        if _is_daemon(words) and processes.identity_of(int(folder.name)):
            yield int(folder.name), " ".join(words)


def _is_daemon(words: list[str]) -> bool:
    place = next((at for at, word in enumerate(words[:_WORDS_BEFORE]) if word.rpartition("/")[2] == PROGRAM), None)
    return place is not None and any(_SERVES.fullmatch(word) for word in words[place + 1 :])


def other_namespace(path: Path) -> Unknown | None:
    """Unknown where whoever listens on this socket is in a pid namespace whose pids mean nothing here."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_CONNECT_S)
            probe.connect(str(path))
            seen = peer_of(probe).pid != 0
    except OSError:  # nobody does
        return None
    return None if seen else Unknown("mpsd runs in another pid namespace; ask there, or with hostPID")


# What is around mpsd on a machine: container engines, the launcher, kubelet's folder, SELinux, device nodes.
#
# One rule: everything is looked for below one root, so that a machine can be looked at from a container that has its /
# in a folder.

_PROGRAMS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin", "usr/local/nvidia/toolkit")
_TOOLKIT = "nvidia-container-runtime"


@dataclass(frozen=True, slots=True)
class Host:
    """root: the folder that stands for /."""

    root: Path

    def uvm(self) -> bool:
        return (self.root / "dev/nvidia-uvm").exists()

    def default_pipe(self) -> bool:
        return (self.root / "tmp/nvidia-mps").exists()

    def toolkit(self) -> bool:
        return bool(self._program(_TOOLKIT))

    def engines(self) -> tuple[EngineSeen, ...]:
        return tuple(EngineSeen(engine, CONFIGURATION[engine], self._text(CONFIGURATION[engine])) for engine in Engine)

    def launcher(self) -> Fact[LauncherSeen]:
        text = self._text(LAUNCHER)
        if text is None:
            return LauncherSeen(LAUNCHER, False, ())
        if isinstance(text, Unknown):
            return text
        if (words := launched(text)) is None:
            return Unknown(f"{LAUNCHER} is none that this version of mpsd writes")
        package = f"{words.folder}/mpsd/runtime"
        missing = tuple(path for path in (words.python, package) if not self._here(path).exists())
        found = next((path for name in words.next_runtimes if (path := self._program(name))), "")
        return LauncherSeen(LAUNCHER, True, missing, words.next_runtimes, found)

    def selinux(self, run_directory: Path) -> Fact[SelinuxSeen]:
        """run_directory: as this process sees it."""
        try:
            enforcing = (self.root / "sys/fs/selinux/enforce").read_text().strip() == "1"
        except FileNotFoundError:
            return Elsewhere("there is no SELinux")
        except OSError as error:
            return Unknown(f"/sys/fs/selinux/enforce cannot be read: {error.strerror}")
        try:
            types = tuple((str(folder), _type(folder)) for folder in sorted(run_directory.glob("gpu*/client")))
        except OSError as error:
            return Unknown(f"the label of {error.filename} cannot be read: {error.strerror}")
        return SelinuxSeen(enforcing, types)

    def _text(self, path: str) -> str | Unknown | None:
        """None where there is no such file."""
        try:
            return engine_files.find(self._here(path), self.root).text
        except OSError as error:
            return Unknown(f"{path} cannot be read: {error.strerror}")
        except InvalidInput as error:
            return Unknown(str(error))

    def _here(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _program(self, name: str) -> str:
        """Its path below the root; empty where there is none."""
        places = [name.lstrip("/")] if name.startswith("/") else [f"{folder}/{name}" for folder in _PROGRAMS]
        return next((place for place in places if os.access(self.root / place, os.X_OK)), "")


def kubelet(directory: Path) -> KubeletSeen | Elsewhere | Unknown:
    """Elsewhere where kubelet has never run."""
    try:
        if not any(directory.iterdir()):
            return Elsewhere(f"{directory} is empty: no kubelet has run here")
    except (FileNotFoundError, NotADirectoryError):
        return Elsewhere(f"there is no {directory}: no kubelet runs here")
    except OSError as error:
        return Unknown(f"{directory} cannot be read: {error.strerror}")
    return KubeletSeen(str(directory), (directory / "device-plugins").is_dir())


def _type(folder: Path) -> str:
    """The third part of the label, as in system_u:object_r:container_file_t:s0, with the categories of one container
    where it has any, as in container_file_t:s0:c1,c2; empty where it has no label. OSError.
    """
    try:
        parts = os.getxattr(folder, "security.selinux").decode(errors="replace").rstrip("\0").split(":")
    except OSError as error:
        if error.errno in {errno.ENODATA, errno.ENOTSUP}:
            return ""
        raise
    return ":".join(parts[2:]) if len(parts) > 4 else parts[2] if len(parts) > 2 else ""


NVML_S = 15.0  # a GPU that nobody has used for long takes seconds to wake
_AGENT_S = 5.0
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NodeSurvey:
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


def look(place: NodeSurvey) -> NodeFacts:
    """The whole picture; seconds where something does not answer."""
    chosen = place.settings
    agent = agent_says(chosen.socket_to_ask)
    directory = chosen.socket_to_ask.parent
    stranger = other_namespace(chosen.socket_to_ask)
    driver = _driver(place.nvml)
    domains, unreadable = _records(directory)
    host = place.host
    none = Elsewhere("these GPUs are played; name a folder that stands for / to look there (--root)")
    return NodeFacts(
        limits=_limits(_limits_folder(chosen, agent)),
        nvml=driver.nvml,
        driver=driver.version,
        gpus=driver.gpus,
        control_program=control_daemon.program_found(place.environment),
        run_directory=_run_directory(directory),
        holder=stranger or run_directory.holder(directory),
        domains=stranger or domains,
        unreadable=unreadable,
        daemons=stranger or daemons(place.is_here),
        agent=agent,
        uvm=host.uvm() if host else none,
        default_pipe=host.default_pipe() if host else none,
        selinux=host.selinux(directory) if host else none,
        engines=host.engines() if host else none,
        launcher=host.launcher() if host else none,
        toolkit=host.toolkit() if host else none,
        kubelet=kubelet(place.kubelet_directory) if place.kubelet_directory else none,
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
