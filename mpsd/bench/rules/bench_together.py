"""Several runs of `mpsd bench` as one: parts that were measured one after the other on the same machine.

One rule: a part is of one run, and all are of one GPU and driver; otherwise their figures do not belong together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mpsd.bench.rules.bench_rows import Benchmark, Part
from mpsd.model.problem import InvalidInput, Problem, shown

Named = tuple[str, Benchmark]  # the file it is from


def together(runs: Sequence[Named]) -> Benchmark:
    """At least one run. Its date is an interval where there are several. InvalidInput with every reason against it."""
    if problems := tuple(_problems(runs)):
        raise InvalidInput("mpsd bench --show", problems)
    benchmarks = [run for _file, run in runs]
    first = benchmarks[0]
    if len(runs) == 1:
        return first
    dates = sorted(run.machine.date for run in benchmarks)
    rows: dict[str, Any] = {
        part.value: next((found for run in benchmarks if (found := rows_of(run, part))), ()) for part in Part
    }
    measured = {part for part in Part if rows[part.value]}
    skipped = {part: why for run in benchmarks for part, why in run.skipped if part not in measured}
    return replace(
        first,
        machine=replace(first.machine, date=f"{dates[0]}/{dates[-1]}"),
        window_s=min(run.window_s for run in benchmarks),
        skipped=tuple(skipped.items()),
        listed=next((run.listed for run in benchmarks if run.listed), ""),
        **rows,
    )


def rows_of(benchmark: Benchmark, part: Part) -> tuple[object, ...]:
    """What was measured of a part; each has its field."""
    found: tuple[object, ...] = getattr(benchmark, part.value)
    return found


def _problems(runs: Sequence[Named]) -> Iterator[Problem]:
    first_file, first = runs[0]
    for file, run in runs[1:]:
        for field in ("gpu", "driver", "simulated"):
            found, wanted = getattr(run.machine, field), getattr(first.machine, field)
            if found != wanted:
                message = f"is not {shown(wanted)}, as in {first_file}"
                yield Problem(
                    "other-machine", f"{file}: machine.{field}", shown(found), message, "show them one by one"
                )
    for part in Part:
        files = [file for file, run in runs if rows_of(run, part)]
        if len(files) > 1:
            message = f"is in {files[0]} too, and a part is shown of one run"
            yield Problem("part-twice", f"{files[1]}: {part.value}", "", message, "leave one of the files out")
