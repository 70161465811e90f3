"""What people read, room by room: `wording` of a room's wording.py says it anew, and wording.txt beside it has it.

Renew the files with: python -m tests.test_wording
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from mpsd.status.rules.pods import Why

_FOLDER = Path(__file__).parent
_ROOMS = tuple(sorted(path.parent.name for path in _FOLDER.glob("*/wording.py")))


def _kept(room: str) -> Path:
    return _FOLDER / room / "wording.txt"


def _said(room: str) -> str:
    wording: Callable[[], str] = import_module(f"tests.{room}.wording").wording
    return wording()


@pytest.mark.parametrize("room", _ROOMS)
def test_the_sentences_of_a_room_are_those_in_its_file(room: str) -> None:
    assert _said(room) == _kept(room).read_text(), "renew it with: python -m tests.test_wording"


@pytest.mark.parametrize("why", Why)
def test_every_reason_has_a_sentence_in_the_file(why: Why) -> None:
    assert f"{why}: " in _kept("status").read_text()


if __name__ == "__main__":
    for each in _ROOMS:
        _kept(each).write_text(_said(each))
