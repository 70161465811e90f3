"""Every command that a page tells its reader to type exists, with its options."""

import re

import pytest

from tests.docs.commands import Told, make_targets, problem_of, simple_commands, told_in
from tests.docs.pages import Page, pages
from tests.docs.pages import page as page_of

PAGES = [page for page in pages() if "/decisions/" not in page.name]


def told(page: Page) -> list[Told]:
    """Of its blocks, and of its text between backquotes."""
    blocks = [one for fence in page.fences for one in told_in(fence)]
    spans = [Told(str(span), _with_value(span.text)) for span in page.code_spans]
    return [*blocks, *spans]


def _with_value(span: str) -> str:
    """A span that ends in an option only names it."""
    return f"{span} VALUE" if re.search(r" --?[\w-]+$", span) else span


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_exists(page: Page) -> None:
    wrong = [
        f"{one.place}: {' '.join(words)}: {problem}"
        for one in told(page)
        for words in simple_commands(one.line)
        if (problem := problem_of(words))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mpsd statos", "statos"),
        ("mpsd status --wid", "--wid"),
        ("sudo true; MPSD_RUN_DIR=/x mpsd status -o colour", "colour"),
        ("kubectl mps --evict drain n1 --gpus gpu0", "--gpus"),
        ("true && make cheque", "cheque"),
        ("python -m tests.none", "no module"),
    ],
)
def test_what_is_wrong_with_a_command_is_said(line: str, words: str) -> None:
    assert words in " ".join(problem_of(command) for command in simple_commands(line))


def test_every_target_of_make_is_described() -> None:
    text = page_of("docs/developing.md").text
    assert {target for target in make_targets() if f"`make {target}`" not in text} == set()
