"""The containers of this machine that use mpsd, and what people call them.

`mpsd up` is asked; where it does not run, its ledger and the runtimes' own state below /run are read. A container uses
mpsd when its poststop hook is mpsd-runtime's. One whose state cannot be read counts as one that may use mpsd. Only
files that root's programs have written are read, never anything inside a container's own file system.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import local_api, processes, records

_STARTED_BY_PYTHON = "mpsd.runtime.main"  # in a hook where mpsd-runtime was started without its launcher


@dataclass(frozen=True, slots=True)
class ContainerUser:
    """A container that uses mpsd. name: as people know it, empty where unknown. known_from: how it was found."""

    id: str
    name: str
    known_from: str

    def __str__(self) -> str:
        return f"{self.id} ({self.name})" if self.name else self.id


def _has_hook(document: object, launcher: str) -> bool:
    """Whether a bundle's config.json, or runc's state.json, has a poststop hook of mpsd-runtime."""
    top = _object(document)
    state = _object(top.get("config"))
    names = {"mpsd-runtime", Path(launcher).name}
    for hooks in (top.get("hooks"), state.get("Hooks"), state.get("hooks")):
        for hook in map(_object, _list(_object(hooks).get("poststop"))):
            for word in (hook.get("path"), *_list(hook.get("args"))):
                if isinstance(word, str) and (Path(word).name in names or _STARTED_BY_PYTHON in word):
                    return True
    return False


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# -- what the runtimes keep of containers ----------------------------------------------------------------------------

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
    """A file whose contents are not known."""


def bundle_users(root: Path, launcher: str) -> list[ContainerUser]:
    """Each once, by its id; one that cannot be read is among them, as it may use mpsd."""
    found: dict[str, ContainerUser] = {}
    for path, bundle in _kept(root):
        name = path.parent.name
        try:
            is_user = _has_hook(_read(bundle), launcher)
            known_from = str(bundle)
        except FileNotFoundError:
            continue  # it has ended meanwhile
        except _UnreadableRecord as error:
            is_user, known_from = True, f"{bundle} cannot be read ({error}), so it may be one"
        if is_user:
            found.setdefault(name, ContainerUser(name, "", known_from))
    return list(found.values())


def _kept(root: Path) -> Iterator[tuple[Path, Path]]:
    """The state of each container, and the file that has its hooks."""
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
        bundle = _object(status).get("bundle")
        if isinstance(bundle, str):
            yield path, root / bundle.lstrip("/") / "config.json"


def _read(path: Path) -> object:
    """FileNotFoundError; _UnreadableRecord."""
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


# -- what mpsd knows -------------------------------------------------------------------------------------------------

_DEADLINE_S = 10.0
_LEDGER = "grants/*.container.json"  # in the run directory


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
    """process: its first one, or the runtime that is creating it."""

    id: str
    process: ProcessIdentity
    name: str = ""


@dataclass(frozen=True, slots=True)
class _LedgerEntry:
    """A container's grant in the ledger, as far as it matters here."""

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
    for path in sorted(run_directory.glob(_LEDGER)):
        try:
            entry = records.read(path, _LedgerEntry)
        except records.UnreadableRecord as error:
            found.append(ContainerUser(path.name, "", f"{path} cannot be read ({error.reason}), so it may be one"))
            continue
        if entry and processes.is_alive(entry.holder.process):
            holder = entry.holder
            found.append(ContainerUser(holder.id, holder.name, f"holds grant {entry.id} in {path}"))
    return found


# -- names: docker and podman pass only ids to their runtimes --------------------------------------------------------
# Source: https://docs.docker.com/reference/api/engine/ (GET /containers/json), which podman's service answers too.

_NAMES_S = 1.0
_OK = 200


class _NamedContainer(msgspec.Struct, rename="pascal"):
    """names: each with a slash before it; those with a second one are links of old."""

    id: str
    names: list[str] = []


def engine_names(sockets: Iterable[Path]) -> dict[str, str]:
    """The names of running containers by their ids, as far as an engine answers."""
    return {container.id: name for socket in sockets for container in _running(socket) if (name := _name(container))}


def _running(socket: Path) -> list[_NamedContainer]:
    try:
        status, body = local_api.ask(socket, "GET", "/containers/json", timeout_s=_NAMES_S)
        return msgspec.json.decode(body, type=list[_NamedContainer]) if status == _OK else []
    except (local_api.NotRunning, msgspec.MsgspecError, OSError):
        return []


def _name(container: _NamedContainer) -> str:
    plain = [name.removeprefix("/") for name in container.names]
    return next((name for name in plain if name and "/" not in name), "")
