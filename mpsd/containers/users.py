"""Which containers use mpsd: asked of `mpsd up`, else looked up in its ledger and in what the runtimes keep.

One rule: no answer is not "nobody".
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import local_api, processes, records

# Which containers use mpsd: by what `mpsd up` says, or by the hooks in what runtimes keep of them.
#
# One rule: a container uses mpsd when a hook at its end is mpsd-runtime's; whatever cannot be read may be one.

_STARTED_BY_PYTHON = "mpsd.runtime.main"  # what a hook says where mpsd-runtime was started without its launcher


@dataclass(frozen=True, slots=True)
class ContainerUser:
    """A container that uses mpsd. name: as people know it, empty where nobody says. known_from: who says so."""

    id: str
    name: str
    known_from: str

    def __str__(self) -> str:
        return f"{self.id} ({self.name})" if self.name else self.id


def has_our_hook(document: object, launcher: str) -> bool:
    """Whether a bundle's config.json, or runc's state.json, has a poststop hook of mpsd-runtime."""
    top = document if isinstance(document, dict) else {}
    config = top.get("config")
    state = config if isinstance(config, dict) else {}
    hooks = [top.get("hooks"), state.get("Hooks"), state.get("hooks")]
    return any(_is_ours(hook, launcher) for held in hooks for hook in _poststop(held))


def _poststop(hooks: object) -> list[Any]:
    held = hooks.get("poststop") if isinstance(hooks, dict) else None
    return held if isinstance(held, list) else []


def _is_ours(hook: object, launcher: str) -> bool:
    if not isinstance(hook, dict):
        return False
    args = hook.get("args")
    words = [hook.get("path"), *(args if isinstance(args, list) else [])]
    names = {"mpsd-runtime", _base(launcher)}
    return any(isinstance(word, str) and (_base(word) in names or _STARTED_BY_PYTHON in word) for word in words)


def _base(path: str) -> str:
    return path.rpartition("/")[2]


# Containers that use mpsd, where no `mpsd up` says so: found by what the runtimes keep of them below /run.
#
# One rule: only files that root's programs have written are read, never anything inside a container's own files.

_BUNDLES = (  # of containerd, and of docker with a containerd of its own
    "run/containerd/io.containerd.runtime.v2.task/*/*/config.json",
    "run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*/config.json",
)
_STATES = (  # of runc: its own --root, and those of ctr, of docker and of podman
    "run/runc/*/state.json",
    "run/containerd/runc/*/*/state.json",
    "run/docker/runtime-runc/*/*/state.json",
)
_CRUN = "run/crun/*/status"
_LARGEST_BYTES = 16 * 1024**2


class _UnreadableRecord(Exception):
    """Nothing is known of what is in a file."""


def bundle_users(root: Path, launcher: str) -> list[ContainerUser]:
    """Each once, by its id; one that cannot be read is among them, as it may use mpsd."""
    found: dict[str, ContainerUser] = {}
    for path, bundle in _kept(root):
        name = path.parent.name
        try:
            is_user = has_our_hook(_read(bundle), launcher)
            known_from = str(bundle)
        except FileNotFoundError:
            continue  # it has ended meanwhile
        except _UnreadableRecord as error:
            is_user, known_from = True, f"{bundle} cannot be read ({error}), so it may be one"
        if is_user:
            found.setdefault(name, ContainerUser(name, "", known_from))
    return list(found.values())


def _kept(root: Path) -> Iterator[tuple[Path, Path]]:
    """What is kept of each container, and the file of it that has the hooks."""
    for pattern in (*_BUNDLES, *_STATES):
        yield from ((path, path) for path in sorted(root.glob(pattern)))
    for path in sorted(root.glob(_CRUN)):
        try:
            status = _read(path)
        except FileNotFoundError:
            continue
        except _UnreadableRecord:
            yield path, path
            continue
        bundle = status.get("bundle") if isinstance(status, dict) else None
        if isinstance(bundle, str):
            yield path, root / bundle.lstrip("/") / "config.json"


def _read(path: Path) -> object:
    """FileNotFoundError; _Unreadable."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
        if len(data) > _LARGEST_BYTES:
            raise _UnreadableRecord(f"larger than {_LARGEST_BYTES // 1024**2} MiB")
        return json.loads(data)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise _UnreadableRecord(str(error)) from None


_DEADLINE_S = 10.0
_BOOKS = "grants/*.container.json"  # in the run directory


@dataclass(frozen=True, slots=True)
class _GrantRecord:
    """As model.node_status.GrantStatus has it. container None: a program holds the grant, or mpsd is older."""

    id: str
    container: str | None = None
    container_name: str | None = None


@dataclass(frozen=True, slots=True)
class _NodeStatus:
    grants: tuple[_GrantRecord, ...]


@dataclass(frozen=True, slots=True)
class _UsingContainer:
    """process: its first one, or its runtime while that makes it."""

    id: str
    process: ProcessIdentity
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Written:
    """What the ledger says of a container's grant, as far as it matters here."""

    id: str
    holder: _UsingContainer


def users(socket: Path, root: Path, launcher: str) -> list[ContainerUser]:
    """Containers that hold a grant of the mpsd that answers on this socket.

    Where none answers: those of its ledger that live, and those found below root; each once, by its id.
    """
    try:
        _status, body = local_api.ask(socket, "GET", "/v1/node", timeout_s=_DEADLINE_S)
        node = local_api.read(body, _NodeStatus)
    except (local_api.NotRunning, TimeoutError, OSError):
        found: dict[str, ContainerUser] = {}
        for user in (*_in_ledger(socket.parent), *bundle_users(root, launcher)):
            found.setdefault(user.id, user)
        return list(found.values())
    return [
        ContainerUser(held.container, held.container_name or "", f"holds grant {held.id} of mpsd up")
        for held in node.grants
        if held.container is not None
    ]


def _in_ledger(run_directory: Path) -> list[ContainerUser]:
    found = []
    for path in sorted(run_directory.glob(_BOOKS)):
        try:
            written = records.read(path, _Written)
        except records.UnreadableRecord as error:
            found.append(ContainerUser(path.name, "", f"{path} cannot be read ({error.reason}), so it may be one"))
            continue
        if written and processes.is_alive(written.holder.process):
            holder = written.holder
            found.append(ContainerUser(holder.id, holder.name, f"holds grant {written.id}, {path} says"))
    return found
