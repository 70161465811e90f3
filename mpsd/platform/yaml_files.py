"""Reads YAML that anybody may have written, as Kubernetes does.

The answer is values that JSON can hold or an InvalidInput. Size is bounded before anything is
built: an alias counts as what it stands for.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

import yaml

from mpsd.model.problem import InvalidInput, Problem, printable, shown

LARGEST_BYTES = 3 * 1024**2  # what an API server takes in one request
MOST_NODES = 500_000  # 3 MiB of pods, the most that is read, were counted to hold 380 000
DEEPEST = 100
STANDARD_INPUT = "-"
_TEXT_A_NODE = 32  # characters of text that count as one node more
_LONGEST_NUMBER = 70  # what is longer stays text, as no reader could use the number
_TAG = "tag:yaml.org,2002:"
_RESOLVED_AS_TEXT = {f"{_TAG}timestamp", f"{_TAG}value"}
_SPLIT = "split it into several files"

# the parser in C is ten times as fast; PyYAML has it wherever its wheel was built with libyaml
try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]


class UnreadableFile(InvalidInput):
    """A file of whose content nothing is known."""


_NONE = "there is no such file"
_FORBIDDEN = ("may not be read by this user", "change its mode, or use another user")
_CANNOT_OPEN: dict[type[Exception], tuple[str, str, str]] = {
    FileNotFoundError: ("file-missing", _NONE, "check the path"),
    IsADirectoryError: ("file-is-a-directory", "is a directory", "name a file in it"),
    NotADirectoryError: ("file-missing", _NONE, "check the path: one of its folders is a file"),
    PermissionError: ("file-forbidden", *_FORBIDDEN),
}


@dataclass(frozen=True, slots=True)
class Document:
    """line: that it starts on, counted from 1."""

    value: object
    line: int


def name_of(source: str) -> str:
    return "standard input" if source == STANDARD_INPUT else source


def read_yaml(source: str) -> tuple[Document, ...]:
    """The documents of a file, or of standard input for `-`; InvalidInput, UnreadableFile."""
    return parse_yaml(read_bytes(source), name_of(source))


def parse_yaml(data: bytes, subject: str) -> tuple[Document, ...]:
    """All but empty documents. InvalidInput names `subject`."""
    text = _text(data, subject)
    loader = _Loader(text)
    try:
        lines = _document_lines(yaml.parse(text, Loader=_SafeLoader))
        documents = [Document(loader.get_data(), line) for line in lines]
    except _BrokenDocument as error:
        raise InvalidInput(subject, error.args) from None
    except yaml.MarkedYAMLError as error:
        raise InvalidInput(subject, [*loader.problems, _syntax(error)]) from None
    if loader.problems:
        raise InvalidInput(subject, loader.problems)
    return tuple(document for document in documents if document.value is not None)


def read_bytes(source: str) -> bytes:
    """The content; source and errors as for `read_yaml`."""
    subject = name_of(source)
    try:
        if source == STANDARD_INPUT:
            if sys.stdin is None:
                raise FileNotFoundError("closed")
            data = sys.stdin.buffer.read(LARGEST_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                data = file.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        unknown = ("file-unreadable", f"cannot be read: {error}", "check it")
        rule, message, remedy = _CANNOT_OPEN.get(type(error), unknown)
        raise UnreadableFile.of(subject, rule, "the file", "", message, remedy) from None
    if len(data) > LARGEST_BYTES:
        message = f"is larger than {LARGEST_BYTES // 1024**2} MiB"
        raise InvalidInput.of(subject, "file-too-large", "the file", "", message, _SPLIT)
    return data


def _text(data: bytes, subject: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = _place_of(data[: error.start].decode("utf-8", "replace"))
        value = f"byte 0x{data[error.start]:02x}"
        problem = ("not-utf-8", where, value, "is not UTF-8 text", "save the file as UTF-8")
        raise InvalidInput.of(subject, *problem) from None
    if unprintable := yaml.reader.Reader.NON_PRINTABLE.search(text):
        where = _place_of(text[: unprintable.start()])
        value = f"character U+{ord(unprintable[0]):04X}"
        problem = ("control-character", where, value, "is not allowed in YAML", "remove it")
        raise InvalidInput.of(subject, *problem)
    return text


def _place_of(text_before: str) -> str:
    lines = text_before.split("\n")
    return f"line {len(lines)}, column {len(lines[-1]) + 1}"


def _place(mark: Any) -> str:
    """mark: counted from 0; None where PyYAML does not know it."""
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"


def _syntax(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    message = error.problem or "is not YAML"
    if isinstance(error, yaml.constructor.ConstructorError):
        return Problem("yaml-tag", _place(mark), "", message, "remove the tag")
    if "nesting depth" in message:  # of libyaml's own bound, 1000, from 0.2.6 on
        return _too_deep(mark)
    tab = "tab" in message or "\\t" in message
    remedy = "indent with spaces" if tab else "check quotes, brackets, colons and indentation there"
    said = f"{message} {error.context}" if error.context else message
    return Problem("yaml-syntax", _place(mark), "", said, remedy)


def _too_deep(mark: Any) -> Problem:
    message = f"is nested more than {DEEPEST} levels deep"
    return Problem("yaml-too-deep", _place(mark), "", message, "check the brackets")


# -- bounds


class _BrokenDocument(Exception):
    """What is not read to its end, with its problem."""


def _broken(rule: str, event: yaml.Event, value: str, message: str, remedy: str) -> _BrokenDocument:
    return _BrokenDocument(Problem(rule, _place(event.start_mark), value, message, remedy))


def _document_lines(events: Iterable[yaml.Event]) -> list[int]:
    """Where each document starts; _BrokenDocument where they nest too deep or hold too much."""
    lines = list[int]()
    nodes = 0
    around: list[tuple[str | None, int]] = []  # anchors of open collections, the nodes before them
    # by anchor, the nodes that an alias stands for, None inside of them; without one, of no use
    anchored: dict[str | None, int | None] = {}
    for event in events:
        if isinstance(event, yaml.NodeEvent):
            _check_anchor(event, anchored)
        match event:
            case yaml.DocumentStartEvent():
                anchored = {}
                lines.append(event.start_mark.line + 1 if event.start_mark else 1)
            case yaml.CollectionStartEvent():
                if len(around) >= DEEPEST:
                    raise _BrokenDocument(_too_deep(event.start_mark))
                around.append((event.anchor, nodes))
                nodes += 1
                anchored[event.anchor] = None
            case yaml.CollectionEndEvent():
                anchor, before = around.pop()
                anchored[anchor] = nodes - before
            case yaml.ScalarEvent():
                size = 1 + len(event.value) // _TEXT_A_NODE
                nodes += size
                anchored[event.anchor] = size
            case yaml.AliasEvent():
                nodes += anchored[event.anchor] or 0
            case _:  # the ends of documents and of the stream
                pass
        if nodes > MOST_NODES:
            message = f"has more than {MOST_NODES} values with its aliases expanded"
            raise _broken("yaml-too-many-values", event, "", message, _SPLIT)
    return lines


def _check_anchor(event: yaml.NodeEvent, anchored: Mapping[str | None, int | None]) -> None:
    """Refuses an alias of nothing or of what it is in, and an ambiguous anchor or tag."""
    name = event.anchor or ""
    is_alias = isinstance(event, yaml.AliasEvent)
    if is_alias and name not in anchored:
        problem = ("refers to no anchor", f"define &{printable(name)} before it")
        raise _broken("yaml-alias-unknown", event, f"*{name}", *problem)
    if is_alias and anchored[name] is None:
        problem = ("refers to a value that contains it", "write the value out")
        raise _broken("yaml-alias-recursive", event, f"*{name}", *problem)
    if name in anchored and not is_alias:
        problem = ("is defined twice in one document", "rename one of them")
        raise _broken("yaml-anchor-twice", event, f"&{name}", *problem)
    if isinstance(event, yaml.ScalarEvent) and event.tag == "!":
        raise _broken("yaml-tag", event, "!", "is a tag without a name", "write text in quotes")


# -- values


class _Loader(_SafeLoader):
    """PyYAML's safe loader, as Kubernetes: keys are text and unlike each other, dates are text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML declares it so
        first: [one for one in resolvers if one[0] not in _RESOLVED_AS_TEXT]
        for first, resolvers in _SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.problems: list[Problem] = []  # faults that do not keep it from being read to its end

    def note(self, rule: str, node: yaml.Node, value: str, message: str, remedy: str) -> None:
        self.problems.append(Problem(rule, _place(node.start_mark), value, message, remedy))

    def mapping(self, node: yaml.Node) -> dict[str, object]:
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(
                problem="expected a mapping node", problem_mark=node.start_mark
            )
        own = dict[str, object]()
        merged = dict[str, object]()
        for key_node, value_node in node.value:
            value = self.construct_object(value_node, deep=True)
            if key_node.tag == f"{_TAG}merge":
                merged = self._merged(value_node, value) | merged
                continue
            if (name := self._key(key_node)) is None:
                continue
            if name in own:
                problem = ("is written twice in one mapping", "keep one of the two")
                self.note("yaml-duplicate-key", key_node, shown(name), *problem)
            own[name] = value
        return merged | own

    def _merged(self, node: yaml.Node, value: object) -> dict[str, object]:
        """What `<<:` brings in: a mapping, or a list of them of which the first counts most."""
        merged: dict[str, object] = {}
        for source in value if isinstance(value, list) else [value]:
            if not isinstance(source, dict):
                problem = ("is merged with <<, and is not a mapping", "merge a mapping")
                self.note("yaml-merge", node, "", *problem)
                return {}
            merged = source | merged
        return merged

    def _key(self, node: yaml.Node) -> str | None:
        """As JSON has it; None, with a problem noted, where it can be none."""
        match self.construct_object(node, deep=True):
            case str(text):
                return text
            case bool(flag):
                return "true" if flag else "false"
            case int() | float() as number:
                return str(number)
            case _:
                problem = ("is a key that is not text", "write a word before the colon")
                self.note("yaml-key", node, "", *problem)
                return None

    def scalar(self, node: yaml.ScalarNode) -> object:
        """A number or a boolean, or its text where it is none, such as `1:30`."""
        text = self.construct_scalar(node)
        try:
            if len(text) > _LONGEST_NUMBER or ":" in text:
                return text
            value: object = _SafeLoader.yaml_constructors[node.tag](self, node)
        except (ValueError, KeyError, IndexError):
            return text
        if isinstance(value, float) and not isfinite(value):
            problem = ("is not a number that JSON knows", "write a finite number")
            self.note("yaml-number", node, printable(text), *problem)
        return value

    def unknown(self, node: yaml.Node) -> None:
        problem = ("is a tag that Kubernetes does not read", "remove it")
        self.note("yaml-tag", node, printable(str(node.tag)), *problem)

    yaml_multi_constructors: ClassVar = {}
    yaml_constructors: ClassVar = {
        f"{_TAG}null": lambda _loader, _node: None,
        **dict.fromkeys((f"{_TAG}bool", f"{_TAG}int", f"{_TAG}float"), scalar),
        **dict.fromkeys((f"{_TAG}str", f"{_TAG}merge"), _SafeLoader.construct_scalar),
        f"{_TAG}seq": lambda loader, node: loader.construct_sequence(node, deep=True),
        f"{_TAG}map": mapping,
        None: unknown,
    }
