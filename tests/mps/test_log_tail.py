"""The tail of a log: every line once and whole, and the file kept small under its writer."""

from pathlib import Path

import pytest

from mpsd.mps import log_tail
from mpsd.mps.log_tail import LogTail


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


def test_a_log_that_has_grown_long_is_cut_and_its_end_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_tail, "ROTATE_BYTES", 8)
    path = tmp_path / "log"
    tail = LogTail(path, from_end=True)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"a long line\n")
        assert tail.lines() == ["a long line"]
        assert path.stat().st_size == 0
        assert (tmp_path / "log.1").read_text() == "ng line\n"
        writer.write(b"next\n")
        assert tail.lines() == ["next"]


def test_a_line_that_is_not_whole_when_the_log_is_cut_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_tail, "ROTATE_BYTES", 8)
    path = tmp_path / "log"
    tail = LogTail(path, from_end=True)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"a long line\nha")
        assert tail.lines() == ["a long line"]
        writer.write(b"lf\n")
        assert tail.lines() == ["half"]


def test_of_what_a_tenant_pours_in_only_the_end_is_read_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    tail = LogTail(path, from_end=True)
    line = b"x" * 99 + b"\n"
    with path.open("ab", buffering=0) as writer:
        writer.write(line * (log_tail.MOST_BYTES // 100))
        assert len(tail.lines()) == log_tail.MOST_BYTES // 100
        assert not tail.has_left_out
        writer.write(line * 10 * (log_tail.MOST_BYTES // 100) + b"last\n")
        lines = tail.lines()
        assert tail.has_left_out
        assert sum(map(len, lines)) < log_tail.MOST_BYTES
        assert lines[-1] == "last"
        writer.write(b"next\n")
        assert tail.lines() == ["next"]
        assert not tail.has_left_out


def test_a_line_without_an_end_is_not_kept_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    tail = LogTail(path, from_end=True)
    with path.open("ab", buffering=0) as writer:
        for _look in range(4):
            writer.write(b"x" * (log_tail.MOST_BYTES // 2))
            assert tail.lines() == []
        writer.write(b"\n")
        (line,) = tail.lines()
    assert len(line) == log_tail.MOST_BYTES
