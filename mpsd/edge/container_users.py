"""Which containers use mpsd: asked of `mpsd up`, else looked up in what the runtimes keep of them.

One rule: no answer is not "nobody".
"""

from dataclasses import dataclass
from pathlib import Path

from mpsd.core.runtime_users import ContainerUser
from mpsd.edge import local_api, runtime_bundles

_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class _Held:
    """As core.node_status.GrantStatus has it. container None: a program holds the grant, or mpsd is older."""

    id: str
    container: str | None = None
    container_name: str | None = None


@dataclass(frozen=True, slots=True)
class _Node:
    grants: tuple[_Held, ...]


def users(socket: Path, root: Path, launcher: str) -> list[ContainerUser]:
    """Containers that hold a grant of the mpsd that answers on this socket; where none does, those found below root."""
    try:
        _status, body = local_api.ask(socket, "GET", "/v1/node", timeout_s=_DEADLINE_S)
        node = local_api.read(body, _Node)
    except (local_api.NotRunning, TimeoutError, OSError):
        return runtime_bundles.users(root, launcher)
    return [
        ContainerUser(held.container, held.container_name or "", f"holds grant {held.id} of mpsd up")
        for held in node.grants
        if held.container is not None
    ]
