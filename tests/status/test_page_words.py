"""The page's words, in each of its languages."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

import mpsd
from mpsd.agent.rules.node_events import REFUSED
from mpsd.model.domain import State
from mpsd.model.events import Reason
from mpsd.model.violations import ViolationKind
from mpsd.status.page.rules.view import Level, NoteKind, SliceHolder
from mpsd.status.rules.pods import Why

FOLDER = Path(mpsd.__file__).parent / "status/page/static"
WORDS: dict[str, list[str]] = json.loads((FOLDER / "words.json").read_text())
SCRIPT = "".join(file.read_text() for file in sorted(FOLDER.glob("*.js")))
HTML = (FOLDER / "page.html").read_text()
_SETS: dict[str, Iterable[str]] = {
    "state": [*State, "none"],
    "why": Why,
    "event": [*Reason, *ViolationKind, REFUSED],
    "note": NoteKind,
    "holder": SliceHolder,
    "level": Level,
}


@pytest.mark.parametrize("key", WORDS)
def test_every_word_is_there_in_both_languages_and_takes_the_same_values(key: str) -> None:
    english, chinese = WORDS[key]
    assert english.strip()
    assert chinese.strip()
    places = [set(re.findall(r"\{(\w+)\}", text)) for text in (english, chinese)]
    assert places[0] == places[1]


@pytest.mark.parametrize("name", _SETS)
def test_every_value_of_a_closed_set_has_a_word(name: str) -> None:
    assert [value for value in _SETS[name] if f"{name}.{value}" not in WORDS] == []


def test_every_word_that_the_page_asks_for_is_there_and_no_other() -> None:
    asked = set(re.findall(r'data-word(?:-label)?="([^"]+)"', HTML)) | set(
        re.findall(r'"([a-z][\w.-]*)"', SCRIPT)
    )
    stems = set(re.findall(r"t\(`([a-z.]+)\$\{", SCRIPT)) | {f"{name}." for name in _SETS}
    certain = set(re.findall(r'\bt\("([^"]+)"', SCRIPT)) | set(
        re.findall(r'data-word(?:-label)?="([^"]+)"', HTML)
    )
    assert certain - WORDS.keys() == set()
    assert [
        key for key in WORDS if key not in asked and not any(key.startswith(stem) for stem in stems)
    ] == []


def test_no_text_is_ever_taken_for_html_and_nothing_is_asked_of_another_host() -> None:
    html = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert re.findall(html, SCRIPT) == []
    whole = SCRIPT + HTML + (FOLDER / "page.css").read_text()
    assert set(re.findall(r"https?://[^\s'\"]+", whole)) <= {"http://www.w3.org/2000/svg"}
