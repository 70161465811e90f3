"""dockerd's `daemon.json` with the runtime mpsd, and without it.

The result is the same document except for `runtimes.mpsd`, in the same order, or it is InvalidInput.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from mpsd.model.problem import InvalidInput, Problem, shown

RUNTIME = "mpsd"
_WHERE = f"runtimes.{RUNTIME}.path"
_INDENT = re.compile(r"\s*\{[^\S\n]*\r?\n([ \t]+)\S")


def with_runtime(text: str | None, subject: str, launcher: str) -> str:
    """The file with the runtime; the very same text where it has it. text None: there is no file."""
    document = _document(text or "", subject)
    runtimes = _runtimes(document, subject)
    if RUNTIME in runtimes:
        _check_path(runtimes[RUNTIME], subject, launcher)
        return text or ""
    changed = document | {"runtimes": runtimes | {RUNTIME: {"path": launcher}}}
    return _written(changed, text or "", subject)


def without_runtime(text: str, subject: str, launcher: str, backups: Sequence[str]) -> str | None:
    """The file without the runtime: the very bytes of a backup where that says the same, else written anew.

    None: there was no file before, and nobody has written anything else into it.
    """
    document = _document(text, subject)
    runtimes = _runtimes(document, subject)
    if RUNTIME not in runtimes:
        return text
    _check_path(runtimes[RUNTIME], subject, launcher)
    others = {name: entry for name, entry in runtimes.items() if name != RUNTIME}
    kept = document | {"runtimes": others}
    bare = kept if others else {key: value for key, value in document.items() if key != "runtimes"}
    for backup in backups:
        if _is_either(backup, subject, (bare, kept)):
            return backup
    return _written(bare, text, subject) if bare or backups else None


def has_runtime(text: str, subject: str, launcher: str) -> bool:
    """Whether the file names this launcher, as any runtime."""
    entries = _runtimes(_document(text, subject), subject).values()
    return any(isinstance(entry, dict) and entry.get("path") == launcher for entry in entries)


def _is_either(text: str, subject: str, documents: Iterable[dict[str, Any]]) -> bool:
    try:
        said = json.dumps(_document(text, subject))
    except InvalidInput:
        return False
    return said in map(json.dumps, documents)


def _runtimes(document: dict[str, Any], subject: str) -> dict[str, Any]:
    runtimes = document.get("runtimes", {})
    if isinstance(runtimes, dict):
        return runtimes
    raise _refused(subject, "runtimes", shown(runtimes), "is not an object", "write an object, or leave it out")


def _check_path(entry: object, subject: str, launcher: str) -> None:
    path = entry.get("path") if isinstance(entry, dict) else entry
    if path != launcher:
        remedy = f"take it out of the file, or name it: --to {path}" if isinstance(path, str) else "take it out"
        raise _refused(subject, _WHERE, shown(path), f"is not the launcher {launcher}", remedy)


def _document(text: str, subject: str) -> dict[str, Any]:
    """An empty file says the same as {}."""
    try:
        document = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number) if text.strip() else {}
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        remedy = "repair it first (`dockerd --validate` says whether it is sound)"
        raise _refused(subject, where, "", f"is not JSON: {error.msg}", remedy) from None
    except (ValueError, RecursionError) as error:
        message = "is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise _refused(subject, "the file", "", message, "repair it first") from None
    if not isinstance(document, dict):
        raise _refused(subject, "the file", shown(document), "is not an object", "write { } around what it says")
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        twice = next(key for key in document if [name for name, _ in pairs].count(key) > 1)
        raise ValueError(f"has the key {shown(twice)} twice in one object")
    return document


def _no_number(name: str) -> float:
    raise ValueError(f"has {name}, which is no number in JSON")


def _written(document: dict[str, Any], like: str, subject: str) -> str:
    """In the indentation of `like`, with its end; `like` empty: as docker's own documents are written."""
    found = _INDENT.match(like)
    indent = found[1] if found else None if "\n" not in like.strip() and like.strip() not in {"", "{}"} else "  "
    try:
        text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
        if not _is_text(text):
            text = json.dumps(document, indent=indent)
    except ValueError:
        raise _refused(subject, "the file", "", "has a number beyond all bounds", "repair it first") from None
    end = like[len(like.rstrip()) :] if like.strip() else "\n"
    return text + end


def _is_text(text: str) -> bool:
    """Half of a surrogate pair is none, though JSON may spell it."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _refused(subject: str, where: str, value: str, message: str, remedy: str) -> InvalidInput:
    return InvalidInput(subject, [Problem("engine-config", where, value, message, remedy)])
