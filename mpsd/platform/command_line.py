"""The command lines of mpsd's programs, read by argparse.

A command is a function whose keywords are its options (`takes`) and whose docstring is its help;
its module is imported when it is used.
"""

import shutil
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, HelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from importlib import import_module
from math import inf
from textwrap import dedent
from typing import Any, NamedTuple, NoReturn, TypeVar

import mpsd
from mpsd.platform.console import ExitCode, Format, ending, extra_needed
from mpsd.platform.imports import find_all, starting
from mpsd.platform.settings import LIMITS_DIRECTORY, RUN_DIRECTORY, SIMULATE, Setting

Command = Callable[..., None]
Completer = Callable[[Mapping[str, Any]], Iterable[str]]
CommandT = TypeVar("CommandT", bound=Command)

TAB = "__complete"  # what a shell runs a program with, before the words of its line
SHELLS = ("bash", "zsh", "fish")  # that complete by TAB
_WIDEST = 100  # characters of a line of help


class Option(NamedTuple):
    """An option, or an argument where its one name has no dash."""

    names: tuple[str, ...]
    #: What argparse's `add_argument` takes beside the names.
    how: Mapping[str, Any]
    #: What Tab offers for its value, given the words before it; None: what `choices_of` finds.
    complete: Completer | None

    @property
    def is_argument(self) -> bool:
        return not self.names[0].startswith("-")

    @property
    def has_value(self) -> bool:
        return not self.is_argument and self.how.get("action", "append") == "append"


def option(*names: str, complete: Completer | None = None, **how: Any) -> Option:
    return Option(names, how, complete)


def flag(*names: str, help: str, **how: Any) -> Option:  # noqa: A002 - argparse's word
    return Option(names, {"action": "store_true", "help": help, **how}, None)


def setting_option(name: str, setting: Setting) -> Option:
    """The option of a setting, whose help names the variable and the default."""
    default = setting.default or setting.otherwise
    otherwise = f"; {default}" if default else ""
    text = f"{setting.help} ({setting.variable}{otherwise})."
    return option(setting.flag, dest=name, metavar=setting.metavar, help=text)


def takes(
    *options: Option, settings: Mapping[str, Setting] | None = None
) -> Callable[[CommandT], CommandT]:
    """The options of a command; one that is not given has the default of the command's keyword.

    settings: the command takes these as `**flags`, without those that are not given.
    """
    every = [*options, *(setting_option(name, one) for name, one in (settings or {}).items())]

    def decorate(command: CommandT) -> CommandT:
        vars(command)["options"] = tuple(every)
        return command

    return decorate


# -- the values of options


class OneOf:
    """Reads a word as one of an enumeration's values."""

    def __init__(self, kind: type[StrEnum]) -> None:
        self._kind = kind
        self.values = tuple(kind)

    def __call__(self, text: str) -> StrEnum:
        with suppress(ValueError):
            return self._kind(text)
        raise ArgumentTypeError(f"{text!r} is none of {', '.join(self.values)}")


class Between:
    """Reads a number, both ends included."""

    def __init__(
        self, least: float, most: float = inf, kind: type[int] | type[float] = float
    ) -> None:
        self.least = least
        self.most = most
        self.kind = kind

    def __call__(self, text: str) -> float:
        with suppress(ValueError):
            value = self.kind(text)
            if self.least <= value <= self.most and value != inf:
                return value
        wanted = {int: "a whole number", float: "a number"}[self.kind]
        upto = "on" if self.most == inf else f"to {self.most:g}"
        raise ArgumentTypeError(f"is {text!r}; write {wanted} from {self.least:g} {upto}")


def choices_of(one: Option) -> Sequence[str]:
    """The values of an option, where they are known."""
    read = one.how.get("type")
    if isinstance(read, OneOf):
        return read.values
    return tuple(one.how.get("choices", ()))


# -- options of several commands

RUN_DIR = setting_option("run_dir", RUN_DIRECTORY)
LIMITS = setting_option("limits", LIMITS_DIRECTORY)
SIMULATED = setting_option("simulate", SIMULATE)
_FORMATS = "text for people, json for machines."
OUTPUT = option("-o", "--output", type=OneOf(Format), metavar="FORMAT", help=_FORMATS)
VERSION = option(
    "--version", action="version", version=f"mpsd {mpsd.__version__}", help="Show the version."
)


# -- one command


class _Help(HelpFormatter):
    """Fills paragraphs, and leaves indented blocks as they are."""

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size().columns
        super().__init__(prog, max_help_position=32, width=min(columns, _WIDEST) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        first, _end, rest = text.strip().partition("\n")
        blocks = f"{first}\n{dedent(rest)}".split("\n\n")
        for number, block in enumerate(blocks):
            if not block.startswith("    "):
                blocks[number] = super()._fill_text(block, width, indent)
        return "\n\n".join(block.rstrip() for block in blocks)


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {message}; see `{self.prog} --help`\n")
        sys.exit(ExitCode.MISUSE)


def _parser(program: str, about: str) -> _Parser:
    parser = _Parser(program, description=about, formatter_class=_Help, add_help=False)
    parser.argument_default = SUPPRESS
    parser.allow_abbrev = False
    parser.add_argument("-h", "--help", action="help", help="Show this help.")
    return parser


def parser_of(program: str, command: Command, *, for_tab: bool = False) -> ArgumentParser:
    """program: with the command's name. for_tab: nothing is needed yet."""
    parser = _parser(program, command.__doc__ or "")
    defaults: Mapping[str, object] = command.__kwdefaults__ or {}
    for one in vars(command)["options"]:
        how = dict(one.how)
        if for_tab and one.is_argument:
            how.pop("type", None)  # else argparse reads the default of one that is not there
            how["nargs"] = "*" if how.get("nargs") in {"*", "+", "..."} else "?"
        made = parser.add_argument(*one.names, **how)
        if for_tab:
            made.required = False
        default = defaults.get(made.dest)
        if made.help and default not in {None, False, "", ()}:
            made.help += f" [default: {default}]"
    return parser


def read(program: str, command: Command, words: Sequence[str]) -> dict[str, Any]:
    """The keywords for the command. Ends the program where the line is wrong."""
    parser = parser_of(program, command)
    has_rest = any(one.how.get("nargs") == "..." for one in vars(command)["options"])
    parse = parser.parse_args if has_rest else parser.parse_intermixed_args
    return vars(parse([*words]))


def run_command(program: str, command: Command, words: Sequence[str]) -> None:
    with ending(program):
        command(**read(program, command, words))


# -- programs of several commands


class Verb(NamedTuple):
    """module: has a function of this name, and may have LATER: modules of other projects that a
    process that lasts imports when it needs them, and that must be there before it begins."""

    name: str
    module: str
    line: str
    #: What pip installs it with; empty for the program's own.
    extra: str = ""


class Program:
    """about: above the commands."""

    extra = "agent"  # what pip installs its commands with

    def __init__(self, name: str, about: str, verbs: Iterable[Verb]) -> None:
        self.name = name
        self.about = about
        self.verbs = {verb.name: verb for verb in verbs}

    def arranged(self, words: Sequence[str]) -> Sequence[str]:
        return words

    def may_name_verb(self, before: Sequence[str]) -> bool:
        """Whether a command may follow these words."""
        return not before

    def load(self, name: str) -> Command:
        verb = self.verbs[name]
        with extra_needed(f"{self.name} {name}", verb.extra or self.extra), starting():
            module = import_module(verb.module)
            find_all(getattr(module, "LATER", ()))
        command: Command = getattr(module, name)
        return command

    def parser(self) -> ArgumentParser:
        """Help and the program's own options."""
        parser = _parser(self.name, self.about)
        parser.add_argument(*VERSION.names, **VERSION.how)
        show = "Show what makes a shell complete it: source <(mpsd --show-completion bash)."
        parser.add_argument("--show-completion", choices=SHELLS, help=show)
        commands = parser.add_subparsers(title="commands", metavar="COMMAND")
        for verb in self.verbs.values():
            commands.add_parser(verb.name, help=verb.line, add_help=False)
        return parser

    def run(self, words: Sequence[str]) -> None:
        """Runs the command, or answers the program's own options."""
        with ending(self.name):
            name, *rest = self.arranged(words) or [""]
            if words[:1] == [TAB]:
                from mpsd.platform.completion import offered

                for line in offered(self, words[1:]):
                    print(line)
            elif name in self.verbs:
                command = self.load(name)
                command(**read(f"{self.name} {name}", command, rest))
            elif name:
                from mpsd.platform.completion import script

                given = vars(self.parser().parse_args([name, *rest]))
                if shell := given.get("show_completion"):
                    print(script(self.name.replace(" ", "-"), shell), end="")
            else:
                self.parser().print_help(sys.stderr)
                sys.exit(ExitCode.MISUSE)
