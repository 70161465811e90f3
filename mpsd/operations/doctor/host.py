"""What surrounds mpsd on a machine, as the doctor looks at it.

Files are looked for below one root, so that a machine can be examined from a container that has its
/ in a folder. A control daemon is recognized by its command line alone, and none is asked anything.
"""

import errno
import os
import re
import socket
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from mpsd.containers import engine_files
from mpsd.containers.engines.configuration import CONFIGURATIONS, LAUNCHER
from mpsd.containers.engines.launcher import launched
from mpsd.model.cuda_limit_parser import PIPE_DIRECTORY
from mpsd.model.problem import InvalidInput
from mpsd.mps.control_daemon import PROGRAM
from mpsd.operations.doctor.rules.checks import Fact, NotApplicable, Unknown
from mpsd.operations.doctor.rules.node_facts import DaemonSeen, LauncherSeen
from mpsd.platform import processes
from mpsd.platform.peers import peer_of
from mpsd.platform.process_environment import environment_of
from mpsd.simulator.gpus import FOLDER

# without one it only passes commands on
_SERVES = re.compile(r"-[A-Za-z]*[df]|--(daemon|forground|foreground)")
_PROGRAMS = (
    "usr/local/sbin",
    "usr/local/bin",
    "usr/sbin",
    "usr/bin",
    "sbin",
    "bin",
    "usr/local/nvidia/toolkit",
)


def daemons(simulation: str) -> tuple[DaemonSeen, ...] | Unknown:
    """By pid. simulation: the folder that processes of a simulated machine name; empty for the real
    one."""
    if not Path("/proc/1").exists():
        return Unknown("/proc hides the processes of other users; ask again as root")
    # not by psutil, which reads the words of a process whole, whatever it calls them
    found = [pid for pid in psutil.pids() if _is_daemon(processes.command_of(pid).split())]
    seen = []
    for pid in sorted(found):
        environment = environment_of(pid, (FOLDER, PIPE_DIRECTORY))
        # a fork, or one that has ended
        if processes.parent_of(pid) in found or processes.identity_of(pid) is None:
            continue
        if environment is None and simulation:
            return Unknown(f"the environment of pid {pid} may not be read; ask again as root")
        environment = environment or {}
        if environment.get(FOLDER, "") == simulation:
            pipe = environment.get(PIPE_DIRECTORY, "")
            # A daemon goes on listening on a socket that was removed.
            seen.append(DaemonSeen(pid, pipe, bool(pipe) and os.access(f"{pipe}/control", os.F_OK)))
    return tuple(seen)


def _is_daemon(words: Sequence[str]) -> bool:
    first = words[:4]  # what stands before it is an interpreter
    place = next((at for at, word in enumerate(first) if word.rpartition("/")[2] == PROGRAM), None)
    return place is not None and any(_SERVES.fullmatch(word) for word in words[place + 1 :])


def other_namespace(path: Path) -> Unknown | None:
    """Unknown where the listener of this socket is in a pid namespace whose pids mean nothing
    here."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            probe.connect(str(path))
            if peer_of(probe).pid == 0:
                return Unknown("mpsd runs in another pid namespace; ask there, or with hostPID")
    except OSError:  # nobody does
        pass
    return None


@dataclass(frozen=True, slots=True)
class Host:
    """What is installed on a machine. root: the folder that stands for /."""

    root: Path

    def look(self, run_directory: Path) -> dict[str, Any]:
        """By field of NodeFacts. run_directory: as this process sees it."""
        return {
            "uvm": self._here("dev/nvidia-uvm").exists(),
            "default_pipe": self._here("tmp/nvidia-mps").exists(),
            "selinux": self._selinux(run_directory),
            "engines": {engine: self._text(one.file) for engine, one in CONFIGURATIONS.items()},
            "launcher": self._launcher(),
            "toolkit": bool(self._program("nvidia-container-runtime")),
            "unlinked": self._unlinked(),
        }

    def _unlinked(self) -> Fact[tuple[str, ...]]:
        if not self._here("run/systemd/system").is_dir():
            return NotApplicable("systemd does not run here")
        found = []
        try:
            for node in sorted(self._here("dev").glob("nvidia*")):
                status = node.stat()
                if not stat.S_ISCHR(status.st_mode):
                    continue
                number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
                if not os.path.lexists(self._here(f"dev/char/{number}")):
                    found.append(f"/dev/{node.name}")
        except OSError as error:
            return Unknown(f"{error.filename} cannot be read: {error.strerror}")
        return tuple(found)

    def _program(self, name: str) -> str:
        places = [f"{folder}/{name}" for folder in _PROGRAMS]
        if name.startswith("/"):
            places = [name.lstrip("/")]
        return next((place for place in places if os.access(self.root / place, os.X_OK)), "")

    def _launcher(self) -> Fact[LauncherSeen | None]:
        text = self._text(LAUNCHER)
        if text is None or isinstance(text, Unknown):
            return text
        if (words := launched(text)) is None:
            return Unknown(f"{LAUNCHER} was not written by this version of mpsd")
        needs = (words.python, f"{words.folder}/mpsd/runtime")
        missing = tuple(path for path in needs if not self._here(path).exists())
        found = next(filter(None, map(self._program, words.next_runtimes)), "")
        return LauncherSeen(missing, words.next_runtimes, found)

    def _selinux(self, run_directory: Path) -> Fact[Mapping[str, str]]:
        try:
            if (self.root / "sys/fs/selinux/enforce").read_text().strip() != "1":
                return {}
        except FileNotFoundError:
            return NotApplicable("there is no SELinux")
        except OSError as error:
            return Unknown(f"/sys/fs/selinux/enforce cannot be read: {error.strerror}")
        try:
            folders = sorted(run_directory.glob("gpu*/client"))
            return {str(folder): _type(folder) for folder in folders}
        except OSError as error:
            return Unknown(f"the label of {error.filename} cannot be read: {error.strerror}")

    def _text(self, path: str) -> Fact[str | None]:
        """The text of a file below the root; None where there is none."""
        try:
            return engine_files.find(self._here(path), self.root).text
        except OSError as error:
            return Unknown(f"{path} cannot be read: {error.strerror}")
        except InvalidInput as error:
            return Unknown(str(error))

    def _here(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def kubelet(directory: Path) -> Fact[str]:
    """The folder for device plugins in kubelet's root if it is missing; NotApplicable where kubelet
    has never run."""
    try:
        if not any(directory.iterdir()):
            return NotApplicable(f"{directory} is empty: no kubelet has run here")
    except (FileNotFoundError, NotADirectoryError):
        return NotApplicable(f"there is no {directory}: no kubelet runs here")
    except OSError as error:
        return Unknown(f"{directory} cannot be read: {error.strerror}")
    plugins = directory / "device-plugins"
    if plugins.is_dir():
        return ""
    return str(plugins)


def _type(folder: Path) -> str:
    """The type of a folder's label, its third part, as in system_u:object_r:container_file_t:s0,
    with the categories of one container where it has any, as in container_file_t:s0:c1,c2; empty
    where it has no label. OSError.
    """
    try:
        label = os.getxattr(folder, "security.selinux").decode(errors="replace")
    except OSError as error:
        if error.errno in {errno.ENODATA, errno.ENOTSUP}:
            return ""
        raise
    parts = label.rstrip("\0").split(":")[2:]
    if len(parts) < 3:  # no categories, so that the level says nothing
        parts = parts[:1]
    return ":".join(parts)
