"""What surrounds mpsd on a machine, as `mpsd doctor` and bundles look at it: control daemons of anybody's, container
engines and the launcher, kubelet's folder, SELinux, device nodes.

Files are looked for below one root, so that a machine can be examined from a container that has its / in a folder. A
control daemon is recognized by its command line alone, and none is asked anything.
"""

import errno
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mpsd.containers import engine_files
from mpsd.containers.engines.change import CONFIGURATION, LAUNCHER, Engine
from mpsd.containers.engines.launcher import launched
from mpsd.model.cuda_limit_parser import PIPE_DIRECTORY
from mpsd.model.problem import InvalidInput
from mpsd.mps.control_daemon import PROGRAM
from mpsd.operations.doctor.rules.checks import Fact, NotApplicable, Unknown
from mpsd.operations.doctor.rules.node_facts import DaemonSeen, EngineSeen, KubeletSeen, LauncherSeen, SelinuxSeen
from mpsd.platform import processes
from mpsd.platform.http_server import peer_of

_SERVES = re.compile(r"-[A-Za-z]*[df]|--(daemon|forground|foreground)")  # without one it only passes commands on
_WORDS_BEFORE = 4  # of an interpreter
_CONNECT_S = 1.0
_PROGRAMS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin", "usr/local/nvidia/toolkit")
_TOOLKIT = "nvidia-container-runtime"


def daemons(is_here: Callable[[Mapping[str, str]], bool]) -> tuple[DaemonSeen, ...] | Unknown:
    """Those of this machine, by pid; Unknown where other users' processes are hidden, or it is not known which machine
    they are of.

    is_here: called with a process's environment; with an empty one, as on real GPUs, where that cannot be read.
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
    """Whether the pipe directory has a socket; a daemon goes on listening on one that was removed."""
    try:
        return bool(pipe) and Path(pipe, "control").exists()
    except OSError:
        return False


def _serving() -> Iterator[tuple[int, str]]:
    """Pid and command line of every control daemon that serves."""
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
    """Unknown where the listener of this socket is in a pid namespace whose pids mean nothing here."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_CONNECT_S)
            probe.connect(str(path))
            seen = peer_of(probe).pid != 0
    except OSError:  # nobody does
        return None
    return None if seen else Unknown("mpsd runs in another pid namespace; ask there, or with hostPID")


@dataclass(frozen=True, slots=True)
class Host:
    """What is installed on a machine. root: the folder that stands for /."""

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
            return Unknown(f"{LAUNCHER} was not written by this version of mpsd")
        package = f"{words.folder}/mpsd/runtime"
        missing = tuple(path for path in (words.python, package) if not self._here(path).exists())
        found = next((path for name in words.next_runtimes if (path := self._program(name))), "")
        return LauncherSeen(LAUNCHER, True, missing, words.next_runtimes, found)

    def selinux(self, run_directory: Path) -> Fact[SelinuxSeen]:
        """Whether it enforces, and the labels of the clients' folders. run_directory: as this process sees it."""
        try:
            enforcing = (self.root / "sys/fs/selinux/enforce").read_text().strip() == "1"
        except FileNotFoundError:
            return NotApplicable("there is no SELinux")
        except OSError as error:
            return Unknown(f"/sys/fs/selinux/enforce cannot be read: {error.strerror}")
        try:
            types = tuple((str(folder), _type(folder)) for folder in sorted(run_directory.glob("gpu*/client")))
        except OSError as error:
            return Unknown(f"the label of {error.filename} cannot be read: {error.strerror}")
        return SelinuxSeen(enforcing, types)

    def _text(self, path: str) -> str | Unknown | None:
        """The text of a file below the root; None where there is none."""
        try:
            return engine_files.find(self._here(path), self.root).text
        except OSError as error:
            return Unknown(f"{path} cannot be read: {error.strerror}")
        except InvalidInput as error:
            return Unknown(str(error))

    def _here(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _program(self, name: str) -> str:
        """The path of a program below the root; empty where there is none."""
        places = [name.lstrip("/")] if name.startswith("/") else [f"{folder}/{name}" for folder in _PROGRAMS]
        return next((place for place in places if os.access(self.root / place, os.X_OK)), "")


def kubelet(directory: Path) -> Fact[KubeletSeen]:
    """Kubelet's root; NotApplicable where kubelet has never run."""
    try:
        if not any(directory.iterdir()):
            return NotApplicable(f"{directory} is empty: no kubelet has run here")
    except (FileNotFoundError, NotADirectoryError):
        return NotApplicable(f"there is no {directory}: no kubelet runs here")
    except OSError as error:
        return Unknown(f"{directory} cannot be read: {error.strerror}")
    return KubeletSeen(str(directory), (directory / "device-plugins").is_dir())


def _type(folder: Path) -> str:
    """The type of a folder's label, its third part, as in system_u:object_r:container_file_t:s0, with the categories of
    one container where it has any, as in container_file_t:s0:c1,c2; empty where it has no label. OSError.
    """
    try:
        parts = os.getxattr(folder, "security.selinux").decode(errors="replace").rstrip("\0").split(":")
    except OSError as error:
        if error.errno in {errno.ENODATA, errno.ENOTSUP}:
            return ""
        raise
    return ":".join(parts[2:]) if len(parts) > 4 else parts[2] if len(parts) > 2 else ""
