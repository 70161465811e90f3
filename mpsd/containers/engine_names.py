"""What people call the containers of docker and podman, which tell their runtimes ids alone.

One rule: an engine is asked with a short deadline, and where none answers a container has its id for a name.

Source: https://docs.docker.com/reference/api/engine/ (GET /containers/json), which podman's service answers too.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from mpsd.platform import local_api

_DEADLINE_S = 1.0
_OK = 200


class _Container(msgspec.Struct, rename="pascal"):
    """names: each with a slash before it; those with a second one are links of old."""

    id: str
    names: list[str] = []


def engine_names(sockets: Iterable[Path]) -> dict[str, str]:
    """From the ids of the containers that run to their names, as far as anybody tells."""
    return {container.id: name for socket in sockets for container in _running(socket) if (name := _name(container))}


def _running(socket: Path) -> list[_Container]:
    try:
        status, body = local_api.ask(socket, "GET", "/containers/json", timeout_s=_DEADLINE_S)
        return msgspec.json.decode(body, type=list[_Container]) if status == _OK else []
    except (local_api.NotRunning, msgspec.MsgspecError, OSError):
        return []


def _name(container: _Container) -> str:
    plain = [name.removeprefix("/") for name in container.names]
    return next((name for name in plain if name and "/" not in name), "")
