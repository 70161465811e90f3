"""Which containers use mpsd: asked of `mpsd up`, else looked up in its books and in what the runtimes keep.

One rule: no answer is not "nobody".
"""

from dataclasses import dataclass
from pathlib import Path

from mpsd.containers import runtime_bundles
from mpsd.containers.runtime_users import ContainerUser
from mpsd.model.identity import ProcessIdentity
from mpsd.platform import local_api, processes, records

_DEADLINE_S = 10.0
_BOOKS = "grants/*.container.json"  # in the run directory


@dataclass(frozen=True, slots=True)
class _Held:
    """As model.node_status.GrantStatus has it. container None: a program holds the grant, or mpsd is older."""

    id: str
    container: str | None = None
    container_name: str | None = None


@dataclass(frozen=True, slots=True)
class _Node:
    grants: tuple[_Held, ...]


@dataclass(frozen=True, slots=True)
class _Container:
    """process: its first one, or its runtime while that makes it."""

    id: str
    process: ProcessIdentity
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Written:
    """What the books say of a container's grant, as far as it matters here."""

    id: str
    holder: _Container


def users(socket: Path, root: Path, launcher: str) -> list[ContainerUser]:
    """Containers that hold a grant of the mpsd that answers on this socket.

    Where none answers: those of its books that live, and those found below root; each once, by its id.
    """
    try:
        _status, body = local_api.ask(socket, "GET", "/v1/node", timeout_s=_DEADLINE_S)
        node = local_api.read(body, _Node)
    except (local_api.NotRunning, TimeoutError, OSError):
        found: dict[str, ContainerUser] = {}
        for user in (*_in_books(socket.parent), *runtime_bundles.users(root, launcher)):
            found.setdefault(user.id, user)
        return list(found.values())
    return [
        ContainerUser(held.container, held.container_name or "", f"holds grant {held.id} of mpsd up")
        for held in node.grants
        if held.container is not None
    ]


def _in_books(run_directory: Path) -> list[ContainerUser]:
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
