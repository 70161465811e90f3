"""Mappings are read by pieces, and nobody's reads that never end take the threads of others."""

import threading

import pytest

from mpsd.platform import mappings
from mpsd.platform.mappings import MappedBytes
from mpsd.platform.threaded_read import ThreadedRead

LINES = 40


def test_each_read_goes_on_where_the_last_one_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b"1000-2000 rw-s 00000000 00:01 7 /dev/nvidia-uvm\n"
    monkeypatch.setattr(mappings, "mappings", lambda _pid: iter([line] * LINES))
    monkeypatch.setattr(mappings, "_PIECE", 10 * len(line))
    mapped = MappedBytes(1, b"nvidia-uvm")
    seen = []
    while not mapped.is_whole:
        mapped.go_on()
        seen.append(mapped.bytes // 4096)
    assert seen == [10, 20, 30, 40, 40]


def test_who_keeps_reads_from_ending_hides_nobody_else() -> None:
    release = threading.Event()
    stuck = [ThreadedRead(release.wait, "hostile") for _ in range(200)]
    assert sum(one.goes_on for one in stuck) == 32
    with pytest.raises(TimeoutError):
        stuck[-1].value(3600)
    assert ThreadedRead(lambda: 1, "neighbour").value(60) == 1
    release.set()
    assert all(one.value(60) for one in stuck if one.has_begun)
    assert ThreadedRead(lambda: 2, "hostile").value(60) == 2
