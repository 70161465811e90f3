"""Reads the fields of a decoded object of Kubernetes, and notes what has the wrong shape instead of
raising. Null is absent; a field of another type is a problem, and reads as absent. An object of so
many fields that reading them would take seconds is not read to its end, which is a problem too.
(`model.strict_reader` is for files of mpsd, in which nothing may be absent or unknown.)
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct, structs

from mpsd.model.problem import Problem, printable, shown
from mpsd.model.times import Instant

Fields = Mapping[str, object]
Wanted = TypeVar("Wanted")


class Part(Struct, frozen=True, gc=False):
    """A struct in an object that anybody may have written."""

    @classmethod
    def path_of_entry(cls, _entry: Fields, path: str) -> str:
        """Where one of them in a list is. path: by its position."""
        return path


Record = TypeVar("Record", bound=Part)

# in all mappings and lists that are read of one object; the largest pods have hundreds
MOST_FIELDS = 10_000
TOO_MANY_FIELDS = "too-many-fields"
_LONGEST_KEPT = 256  # characters; longer keys are cut wherever they are shown, and take no memory
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WORDS: Mapping[type, tuple[str, str]] = {
    dict: ("a mapping", "write fields below it"),
    list: ("a list", "write its entries below it, each with a dash"),
    str: ("text", "write it in quotes"),
    bool: ("true or false", "write true or false, without quotes"),
    int: ("a whole number", "write it without quotes"),
    Instant: ("a time", "write it with its time zone, such as 2026-01-31T12:00:00Z"),
}


def as_mapping(value: object) -> dict[str, Any]:
    """The value, or an empty mapping where it is none."""
    return value if isinstance(value, dict) else {}


def at(path: str, *keys: str) -> str:
    """The path of a field below `path`, in the way Kubernetes writes paths:
    `spec.limits[aliyun.com/gpu-mem]`."""
    for key in keys:
        path += _step(key[: _LONGEST_KEPT + 1])
    return path.removeprefix(".")


@lru_cache(maxsize=1024)
def _step(key: str) -> str:
    if len(key) <= _LONGEST_KEPT and _PLAIN_KEY.fullmatch(key):
        return f".{key}"
    return f"[{printable(key)}]"


@lru_cache(maxsize=64)
def _parts(kind: type[Part]) -> tuple[structs.FieldInfo, ...]:
    """Its fields; a key with a slash in front is one that no object has."""
    return tuple(one for one in structs.fields(kind) if not one.encode_name.startswith("/"))


@lru_cache(maxsize=1024)
def plain(kind: Any) -> Any:
    """The type without its bounds, and without None."""
    while get_origin(kind) in {Annotated, Union, UnionType}:
        kind = next(one for one in get_args(kind) if one is not NoneType)
    return kind


class FieldReader:
    """Reads one object, `most_fields` at most; `problems` grows by what is wrong. too_many: once
    there is one, nothing of the object may be believed."""

    def __init__(self, most_fields: int = MOST_FIELDS) -> None:
        self.problems: list[Problem] = []
        self.too_many: Problem | None = None
        self._fields_left = most_fields

    def has_room_for(self, entries: int) -> bool:
        return entries <= self._fields_left

    def mapping(self, fields: Fields, key: str, path: str) -> Fields:
        """The mapping at `key` of the mapping at `path`, empty where there is none."""
        return self._read(fields, key, path, dict) or {}

    def needed(self, fields: Fields, key: str, path: str) -> Fields | None:
        """The mapping at `key`, without which Kubernetes takes no such object."""
        if fields.get(key) is None:
            remedy = "add it; Kubernetes takes none without"
            self.problems.append(Problem("field-missing", at(path, key), "", "is missing", remedy))
        return self._read(fields, key, path, dict)

    def entries(self, fields: Fields, key: str, path: str) -> list[tuple[str, Fields]]:
        """The mappings of the list at `key`, each with its path by position."""
        found: list[object] | None = self._read(fields, key, path, list)
        if not found:
            return []
        listed = at(path, key)
        entries: list[tuple[str, Fields]] = []
        for position, entry in enumerate(found):
            where = f"{listed}[{position}]"
            if isinstance(entry, dict):
                entries.append((where, entry))
            else:
                self._note(where, entry, dict)
        return entries

    def text(self, fields: Fields, key: str, path: str) -> str:
        """The text at `key`, empty where there is none."""
        return self._read(fields, key, path, str) or ""

    def texts(self, fields: Fields, key: str, path: str) -> tuple[str, ...]:
        found: list[object] = self._read(fields, key, path, list) or []
        texts = []
        for position, entry in enumerate(found):
            if isinstance(entry, str):
                texts.append(entry)
            else:
                self._note(f"{at(path, key)}[{position}]", entry, str)
        return tuple(texts)

    def flag(self, fields: Fields, key: str, path: str) -> bool:
        """The flag at `key`, false where there is none."""
        return bool(self._read(fields, key, path, bool))

    def number(self, fields: Fields, key: str, path: str, *, absent: int | None) -> int | None:
        """The whole number at `key`, `absent` where there is none."""
        found = self._read(fields, key, path, int)
        return absent if found is None else found

    def record(self, kind: type[Record], fields: Fields, path: str) -> Record:
        """The struct in the mapping at `path`: decoded at once where nothing is wrong."""
        try:
            return msgspec.convert(fields, kind)
        except (msgspec.ValidationError, RecursionError):
            return self.struct(kind, fields, path)

    def struct(self, kind: type[Record], fields: Fields, path: str) -> Record:
        """As `record`, field by field. These are text, flags, whole numbers, times, mappings,
        structs, tuples of text or of structs, and Any; those of other types keep their defaults.
        Entries of a list are at the path that their struct gives them (`path_of_entry`)."""
        read = {}
        for one in _parts(kind):
            found = self._part(one.type, fields, one.encode_name, path)
            if found is not None:
                read[one.name] = found
        return kind(**read)

    def _part(self, kind: Any, fields: Fields, key: str, path: str) -> object:
        """None where nothing of this type is there."""
        wanted = plain(kind)
        if wanted is Any or fields.get(key) is None:
            return fields.get(key)
        if get_origin(wanted) is dict:
            return self._read(fields, key, path, dict)
        if get_origin(wanted) is tuple:
            return self._tuple(plain(get_args(wanted)[0]), fields, key, path)
        if wanted in _WORDS:
            return self._bounded(kind, fields, key, path)
        found = self._read(fields, key, path, dict) if _is_struct(wanted) else None
        return None if found is None else self.struct(wanted, found, at(path, key))

    def _tuple(self, inner: Any, fields: Fields, key: str, path: str) -> object:
        if inner is str:
            return self.texts(fields, key, path)
        if not _is_struct(inner):
            return None
        structs = []
        for where, entry in self.entries(fields, key, path):
            structs.append(self.struct(inner, entry, inner.path_of_entry(entry, where)))
        return tuple(structs)

    def _bounded(self, kind: Any, fields: Fields, key: str, path: str) -> object:
        """Text, a flag, a whole number or a time, within the bounds of its type."""
        wanted = plain(kind)
        remedy = "write a value within this bound"
        if wanted is Instant:
            wanted = str
            remedy = _WORDS[Instant][1]
        found = self._read(fields, key, path, wanted)
        if found is None or wanted is kind:
            return found
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError as error:
            place = at(path, key)
            message = f"is wrong: {error}"
            self.problems.append(Problem("wrong-value", place, shown(found), message, remedy))
        return None

    def _read(self, fields: Fields, key: str, path: str, wanted: type[Wanted]) -> Wanted | None:
        """The value at `key`; None where it is absent or of another type."""
        value = fields.get(key)
        if value is None:
            return None
        if type(value) is not wanted:  # exactly: true is a whole number to Python, and is none here
            self._note(at(path, key), value, wanted)
            return None
        if isinstance(value, (dict, list)):
            self._fields_left -= len(value)
            if self._fields_left < 0:
                takes = f"takes the object over {MOST_FIELDS} fields"
                message = f"{takes}, and no more than those are read"
                remedy = "write fewer, or several objects"
                here = Problem(TOO_MANY_FIELDS, at(path, key), "", message, remedy)
                self.too_many = self.too_many or here
                return None
        return value

    def _note(self, where: str, value: object, wanted: type) -> None:
        name, remedy = _WORDS[wanted]
        self.problems.append(Problem("wrong-type", where, shown(value), f"is not {name}", remedy))


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Part)
