"""podman's drop-in file that makes it know the runtime mpsd.

The file is mpsd's alone, so it is written and removed as a whole, or it is InvalidInput.
"""

import json
import tomllib
from collections.abc import Sequence
from typing import Any

from mpsd.model.problem import InvalidInput, Problem, shown

RUNTIME = "mpsd"
_WHERE = f"engine.runtimes.{RUNTIME}"


def with_runtime(text: str | None, subject: str, launcher: str) -> str:
    """The file; the very same text where it names the launcher. text None: there is no file."""
    if text is None:
        says = "# Written by `mpsd install podman`; `mpsd uninstall podman` removes it."
        return f"{says}\n[engine.runtimes]\n{RUNTIME} = [{json.dumps(launcher, ensure_ascii=False)}]\n"
    _check_path(_entry(text, subject), subject, launcher)
    return text


def without_runtime(text: str, subject: str, launcher: str, _backups: Sequence[str], /) -> str | None:
    """None: the file is to be removed. The very same text where it does not name the runtime."""
    document = _document(text, subject)
    if (entry := _entry(text, subject)) is None:
        return text
    _check_path(entry, subject, launcher)
    if document != {"engine": {"runtimes": {RUNTIME: entry}}}:
        remedy = "move what is not mpsd's to a file of its own, or take the runtime out by hand"
        raise _refused(subject, _WHERE, "", "is not the only entry in mpsd's own file", remedy)
    return None


def has_runtime(text: str, subject: str, launcher: str) -> bool:
    return launcher in (_entry(text, subject) or ())


def _entry(text: str, subject: str) -> list[Any] | None:
    """None: the file does not name the runtime."""
    table: object = _document(text, subject)
    for key in ("engine", "runtimes", RUNTIME):
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, list) or table is None else [table]


def _check_path(entry: list[Any] | None, subject: str, launcher: str) -> None:
    if entry != [launcher]:
        remedy = f"remove the file, or name what is in it: --to {entry[0]}" if entry else "remove the file"
        value = shown(entry) if entry is not None else ""
        raise _refused(subject, _WHERE, value, f'is not ["{launcher}"]', remedy)


def _document(text: str, subject: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(subject, "the file", "", f"is not TOML: {error}", "remove it: it is mpsd's own") from None


def _refused(subject: str, where: str, value: str, message: str, remedy: str) -> InvalidInput:
    return InvalidInput(subject, [Problem("engine-config", where, value, message, remedy)])
