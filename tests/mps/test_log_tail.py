"""The tail of a log: every line once and whole, and the file kept small under its writer."""

from pathlib import Path

import pytest

from mpsd.mps import daemon
from mpsd.mps.daemon import LogTail


def test_lines_come_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path, from_end=True)
    assert tail.lines() == []
    with path.open("ab", buffering=0) as writer:
        writer.write(b"one\ntwo\nhal")
        assert tail.has_grown()
        assert tail.lines() == ["one", "two"]
        assert not tail.has_grown()
        writer.write(b"f\xff\n")
    assert tail.lines() == ["half\N{REPLACEMENT CHARACTER}"]
    assert tail.lines() == []


def test_what_was_there_before_is_left_out_where_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    assert LogTail(path, from_end=True).lines() == []
    assert LogTail(path, from_end=False).lines() == ["old"]


def test_a_log_that_has_grown_long_is_cut_and_its_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "ROTATE_BYTES", 8)
    path = tmp_path / "log"
    tail = LogTail(path, from_end=True)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"a long line\n")
        assert tail.lines() == ["a long line"]
        assert path.stat().st_size == 0
        assert (tmp_path / "log.1").read_text() == "a long line\n"
        writer.write(b"next\n")
        assert tail.lines() == ["next"]


def test_a_line_that_is_not_whole_when_the_log_is_cut_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "ROTATE_BYTES", 8)
    path = tmp_path / "log"
    tail = LogTail(path, from_end=True)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"a long line\nha")
        assert tail.lines() == ["a long line"]
        writer.write(b"lf\n")
        assert tail.lines() == ["half"]
