"""A benchmark as one picture: a panel for each question that a picture answers, if it was measured.

Colours (Okabe and Ito's) are never the only difference between two lines.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from mpsd.bench.rules.claims import LIMIT_S
from mpsd.bench.rules.rows import Benchmark, RatioRow, Reaction, SharingMode, WorkKind
from mpsd.bench.tables import SIMULATED
from mpsd.model.problem import InvalidInput, Problem

_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#E69F00", "#009E73", "#888888"
_OF_MODE = {
    SharingMode.TIME_SLICED: (_ORANGE, "s", 5, ":"),
    SharingMode.MPS: (_GREEN, "^", 9, "--"),
    SharingMode.MPSD: (_BLUE, "o", 4, "-"),
}
_WORKS = ((_BLUE, "o", "-"), (_ORANGE, "s", "--"), (_GREEN, "^", ":"), (_GREY, "D", "-."))
_ALONE = {"color": _BLUE, "marker": "o", "markersize": 4, "label": "alone"}
_BESIDE = {"color": _ORANGE, "marker": "s", "markersize": 8, "markerfacecolor": "none", "label": "beside others"}
_COLUMNS, _PANEL_INCHES = 3, (4.4, 3.4)


def draw(benchmark: Benchmark, file: Path) -> None:
    """Writes the picture, its format by the file's ending. InvalidInput where there is nothing to draw; OSError."""
    panels = [panel for has_rows, panel in _PANELS if has_rows(benchmark)]
    if not panels:
        message, remedy = (
            "nothing was measured that can be drawn",
            "measure sharing, shares, ratio, reactions or clients",
        )
        raise InvalidInput("mpsd bench", [Problem("nothing-to-draw", "--plot", str(file), message, remedy)])
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        panel(axes, benchmark)
    machine = benchmark.machine
    title = f"{machine.gpu}, driver {machine.driver}, {machine.date[:10]}"
    figure.suptitle(f"{title}\n{SIMULATED}" if machine.simulated else title, fontsize=10)
    figure.savefig(file, dpi=140)


def _sharing(axes: Any, benchmark: Benchmark) -> None:
    rows = [row for row in benchmark.sharing if row.work is WorkKind.SMALL]
    for mode, (colour, marker, size, line) in _OF_MODE.items():
        points = sorted((row.programs, row.launches_per_s) for row in rows if row.mode is mode)
        axes.plot(*_columns(points), color=colour, marker=marker, markersize=size, linestyle=line, label=mode)
    _say(axes, "Small kernels of several programs", "programs at once", "launches a second, all together")
    _only(axes, sorted({row.programs for row in rows}))
    axes.legend(frameon=False, fontsize=8)


def _shares(axes: Any, benchmark: Benchmark) -> None:
    rows = [row for row in benchmark.shares if row.work is WorkKind.ARITHMETIC]
    whole = next(row for row in rows if row.percent == 100 and not row.beside)
    axes.plot([0, 100], [0, 100], color=_GREY, linewidth=1, label="its part of the SMs")
    for beside, look in ((False, _ALONE), (True, _BESIDE)):
        points = [
            (100 * row.sms / whole.sms, 100 * row.launches_per_s / whole.launches_per_s)
            for row in rows
            if bool(row.beside) is beside
        ]
        if points:
            axes.plot(*_columns(points), linestyle="", **look)
    _say(axes, "Shares of the threads", "% of the SMs", "% of the whole GPU's throughput")
    axes.legend(frameon=False, fontsize=8)


def _ratio(axes: Any, benchmark: Benchmark) -> None:
    """By batch where there are any, else by work."""
    torch = benchmark.torch
    batches = sorted({row.batch for row in torch if row.batch is not None})
    places = {batch: float(place) for place, batch in enumerate(batches)}
    for style, work in zip(_WORKS, dict.fromkeys(row.work for row in torch), strict=False):
        points = sorted((places[row.batch], _times(row)) for row in torch if row.work == work and row.batch is not None)
        axes.plot(*_columns(points), color=style[0], marker=style[1], linestyle=style[2], label=work)
    labels = [str(batch) for batch in batches]
    for work in dict.fromkeys(row.work for row in benchmark.ratio):
        found = [_times(row) for row in benchmark.ratio if row.work == work]
        axes.plot([len(labels)] * len(found), found, color="black", marker="x", linestyle="")
        labels.append(work)
    axes.axhline(2, color=_GREY, linewidth=1)
    _say(axes, "Two programs with shares of 1:2", "batch, or work" if batches else "work", "the second : the first")
    axes.set_xticks(range(len(labels)), labels, fontsize=8, rotation=30 if batches else 0)
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    if torch:
        axes.legend(frameon=False, fontsize=7)


def _reactions(axes: Any, benchmark: Benchmark) -> None:
    present = [each for each in Reaction if any(row.reaction is each for row in benchmark.reactions)]
    for place, reaction in enumerate(reversed(present)):
        took = [row.seconds - row.grace_s for row in benchmark.reactions if row.reaction is reaction]
        spread = [place + 0.14 * ((number % 5) - 2) / 2 for number in range(len(took))]
        axes.plot(took, spread, color=_BLUE, marker="o", linestyle="", markersize=3, alpha=0.5)
        axes.plot([median(took)] * 2, [place - 0.3, place + 0.3], color="black", linewidth=2)
        if reaction in LIMIT_S:
            axes.plot([LIMIT_S[reaction]] * 2, [place - 0.35, place + 0.35], color=_ORANGE, linestyle="--")
    _say(axes, "Reactions: each, median, and what is promised (dashed)", "seconds", "")
    axes.set_yticks(range(len(present)), [_in_two_lines(each) for each in reversed(present)], fontsize=8)
    axes.set_xlim(left=0)


def _clients(axes: Any, benchmark: Benchmark) -> None:
    rows = sorted(benchmark.clients, key=lambda row: row.programs)
    axes.plot([row.programs for row in rows], [row.launches_per_s for row in rows], color=_BLUE, marker="o")
    _say(axes, "More and more programs under mpsd", "programs at once", "launches a second, all together")
    _only(axes, [row.programs for row in rows])


def _times(row: RatioRow) -> float:
    return row.per_s[1] / row.per_s[0] if row.per_s[0] > 0 else float("nan")


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _y in points], [y for _x, y in points]


def _in_two_lines(words: str) -> str:
    first, to, rest = words.partition(" to ")
    return f"{first}\n{to.strip()} {rest}"


def _say(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.set_ylim(bottom=0) if y else None
    if y.startswith("launches"):
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,.0f}"))


def _only(axes: Any, programs: Sequence[int]) -> None:
    """Ticks at the numbers that were measured, which double."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(programs, [str(number) for number in programs])
    axes.xaxis.set_minor_locator(NullLocator())


def _has_whole(benchmark: Benchmark) -> bool:
    return any(
        row.percent == 100
        and not row.beside
        and row.work is WorkKind.ARITHMETIC
        and row.sms > 0
        and row.launches_per_s > 0
        for row in benchmark.shares
    )


_PANELS: tuple[tuple[Callable[[Benchmark], object], Callable[[Any, Benchmark], None]], ...] = (
    (lambda benchmark: any(row.work is WorkKind.SMALL for row in benchmark.sharing), _sharing),
    (_has_whole, _shares),
    (lambda benchmark: benchmark.ratio or benchmark.torch, _ratio),
    (lambda benchmark: benchmark.reactions, _reactions),
    (lambda benchmark: benchmark.clients, _clients),
)
