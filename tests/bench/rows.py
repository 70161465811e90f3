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


def show(rows: Mapping[str, Row], before: Mapping[str, Row] | None = None) -> None:
    """Prints the table. before: rows of an earlier run, to be compared with; None where that is not asked for."""
    table = Table(box=None, pad_edge=False)
    earlier = ("BEFORE", "NOW/BEFORE") if before is not None else ()
    for column in ("BENCHMARK", "VALUE", "UNIT", "LIMIT", "BASELINE", *earlier, "WHAT"):
        table.add_column(column, justify="left" if column in {"BENCHMARK", "UNIT", "WHAT"} else "right")
    for name, row in rows.items():
        limit = "" if row.limit is None else f"{row.limit:g}"
        style = None if row.holds else "red"
        baseline = "" if row.baseline is None else f"{row.baseline:.4g}"
        was = () if before is None else _compared(row, before.get(name))
        table.add_row(name, f"{row.value:.4g}", row.unit, limit, baseline, *was, row.about, style=style)
    Console(width=150).print(table)


def _compared(row: Row, before: Row | None) -> tuple[str, str]:
    if before is None or before.unit != row.unit:
        return "", ""
    return f"{before.value:.4g}", f"{row.value / before.value:.3f}" if before.value else ""


def read(path: Path) -> dict[str, Row]:
    return {name: Row(**row) for name, row in json.loads(path.read_text()).items()}


def write(rows: Mapping[str, Row], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({name: asdict(row) for name, row in rows.items()}, indent=2) + "\n")
