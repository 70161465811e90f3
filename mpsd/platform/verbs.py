"""What the programs `mpsd` and `kubectl-mps` share: verbs that are loaded when they are used, and how a program ends.

A verb costs what it needs, so `mpsd explain` starts no event loop and works without the node's libraries.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from textwrap import dedent
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

import mpsd
from mpsd.platform.console import ending
from mpsd.platform.console import extra_needed as extra_needed
from mpsd.platform.imports import starting
from mpsd.platform.options import with_options

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True, slots=True)
class Verb:
    """module: has a function of the verb's name, whose signature is its options. extra: what pip installs it with."""

    line: str
    module: str
    extra: str = "agent"


class Verbs(TyperGroup):
    """Knows every verb by its line, and imports only the one that is run."""

    program: ClassVar[str]
    verbs: ClassVar[Mapping[str, Verb]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=verb.line) for name, verb in self.verbs.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Also what shell completion asks, which then knows the options of the verb."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, (self.load(name) if name and name in self.verbs else command), rest

    def load(self, name: str) -> Any:
        verb = self.verbs[name]
        with extra_needed(f"{self.program} {name}", verb.extra), starting():
            module = import_module(verb.module)
        function = with_options(getattr(module, name))
        alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        settings = getattr(module, "CONTEXT_SETTINGS", None)
        alone.command(name, help=help_of(function), context_settings=settings)(function)
        return typer.main.get_command(alone)


def help_of(function: Callable[..., None]) -> str:
    """The docstring, its indented blocks as Markdown's code, so that examples keep their lines."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(f"```text\n{dedent(block)}\n```" if block.startswith("    ") else block for block in paragraphs)


def _version(asked: bool) -> None:
    if asked:
        print(f"mpsd {mpsd.__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
]


def run(app: typer.Typer, program: str) -> None:
    with ending(program):
        app(prog_name=program)
