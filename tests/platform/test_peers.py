"""Who asks on a Unix socket is the process that connected, or nobody."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from mpsd.platform import listener, local_api, peers, processes
from mpsd.platform.listener import Listener, UnixPath, json_answer
from mpsd.platform.peers import is_connected_by, peer_inode, peer_of
from tests.world.reused_pid import another_with, asked, connected_by_the_dead

UNKNOWN = 9999  # an option that no kernel has


@pytest.fixture(params=["by SO_PEERPIDFD", "by sock_diag"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "by sock_diag":
        monkeypatch.setattr(peers, "_PEER_PIDFD", UNKNOWN)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "socket"


def while_it_serves(path: Path, act: Callable[[], object]) -> object:
    async def who(request: web.Request) -> web.Response:
        process = listener.asking_process(request)
        return json_answer(process and process.pid)

    async def main() -> object:
        server = Listener({"GET /who": who}, UnixPath(path, 0o666))
        await server.start()
        try:
            return await asyncio.to_thread(act)
        finally:
            await server.stop()

    return asyncio.run(main())


def answer(text: bytes) -> object:
    return msgspec.json.decode(text.rpartition(b"\r\n\r\n")[2])


def test_who_connected_and_lives_asks(path: Path) -> None:
    assert while_it_serves(path, lambda: local_api.ask(path, "GET", "/who")) == (
        200,
        f"{os.getpid()}\n".encode(),
    )


def test_nobody_asks_over_a_connection_of_a_dead_process(path: Path) -> None:
    def act() -> object:
        connection, _pid = connected_by_the_dead(path)
        with connection:
            return answer(asked(connection, "GET /who"))

    assert while_it_serves(path, act) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root chooses the next pid")
def test_who_has_the_pid_of_a_dead_process_has_not_asked(path: Path) -> None:
    def act() -> object:
        connection, pid = connected_by_the_dead(path)
        with connection, another_with(pid, "sleep", "600"):
            return answer(asked(connection, "GET /who"))

    assert while_it_serves(path, act) is None


@pytest.fixture
def ends(path: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """One that this process connected, and the other end."""
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as mine:
        listening.bind(str(path))
        listening.listen()
        mine.connect(str(path))
        other, _address = listening.accept()
        with other:
            yield mine, other


@pytest.mark.skipif(os.geteuid() != 0, reason="only root chooses the next pid")
def test_a_pid_that_was_another_s_at_the_connect_proves_nothing(path: Path) -> None:
    """Who has it by the time that the connection is accepted, and is first looked at."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        connection, pid = connected_by_the_dead(path)
        with connection, another_with(pid, "sleep", "600"):
            other, _address = listening.accept()
            with other:
                found = peer_of(other).process
                assert found
                assert found.pid == pid
                assert not is_connected_by(other, found)


def test_another_start_of_the_pid_is_another_process(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    _mine, other = ends
    me = peer_of(other).process
    assert me == processes.identity_of(os.getpid())
    assert is_connected_by(other, me)
    earlier = type(me)(me.pid, me.start_ticks - 1, me.boot_id)
    assert not is_connected_by(other, earlier)


@given(st.binary(max_size=100))
def test_any_answer_of_the_kernel_is_read(found: bytes) -> None:
    assert peer_inode(found) >= 0
    assert peer_inode(bytes(4) + b"\x14\0" + found) >= 0
