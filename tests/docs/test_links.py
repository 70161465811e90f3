"""Every link of a page, and every page that a message of mpsd names, leads somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Page, at, page, pages

PAGES = tuple(pages())
_ELSEWHERE = re.compile(r"[a-z]+:")
_FILE = re.compile(r"(?:docs|images|limits|manifests|mpsd|tests)/[\w/.-]+")
_NAMED = re.compile(r"\bdocs/[\w/-]+\.md(?:#([\w-]+)|,? \(([A-Z][^)]*)\))?")


def broken(here: Page) -> Iterator[str]:
    for link in here.links:
        if _ELSEWHERE.match(link):
            continue
        file, _hash, anchor = link.partition("#")
        target = (here.path.parent / file).resolve() if file else here.path
        if not target.exists():
            yield f"{link}: there is no such file"
        elif anchor and anchor not in at(target).anchors:
            yield f"{link}: that page has no such heading"


@pytest.mark.parametrize("here", PAGES, ids=lambda here: here.name)
def test_every_link_and_anchor_leads_somewhere(here: Page) -> None:
    assert [*broken(here)] == []


def named_in(text: str) -> Iterator[str]:
    """What is wrong with the pages that a source file names, and the headings that it names of
    them."""
    for match in _NAMED.finditer(text):
        name = re.split(r"[#, (]", match[0])[0]
        if not (ROOT / name).exists():
            yield f"{match[0]}: there is no such page"
        elif match[1] and match[1] not in page(name).anchors:
            yield f"{match[0]}: that page has no such anchor"
        elif match[2] and match[2] not in page(name).headings:
            yield f"{match[0]}: that page has no such heading"


def test_every_page_that_the_code_and_the_limits_name_is_there() -> None:
    files = [
        *(ROOT / "mpsd").rglob("*.py"),
        *(ROOT / "limits").glob("*.yaml"),
        *(ROOT / "manifests").rglob("*.yaml"),
    ]
    wrong = [
        f"{path.relative_to(ROOT)}: {problem}"
        for path in files
        for problem in named_in(path.read_text())
    ]
    assert wrong == []


@pytest.mark.parametrize("here", PAGES, ids=lambda here: here.name)
def test_every_file_that_a_page_names_is_there(here: Page) -> None:
    named = {span.text for span in here.code_spans if _FILE.fullmatch(span.text)}
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_an_anchor_is_made_as_github_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "# `mpsd doctor`: why?\n## Same\n## Same\n[a](#mpsd-doctor-why) [b](#same-1) [c](#same-2)\n"
    )
    assert [*broken(Page(path))] == ["#same-2: that page has no such heading"]
