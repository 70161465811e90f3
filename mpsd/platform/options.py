"""Options of the command line that several verbs share, most of them made of a setting's declaration."""

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from mpsd.platform import settings
from mpsd.platform.console import Format
from mpsd.platform.settings import Setting

_Function = Callable[..., None]


def option(setting: Setting) -> Any:
    """The flag of a setting; its help says the variable and the default too."""
    default = setting.default or setting.otherwise
    text = f"{setting.help} ({setting.variable}{f'; {default}' if default else ''})."
    return typer.Option(setting.flag, metavar=setting.metavar, help=text)


def with_options(verb: _Function) -> _Function:
    """The verb as typer reads it: one that takes settings (`platform.settings.taking`) has an option for each."""
    declared: Mapping[str, Setting] | None = vars(verb).get("settings")
    if declared is None:
        return verb
    taken = {name: (Annotated[str | None, option(setting)], None) for name, setting in declared.items()}
    taken |= vars(verb)["more"]()
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=one, annotation=kind) for name, (kind, one) in taken.items()
    ]
    vars(verb)["__signature__"] = Signature(options)
    verb.__annotations__ = {name: kind for name, (kind, _default) in taken.items()}
    return verb


def completed(names: Callable[[Mapping[str, Any]], Iterable[str]]) -> Callable[..., list[str]]:
    """What an argument may be completed to. names: given the command line so far, of which the options and what stands
    there already count."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            return [name for name in names(ctx.params) if name.startswith(incomplete)]
        except Exception:  # whatever it is, a person who presses Tab is not to see a traceback
            return []

    return complete


RunDirectory = Annotated[str | None, option(settings.RUN_DIRECTORY)]
LimitsDirectory = Annotated[str | None, option(settings.LIMITS_DIRECTORY)]
Simulate = Annotated[str | None, option(settings.SIMULATE)]
LogFormat = Annotated[str | None, option(settings.LOG_FORMAT)]

OutputFormat = Annotated[
    Format, typer.Option("-o", "--output", metavar="FORMAT", help="text for people, json for machines.")
]
