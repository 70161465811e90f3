"""Asking the agent: whatever is wrong with its socket, the answer is a sentence with a remedy."""

import os
import socket
import threading
from pathlib import Path

import pytest

from mpsd.platform import local_api, run_directory
from mpsd.platform.local_api import NotRunning


def test_nobody_there_names_the_socket_and_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "mpsd.sock"
    with pytest.raises(NotRunning, match=f"no process answers on {path}; start it with `mpsd up`"):
        local_api.ask(path, "GET", "/v1/node")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with pytest.raises(NotRunning, match="no process answers"):
        local_api.ask(path, "GET", "/v1/node")


def test_a_run_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotRunning, match=f"{tmp_path / 'file'} is not a directory; select mpsd's"):
        local_api.ask(tmp_path / "file" / "mpsd.sock", "GET", "/v1/node")


def test_daemons_that_are_held_without_an_agent_have_another_remedy(tmp_path: Path) -> None:
    path = tmp_path / "mpsd.sock"
    with run_directory.held(tmp_path), pytest.raises(NotRunning) as raised:
        local_api.ask(path, "GET", "/v1/node")
    said = str(raised.value)
    assert f"pid {os.getpid()} holds its daemons, and no agent answers on {path}" in said
    assert "start `mpsd agent`" in said
    assert "mpsd up" not in said


def test_an_agent_that_ends_in_the_middle_of_an_answer_is_not_running(tmp_path: Path) -> None:
    path = tmp_path / "mpsd.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def answer_half() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

        answering = threading.Thread(target=answer_half)
        answering.start()
        with pytest.raises(NotRunning, match="mpsd closed the connection"):
            local_api.ask(path, "GET", "/v1/node")
        answering.join()


def test_an_agent_that_is_silent_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "mpsd.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with pytest.raises(
            TimeoutError, match=rf"mpsd did not answer on {path} within 0\.2 s; see its log"
        ):
            local_api.ask(path, "GET", "/v1/node", timeout_s=0.2)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_s_socket_is_not_asked_for_it_would_be_obeyed(tmp_path: Path) -> None:
    path = tmp_path / "mpsd.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        os.seteuid(65534)  # the kernel names whoever listens
        try:
            server.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(NotRunning, match=r"user 65534 answers on .*; not asked"):
            local_api.ask(path, "GET", "/v1/node")


def test_an_answer_of_another_version_is_a_sentence() -> None:
    with pytest.raises(NotRunning, match="in a form that this version does not know"):
        local_api.read(b'{"nodes": 3}', int)
