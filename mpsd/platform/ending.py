"""How a program ends when it cannot answer: what is missing, or what is wrong with the question.

One rule: no traceback for what a person can put right.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpsd.model.problem import InvalidInput
from mpsd.platform.imports import INTERRUPTED
from mpsd.platform.speech import ExitCode, complaints, print_invalid


@contextmanager
def extra_needed(command: str, extra: str) -> Iterator[None]:
    """Ends the program with what to install, where a module of other projects is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mpsd"):
            raise
        complaints().print(f"{command} needs the module {error.name}; install it with: pip install 'mpsd[{extra}]'")
        sys.exit(ExitCode.MISUSE)


@contextmanager
def ending(program: str) -> Iterator[None]:
    """How a program ends: input that no verb could use ends it with every problem in it, Ctrl-C without a traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it: who wants no answer is given none
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - as long as the program
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an ASCII terminal must not end a verb half way
    try:
        yield
    except InvalidInput as error:
        print_invalid(error)
        sys.exit(ExitCode.MISUSE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:  # such as a full disk under standard output: no answer is not "no"
        complaints().print(f"{program}: {error}")
        os._exit(ExitCode.MISUSE)
