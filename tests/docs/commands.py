"""The commands that a page tells its reader to type, and whether mpsd has them.

One rule: mpsd's own command line says what exists; nothing is listed here twice.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.util import find_spec
from typing import Any

import typer

from mpsd.cli import inspect_cgpu, kubectl_mps, main
from tests.docs.pages import ROOT, Fence

_PROMPT = re.compile(r"^ *\$ ")
_ENDS = frozenset({"&", "&&", "|", "||", ";", "(", ")", "<", ">", ">>", "|&"})
_ASSIGNS = re.compile(r"[A-Za-z_]\w*=")
_LEFT_OUT = "…"


@dataclass(frozen=True, slots=True)
class Told:
    """A command, and what the page shows of its output: empty where it shows none."""

    place: str
    line: str
    output: tuple[str, ...] = ()


def told_in(fence: Fence) -> Iterator[Told]:
    """The commands of a block. Where some lines begin with `$`, these are they, and the rest is their output."""
    lines = fence.text.splitlines()
    if not any(_PROMPT.match(line) for line in lines):
        yield from (Told(f"{fence.page}:{fence.line + at}", line) for at, line in enumerate(lines, start=1))
        return
    starts = [at for at, line in enumerate(lines) if _PROMPT.match(line)]
    for at, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        place = f"{fence.page}:{fence.line + at + 1}"
        yield Told(place, _PROMPT.sub("", lines[at]), tuple(lines[at + 1 : end]))


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a line of shell, without what it sets for them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = [*lexer]
    except ValueError:  # no shell would read it: a drawing, or output
        return
    one: list[str] = []
    for word in [*words, ";"]:
        if word not in _ENDS:
            one.append(word)
            continue
        while one and _ASSIGNS.match(one[0]):
            one.pop(0)
        if one:
            yield one
        one = []


def problem_of(words: Sequence[str]) -> str:
    """What is wrong with a command that mpsd, make or Python would be given; empty where nothing is, or for others."""
    match words:
        case ["mpsd", *rest]:
            return _problem_with_verb(_group(main.app), rest)
        case ["kubectl", "mps", *rest]:
            return _problem_with_verb(_group(kubectl_mps.app), kubectl_mps.with_verb(rest))
        case ["kubectl", "inspect", "cgpu", *rest]:
            return _problem_with_options(_group(inspect_cgpu.app), rest)
        case ["make", *targets]:
            unknown = [word for word in targets if "=" not in word and word not in make_targets()]
            return f"make has no target {', '.join(unknown)}" if unknown else ""
        case ["python" | "python3", "-m", module, *_rest] if module.startswith(("mpsd", "tests")):
            return "" if find_spec(module) else f"there is no module {module}"
    return ""


@cache
def _group(app: typer.Typer) -> Any:
    return typer.main.get_command(app)


def _problem_with_verb(group: Any, words: Sequence[str]) -> str:
    if not words or words[0].startswith("-"):
        return _problem_with_options(group, words)
    name, *rest = words
    if name == _LEFT_OUT:
        return ""
    if name not in group.verbs:
        return f"{group.program} has no verb {name}"
    return _problem_with_options(group.load(name), rest)


def _problem_with_options(command: Any, words: Sequence[str]) -> str:
    """As the command's own parser has it: unknown options, values that are missing or none of the choices."""
    words = [word for word in words if word != _LEFT_OUT]
    context = command.context_class(command, info_name=command.name, **command.context_settings)
    try:
        given, _rest, _order = command.make_parser(context).parse_args(list(words))
    except Exception as error:  # of the parser's own kinds, which Typer does not name
        if not hasattr(error, "format_message"):
            raise
        return str(error.format_message())
    for parameter in command.params:
        value, type_ = given.get(parameter.name), parameter.type_descriptor.annotation
        is_choice = isinstance(type_, type) and issubclass(type_, Enum)
        if is_choice and isinstance(value, str) and value not in {choice.value for choice in type_}:
            return f"{parameter.opts[-1]} takes no {value}"
    return ""


@cache
def make_targets() -> frozenset[str]:
    text = (ROOT / "Makefile").read_text()
    return frozenset(re.findall(r"^([a-z][\w-]*):(?!=)", text, re.MULTILINE))
