"""The files around a control daemon: who listens, and what clients may reach."""

import os
import socket
from pathlib import Path

import pytest

from mpsd.mps import control_daemon
from mpsd.platform import processes
from mpsd.platform.run_directory import DomainFolder


@pytest.fixture
def folder(tmp_path: Path) -> DomainFolder:
    made = DomainFolder(tmp_path / "gpu0")
    made.make()
    return made


def listen(folder: DomainFolder, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, kind)
    (folder.pipe / "control").unlink(missing_ok=True)
    listening.bind(str(folder.pipe / "control"))
    listening.listen()
    return listening


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_the_listener_is_known_whatever_kind_of_socket_it_has(folder: DomainFolder, kind: socket.SocketKind) -> None:
    with listen(folder, kind):
        assert control_daemon.listener(folder) == processes.identity_of(os.getpid())


def test_a_socket_that_a_killed_daemon_left_has_no_listener(folder: DomainFolder) -> None:
    assert control_daemon.listener(folder) is None
    listen(folder).close()
    assert control_daemon.listener(folder) is None


def test_only_mpsd_may_enter_the_pipe_directory_and_everyone_the_clients(folder: DomainFolder) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder.path, folder.pipe, folder.client)}
    assert modes == {"gpu0": 0o755, "pipe": 0o700, "client": 0o755}


def test_clients_get_the_socket_of_the_newest_daemon_and_nothing_else(folder: DomainFolder) -> None:
    directory = folder.client.stat().st_ino
    for _ in range(2):  # the second time the link is there already, as after an adoption
        with listen(folder):
            control_daemon.offer_to_clients(folder)
            control_daemon.offer_to_clients(folder)
            (offered,) = folder.client.iterdir()
            assert offered.samefile(folder.pipe / "control")
    assert folder.client.stat().st_ino == directory  # containers have it mounted
    control_daemon.withdraw_from_clients(folder)
    control_daemon.withdraw_from_clients(folder)
    assert list(folder.client.iterdir()) == []
