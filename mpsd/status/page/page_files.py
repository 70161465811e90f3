"""The page as browsers get it: one file, made of those in mpsd/status/page/static, and the policy that says what it may do.

One rule: nothing is in it that is not in those files, so that a browser runs these scripts and no other.
"""

import base64
import gzip
import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

_LANGUAGES = ("en", "zh")
SCRIPTS = ("words", "elements", "known", "connection", "top", "lines", "gpus", "nodes", "drawing")  # in this order
_STYLE, _SCRIPT, _WORDS = "/* page.css */", "/* page.js */", "{}"


@dataclass(frozen=True, slots=True)
class Page:
    """policy: its Content-Security-Policy."""

    html: bytes
    zipped: bytes
    policy: str


def page() -> Page:
    folder = resources.files("mpsd") / "status" / "page" / "static"
    style, words = _read(folder / "page.css"), _read(folder / "words.json")
    script = "\n".join(_read(folder / f"{name}.js") for name in SCRIPTS)
    # A `<` in a word would end the element that the words are in.
    packed = json.dumps(by_language(json.loads(words)), ensure_ascii=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )
    html = _read(folder / "page.html")
    for place, text in ((_STYLE, style), (_SCRIPT, script), (_WORDS, packed)):
        before, found, after = html.partition(f">{place}<")
        if not found:
            raise ValueError(f"mpsd/status/page/static/page.html has no place for {place}")
        html = f"{before}>{text}<{after}"
    whole = html.encode()
    return Page(whole, gzip.compress(whole), _policy(style, script))


def by_language(words: dict[str, list[str]]) -> dict[str, dict[str, str]]:
    """words: by key, the word in each of the languages."""
    return {language: {key: row[place] for key, row in words.items()} for place, language in enumerate(_LANGUAGES)}


def _policy(style: str, script: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(file: Traversable) -> str:
    return file.read_text("utf-8")
