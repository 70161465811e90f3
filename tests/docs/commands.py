"""The commands that a page tells its reader to type, and whether mpsd's own command line has
them."""

import io
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from mpsd.cli.inspect_cgpu import cgpu
from mpsd.cli.kubectl_mps import KUBECTL_MPS
from mpsd.cli.main import MPSD
from mpsd.platform.command_line import OneOf, Program, parser_of
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
    """The commands of a block. Where some lines begin with `$`, these are they, and the rest is
    their output."""
    lines = fence.text.splitlines()
    if not any(_PROMPT.match(line) for line in lines):
        yield from (
            Told(f"{fence.page}:{fence.line + at}", line) for at, line in enumerate(lines, start=1)
        )
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
    """Of one that mpsd, make or Python would be given; empty where nothing is wrong, or for
    others."""
    match words:
        case ["mpsd", *rest]:
            return _problem_with_verb(MPSD, rest)
        case ["kubectl", "mps", *rest]:
            return _problem_with_verb(KUBECTL_MPS, KUBECTL_MPS.arranged(rest))
        case ["kubectl", "inspect", "cgpu", *rest]:
            return _problem_with_options(
                parser_of("kubectl inspect cgpu", cgpu, for_tab=True), rest
            )
        case ["make", *targets]:
            unknown = [word for word in targets if "=" not in word and word not in make_targets()]
            return f"make has no target {', '.join(unknown)}" if unknown else ""
        case ["python" | "python3", "-m", module, *_rest] if module.startswith(("mpsd", "tests")):
            return "" if find_spec(module) else f"there is no module {module}"
    return ""


def _problem_with_verb(program: Program, words: Sequence[str]) -> str:
    name, *rest = words or [""]
    if name == _LEFT_OUT:
        return ""
    if name in program.verbs:
        return _problem_with_options(parser_of(name, program.load(name), for_tab=True), rest)
    return _problem_with_options(program.parser(), words)


def _problem_with_options(parser: ArgumentParser, words: Sequence[str]) -> str:
    """As the command's own parser has it, but for what is missing, and amounts that a page leaves
    to its reader."""
    words = [word for word in words if word != _LEFT_OUT]
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()), suppress(SystemExit):
        for action in parser._actions:
            if not isinstance(action.type, OneOf):
                action.type = None
        _given, unknown = parser.parse_known_args(words)
        options = [word for word in unknown if word.startswith("-")]
        if options and "--" not in words:
            return f"{parser.prog} has no option {options[0]}"
    return said.getvalue().strip()


@cache
def make_targets() -> frozenset[str]:
    text = (ROOT / "Makefile").read_text()
    return frozenset(re.findall(r"^([a-z][\w-]*):(?!=)", text, re.MULTILINE))
