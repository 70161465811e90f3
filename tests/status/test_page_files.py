"""The page as it is served."""

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path

import mpsd
from mpsd.status.page.server import SCRIPTS, page


def test_the_policy_lets_exactly_the_style_and_the_script_in_that_are_in_the_page() -> None:
    made = page()
    html = made.html.decode()
    styles = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert (len(styles), len(scripts)) == (1, 1)
    hashes = {
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (*styles, *scripts)
    }
    assert set(re.findall(r"'sha256-([^']+)'", made.policy)) == hashes
    assert "unsafe" not in made.policy
    for rule in ("default-src 'none'", "connect-src 'self'", "trusted-types-for 'script'"):
        assert rule in made.policy


def test_the_page_is_one_file_with_nothing_that_it_would_have_to_fetch() -> None:
    html = page().html.decode()
    assert re.findall(r"<(?:script|img|iframe|object|embed)[^>]+src=", html) == []
    assert [
        link for link in re.findall(r'<link[^>]+href="([^"]{0,5})', html) if link != "data:"
    ] == []
    assert gzip.decompress(page().zipped) == page().html


def test_the_words_in_the_page_are_those_of_the_table() -> None:
    html = page().html.decode()
    (words,) = re.findall(r'<script type="application/json" id="words">(.*?)</script>', html)
    assert json.loads(words)["zh"]["filter"] == "筛选"
    assert "<" not in words


def test_every_script_of_the_folder_is_in_the_page() -> None:
    there = {file.stem for file in (Path(mpsd.__file__).parent / "status/page/static").glob("*.js")}
    assert there == set(SCRIPTS)
