"""Builds plain values (what JSON can hold) out of YAML's events, the way Kubernetes reads YAML.

One rule: what a document costs is bounded while it is read: an alias counts as much as what it stands for.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Protocol

import yaml

from mpsd.core.problem import Problem, printable, shown

MOST_NODES = 500_000  # 3 MiB of pods, the most that is read, were counted to hold 380 000
DEEPEST = 100
_TEXT_A_NODE = 32  # characters of text that count as one node more, so that aliases cannot multiply long text either
_LONGEST_NUMBER = 70  # characters; what is longer stays text, as no reader could use the number

_TAG = "tag:yaml.org,2002:"
_COLLECTION_TAGS = {None, "!", _TAG + "map", _TAG + "seq"}
_resolver = yaml.resolver.Resolver()


class Unreadable(Exception):
    """A document that is not read to its end."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a YAML stream, and the line it starts on, counted from 1."""

    value: object
    line: int


class Mark(Protocol):
    """A position, counted from 0."""

    line: int
    column: int


def place(mark: Mark | None) -> str:
    """A position for people, counted from 1. None: PyYAML does not know it."""
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"


@dataclass(slots=True)
class _Entry:
    """A finished node inside a collection; is_merge tells `<<` from `"<<"`."""

    value: object
    mark: Mark | None
    is_merge: bool = False


@dataclass(slots=True)
class _Collection:
    """A list or mapping that is still being read. anchor: None where it has none."""

    is_mapping: bool
    mark: Mark | None
    anchor: str | None
    nodes_before: int
    entries: list[_Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Anchored:
    value: object
    nodes: int


class Values:
    """Reads one stream of events. problems: faults that did not keep it from being read to its end."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._nodes = 0
        self._open: list[_Collection] = []
        self._anchored: dict[str, _Anchored] = {}

    def documents(self, events: Iterator[yaml.Event]) -> Iterator[Document]:
        """The documents with something in them; raises Unreadable, or what the parser raises."""
        line = 1
        for event in events:
            match event:
                case yaml.DocumentStartEvent():
                    self._anchored = {}
                    line = event.start_mark.line + 1 if event.start_mark else 1
                case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                    self._start(event)
                case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                    done = self._end()
                    if not self._open:
                        yield Document(done, line)
                case yaml.ScalarEvent():
                    value = self._scalar(event)
                    if not self._open and value is not None:
                        yield Document(value, line)
                case yaml.AliasEvent():
                    self._alias(event)
                case _:  # the ends of documents and of the stream
                    pass

    def _start(self, event: yaml.SequenceStartEvent | yaml.MappingStartEvent) -> None:
        if event.tag not in _COLLECTION_TAGS:
            self._refuse_tag(event)
        if len(self._open) >= DEEPEST:
            message, remedy = f"is nested more than {DEEPEST} deep", "no Kubernetes object is; check the brackets"
            raise Unreadable(Problem("yaml-too-deep", place(event.start_mark), "", message, remedy))
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        self._open.append(_Collection(is_mapping, event.start_mark, event.anchor, self._nodes))
        self._count(1, event.start_mark)

    def _end(self) -> object:
        done = self._open.pop()
        value = self._mapping(done.entries) if done.is_mapping else [entry.value for entry in done.entries]
        if done.anchor is not None:
            self._anchored[done.anchor] = _Anchored(value, self._nodes - done.nodes_before)
        self._add(_Entry(value, done.mark))
        return value

    def _scalar(self, event: yaml.ScalarEvent) -> object:
        tag = event.tag
        if tag is None or tag == "!":
            plain = tag is None and event.implicit[0]
            tag = str(_resolver.resolve(yaml.ScalarNode, event.value, (plain, not plain)))  # type: ignore[no-untyped-call]
        nodes = 1 + len(event.value) // _TEXT_A_NODE
        self._count(nodes, event.start_mark)
        value = self._value(tag, event)
        if event.anchor is not None:
            self._anchored[event.anchor] = _Anchored(value, nodes)
        self._add(_Entry(value, event.start_mark, is_merge=tag == _TAG + "merge"))
        return value

    def _alias(self, event: yaml.AliasEvent) -> None:
        name = str(event.anchor)
        if any(collection.anchor == name for collection in self._open):
            message, remedy = "stands inside what it stands for, without end", "write out what is meant"
            raise Unreadable(Problem("yaml-alias-recursive", place(event.start_mark), f"*{name}", message, remedy))
        anchored = self._anchored.get(name)
        if anchored is None:
            message, remedy = "stands for nothing", f"write &{printable(name)} before what it stands for"
            raise Unreadable(Problem("yaml-alias-unknown", place(event.start_mark), f"*{name}", message, remedy))
        self._count(anchored.nodes, event.start_mark)
        self._add(_Entry(anchored.value, event.start_mark))

    def _count(self, nodes: int, mark: Mark | None) -> None:
        self._nodes += nodes
        if self._nodes > MOST_NODES:
            message = f"holds more than {MOST_NODES} values once its aliases are written out"
            raise Unreadable(Problem("yaml-too-many-values", place(mark), "", message, "split it into several files"))

    def _add(self, entry: _Entry) -> None:
        if self._open:
            self._open[-1].entries.append(entry)

    def _mapping(self, entries: list[_Entry]) -> dict[str, object]:
        own: dict[str, object] = {}
        merged: dict[str, object] = {}
        for key, value in zip(entries[::2], entries[1::2], strict=True):
            if key.is_merge:
                merged = self._merged(value) | merged
                continue
            name = self._key(key)
            if name is None:
                continue
            if name in own:
                message, remedy = "is written twice in one mapping", "keep one of the two"
                self.problems.append(Problem("yaml-duplicate-key", place(key.mark), shown(name), message, remedy))
            own[name] = value.value
        return merged | own

    def _merged(self, entry: _Entry) -> dict[str, object]:
        """What `<<:` brings in: a mapping, or a list of them of which the first counts most."""
        sources = entry.value if isinstance(entry.value, list) else [entry.value]
        merged: dict[str, object] = {}
        for source in sources:
            if not isinstance(source, dict):
                message, remedy = "is merged in and is not a mapping", "let << name a mapping"
                self.problems.append(Problem("yaml-merge", place(entry.mark), "", message, remedy))
                return {}
            merged = source | merged
        return merged

    def _key(self, entry: _Entry) -> str | None:
        """The key as text, as JSON has it; None, with a problem noted, where it can be none."""
        match entry.value:
            case str(text):
                return text
            case bool(flag):
                return "true" if flag else "false"
            case int() | float() as number:
                return str(number)
            case _:
                message, remedy = "is a key and is not text", "write a word in front of the colon"
                self.problems.append(Problem("yaml-key", place(entry.mark), "", message, remedy))
                return None

    def _value(self, tag: str, event: yaml.ScalarEvent) -> object:
        convert = _CONVERSIONS.get(tag.removeprefix(_TAG))
        if convert is None:
            self._refuse_tag(event)
            return None
        value = convert(event.value)
        if isinstance(value, float) and not isfinite(value):
            message, remedy = "is not a number that JSON knows", "write a finite number"
            where = place(event.start_mark)
            self.problems.append(Problem("yaml-number", where, printable(event.value), message, remedy))
        return value

    def _refuse_tag(self, event: yaml.CollectionStartEvent | yaml.ScalarEvent) -> None:
        message, remedy = "is a tag that Kubernetes does not read", "remove it"
        self.problems.append(Problem("yaml-tag", place(event.start_mark), printable(str(event.tag)), message, remedy))


_BOOLEANS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_BASES = {"0b": 2, "0x": 16, "0o": 8}


def _boolean(text: str) -> bool | str:
    return _BOOLEANS.get(text.lower(), text)


def _integer(text: str) -> int | str:
    """A whole number as Kubernetes' YAML reads it: `1_000`, `0x10`, `017`; text where it is none, such as `1:30`."""
    digits = text.replace("_", "").lower()
    unsigned = digits.lstrip("+-")
    base = _BASES.get(unsigned[:2], 8 if unsigned.startswith("0") and len(unsigned) > 1 else 10)
    try:
        return int(digits, base) if len(digits) <= _LONGEST_NUMBER else text
    except ValueError:
        return text


def _float(text: str) -> float | str:
    """A number with a fraction, infinity (`.inf`) and no number (`.nan`) among them; text where it is none."""
    digits = text.replace("_", "").lower()
    if digits.lstrip("+-") in {".inf", ".nan"}:
        digits = digits.replace(".", "")
    try:
        return float(digits) if len(digits) <= _LONGEST_NUMBER else text
    except ValueError:
        return text


_CONVERSIONS: Mapping[str, Callable[[str], object]] = {
    "null": lambda _: None,
    "bool": _boolean,
    "int": _integer,
    "float": _float,
    "str": str,
    "timestamp": str,  # Kubernetes has no dates: they stay text
    "value": str,
    "merge": str,
}
