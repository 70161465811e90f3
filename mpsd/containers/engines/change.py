"""What is done to a machine so that an engine knows the runtime mpsd, or does not any more: file by file.

One rule: a change says the whole file before and after, so what is shown is what is done.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from mpsd.containers.engines import containerd, docker, podman
from mpsd.model.problem import InvalidInput, Problem

LAUNCHER = "/usr/local/bin/mpsd-runtime"


class Engine(StrEnum):
    """What starts containers."""

    DOCKER = "docker"
    CONTAINERD = "containerd"
    PODMAN = "podman"


CONFIGURATION = {
    Engine.DOCKER: "/etc/docker/daemon.json",
    Engine.CONTAINERD: "/etc/containerd/config.toml",
    Engine.PODMAN: "/etc/containers/containers.conf.d/mpsd.conf",
}
_HEARS = {  # what makes the engine read its configuration again, and what that costs
    Engine.DOCKER: "systemctl reload docker",  # it reads its runtimes at SIGHUP
    Engine.CONTAINERD: "systemctl restart containerd",
}
_CALLS = "from mpsd.runtime.main import main"  # what every launcher of any version does
_AT_WHAT_COST = {
    Engine.DOCKER: "docker reads its runtimes again when it is reloaded; no container notices",
    Engine.CONTAINERD: "containerd reads its configuration when it starts; running containers live on meanwhile",
    Engine.PODMAN: "podman reads its configuration whenever it is run: nothing is to be restarted",
}


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file. before None: it is not there. after None: it is removed. what: it is, in words.

    backup: where what it was is kept, empty for nowhere. spare: a backup that says what the file says afterwards, and
    is removed; empty for none.
    """

    file: str
    what: str
    before: str | None
    after: str | None
    mode: int = 0o644
    backup: str = ""
    spare: str = ""

    @property
    def action(self) -> str:
        if self.before == self.after:
            return "keep"
        return "remove" if self.after is None else "create" if self.before is None else "change"

    def diff(self) -> str:
        """As `diff -u` shows it; empty where nothing changes."""
        old, new = (self.file if text is not None else "/dev/null" for text in (self.before, self.after))
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(_lines(self.before), _lines(self.after), old, new)
        )


def launcher_written(path: str, before: str | None, text: str) -> FileChange:
    """InvalidInput where something else is there."""
    _check_launcher(path, before)
    return FileChange(path, "the launcher", before, text, 0o755)


def launcher_removed(path: str, before: str | None, still_named_by: Sequence[str]) -> FileChange:
    """It stays where a configuration of another engine names it. InvalidInput where something else is there."""
    _check_launcher(path, before)
    what = f"the launcher, which is there for {' and '.join(still_named_by)}" if still_named_by else "the launcher"
    return FileChange(path, what, before, before if still_named_by else None, 0o755)


def with_runtime(engine: Engine, text: str | None, subject: str, launcher: str) -> str:
    """The engine's configuration with the runtime mpsd. InvalidInput."""
    match engine:
        case Engine.DOCKER:
            return docker.with_runtime(text, subject, launcher)
        case Engine.CONTAINERD:
            return containerd.with_runtime(text, subject, launcher)
        case Engine.PODMAN:
            return podman.with_runtime(text, subject, launcher)


def without_runtime(engine: Engine, text: str, subject: str, launcher: str, backups: Sequence[str]) -> str | None:
    """The engine's configuration without it; None where the file is to go. InvalidInput."""
    match engine:
        case Engine.DOCKER:
            return docker.without_runtime(text, subject, launcher, backups)
        case Engine.CONTAINERD:
            return containerd.without_runtime(text, subject, launcher, backups)
        case Engine.PODMAN:
            return podman.without_runtime(text, subject, launcher)


def names_launcher(engine: Engine, text: str, subject: str, launcher: str) -> bool:
    """Also where that cannot be known: what may still be named is not removed."""
    try:
        return has_runtime(engine, text, subject, launcher)
    except InvalidInput:
        return True


def has_runtime(engine: Engine, text: str, subject: str, launcher: str) -> bool:
    """Whether the engine's configuration names this launcher. InvalidInput."""
    match engine:
        case Engine.DOCKER:
            return docker.has_runtime(text, subject, launcher)
        case Engine.CONTAINERD:
            return containerd.has_runtime(text, subject, launcher)
        case Engine.PODMAN:
            return podman.has_runtime(text, subject, launcher)


def to_do(engine: Engine) -> list[str]:
    """Commands after a change."""
    return [_HEARS[engine]] if engine in _HEARS else []


def notes(engine: Engine, text: str | None, subject: str, launcher: str) -> list[str]:
    """What to know once the engine has the runtime. text: its configuration before."""
    said = [_AT_WHAT_COST[engine]]
    if engine is Engine.CONTAINERD:
        said += containerd.notes(text, subject)
        said.append(
            f"`ctr run --runc-binary {launcher}` and nerdctl's `--runtime {launcher}` need nothing of containerd's"
            " configuration"
        )
    else:
        said.append(f"{engine} run --runtime=mpsd -e ALIYUN_COM_GPU_MEM_CONTAINER=6 … gives a container its share")
    return said


def cost_of_going(engine: Engine, *, launcher_stays: bool) -> str:
    """What taking the runtime away does to the containers that use it."""
    never = f"they cannot be started again ({'ctr task' if engine is Engine.CONTAINERD else engine} start fails)"
    if launcher_stays:
        return (
            "they go on with their limits and give their share back at their end, as the launcher stays for others; "
            f"but where {engine} made them, {never}"
        )
    return (
        "they go on with their limits, but their engine calls the launcher to enter, stop and remove them, which fails "
        "until a link to runc is put in its place; the hook that gives their share back at their end is gone too, so "
        f"it comes back only when mpsd up itself sees that they are no more; and {never}"
    )


def _check_launcher(path: str, before: str | None) -> None:
    is_ours = before is not None and before.startswith("#!") and _CALLS in before
    if before is not None and not is_ours:
        remedy = "move it away, or write the launcher to another place: --to PATH"
        raise InvalidInput(path, [Problem("launcher-taken", "the file", "", "is no launcher of mpsd's", remedy)])


def _lines(text: str | None) -> list[str]:
    """As diff(1) counts them."""
    lines = (text or "").split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
