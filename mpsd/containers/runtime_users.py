"""Which containers use mpsd: by what `mpsd up` says, or by the hooks in what runtimes keep of them.

One rule: a container uses mpsd when a hook at its end is mpsd-runtime's; whatever cannot be read may be one.
"""

from dataclasses import dataclass
from typing import Any

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
