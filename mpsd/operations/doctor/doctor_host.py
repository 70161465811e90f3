"""What is around mpsd on a machine: container engines, the launcher, kubelet's folder, SELinux, device nodes.

One rule: everything is looked for below one root, so that a machine can be looked at from a container that has its / in
a folder.
"""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from mpsd.containers import engine_files
from mpsd.containers.engines.change import CONFIGURATION, LAUNCHER, Engine
from mpsd.containers.engines.launcher import launched
from mpsd.model.problem import InvalidInput
from mpsd.operations.doctor.rules.doctor_facts import (
    Elsewhere,
    EngineSeen,
    Fact,
    KubeletSeen,
    LauncherSeen,
    SelinuxSeen,
    Unknown,
)

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
