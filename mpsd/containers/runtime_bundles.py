"""Containers that use mpsd, where no `mpsd up` says so: found by what the runtimes keep of them below /run.

One rule: only files that root's programs have written are read, never anything inside a container's own files.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from mpsd.containers.runtime_users import ContainerUser, has_our_hook

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


class _Unreadable(Exception):
    """Nothing is known of what is in a file."""


def users(root: Path, launcher: str) -> list[ContainerUser]:
    """Each once, by its id; one that cannot be read is among them, as it may use mpsd."""
    found: dict[str, ContainerUser] = {}
    for path, bundle in _kept(root):
        name = path.parent.name
        try:
            is_user = has_our_hook(_read(bundle), launcher)
            known_from = str(bundle)
        except FileNotFoundError:
            continue  # it has ended meanwhile
        except _Unreadable as error:
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
        except _Unreadable:
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
            raise _Unreadable(f"larger than {_LARGEST_BYTES // 1024**2} MiB")
        return json.loads(data)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise _Unreadable(str(error)) from None
