"""Reads the decoded files of mpsd into dataclasses, and finds all that is wrong at once: a field
that the dataclass does not have, one that is missing, or of another type or bound (msgspec's
`Meta`). What is about several fields is for `__post_init__`, and about several entries of a list
for a function in its annotation: both raise ValueError, or Contradiction where it is one field's.
(`model.fields` is for objects of Kubernetes, of which mpsd reads a part.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from mpsd.model.fields import at
from mpsd.model.problem import InvalidInput, Problem, shown

Record = TypeVar("Record")

_WRONG: Final = object()  # in place of a value whose problem is noted


class Contradiction(ValueError):
    """A field does not go with the others of its record. rule: the name of the problem."""

    def __init__(self, field: str, message: str, rule: str, remedy: str) -> None:
        super().__init__(message)
        self.field = field
        self.rule = rule
        self.remedy = remedy


def read(kind: type[Record], data: object, subject: str, shipped: str) -> Record:
    """InvalidInput naming `subject` with every problem. shipped: what has every field."""
    reader = _Reader(shipped)
    found = reader.read(kind, data, "")
    if reader.problems:
        raise InvalidInput(subject, reader.problems)
    assert isinstance(found, kind)
    return found


class _Reader:
    def __init__(self, shipped: str) -> None:
        self._shipped = shipped
        self.problems: list[Problem] = []

    def read(self, kind: Any, value: object, where: str) -> Any:
        """_WRONG where a problem was noted."""
        bare, notes = _taken_apart(kind)
        if get_origin(bare) in {UnionType, Union} and NoneType in get_args(bare):
            (rest,) = [one for one in get_args(bare) if one is not NoneType]
            return None if value is None else self.read(rest, value, where)
        if is_dataclass(bare):
            return self._record(bare, value, where)
        outer = get_origin(bare) or bare
        if outer in {list, tuple} and isinstance(value, list):
            return self._list(bare, notes, value, where)
        if isinstance(outer, type) and issubclass(outer, dict):
            return self._mapping(bare, value, where)
        return self._leaf(bare, notes, value, where)

    def _record(self, kind: Any, value: object, where: str) -> Any:
        if not isinstance(value, dict):
            return self._leaf(dict, (), value, where)
        types = _types_of(kind)
        before = len(self.problems)
        for name in value.keys() - types.keys():
            self._unknown(at(where, str(name)), value[name])
        read = {}
        for field in fields(kind):
            name = field.name
            place = at(where, name)
            if name in value:
                read[name] = self.read(types[name], value[name], place)
            elif field.default is MISSING and field.default_factory is MISSING:
                remedy = f"add it; {self._shipped} has every field"
                self._note("field-missing", place, "", "is missing", remedy)
        if len(self.problems) > before:
            return _WRONG
        try:
            return kind(**read)
        except Contradiction as error:
            written = shown(value[error.field]) if error.field in value else ""
            self._note(error.rule, at(where, error.field), written, str(error), error.remedy)
        except ValueError as error:
            self._contradiction(where or "the file", error)
        return _WRONG

    def _list(self, kind: Any, notes: Sequence[Any], value: list[object], where: str) -> Any:
        sound = []
        for position, one in enumerate(value):
            entry = self.read(get_args(kind)[0], one, f"{where}[{position}]")
            if entry is not _WRONG:
                sound.append(entry)
        bounds = [note for note in notes if isinstance(note, Meta)]
        if self._leaf(list, bounds, value, where) is _WRONG:
            return _WRONG
        for check in notes:
            if callable(check):
                try:
                    check(sound)
                except ValueError as error:
                    self._contradiction(where, error)
                    return _WRONG
        return _WRONG if len(sound) < len(value) else get_origin(kind)(sound)

    def _mapping(self, kind: Any, value: object, where: str) -> Any:
        """Of names that a type has, or of any; a class of its own is made of what was read."""
        if not isinstance(value, dict):
            return self._leaf(dict, (), value, where)
        own = kind if isinstance(kind, type) else dict
        bases: Any = getattr(own, "__orig_bases__", ())
        of_name, of_value = get_args(kind) or get_args(bases[0])
        read = {}
        for name, one in value.items():
            place = at(where, str(name))
            words = _words(of_name)
            if words and name not in words:
                self._unknown(place, one)
                read[_WRONG] = one
                continue
            read[self._leaf(*_taken_apart(of_name), name, place)] = self.read(of_value, one, place)
        return _WRONG if _WRONG in read or _WRONG in read.values() else own(read)

    def _leaf(self, kind: Any, notes: Sequence[Any], value: object, where: str) -> Any:
        try:
            return msgspec.convert(value, Annotated[kind, *notes] if notes else kind)
        except msgspec.ValidationError as error:
            message = f"is wrong: {error}"
        if words := _words(kind):
            message = f"is none of {', '.join(words)}"
        found = ("field-wrong", message, self._remedy(kind, value))
        for note in notes:
            if isinstance(note, Meta) and note.extra:
                found = note.extra["words"]
        rule, message, remedy = found
        self._note(rule, where or "the file", shown(value), message, remedy)
        return _WRONG

    def _remedy(self, kind: Any, value: object) -> str:
        is_a_word = value is False and "off" in _words(kind)
        if not is_a_word and (kind is not str or not isinstance(value, int | float)):
            return f"see the comment beside this field in {self._shipped}"
        if isinstance(value, bool):
            return "write it in quotes; without, YAML reads on, off, yes and no as true or false"
        return "write it in quotes"

    def _note(self, rule: str, where: str, value: str, message: str, remedy: str) -> None:
        self.problems.append(Problem(rule, where, value, message, remedy))

    def _unknown(self, where: str, value: object) -> None:
        remedy = "remove it, or correct its spelling"
        self._note("field-unknown", where, shown(value), "is not a field here", remedy)

    def _contradiction(self, where: str, error: ValueError) -> None:
        self._note("fields-contradict", where, "", str(error), "make the two agree")


@lru_cache(maxsize=64)
def _types_of(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _taken_apart(kind: Any) -> tuple[Any, Sequence[Any]]:
    """A type without its annotations, and these."""
    if get_origin(kind) is Annotated:
        return kind.__origin__, kind.__metadata__
    return kind, ()


def _words(kind: Any) -> tuple[str, ...]:
    """What a closed set takes; empty for any other type."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(member.value for member in kind)
    if get_origin(kind) is Literal:
        return get_args(kind)
    if get_origin(kind) in {UnionType, Union}:
        return tuple(word for one in get_args(kind) for word in _words(one))
    return ()
