"""A figure that was measured is one that the benchmarks print."""

import re

import pytest

from tests.docs.pages import page

_FIGURE = re.compile(r"(?<![\d.])(?:\d{1,3} \d{3}|\d+\.\d+)(?![\d.]*\d)")


def section(name: str, heading: str) -> str:
    text = page(name).text
    begin = text.index(f"\n## {heading}\n")
    return text[begin : text.index("\n## ", begin + 1)]


@pytest.mark.parametrize(
    "text",
    [section("README.md", "How it compares"), page("docs/what-mps-cannot-do.md").text],
    ids=["README", "MPS"],
)
def test_the_benchmarks_print_it(text: str) -> None:
    prose = re.sub(r"driver \S+|compute capability \S+", "", re.sub(r"\]\([^)]*\)", "]", text))
    figures = set(_FIGURE.findall(prose))
    printed = page("docs/benchmarks/README.md").text
    assert figures
    assert {figure for figure in figures if figure not in printed} == set()
