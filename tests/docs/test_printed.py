"""What pages say of code is what the code says."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import walk_packages

import pytest

import mpsd
from mpsd.platform.settings import Setting
from tests.docs.command_line_tables import PROGRAMS, rows_of
from tests.docs.pages import page
from tests.docs.printed import TABLES
from tests.docs.tables import Table


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_table_is_as_the_code_prints_it(table: Table) -> None:
    text = page(table.page).text
    assert table.printed(text) == text, "write it anew with: make docs"


@pytest.mark.parametrize(
    "table", [table for table in TABLES if table.words], ids=lambda table: table.name
)
def test_people_have_said_what_each_row_means(table: Table) -> None:
    assert table.wordless(page(table.page).text) == []


def test_every_setting_with_a_row_is_an_option_of_its_program() -> None:
    told = {
        variable for program in PROGRAMS for _flag, variable, _default, _means in rows_of(program)
    }
    assert {f"`{row.variable}`" for row in setting_rows()} <= told


def setting_rows() -> list[Setting]:
    """Of every module of settings, one by itself or in a mapping."""
    names = (
        module.name
        for module in walk_packages(mpsd.__path__, "mpsd.")
        if module.name.endswith(".settings")
    )
    values = [value for name in names for value in vars(import_module(name)).values()]
    inside = [row for value in values if isinstance(value, Mapping) for row in value.values()]
    return [row for row in [*values, *inside] if isinstance(row, Setting)]


def test_printing_keeps_the_words_of_people_and_loses_no_other_line() -> None:
    table = Table("t", "page", ("field",), lambda: [("`new`",), ("`a`",)], ("means",))
    old = "| field | means |\n| --- | --- |\n| `a` | words \\| more |\n"
    text = f"before\n<!-- printed: t -->\n{old}<!-- end: t -->\nafter\n"
    printed = table.printed(text)
    rows = "| field | means |\n| --- | --- |\n| `new` |  |\n| `a` | words \\| more |\n"
    assert printed == f"before\n<!-- printed: t -->\n{rows}<!-- end: t -->\nafter\n"
    assert table.wordless(printed) == ["`new`"]
