"""What a board is made of: rows, panels, queries.

One rule: Grafana's names of things are the values of the enums here, and nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Form(StrEnum):
    """Grafana's names of panels."""

    LINES = "timeseries"
    NUMBER = "stat"
    STATES = "state-timeline"


class Show(StrEnum):
    """Grafana's names of units."""

    BYTES = "bytes"
    SHARE = "percentunit"
    SECONDS = "s"
    COUNT = "short"
    RATE = "ops"


@dataclass(frozen=True, slots=True)
class Query:
    """legend: with labels as Grafana writes them in."""

    text: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """bars: of what happened between two points; else a line. values: names of the numbers it shows, where they are
    no amounts.
    """

    title: str
    show: Show
    queries: tuple[Query, ...]
    form: Form = Form.LINES
    about: str = ""
    bars: bool = False
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def lines(title: str, show: Show, queries: Mapping[str, str], about: str = "") -> Panel:
    """queries: by their legends."""
    return Panel(title, show, tuple(Query(text, legend) for legend, text in queries.items()), about=about)


def bars(title: str, queries: Mapping[str, str], about: str = "") -> Panel:
    made = tuple(Query(text, legend) for legend, text in queries.items())
    return Panel(title, Show.COUNT, made, about=about, bars=True)


def number(title: str, show: Show, text: str, about: str = "") -> Panel:
    return Panel(title, show, (Query(text, ""),), Form.NUMBER, about)
