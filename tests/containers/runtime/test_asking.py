"""Asking mpsd: whatever answers on its socket, or does not, ends in an answer or a sentence, in
time."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mpsd.containers.runtime.client import ask, refusal
from mpsd.containers.runtime.json_text import ContainerRefused


@contextmanager
def _listening(folder: Path, backlog: int = 8) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "mpsd.sock"))
        listener.listen(backlog)
        yield listener


@contextmanager
def _saying(folder: Path, *answers: bytes) -> Iterator[None]:
    """One answer a connection, and no more."""

    def serve(listener: socket.socket) -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                with suppress(OSError):  # whose peer may hang up on it
                    connection.sendall(answer)

    with _listening(folder) as listener:
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        try:
            yield
        finally:
            thread.join(10)


def _ask(folder: Path, answer_s: float = 5.0) -> object:
    return ask(str(folder), "/v1/containers", {"a": 1}, answer_s, patience_s=0.1)


@pytest.mark.parametrize(
    ("said", "status", "body"),
    [
        (b"HTTP/1.0 204 No Content\r\n\r\n", 204, None),
        (b'HTTP/1.1 201 Created\r\ncontent-length: 9\r\nX: y\r\n\r\n{"a": []}', 201, {"a": []}),
        (b'HTTP/1.1 400\r\n\r\n{"reasons":[]}', 400, {"reasons": []}),
        (b"HTTP/1.1 404 Not Found\r\n\r\n404: Not Found", 404, None),
    ],
)
def test_an_answer_is_understood(tmp_path: Path, said: bytes, status: int, body: object) -> None:
    with _saying(tmp_path, said):
        answer = ask(str(tmp_path), "/v1/containers", {})
    assert answer == (status, body)


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 2O1 x\r\n\r\n{}",
        b"HTTP/1.1 201 x\r\n\r\nno json",
        b"HTTP/1.1 201 x\r\n\r\n" + b" " * 2_000_000,
        b"\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_refused(tmp_path: Path, said: bytes) -> None:
    with pytest.raises(ContainerRefused) as raised, _saying(tmp_path, said):
        _ask(tmp_path)
    assert not any(
        words in str(raised.value) for words in ("start it with `mpsd up`", "did not answer")
    )


def test_one_that_goes_away_before_it_answered_is_asked_again(tmp_path: Path) -> None:
    cut = b'HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{"a":'
    with _saying(tmp_path, b"", cut, b"HTTP/1.1 204 x\r\n\r\n"):
        assert ask(str(tmp_path), "/v1/containers", {})[0] == 204


def test_one_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with _listening(tmp_path), pytest.raises(ContainerRefused, match="did not answer"):
        _ask(tmp_path, 0.2)


def test_nobody_there_is_said_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        ContainerRefused, match=r"no process answers on .*; start it with `mpsd up`"
    ):
        _ask(tmp_path)


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContainerRefused, match="--run-dir"):
        ask(f"{tmp_path}/{'x' * 200}", "/v1/containers", {})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a program as somebody else")
def test_a_stranger_in_mpsds_place_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "mpsd.sock"
    serve = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(fileno=0); s.listen();"
        " print(flush=True)"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        stranger = subprocess.Popen(
            [sys.executable, "-c", f"{serve}; sys.stdin = None; s.accept()[0].recv(1)"],
            stdin=listener.fileno(),
            stdout=subprocess.PIPE,
        )
        try:
            assert stranger.stdout
            stranger.stdout.readline()
            with pytest.raises(ContainerRefused, match="user 65534 answers"):
                _ask(tmp_path)
        finally:
            stranger.kill()
            stranger.communicate(timeout=10)


def test_a_refusal_without_words_gets_some(tmp_path: Path) -> None:
    with _saying(
        tmp_path, b"HTTP/1.1 404 Not Found\r\n\r\n404: Not Found", b"HTTP/1.1 500 x\r\n\r\noh"
    ):
        assert "upgrade it" in str(refusal(*ask(str(tmp_path), "/v1/containers", {})))
        assert "mpsd answers 500" in str(refusal(*ask(str(tmp_path), "/v1/containers", {})))
