"""The changes to a machine's files by which an engine knows the runtime mpsd, or does not any more.

A change holds the whole file before and after, so what is shown is what is done.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

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
_RELOAD = {  # what makes the engine read its configuration again, and what that costs
    Engine.DOCKER: "systemctl reload docker",  # it reads its runtimes at SIGHUP
    Engine.CONTAINERD: "systemctl restart containerd",
}
_CALLS = "from mpsd.runtime.main import main"  # what every launcher of any version does
_COST = {
    Engine.DOCKER: "docker reads its runtimes again when it is reloaded; running containers are not affected",
    Engine.CONTAINERD: "containerd reads its configuration when it starts; running containers are not affected",
    Engine.PODMAN: "podman reads its configuration whenever it is run: nothing needs a restart",
}


class _Format(Protocol):
    """The module of one engine's configuration file. subject: the file as people name it. InvalidInput from all."""

    def with_runtime(self, text: str | None, subject: str, launcher: str, /) -> str: ...

    def without_runtime(self, text: str, subject: str, launcher: str, backups: Sequence[str], /) -> str | None: ...

    def has_runtime(self, text: str, subject: str, launcher: str, /) -> bool: ...


_FORMATS: Mapping[Engine, _Format] = {
    Engine.DOCKER: docker,
    Engine.CONTAINERD: containerd,
    Engine.PODMAN: podman,
}


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file. before None: there is none. after None: it is removed. what: the file, in words.

    backup: where the old file is kept, empty for nowhere. spare: a backup that is the same as the file afterwards, and
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
    return _FORMATS[engine].with_runtime(text, subject, launcher)


def without_runtime(engine: Engine, text: str, subject: str, launcher: str, backups: Sequence[str]) -> str | None:
    """The engine's configuration without it; None where the file is to be removed. InvalidInput."""
    return _FORMATS[engine].without_runtime(text, subject, launcher, backups)


def has_runtime(engine: Engine, text: str, subject: str, launcher: str) -> bool:
    """Whether the engine's configuration names this launcher. InvalidInput."""
    return _FORMATS[engine].has_runtime(text, subject, launcher)


def names_launcher(engine: Engine, text: str, subject: str, launcher: str) -> bool:
    """As has_runtime; True where the file cannot be read, since what may still be named is not removed."""
    try:
        return has_runtime(engine, text, subject, launcher)
    except InvalidInput:
        return True


def to_do(engine: Engine) -> list[str]:
    """Commands after a change."""
    return [_RELOAD[engine]] if engine in _RELOAD else []


def notes(engine: Engine, text: str | None, subject: str, launcher: str) -> list[str]:
    """What to know once the engine has the runtime. text: its configuration before."""
    found = [_COST[engine]]
    if engine is Engine.CONTAINERD:
        found += containerd.notes(text, subject)
        found.append(
            f"`ctr run --runc-binary {launcher}` and nerdctl's `--runtime {launcher}` do not need"
            " containerd's configuration"
        )
    else:
        found.append(f"{engine} run --runtime=mpsd -e ALIYUN_COM_GPU_MEM_CONTAINER=6 … gives a container its share")
    return found


def cost_of_going(engine: Engine, *, launcher_stays: bool) -> str:
    """What taking the runtime away does to the containers that use it."""
    never = f"they cannot be started again ({'ctr task' if engine is Engine.CONTAINERD else engine} start fails)"
    if launcher_stays:
        return (
            "they keep running with their limits and release their share at their end, since the launcher stays for "
            f"others; but where {engine} created them, {never}"
        )
    return (
        "they keep running with their limits, but their engine calls the launcher to enter, stop and remove them, "
        "which fails until a link to runc is put in its place; the hook that releases their share at their end is gone "
        f"too, so it is released only when mpsd up itself notices that they are gone; and {never}"
    )


def _check_launcher(path: str, before: str | None) -> None:
    is_ours = before is not None and before.startswith("#!") and _CALLS in before
    if before is not None and not is_ours:
        remedy = "move it away, or write the launcher to another place: --to PATH"
        raise InvalidInput(path, [Problem("launcher-taken", "the file", "", "is not a launcher of mpsd", remedy)])


def _lines(text: str | None) -> list[str]:
    """As diff(1) counts them."""
    lines = (text or "").split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
