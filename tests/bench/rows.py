"""The rows of a benchmark: a figure, its unit, its baseline, and the limit it must keep where it has one.

One rule: limits are on ratios, shares of a core, memory, and medians of differences taken in pairs; these machines are
shared, so no other time is judged.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """limit None: printed, not judged. baseline None: there is nothing to compare with."""

    value: float
    unit: str
    limit: float | None
    baseline: float | None
    about: str

    @property
    def holds(self) -> bool:
        return self.limit is None or self.value <= self.limit


def show(rows: Mapping[str, Row]) -> None:
    """Prints the table."""
    table = Table(box=None, pad_edge=False)
    for column in ("BENCHMARK", "VALUE", "UNIT", "LIMIT", "BASELINE", "WHAT"):
        table.add_column(column, justify="right" if column in {"VALUE", "LIMIT", "BASELINE"} else "left")
    for name, row in rows.items():
        limit = "" if row.limit is None else f"{row.limit:g}"
        style = None if row.holds else "red"
        baseline = "" if row.baseline is None else f"{row.baseline:.4g}"
        table.add_row(name, f"{row.value:.4g}", row.unit, limit, baseline, row.about, style=style)
    Console(width=150).print(table)


def write(rows: Mapping[str, Row], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({name: asdict(row) for name, row in rows.items()}, indent=2) + "\n")
