"""A sheet looks as rich's own table of the same cells."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from mpsd.model.problem import printable
from mpsd.status.tables import Column, TextTable, table

# Wide characters too; rich drops spaces at the end of some cells, and widens emoji by what follows them.
letters = st.characters(codec="ascii") | st.sampled_from("é漢字─…")
cells = st.text(letters, max_size=6).map(lambda text: printable(text).strip())


def drawn(thing: RenderableType, width: int, *, terminal: bool = False) -> str:
    text = io.StringIO()
    Console(
        file=text, width=width, markup=False, highlight=False, emoji=False, force_terminal=terminal, color_system=None
    ).print(thing, crop=False)
    return text.getvalue()


def richs_own(columns: list[Column[str]], rows: list[list[str]]) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for column in columns:
        made.add_column(column.title, justify="left" if column.left else "right", no_wrap=True)
    for row in rows:
        made.add_row(*map(Text, row[: len(columns)]))
    return made


def sheet_of(columns: list[Column[str]], rows: list[list[str]]) -> TextTable:
    return TextTable(columns, [[row[place] for row in rows] for place in range(len(columns))])


titles = st.lists(st.tuples(cells.filter(bool), st.booleans()), min_size=1, max_size=4)
tables = st.lists(st.lists(cells, min_size=4, max_size=4), max_size=4)


@given(titles, tables)
def test_plain_cells_lie_where_richs_own_table_has_them(heads: list[tuple[str, bool]], rows: list[list[str]]) -> None:
    columns: list[Column[str]] = [Column(title, str, left) for title, left in heads]
    assert drawn(sheet_of(columns, rows), 200) == drawn(richs_own(columns, rows), 200)


@given(titles, tables, st.integers(1, 40))
def test_columns_leave_a_narrow_terminal_from_the_right_and_no_cell_is_cut(
    heads: list[tuple[str, bool]], rows: list[list[str]], width: int
) -> None:
    columns: list[Column[str]] = [Column(title, str, leaves=leaves) for title, leaves in heads]
    sheet = sheet_of(columns, rows)
    shown = sheet.within(width)
    kept = [column.title for column in shown._columns]
    leaving = [place for place, column in enumerate(columns) if column.leaves]
    left = len(columns) - len(kept)
    gone = leaving[len(leaving) - left :]
    assert kept == [column.title for place, column in enumerate(columns) if place not in gone]
    assert shown.width <= width or left == len(leaving) or len(kept) == 1
    assert (
        left == 0
        or TextTable([*shown._columns, columns[gone[0]]], [*shown._cells, sheet._cells[gone[0]]]).width > width
    )
    text = drawn(sheet, width)
    assert "".join(drawn(shown, 1000).split()) == "".join(text.split())


def test_wide_tables_keep_every_column_on_a_narrow_terminal() -> None:
    columns = [Column("NAME", str, left=True), Column("MORE", str, leaves=True)]
    text = drawn(table(columns, ["a" * 30]), 40)
    assert "MORE" not in text
    assert "MORE" in drawn(table(columns, ["a" * 30], wide=True), 40)


def test_colours_reach_a_terminal_and_nothing_else() -> None:
    sheet = TextTable([Column("STATE", str, left=True), Column("N", str)], [[Text("down", "red")], ["1"]])
    coloured = io.StringIO()
    Console(file=coloured, width=80, force_terminal=True, color_system="standard").print(sheet)
    assert "\x1b[31mdown \x1b[0m" in coloured.getvalue()
    assert drawn(sheet, 80).splitlines()[1:4] == [" STATE   N ", " ───────── ", " down    1 "]
