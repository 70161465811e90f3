"""The containers that use mpsd: `mpsd up` is asked, else its ledger and the runtimes' state below
/run are read. They have mpsd-runtime's poststop hook; one that cannot be read may. Nothing
inside a container is read."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from mpsd.model.identity import HostContainer
from mpsd.model.node_report import NodeReport
from mpsd.platform import local_api, processes, records

# in a hook where mpsd-runtime was started without its launcher
_STARTED_BY_PYTHON = "mpsd.runtime.main"


@dataclass(frozen=True, slots=True)
class ContainerUser:
    """name: as people know it, or empty. known_from: how it was found."""

    id: str
    name: str
    known_from: str

    def __str__(self) -> str:
        return f"{self.id} ({self.name})" if self.name else self.id


def _has_hook(document: object, launcher: str) -> bool:
    """In a bundle's config.json, or runc's state.json."""
    top = _object(document)
    state = _object(top.get("config"))
    names = {"mpsd-runtime", Path(launcher).name}
    for hooks in (top.get("hooks"), state.get("Hooks"), state.get("hooks")):
        for word in _words(_object(hooks).get("poststop")):
            if Path(word).name in names or _STARTED_BY_PYTHON in word:
                return True
    return False


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _words(hooks: object) -> Iterator[str]:
    """Every text in them."""
    if isinstance(hooks, str):
        yield hooks
    elif isinstance(hooks, list):
        for one in hooks:
            yield from _words(one)
    elif isinstance(hooks, dict):
        yield from _words([hooks.get("path"), hooks.get("args")])


# -- what the runtimes keep of containers

_STATES = (
    # of containerd, and of docker with a containerd of its own
    "run/containerd/io.containerd.runtime.v2.task/*/*/config.json",
    "run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*/config.json",
    # of runc: its own --root, and those of ctr, of docker and of podman
    "run/runc/*/state.json",
    "run/containerd/runc/*/*/state.json",
    "run/docker/runtime-runc/*/*/state.json",
    "run/crun/*/status",
)


def bundle_users(root: Path, launcher: str) -> list[ContainerUser]:
    """One that cannot be read is among them."""
    found: dict[str, ContainerUser] = {}
    states = chain.from_iterable(sorted(root.glob(pattern)) for pattern in _STATES)
    for path in states:
        name = path.parent.name
        bundle = path
        try:
            if path.name == "status":  # crun's, which only names the bundle
                named = _object(records.read(path, object)).get("bundle")
                if not isinstance(named, str):
                    continue
                bundle = root / named.lstrip("/") / "config.json"
            # None where it has ended meanwhile
            if _has_hook(records.read(bundle, object), launcher):
                found.setdefault(name, ContainerUser(name, "", str(bundle)))
        except records.UnreadableRecord as error:
            found.setdefault(name, ContainerUser(name, "", _unreadable(bundle, error)))
    return list(found.values())


def _unreadable(path: Path, error: records.UnreadableRecord) -> str:
    return f"{path} cannot be read ({error.reason}), so it may use mpsd"


# -- what mpsd knows


@dataclass(frozen=True, slots=True)
class _LedgerEntry:
    id: str
    holder: HostContainer


def users(socket: Path, root: Path, launcher: str) -> list[ContainerUser]:
    """Of the mpsd on this socket; where none answers, those in its ledger and below root."""
    try:
        _status, body = local_api.ask(socket, "GET", "/v1/node", timeout_s=10.0)
        node = local_api.read(body, NodeReport)
    except (local_api.NotRunning, TimeoutError, OSError):
        found = (*bundle_users(root, launcher), *_in_ledger(socket.parent))
        return list({user.id: user for user in found}.values())
    return [
        ContainerUser(held.container, held.container_name, f"holds grant {held.id} of mpsd up")
        for held in node.grants or ()
        if held.container
    ]


def _in_ledger(run_directory: Path) -> list[ContainerUser]:
    found = []
    for path in sorted(run_directory.glob("grants/*.container.json")):
        try:
            entry = records.read(path, _LedgerEntry)
        except records.UnreadableRecord as error:
            found.append(ContainerUser(path.name, "", _unreadable(path, error)))
            continue
        if entry and processes.is_alive(entry.holder.process):
            holder = entry.holder
            found.append(ContainerUser(holder.id, holder.name, f"holds grant {entry.id} in {path}"))
    return found


# -- names: docker and podman pass only ids to their runtimes
# Source: https://docs.docker.com/reference/api/engine/ (GET /containers/json); podman has it too.


class _NamedContainer(msgspec.Struct, rename="pascal"):
    """names: each with a slash before it; those with a second one are links of old."""

    id: str
    names: list[str] = []


def engine_names(sockets: Iterable[Path]) -> dict[str, str]:
    """Of running containers by their ids, as far as an engine answers."""
    found: dict[str, str] = {}
    for socket in sockets:
        try:
            _status, body = local_api.ask(socket, "GET", "/containers/json", timeout_s=1.0)
            containers = msgspec.json.decode(body, type=list[_NamedContainer])
        except (local_api.NotRunning, msgspec.MsgspecError, OSError):
            continue  # an error is no list
        for container in containers:
            for name in container.names:
                plain = name.removeprefix("/")
                if plain and "/" not in plain:
                    found.setdefault(container.id, plain)
    return found
