"""How programs import: what they bring is passed over by the garbage collector."""

import gc
from importlib import import_module
from pathlib import Path

import pytest

from mpsd.cli.imports import lasting


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of one that nobody has imported."""
    (tmp_path / "mpsd_test_brought.py").write_text("KEPT = [{}]\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "mpsd_test_brought"


def test_what_is_imported_is_looked_at_no_more_and_what_comes_later_is(module: str) -> None:
    with lasting():
        kept = import_module(module).KEPT
    later: list[object] = [{}]
    seen = gc.get_objects()
    assert not any(thing is kept for thing in seen)
    assert any(thing is later for thing in seen)
    assert gc.isenabled()


def test_where_nothing_new_is_imported_everything_is_looked_at_as_before() -> None:
    frozen = gc.get_freeze_count()
    with lasting():
        import_module("mpsd")
    assert gc.get_freeze_count() <= frozen, "frozen things may end, and none was added"
    assert gc.isenabled()
