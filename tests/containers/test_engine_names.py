"""Asking docker and podman what their containers are called."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpsd.containers.users import engine_names

ID, OTHER = "a" * 64, "b" * 64


@contextmanager
def engine(path: Path, answer: bytes) -> Iterator[list[str]]:
    """An engine that answers one question so; yields the lines that it was asked in."""
    asked: list[str] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(20)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                asked.extend(connection.recv(4096).decode().splitlines()[:1])
                connection.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        yield asked
        serving.join()


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_the_engine_s_own_name_is_taken_and_not_the_links_to_others(tmp_path: Path) -> None:
    told = [{"Id": ID, "Names": ["/web/link", "/train"], "Image": "x"}, {"Id": OTHER, "Names": []}]
    with engine(tmp_path / "s", ok(json.dumps(told).encode())) as asked:
        assert engine_names([tmp_path / "not-there", tmp_path / "s"]) == {ID: "train"}
    assert asked == ["GET /containers/json HTTP/1.1"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ok(b"<html>"), id="no JSON"),
        pytest.param(ok(b'[{"Id": 7}]'), id="another form"),
        pytest.param(b"HTTP/1.1 500 Broken\r\nContent-Length: 2\r\n\r\n[]", id="an error"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n[", id="half an answer"),
    ],
)
def test_an_engine_that_says_nothing_of_use_has_named_nobody(tmp_path: Path, answer: bytes) -> None:
    with engine(tmp_path / "s", answer):
        assert engine_names([tmp_path / "s"]) == {}
