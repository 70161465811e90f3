"""The containers of the simulated kubelet: starting one, finding those that an earlier kubelet
started, ending one.

Nothing is remembered here; every container that ever ran is a folder, and what it says is looked
at.
"""

import json
import os
import secrets
import shutil
import signal
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mpsd.kubelet.rules.allocation import Answer
from mpsd.model.grants import DeviceNode
from mpsd.simulator.kubelet.pods import SimContainer, SimPod
from mpsd.simulator.process_status import process_start_ticks

KILLED = 137  # the exit code of what ended with SIGKILL, or in an unknown way


class CannotCreate(Exception):
    """The container cannot be made as it is asked for."""


@dataclass(frozen=True, slots=True)
class Running:
    """pid: of the container's first process."""

    pid: int
    started: float


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int
    started: float
    finished: float


@dataclass(frozen=True, slots=True)
class NotStarted:
    """reason: why its command could not become a process; empty while that is not known yet."""

    reason: str


class ContainerRun:
    """One time that a container ran, or runs: a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def attempt(self) -> int:
        return int(self.folder.name)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def state(self) -> Running | Ended | NotStarted:
        known = self._known()
        if known and "failed" not in known and "exit_code" not in known:
            shim = known["shim"]
            if process_start_ticks(shim["pid"]) == shim["start_ticks"]:
                return Running(known["pid"], known["started"])
            known = self._known()  # its last word may have come in between
        if not known or "failed" in known:
            return NotStarted(known.get("failed", ""))
        return Ended(
            known.get("exit_code", KILLED),
            known["started"],
            known.get("finished", known["started"]),
        )

    def _known(self) -> dict[str, Any]:
        """What the shim said last; empty while it has said nothing."""
        try:
            known: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        except FileNotFoundError:
            return {}
        return known

    @property
    def may_run(self) -> bool:
        """Whether it runs, or is about to."""
        state = self.state()
        return isinstance(state, Running) or state == NotStarted("")

    def signal(self, number: signal.Signals) -> bool:
        """Whether there was somebody to send it to."""
        state = self.state()
        if isinstance(state, Running):
            with suppress(ProcessLookupError):
                os.kill(state.pid, number)
                return True
        return False


class Containers:
    """All containers below one folder: <pod uid>/<container>/<attempt>. cgroup_root: as kubelet's
    flag of that name."""

    def __init__(self, folder: Path, cgroup_root: str = "") -> None:
        self._folder = folder
        self._cgroup_root = cgroup_root
        self._shims: list[int] = []  # pids of children, which must be waited for

    def last_run(self, pod: SimPod, container: SimContainer) -> ContainerRun | None:
        """The newest; None where it never ran."""
        return max(self._runs(pod.uid, container.name), key=lambda run: run.attempt, default=None)

    def start(
        self,
        pod: SimPod,
        container: SimContainer,
        given: Answer,
        claimed: Answer,
    ) -> ContainerRun:
        """Starts it once more, with what its devices and its claims bring. CannotCreate where a
        device node is not there."""
        mounts = (*given.mounts, *claimed.mounts)
        asked = [(one, self._node(one.source)) for one in (*given.devices, *claimed.devices)]
        for mount in mounts:
            if not os.path.lexists(mount.source):
                # as containerd does: an empty folder, where a daemon is to be
                Path(mount.source).mkdir(parents=True)
        last = self.last_run(pod, container)
        run = ContainerRun(
            self._folder / pod.uid / container.name / str(last.attempt + 1 if last else 0)
        )
        (run.folder / "root").mkdir(parents=True)
        devices = [_made(run.folder / f"device{n}", *one) for n, one in enumerate(asked)]
        identity = secrets.token_hex(32)
        spec = {
            "command": container.command,
            # What the pod says wins over its devices, and CDI over both.
            "environment": {**given.environment, **container.environment, **claimed.environment},
            "mounts": [asdict(mount) for mount in mounts],
            "devices": [asdict(node) for node in devices],
            "annotations": dict(given.annotations),
            "cdi": (*given.cdi, *claimed.cdi),
            "root": str(run.folder / "root"),
            "uid": container.uid,
            "id": identity,
            "cgroup": str(self._new_cgroup(pod, identity)),
        }
        (run.folder / "spec.json").write_text(json.dumps(spec))
        arguments = [sys.executable, "-P", "-m", "mpsd.simulator.kubelet.shim", str(run.folder)]
        self._reap()
        self._shims.append(os.posix_spawn(sys.executable, arguments, os.environ))
        return run

    def spec(self, run: ContainerRun) -> Mapping[str, Any]:
        """What the container was started with."""
        spec: Mapping[str, Any] = json.loads((run.folder / "spec.json").read_text())
        return spec

    def forget(self, pod_uid: str) -> None:
        """Removes all traces of a pod whose containers have ended."""
        for run in self.all_runs(pod_uid):
            with suppress(FileNotFoundError):
                _remove_cgroup(self.spec(run)["cgroup"])
        shutil.rmtree(self._folder / pod_uid, ignore_errors=True)
        self._reap()

    def pods(self) -> set[str]:
        """The uid of every pod that has a trace here."""
        return {pod.name for pod in self._folder.iterdir()} if self._folder.is_dir() else set()

    def all_runs(self, pod_uid: str) -> list[ContainerRun]:
        folder = self._folder / pod_uid
        return [run for name in _names(folder) for run in self._runs(pod_uid, name)]

    def _runs(self, pod_uid: str, container: str) -> Iterator[ContainerRun]:
        folder = self._folder / pod_uid / container
        return (ContainerRun(folder / attempt) for attempt in _names(folder))

    def _new_cgroup(self, pod: SimPod, identity: str) -> Path | str:
        """A cgroup as kubelet's cgroupfs driver names it; empty where there can be none."""
        if self._cgroups is None:
            return ""
        made = (
            self._cgroups
            / self._cgroup_root
            / "kubepods"
            / "besteffort"
            / f"pod{pod.uid}"
            / identity
        )
        try:
            made.mkdir(parents=True)
        except OSError:
            return ""
        return made

    def _node(self, source: str) -> os.stat_result | None:
        """A device node as it is now; None where there can be none."""
        try:
            return os.lstat(source)
        except FileNotFoundError:
            if not self._makes_devices:
                return None
            raise CannotCreate(
                f"failed to generate container spec: lstat {source}: no such file or directory"
            ) from None

    @cached_property
    def _makes_devices(self) -> bool:
        """Whether there can be device nodes here: who is not root could have made none, and none is
        missed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        attempt = self._folder.with_name(".device")
        attempt.unlink(missing_ok=True)
        try:
            os.mknod(attempt, stat.S_IFCHR | 0o400, os.makedev(1, 3))
        except PermissionError:
            return False
        attempt.unlink()
        return True

    @cached_property
    def _cgroups(self) -> Path | None:
        """The root of a hierarchy that cgroups can be made in."""
        top = Path("/sys/fs/cgroup")
        usable = [top] if (top / "cgroup.controllers").exists() else [top / "unified", top / "pids"]
        return next((each for each in usable if os.access(each / "cgroup.procs", os.W_OK)), None)

    def _reap(self) -> None:
        self._shims = [shim for shim in self._shims if os.waitpid(shim, os.WNOHANG) == (0, 0)]


def _made(place: Path, device: DeviceNode, found: os.stat_result | None) -> DeviceNode:
    """As runc makes it, by the numbers of when the container was created: what becomes of the
    machine's node until it starts is nothing to it."""
    if found is None or not stat.S_ISCHR(found.st_mode):
        return device
    os.mknod(place, found.st_mode, found.st_rdev)
    return replace(device, source=str(place))


def _names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()] if folder.is_dir() else []


def _remove_cgroup(cgroup: str) -> None:
    """The container's, and the pod's once it is the last."""
    for each in (Path(cgroup), Path(cgroup).parent) if cgroup else ():
        with suppress(OSError):
            each.rmdir()
