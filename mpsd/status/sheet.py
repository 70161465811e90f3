"""A table of thousands of rows on a terminal or in a pipe.

One rule: it looks as rich's own table of the same cells does, and costs a fiftieth of it. rich measures, wraps and pads
each cell by itself, which for the GPUs of 500 nodes takes half a minute; where a terminal is too narrow it is asked all
the same, since it knows how to share what there is.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

if TYPE_CHECKING:  # only a terminal that is too narrow needs it
    from rich.table import Table

_GAP, _EDGE = "   ", " "

Cell = str | Text


@dataclass(frozen=True, slots=True)
class Head:
    """A column: its title, and on which side its cells are flush."""

    title: str
    left: bool


class Sheet:
    """Rows of cells, each on one line."""

    def __init__(self, heads: Sequence[Head], rows: Iterable[Sequence[Cell]]) -> None:
        self._heads = heads
        self._rows = [*rows]
        titles = [head.title for head in heads]
        self._columns = [[*map(_plain, cells)] for cells in zip(titles, *self._rows, strict=True)]

    @property
    def width(self) -> int:
        """Characters that it takes where nothing is cut."""
        return _inner(self._widths()) + 2 * len(_EDGE)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        titles = [head.title for head in self._heads]
        widths = self._widths()
        inner = _inner(widths)
        if inner + 2 * len(_EDGE) > options.max_width:
            yield self._table()
            return
        if console.color_system is None:  # a pipe: thousands of pieces, each of no style, are as good as one
            yield Segment(self._plain(widths))
            return
        blank, rule = " " * (inner + 2), f"{_EDGE}{'─' * inner}{_EDGE}"
        yield from (Segment(blank), Segment.line())
        yield from self._line(titles, widths, console, console.get_style("table.header"))
        yield from (Segment(rule), Segment.line())
        for row in self._rows:
            yield from self._line(row, widths, console, None)
        yield from (Segment(blank), Segment.line())

    def _widths(self) -> list[int]:
        return [max(map(len if _is_simple(texts) else _width, texts)) for texts in self._columns]

    def _plain(self, widths: Sequence[int]) -> str:
        columns = zip(self._heads, widths, self._columns, strict=True)
        padded = [_padded(texts, width, left=head.left) for head, width, texts in columns]
        title, *lines = map(_GAP.join, zip(*padded, strict=True))
        inner = _inner(widths)
        blank, rule = " " * (inner + 2), "─" * inner
        told = [f"{_EDGE}{line}{_EDGE}" for line in (title, rule, *lines)]
        return "\n".join([blank, *told, blank, ""])

    def _line(
        self, cells: Sequence[Cell], widths: Sequence[int], console: Console, style: Style | None
    ) -> Iterator[Segment]:
        """One segment for all that has the same style."""
        said = _EDGE
        for position, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            space = " " * (width - _width(cell))
            before, after = ("", space) if self._heads[position].left else (space, "")
            said += (_GAP if position else "") + before
            if isinstance(cell, Text) and cell.style:
                yield Segment(said, style)
                yield Segment(cell.plain, console.get_style(cell.style))
                said = after
            else:
                said += (cell.plain if isinstance(cell, Text) else cell) + after
        yield Segment(said + _EDGE, style)
        yield Segment.line()

    def _table(self) -> "Table":
        from rich import box
        from rich.table import Table

        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for head in self._heads:
            made.add_column(head.title, justify="left" if head.left else "right", no_wrap=True, overflow="ellipsis")
        for row in self._rows:
            made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
        return made


def _inner(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.plain


def _is_simple(texts: Iterable[str]) -> bool:
    """Whether each character takes one place."""
    every = "".join(texts)
    return every.isascii() and every.isprintable()


def _width(cell: Cell) -> int:
    return cell_len(_plain(cell))


def _padded(texts: Sequence[str], width: int, *, left: bool) -> list[str]:
    """Each as wide as the widest."""
    if not _is_simple(texts):
        spaces = [" " * (width - _width(text)) for text in texts]
        return [text + space if left else space + text for text, space in zip(texts, spaces, strict=True)]
    return [text.ljust(width) for text in texts] if left else [text.rjust(width) for text in texts]
