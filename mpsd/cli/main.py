"""The program `mpsd`: its verbs, each loaded when it is used.

One rule: a verb costs what it needs, so `mpsd explain` starts no event loop and works without the node's libraries.
"""

import inspect
import io
import os
import sys
from collections.abc import Callable
from importlib import import_module
from textwrap import dedent
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import mpsd
from mpsd.cli.output import ExitCode, complaints, print_invalid
from mpsd.core.problem import InvalidInput

# One line a verb: mpsd.cli.<verb> has a function of that name, whose signature is the verb's options.
VERBS = {
    "up": "Share this machine's GPUs: supervise the MPS daemons and grant shares, in the foreground.",
    "run": "Run a command with a share of a GPU.",
    "status": "GPUs, domains, grants and clients of this machine.",
    "explain": "What the objects in a manifest get of a GPU, or why they are refused.",
    "check": "Whether limits files are sound, and what they put in force.",
    "demo": "The whole way on simulated GPUs: grants, limits, a crash and a refusal. No GPU needed.",
    "control": "Only the part of `up` that holds the MPS daemons.",
    "agent": "Only the part of `up` that grants shares; may be killed and restarted at any time.",
    "webhook": "Answer Kubernetes admission reviews: refuse what breaks sharing, in words that help.",
}


class _Verbs(TyperGroup):
    """Knows every verb by its line in VERBS, and imports only the one that is run."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {verb: TyperCommand(verb, help=line) for verb, line in VERBS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Also what shell completion asks, which then knows the options of the verb."""
        verb, command, rest = super().resolve_command(ctx, args)
        return verb, (_load(verb) if verb in VERBS else command), rest


def _load(verb: str) -> Any:
    try:
        module = import_module(f"mpsd.cli.{verb}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mpsd"):
            raise
        extra = "webhook" if verb == "webhook" else "agent"
        complaints().print(f"mpsd {verb} needs the module {error.name}; install it with: pip install 'mpsd[{extra}]'")
        sys.exit(ExitCode.MISUSE)
    function = getattr(module, verb)
    alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    settings = getattr(module, "CONTEXT_SETTINGS", None)
    alone.command(verb, help=_help(function), context_settings=settings)(function)
    return typer.main.get_command(alone)


def _help(function: Callable[..., None]) -> str:
    """The docstring, its indented blocks as Markdown's code, so that examples keep their lines."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(f"```text\n{dedent(block)}\n```" if block.startswith("    ") else block for block in paragraphs)


app = typer.Typer(
    cls=_Verbs,
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"mpsd {mpsd.__version__}")
        raise typer.Exit


def _mpsd(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Share NVIDIA GPUs through MPS, with limits that hold.

        mpsd explain -f job.yaml               what this Job gets, or why not
        mpsd explain -f job.yaml --gpu H200    and what that is on this GPU
        mpsd check limits                      whether limits files are sound

    Every verb has a --help of its own. The exit code is 0 for yes, 1 for no, 2 for a wrong question.
    """


app.callback(help=_help(_mpsd))(_mpsd)


def main() -> None:
    """The entry point: input that no verb could use ends here with every problem in it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where the shell closed it
            stream.reconfigure(errors="backslashreplace")  # an ASCII terminal must not end a verb half way
    try:
        app(prog_name="mpsd")
    except InvalidInput as error:
        print_invalid(error)
        sys.exit(ExitCode.MISUSE)
    except OSError as error:  # such as a full disk under standard output: no answer is not "no"
        complaints().print(f"mpsd: {error}")
        os._exit(ExitCode.MISUSE)
