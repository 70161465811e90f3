"""A hook of mkdocs.yml for `make docs-site`: what mkdocs must be told of pages that are written for
GitHub.

Python-Markdown needs a blank line before a list, a table and after a comment, and four spaces where
CommonMark needs two or three.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from tests.docs.pages import slug

_ITEM = re.compile(r"(?P<indent> *)(?:[-*]|\d+\.) ")
_FENCE = re.compile(r" *```")
_LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Anchors are GitHub's."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda heading, _separator: slug(heading)
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The page as Python-Markdown needs it, its links to what the site does not have left out."""
    folder = PurePosixPath(page.file.src_uri).parent
    return without_links_elsewhere(for_python_markdown(markdown), folder, Path(config.docs_dir))


def for_python_markdown(markdown: str) -> str:
    return "\n".join(_lines(markdown)) + "\n"


def without_links_elsewhere(markdown: str, folder: PurePosixPath, docs: Path) -> str:
    """A link to a folder, or to a file outside the documentation, becomes its text."""

    def kept(match: re.Match[str]) -> str:
        path = match["target"].partition("#")[0]
        if not path or ":" in path:
            return match[0]
        target = (docs / folder / path).resolve()
        if target.is_file() and target.is_relative_to(docs.resolve()):
            return match[0]
        return match["text"]

    return _LINK.sub(kept, markdown)


def _lines(markdown: str) -> Iterator[str]:
    before = ""
    width = 0  # of the indentation below the list's last item, in the source; 0 outside of lists
    is_code = False
    for line in markdown.splitlines():
        indent = len(line) - len(line.lstrip(" "))
        if line.strip() and not is_code:
            if width and indent == 0 and not _ITEM.match(line):
                width = 0
            if _begins_a_block(line, before):
                yield ""
        yield _widened(line, width, indent)
        if _FENCE.match(line):
            is_code = not is_code
        elif not is_code and (item := _ITEM.match(line)) and not item["indent"]:
            width = item.end()
        before = line


def _begins_a_block(line: str, before: str) -> bool:
    if not before.strip():
        return False
    if before.startswith("<!--"):
        return True
    if line.startswith("|"):
        return not before.startswith("|")
    if not _ITEM.match(line) or _ITEM.match(before):
        return False
    return not before.startswith(" ") or bool(_FENCE.match(before))


def _widened(line: str, width: int, indent: int) -> str:
    """What belongs to an item is four spaces to the right."""
    if not width or indent < 2 or not line.strip():
        return line
    return "    " + line[min(width, indent) :]
