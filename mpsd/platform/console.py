"""Exit codes, answers for people and machines, and how a program ends without one."""

import io
import json
import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpsd.model.problem import InvalidInput, Problem, printable
from mpsd.platform import logs
from mpsd.platform.imports import INTERRUPTED

if TYPE_CHECKING:  # a tenth of the start of `mpsd run`
    from rich.console import Console
    from rich.text import Text

LONGEST_LINE = 2000  # characters


class ExitCode(IntEnum):
    YES = 0
    NO = 1
    MISUSE = 2

    @classmethod
    def of(cls, answer: bool) -> "ExitCode":
        return cls.YES if answer else cls.NO

    @classmethod
    def of_refusal(cls, *, for_ever: bool) -> "ExitCode":
        """MISUSE where to ask again is of no use."""
        if for_ever:
            return cls.MISUSE
        return cls.NO


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class StatusFormat(StrEnum):
    TEXT = "text"
    WIDE = "wide"  # as text, with more columns
    JSON = "json"
    YAML = "yaml"


def answers() -> "Console":
    """Standard output; long lines stay whole when nobody's terminal folds them."""
    return _console(soft_wrap=True)


def complaints() -> "Console":
    return _console(soft_wrap=True, stderr=True)


def _console(**options: Any) -> "Console":
    from rich.console import Console

    return Console(highlight=False, emoji=False, markup=False, **options)


def one_line(text: str) -> str:
    """The text made printable and bounded, whoever wrote it."""
    return printable(text, LONGEST_LINE)


def print_json(answer: object) -> None:
    """answer: dataclasses and structs too, by their fields."""
    import msgspec  # a verb's help does without

    sys.stdout.write(json.dumps(msgspec.to_builtins(answer), indent=2) + "\n")
    sys.stdout.flush()  # where it fails, `ending` says so


def print_invalid(error: InvalidInput) -> None:
    """Prints one line a problem."""
    from rich.text import Text

    to = complaints()
    to.print(Text.assemble((error.subject, "bold"), ": ", counted(error.problems, "red")))
    for problem in error.problems:
        to.print(Text.assemble("  ", problem_line(problem)))


def problem_line(problem: Problem) -> "Text":
    from rich.text import Text

    value = f" is {problem.value}" if problem.value else ""
    return Text.assemble(
        (f"{problem.where}{value}", "bold"), f": {problem.message}; ", (problem.remedy, "green")
    )


def counted(problems: Sequence[Problem], style: str) -> "Text":
    from rich.text import Text

    return Text(f"{len(problems)} problem{'' if len(problems) == 1 else 's'}", style)


@contextmanager
def extra_needed(command: str, extra: str) -> Iterator[None]:
    """Says what to install, where a module of other projects is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mpsd"):
            raise
        remedy = f"pip install '.[{extra}]' in a checkout of mpsd"
        sys.stderr.write(f"{command} needs the module {error.name}: {remedy}\n")
        sys.exit(ExitCode.NO)


@contextmanager
def ending(program: str) -> Iterator[None]:
    """Ends a program without a traceback where its input cannot be used, and at Ctrl-C."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - as long as the program
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            # an ASCII terminal must not end a verb half way
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    except InvalidInput as error:
        print_invalid(error)
        sys.exit(ExitCode.MISUSE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:  # such as a full disk
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            os._exit(ExitCode.NO)
        complaints().print(f"{program}: {error}")
        logs.flush()
        os._exit(ExitCode.MISUSE)


def _reader_is_gone() -> bool:
    """Whether what reads our output has ended, as `head` does."""
    output = select.poll()
    output.register(1, 0)
    return any(events & select.POLLERR for _descriptor, events in output.poll(0))
