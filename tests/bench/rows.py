"""The rows of a benchmark: a figure, its unit, its baseline, the limit it must keep where it has
one, and the verdict.

One rule: limits are on ratios, shares of a core, memory, and medians of differences taken in pairs;
these machines are shared, so no other time is judged.
"""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mpsd.bench.rules.claims import ClaimVerdict, median_interval


@dataclass(frozen=True, slots=True)
class Row:
    """limit None: printed, not judged. baseline None: there is nothing to compare with, but what an
    earlier run wrote. interval: 95 % of the median that the value is; None where it is one
    figure."""

    value: float
    unit: str
    limit: float | None
    baseline: float | None
    about: str
    interval: tuple[float, float] | None = None

    @property
    def verdict(self) -> ClaimVerdict:
        if self.limit is None:
            return ClaimVerdict.NO_LIMIT
        keep = {end <= self.limit for end in self.interval or (self.value,)}
        if len(keep) > 1:
            return ClaimVerdict.CANNOT_TELL
        return ClaimVerdict.HOLDS if keep == {True} else ClaimVerdict.BROKEN


def median_row(
    samples: Iterable[float], unit: str, limit: float | None, baseline: float | None, about: str
) -> Row:
    """Of the median of six samples or more, with its interval; of fewer without."""
    found = tuple(samples)
    return Row(statistics.median(found), unit, limit, baseline, about, median_interval(found))


def show(rows: Mapping[str, Row], before: Mapping[str, Row] | None = None) -> None:
    """Prints the table. before: rows of an earlier run, to be compared with; None where that is not
    asked for."""
    table = Table(box=None, pad_edge=False)
    earlier = ("BEFORE", "NOW/BEFORE") if before is not None else ()
    for column in (
        "BENCHMARK",
        "VALUE",
        "95 %",
        "UNIT",
        "LIMIT",
        "BASELINE",
        *earlier,
        "VERDICT",
        "WHAT",
    ):
        table.add_column(
            column,
            justify="left" if column in {"BENCHMARK", "UNIT", "VERDICT", "WHAT"} else "right",
        )
    for name, row in rows.items():
        limit = "" if row.limit is None else f"{row.limit:g}"
        interval = "" if row.interval is None else " to ".join(f"{end:.3g}" for end in row.interval)
        style = "red" if row.verdict is ClaimVerdict.BROKEN else None
        baseline = "" if row.baseline is None else f"{row.baseline:.4g}"
        was = () if before is None else _compared(row, before.get(name))
        figures = (f"{row.value:.4g}", interval, row.unit, limit, baseline, *was)
        table.add_row(name, *figures, row.verdict.value, row.about, style=style)
    Console(width=170).print(table)


def _compared(row: Row, before: Row | None) -> tuple[str, str]:
    if before is None or before.unit != row.unit:
        return "", ""
    return f"{before.value:.4g}", f"{row.value / before.value:.3f}" if before.value else ""


def read(path: Path) -> dict[str, Row]:
    return {name: Row(**row) for name, row in json.loads(path.read_text()).items()}


def write(rows: Mapping[str, Row], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({name: asdict(row) for name, row in rows.items()}, indent=2) + "\n")
