"""The settings of each long-running program as docs/settings.md lists them, off its own command line."""

import re
from functools import partial

import typer

from mpsd.cli import main
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


TABLES = [
    Table(
        f"settings of mpsd {program}",
        "docs/settings.md",
        ("flag", "variable", "default", "means"),
        partial(rows_of, program),
    )
    for program in PROGRAMS
]
