"""Reads YAML that anybody may have written, from a file or standard input.

One rule: whatever the bytes are, the answer is values that JSON can hold or an InvalidInput with a place and a remedy.
"""

import sys
from pathlib import Path

import yaml

from mpsd.core.problem import InvalidInput, Problem
from mpsd.edge.yaml_values import Document, Unreadable, Values, place

LARGEST_BYTES = 3 * 1024**2  # what an API server takes in one request
STANDARD_INPUT = "-"

# The parser in C is ten times as fast; PyYAML has it wherever its wheel was built with libyaml.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UnreadableFile(InvalidInput):
    """A file that could not be opened and read, so that nothing is known about what is in it."""


_CANNOT_OPEN: dict[type[Exception], tuple[str, str, str]] = {
    FileNotFoundError: ("file-missing", "there is no such file", "check the path"),
    IsADirectoryError: ("file-is-a-directory", "is a directory", "name a file in it"),
    NotADirectoryError: ("file-missing", "there is no such file", "check the path: one of its folders is a file"),
    PermissionError: ("file-forbidden", "may not be read by this user", "change its mode, or use another user"),
}


def name_of(source: str) -> str:
    """The file as a person names it."""
    return "standard input" if source == STANDARD_INPUT else source


def read_yaml(source: str) -> tuple[Document, ...]:
    """The documents in a file, or in standard input for `-`; raises InvalidInput, or UnreadableFile, which is one."""
    return parse_yaml(read_bytes(source), name_of(source))


def parse_yaml(data: bytes, subject: str) -> tuple[Document, ...]:
    """The documents in `data`, leaving out those with nothing in them; InvalidInput names `subject`."""
    text = _text(data, subject)
    values = Values()
    try:
        documents = tuple(values.documents(yaml.parse(text, Loader=_Loader)))
    except Unreadable as error:
        raise InvalidInput(subject, [*values.problems, error.problem]) from None
    except yaml.MarkedYAMLError as error:
        raise InvalidInput(subject, [*values.problems, _syntax(error)]) from None
    if values.problems:
        raise InvalidInput(subject, values.problems)
    return documents


def read_bytes(source: str) -> bytes:
    """What is in a file, or in standard input for `-`, up to the size that is read; raises as `read_yaml` does."""
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
        rule, message, remedy = _CANNOT_OPEN.get(
            type(error), ("file-unreadable", f"cannot be read: {error}", "check it")
        )
        raise UnreadableFile(subject, [Problem(rule, "the file", "", message, remedy)]) from None
    if len(data) > LARGEST_BYTES:
        message, remedy = f"is larger than {LARGEST_BYTES // 1024**2} MiB", "split it into several files"
        raise InvalidInput(subject, [Problem("file-too-large", "the file", "", message, remedy)])
    return data


def _text(data: bytes, subject: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = _place_of(data[: error.start].decode("utf-8", "replace"))
        value = f"byte 0x{data[error.start]:02x}"
        problem = Problem("not-utf-8", where, value, "is not UTF-8 text", "save the file as UTF-8")
        raise InvalidInput(subject, [problem]) from None
    if unprintable := yaml.reader.Reader.NON_PRINTABLE.search(text):
        where = _place_of(text[: unprintable.start()])
        value = f"character U+{ord(unprintable[0]):04X}"
        problem = Problem("control-character", where, value, "is not allowed in YAML", "remove it")
        raise InvalidInput(subject, [problem])
    return text


def _place_of(text_before: str) -> str:
    """The position that follows this text, for people."""
    return f"line {text_before.count(chr(10)) + 1}, column {len(text_before.rpartition(chr(10))[2]) + 1}"


def _syntax(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    message = error.problem or "is not YAML"
    context = f" {error.context}" if error.context else ""
    tab = "tab" in message or "\\t" in message
    remedy = "indent with spaces" if tab else "check quotes, brackets, colons and indentation there"
    return Problem("yaml-syntax", place(mark), "", f"{message}{context}", remedy)
