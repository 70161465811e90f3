"""Reads the fields of a decoded object, and notes what has the wrong shape instead of raising.

One rule: null is absent, as in Kubernetes; a field of another type is a problem, and reads as absent from there on.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

from mpsd.core.problem import Problem, printable, shown

Fields = Mapping[str, object]
Wanted = TypeVar("Wanted")

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WORDS: Mapping[type, tuple[str, str]] = {
    dict: ("a mapping", "write fields below it"),
    list: ("a list", "write its entries below it, each with a dash"),
    str: ("text", "write it in quotes"),
    bool: ("true or false", "write true or false, without quotes"),
}


def at(path: str, *keys: str) -> str:
    """The path of a field below `path`, in the way Kubernetes writes paths: `spec.limits[aliyun.com/gpu-mem]`."""
    for key in keys:
        step = f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{printable(key)}]"
        path = (path + step).removeprefix(".")
    return path


class Shape:
    """Reads one object; `problems` grows by what was found wrong on the way."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def mapping(self, fields: Fields, key: str, path: str) -> Fields:
        """The mapping at `key` of the mapping at `path`, empty where there is none."""
        return self._read(fields, key, path, dict) or {}

    def needed(self, fields: Fields, key: str, path: str) -> Fields | None:
        """The mapping at `key`, without which Kubernetes takes no such object; None where there is none."""
        if fields.get(key) is None:
            self.problems.append(
                Problem("field-missing", at(path, key), "", "is missing", "add it; Kubernetes takes none without")
            )
        return self._read(fields, key, path, dict)

    def entries(self, fields: Fields, key: str, path: str) -> list[tuple[str, Fields]]:
        """The mappings of the list at `key`, each with its path by position."""
        found: list[object] = self._read(fields, key, path, list) or []
        entries: list[tuple[str, Fields]] = []
        for position, entry in enumerate(found):
            entry_path = f"{at(path, key)}[{position}]"
            if isinstance(entry, dict):
                entries.append((entry_path, entry))
            else:
                self._note(entry_path, entry, dict)
        return entries

    def text(self, fields: Fields, key: str, path: str) -> str:
        """The text at `key`, empty where there is none."""
        return self._read(fields, key, path, str) or ""

    def flag(self, fields: Fields, key: str, path: str) -> bool:
        """The flag at `key`, false where there is none."""
        return self._read(fields, key, path, bool) or False

    def _read(self, fields: Fields, key: str, path: str, wanted: type[Wanted]) -> Wanted | None:
        """The value at `key`; None where it is absent or of another type."""
        value = fields.get(key)
        if value is None or isinstance(value, wanted):
            return value
        self._note(at(path, key), value, wanted)
        return None

    def _note(self, where: str, value: object, wanted: type) -> None:
        name, remedy = _WORDS[wanted]
        self.problems.append(Problem("wrong-type", where, shown(value), f"is not {name}", remedy))
