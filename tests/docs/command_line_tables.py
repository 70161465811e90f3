"""The verbs and settings of each program as docs/commands.md and docs/settings.md list them, off its command line."""

import re
from functools import partial

import typer

from mpsd.cli import kubectl_mps, main
from tests.docs.tables import Row, Table

PROGRAMS = ("up", "control", "agent", "webhook", "scheduler")
_HELP = re.compile(r"(?P<means>.*) \((?P<variable>MPSD_\w+)(?:; (?P<default>.*))?\)\.", re.DOTALL)


def rows_of(program: str) -> list[Row]:
    """Flag, variable, default, meaning of every option that a variable stands for."""
    options = typer.main.get_command(main.app).load(program).params  # type: ignore[attr-defined]
    found = [(option, _HELP.fullmatch(getattr(option, "help", "") or "")) for option in options]
    return [
        (f"`{option.opts[-1]} {option.metavar}`", f"`{match['variable']}`", match["default"] or "", match["means"])
        for option, match in found
        if match
    ]


def settings() -> list[Row]:
    """Every setting once: its flag, variable and default, the programs that have it, its meaning."""
    programs: dict[Row, list[str]] = {}
    for program in PROGRAMS:
        for row in rows_of(program):
            programs.setdefault(row, []).append(program)
    return [(*row[:3], ", ".join(having), row[3]) for row, having in programs.items()]


def verbs_of(app: typer.Typer) -> list[Row]:
    """Every verb of a program, with its line."""
    group = typer.main.get_command(app)
    return [(f"`{group.program} {name}`", verb.line) for name, verb in group.verbs.items()]  # type: ignore[attr-defined]


_VERBS = ("command", "what it does")
_SETTINGS = ("flag", "variable", "default", "of", "means")
TABLES = [
    Table("settings", "docs/settings.md", _SETTINGS, settings),
    *(
        Table(f"verbs of {program}", "docs/commands.md", _VERBS, partial(verbs_of, app), ("more",))
        for program, app in (("mpsd", main.app), ("kubectl mps", kubectl_mps.app))
    ),
]
