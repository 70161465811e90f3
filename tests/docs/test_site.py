"""The site of docs/ has every page, and what mkdocs is given reads as on GitHub."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
import yaml

from tests.docs.pages import ROOT
from tests.docs.site import for_python_markdown, without_links_elsewhere

CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def pages_of(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for below in nav.values():
            yield from pages_of(below)
    elif isinstance(nav, list):
        for below in nav:
            yield from pages_of(below)


def test_the_navigation_has_every_page_once() -> None:
    docs = ROOT / "docs"
    assert sorted(pages_of(CONFIG["nav"])) == sorted(
        str(page.relative_to(docs)) for page in docs.rglob("*.md")
    )


@pytest.mark.parametrize(
    ("github", "mkdocs"),
    [
        ("text\n- a\n- b", "text\n\n- a\n- b"),
        ("text:\n1. a", "text:\n\n1. a"),
        ("text\n| a |\n| - |", "text\n\n| a |\n| - |"),
        ("<!-- printed: x -->\n| a |", "<!-- printed: x -->\n\n| a |"),
        ("- a\n  - b\n  more", "- a\n    - b\n    more"),
        (
            "1. a\n   ```\n   x\n     y\n   ```\n2. b",
            "1. a\n    ```\n    x\n      y\n    ```\n\n2. b",
        ),
        ("```\ntext\n- a\n```", "```\ntext\n- a\n```"),
        ("- a\n\ntext\n  more", "- a\n\ntext\n  more"),
    ],
    ids=repr,
)
def test_blocks_are_set_apart_as_mkdocs_needs_it(github: str, mkdocs: str) -> None:
    assert for_python_markdown(github) == mkdocs + "\n"


def test_a_link_to_what_the_site_does_not_have_becomes_its_text(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "below").mkdir(parents=True)
    (docs / "page.md").touch()
    (tmp_path / "code.py").touch()
    text = (
        "[a](../page.md#b) [c](../../code.py) [d](../below) [e](#f) [g](https://h.example)"
        " ![i](../none.png)"
    )
    kept = "[a](../page.md#b) c d [e](#f) [g](https://h.example) ![i](../none.png)"
    assert without_links_elsewhere(text, PurePosixPath("below"), docs) == kept
