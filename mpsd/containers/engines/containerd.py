"""containerd's `config.toml` with the runtime mpsd, and without it.

Lines are added at the end and taken out again, and no other line is touched, so comments stay where they are. The
result is read back; where it is anything but the document before with mpsd's entry, it is InvalidInput.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from mpsd.model.problem import InvalidInput, Problem, shown

RUNTIME, _DEFAULT = "mpsd", "runc"
_TYPE = "io.containerd.runc.v2"
_NEW_FILE = "version = 2\n"  # what every containerd from 1.3 to 2 reads
_PLUGINS = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_SAYS = "# Written by `mpsd install containerd`; `mpsd uninstall containerd` takes it out again."
_OWN_DEFAULT = "# containerd's own runtime, which it forgets where another one is named"
_HEADER = re.compile(r"\s*\[.+\]\s*(#.*)?$")
_LINES = re.compile(r"(?<=\n)")

_Keys = tuple[str, ...]


def with_runtime(text: str | None, subject: str, launcher: str) -> str:
    """The file with the runtime; the very same text where it has it. text None: there is no file."""
    before = _NEW_FILE if text is None else text
    document = _document(before, subject)
    keys = _runtimes_keys(document, subject)
    runtimes = _at(document, keys)
    if RUNTIME in runtimes:
        _check_path(runtimes[RUNTIME], (*keys, RUNTIME), subject, launcher)
        return before
    after = _ended(before) + _block(keys, runtimes, launcher)
    expected = _with_entry(document, keys, runtimes, launcher)
    try:
        if _is_same(tomllib.loads(after), expected):
            return after
        message = "says something else with the runtime at its end"
    except tomllib.TOMLDecodeError as error:
        message = f"takes no further table at its end: {error}"
    remedy = f"write the parts of {_dotted(keys)} as [tables], not as values in one line"
    raise _refused(subject, _dotted(keys), "", message, remedy)


def without_runtime(text: str, subject: str, launcher: str, backups: Sequence[str]) -> str | None:
    """The file without the runtime. None: there was no file before, and nobody has written anything else into it."""
    document = _document(text, subject)
    keys = _runtimes_keys(document, subject)
    runtimes = _at(document, keys)
    if RUNTIME not in runtimes:
        return text
    _check_path(runtimes[RUNTIME], (*keys, RUNTIME), subject, launcher)
    left = _as_it_was(text, keys, runtimes, launcher)
    if left is None:
        left = _cut(text, (*keys, RUNTIME))
        if not _says_but(left, document, keys, {RUNTIME}):
            remedy = "take it out of the file by hand"
            raise _refused(subject, _dotted((*keys, RUNTIME)), "", "is not written as [tables] of its own", remedy)
    if not backups and left == _NEW_FILE:
        return None
    return next((backup for backup in backups if _ended(backup) == left), left)  # its last line had no end


def has_runtime(text: str, subject: str, launcher: str) -> bool:
    """Whether the file names this launcher, as any runtime."""
    document = _document(text, subject)
    return any(_binary(entry) == launcher for entry in _at(document, _runtimes_keys(document, subject)).values())


def notes(text: str | None, subject: str) -> list[str]:
    """What else has a say in what containerd reads."""
    document = {"version": 2} if text is None else _document(text, subject)
    said = []
    if imports := document.get("imports"):
        said.append(
            f"imports is {shown(imports)}: a section of plugins that stands in one of those files replaces the one in "
            f"{subject}; `containerd config dump` says whether the runtime {RUNTIME} is known"
        )
    if document.get("version", 1) == 1:
        said.append(f"{subject} is of version 1, which containerd 2 does not read any more")
    return said


# -- what is added ------------------------------------------------------------------------------------------------


def _block(keys: _Keys, runtimes: Mapping[str, Any], launcher: str) -> str:
    """containerd's own runtime is written out where none is: the table as a whole takes the place of its default."""
    table = ".".join(key if key.isidentifier() else json.dumps(key) for key in keys)
    own = [_OWN_DEFAULT, f"[{table}.{_DEFAULT}]", f'  runtime_type = "{_TYPE}"', ""] if not runtimes else []
    options = [
        f"    {key} = {json.dumps(value, ensure_ascii=False)}" for key, value in _options(runtimes, launcher).items()
    ]
    entry = [f"[{table}.{RUNTIME}]", f'  runtime_type = "{_TYPE}"', "", f"  [{table}.{RUNTIME}.options]", *options]
    return "\n".join(["", _SAYS, *own, *entry, ""])


def _options(runtimes: Mapping[str, Any], launcher: str) -> dict[str, str | bool]:
    """Cgroups are made as for runc: mpsd only stands in front of it."""
    options: dict[str, str | bool] = {"BinaryName": launcher}
    if _table(_table(runtimes.get(_DEFAULT)).get("options")).get("SystemdCgroup") is True:
        options["SystemdCgroup"] = True
    return options


def _with_entry(document: dict[str, Any], keys: _Keys, runtimes: Mapping[str, Any], launcher: str) -> dict[str, Any]:
    own = {} if runtimes else {_DEFAULT: {"runtime_type": _TYPE}}
    entry = {"runtime_type": _TYPE, "options": _options(runtimes, launcher)}
    return _replaced(document, keys, {**runtimes, **own, RUNTIME: entry})


# -- what is taken out --------------------------------------------------------------------------------------------


def _as_it_was(text: str, keys: _Keys, runtimes: Mapping[str, Any], launcher: str) -> str | None:
    """Without the lines that were added, where they still stand as they were written; else None."""
    others = {name: entry for name, entry in runtimes.items() if name != RUNTIME}
    alone = not set(others) - {_DEFAULT}
    befores: list[dict[str, Any]] = [{}] if alone else []  # whoever has come since then may need runc
    befores += [others, {_DEFAULT: {"options": {"SystemdCgroup": True}}}, {_DEFAULT: {"runtime_type": _TYPE}}]
    for before in befores:
        block = _block(keys, before, launcher)
        if text.count(block) == 1:
            left = text.replace(block, "")
            gone = {RUNTIME} if before else {RUNTIME, _DEFAULT}
            if _says_but(left, tomllib.loads(text), keys, gone):
                return left
    return None


def _cut(text: str, keys: _Keys) -> str:
    """Without the tables below these keys; comments and empty lines before the next table are left, they are its."""
    kept: list[str] = []
    held: list[str] = []  # after the last line of a table that is cut: they may be the next one's
    cutting = False
    for line in _LINES.split(text):
        path = _header(line)
        if path is not None:
            if not cutting or path[: len(keys)] != keys:
                kept += held
            held = []
            cutting = path[: len(keys)] == keys
        if not cutting:
            kept.append(line)
        elif not line.strip() or line.lstrip().startswith("#"):
            held.append(line)
        else:
            held = []
    return "".join(line for line in [*kept, *held] if line.strip() != _SAYS)


def _header(line: str) -> _Keys | None:
    """The keys of a table that begins in this line; None where none does."""
    if not _HEADER.match(line.rstrip("\r\n")):
        return None
    try:
        found: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    path = []
    while found and isinstance(found, dict | list):
        if isinstance(found, list):
            found = found[0]
        else:
            (key,) = found
            path.append(key)
            found = found[key]
    return tuple(path)


def _says_but(text: str, document: dict[str, Any], keys: _Keys, gone: set[str]) -> bool:
    """Whether a text says what the document does without these runtimes; tables left empty may be gone too."""
    try:
        left = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    others = {name: entry for name, entry in _at(document, keys).items() if name not in gone}
    return _is_same(_pruned(left, keys), _pruned(_replaced(document, keys, others), keys))


def _pruned(document: dict[str, Any], keys: _Keys) -> dict[str, Any]:
    """Without the tables on the way of these keys that nothing is in."""
    if not keys or keys[0] not in document:
        return document
    below = _pruned(_table(document[keys[0]]), keys[1:])
    return {key: below if key == keys[0] else value for key, value in document.items() if key != keys[0] or below}


# -- the document -------------------------------------------------------------------------------------------------


def _document(text: str, subject: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also numbers of thousands of digits
        remedy = "repair it first (`containerd config dump` says whether it is sound)"
        raise _refused(subject, "the file", "", f"is not TOML: {error}", remedy) from None


def _runtimes_keys(document: Mapping[str, Any], subject: str) -> _Keys:
    """Where this version of the configuration has its runtimes; without a number it is 1."""
    version = document.get("version", 1)
    if type(version) is not int or version not in _PLUGINS:
        remedy = "only 1, 2 and 3 are known here; write the runtime into it by hand"
        raise _refused(subject, "version", shown(version), "is another form of configuration", remedy)
    keys = ("plugins", _PLUGINS[version], "containerd", "runtimes")
    table: Any = document
    for at, key in enumerate(keys, 1):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise _refused(subject, _dotted(keys[:at]), shown(table), "is no table", "write a [table]")
    return keys


def _check_path(entry: object, keys: _Keys, subject: str, launcher: str) -> None:
    path = _binary(entry)
    if path != launcher:
        remedy = f"take it out of the file, or name it: --to {path}" if isinstance(path, str) else "take it out"
        where = _dotted((*keys, "options", "BinaryName"))
        raise _refused(subject, where, shown(path), f"is not the launcher {launcher}", remedy)


def _binary(entry: object) -> object:
    return _table(_table(entry).get("options")).get("BinaryName")


def _at(document: Mapping[str, Any], keys: _Keys) -> dict[str, Any]:
    for key in keys:
        document = _table(document.get(key))
    return dict(document)


def _replaced(document: dict[str, Any], keys: _Keys, value: dict[str, Any]) -> dict[str, Any]:
    if not keys:
        return value
    return {**document, keys[0]: _replaced(_table(document.get(keys[0])), keys[1:], value)}


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_same(one: object, other: object) -> bool:
    """Whatever the order; 1 is not true, and nan is nan."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return repr(one) == repr(other)


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _dotted(keys: Sequence[str]) -> str:
    return ".".join(keys)


def _refused(subject: str, where: str, value: str, message: str, remedy: str) -> InvalidInput:
    return InvalidInput(subject, [Problem("engine-config", where, value, message, remedy)])
