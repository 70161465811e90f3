"""A sheet looks as rich's own table of the same cells."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.text import Text

from mpsd.model.problem import printable
from mpsd.status.tables import Column, TextTable

# Wide characters too; rich drops spaces at the end of some cells, and widens emoji by what follows them.
letters = st.characters(codec="ascii") | st.sampled_from("é漢字─…")
cells = st.text(letters, max_size=6).map(lambda text: printable(text).strip())


def drawn(thing: RenderableType, width: int, *, terminal: bool = False) -> str:
    text = io.StringIO()
    Console(
        file=text, width=width, markup=False, highlight=False, emoji=False, force_terminal=terminal, color_system=None
    ).print(thing)
    return text.getvalue()


@given(
    st.lists(st.tuples(cells.filter(bool), st.booleans()), min_size=1, max_size=4),
    st.lists(st.lists(cells, min_size=4, max_size=4), max_size=4),
    st.sampled_from([10, 30, 200]),
)
def test_plain_cells_lie_where_richs_own_table_has_them(
    heads: list[tuple[str, bool]], rows: list[list[str]], width: int
) -> None:
    columns: list[Column[str]] = [Column(title, str, left) for title, left in heads]
    sheet = TextTable(columns, [[row[place] for row in rows] for place in range(len(heads))])
    assert drawn(sheet, width) == drawn(sheet._narrow(), width)


def test_colours_reach_a_terminal_and_nothing_else() -> None:
    sheet = TextTable([Column("STATE", str, left=True), Column("N", str)], [[Text("down", "red")], ["1"]])
    coloured = io.StringIO()
    Console(file=coloured, width=80, force_terminal=True, color_system="standard").print(sheet)
    assert "\x1b[31mdown \x1b[0m" in coloured.getvalue()
    assert drawn(sheet, 80).splitlines()[1:4] == [" STATE   N ", " ───────── ", " down    1 "]
