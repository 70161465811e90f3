"""The pages that people read: headings, links and blocks of code, by a Markdown parser; an
anchor is what GitHub makes of a heading."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
_PARSER = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True, slots=True)
class Fence:
    """A block of code. line: where it begins, from 1."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Page:
    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def headings(self) -> tuple[str, ...]:
        """Without marks."""
        tokens = self._tokens
        return tuple(
            _plain(tokens[at + 1])
            for at, token in enumerate(tokens)
            if token.type == "heading_open"
        )

    @cached_property
    def anchors(self) -> frozenset[str]:
        """A heading that comes again gets a number."""
        seen: Counter[str] = Counter()
        found = set()
        for heading in self.headings:
            name = slug(heading)
            found.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
        return frozenset(found)

    @cached_property
    def links(self) -> tuple[str, ...]:
        pieces = (child for token in self._tokens for child in token.children or ())
        found = (piece.attrs.get("href") or piece.attrs.get("src") for piece in pieces)
        return tuple(unquote(str(link)) for link in found if link)

    @cached_property
    def fences(self) -> tuple[Fence, ...]:
        blocks = (token for token in self._tokens if token.type == "fence")
        return tuple(
            Fence(self.name, token.map[0] + 1 if token.map else 0, token.content)
            for token in blocks
        )

    @cached_property
    def code_spans(self) -> tuple[Fence, ...]:
        """What stands between backquotes in the text. line: of the paragraph or table row."""
        return tuple(
            Fence(self.name, token.map[0] + 1 if token.map else 0, child.content)
            for token in self._tokens
            for child in token.children or ()
            if child.type == "code_inline"
        )

    @cached_property
    def _tokens(self) -> list[Token]:
        return _PARSER.parse(self.text)


def pages() -> Iterator[Page]:
    """README, the changelog, everything in docs/, and what lies beside the tests."""
    for path in [
        *ROOT.glob("*.md"),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "tests").rglob("*.md")),
    ]:
        yield at(path)


def page(name: str) -> Page:
    """By its path from the root."""
    return at(ROOT / name)


@cache
def at(path: Path) -> Page:
    return Page(path)


def slug(heading: str) -> str:
    """Small letters, digits, `-` and `_`."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _plain(inline: Token) -> str:
    return "".join(
        child.content for child in inline.children or () if child.type in {"text", "code_inline"}
    )
