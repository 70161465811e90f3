"""The verbs and settings of each program as docs/commands.md and docs/settings.md list them, off
its command line."""

import re
from functools import partial

from mpsd.cli.kubectl_mps import KUBECTL_MPS
from mpsd.cli.main import MPSD
from mpsd.platform.command_line import Program
from tests.docs.tables import Row, Table

PROGRAMS = ("up", "control", "agent", "webhook", "scheduler")
_HELP = re.compile(r"(?P<means>.*) \((?P<variable>MPSD_\w+)(?:; (?P<default>.*))?\)\.", re.DOTALL)


def rows_of(program: str) -> list[Row]:
    """Flag, variable, default, meaning of every option that a variable stands for."""
    options = vars(MPSD.load(program))["options"]
    found = [(option, _HELP.fullmatch(option.how["help"])) for option in options]
    return [
        (
            f"`{option.names[-1]} {option.how['metavar']}`",
            f"`{match['variable']}`",
            match["default"] or "",
            match["means"],
        )
        for option, match in found
        if match
    ]


def settings() -> list[Row]:
    """Every setting once: its flag, variable and default, the programs that have it, its
    meaning."""
    programs: dict[Row, list[str]] = {}
    for program in PROGRAMS:
        for row in rows_of(program):
            programs.setdefault(row, []).append(program)
    return [(*row[:3], ", ".join(having), row[3]) for row, having in programs.items()]


def verbs_of(program: Program) -> list[Row]:
    return [(f"`{program.name} {name}`", verb.line) for name, verb in program.verbs.items()]


_VERBS = ("command", "what it does")
_SETTINGS = ("flag", "variable", "default", "of", "means")
TABLES = [
    Table("settings", "docs/settings.md", _SETTINGS, settings),
    *(
        Table(
            f"verbs of {program.name}",
            "docs/commands.md",
            _VERBS,
            partial(verbs_of, program),
            ("more",),
        )
        for program in (MPSD, KUBECTL_MPS)
    ),
]
