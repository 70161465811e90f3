"""Whether a path leads to another, as far as its text can say.

One rule: where the text cannot say, the path leads anywhere. A link that somebody made on the host is not seen.
"""

from functools import lru_cache

_Steps = tuple[str, ...]
_LONGEST_KEPT = 256  # characters of a path whose answer is kept: Kubernetes takes paths of a MiB, and thousands of them
_LINKED = ("var", "run")  # on every distribution a link to /run


def reached(host_path: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns that a path of the host leads to: it contains them, is one of them, or lies below one.

    `..` behind a link leads to where nobody can read it off, so such a path leads to all of them.
    """
    return (_reached if len(host_path) <= _LONGEST_KEPT else _reached.__wrapped__)(host_path, patterns)


def inside(path: str, patterns: tuple[str, ...]) -> str:
    """The first pattern that is this path or contains it; empty where none does."""
    return (_inside if len(path) <= _LONGEST_KEPT else _inside.__wrapped__)(path, patterns)


@lru_cache(maxsize=4096)
def _reached(host_path: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    if ".." in host_path.split("/"):
        return patterns
    steps = _steps(host_path)
    return tuple(pattern for pattern, wanted in _wanted(patterns) if all(map(_is_step, steps, wanted)))


@lru_cache(maxsize=4096)
def _inside(path: str, patterns: tuple[str, ...]) -> str:
    steps = _steps(path)
    candidates = ((pattern, wanted) for pattern, wanted in _wanted(patterns) if len(wanted) <= len(steps))
    return next((pattern for pattern, wanted in candidates if all(map(_is_step, steps, wanted))), "")


def _is_step(step: str, wanted: str) -> bool:
    return step.startswith(wanted[:-1]) if wanted.endswith("*") else step == wanted


@lru_cache(maxsize=64)
def _wanted(patterns: tuple[str, ...]) -> tuple[tuple[str, _Steps], ...]:
    return tuple((pattern, _steps(pattern)) for pattern in patterns)


def _steps(path: str) -> _Steps:
    """The steps of a path: one for any number of slashes, none for `.`, one back for each `..`."""
    steps: list[str] = []
    for step in path.split("/"):
        if step == "..":
            del steps[-1:]
        elif step not in {"", "."}:
            steps.append(step)
    return tuple(steps[1:] if tuple(steps[:2]) == _LINKED else steps)
