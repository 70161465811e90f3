"""The servers of a daemon: known by its list, ended by the kernel's word, whatever its log says."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.model.domain import ServerStatus
from mpsd.mps.canary import CanarySetup
from mpsd.mps.control_daemon import PROGRAM, ControlPipe
from mpsd.mps.daemon import DaemonPlace, DomainDaemon
from mpsd.mps.rules.control_protocol import ControlFailed
from mpsd.platform import processes
from mpsd.platform.event_loop import until
from mpsd.platform.logs import logger
from mpsd.platform.run_directory import DomainFolder
from tests.whole.machine.machine import SOON_S

# Answers from two files: the servers, and the status of each.
ANSWERS = """#!/bin/sh
while read -r word rest; do
    case $word in
        get_server_list) cat "$CUDA_MPS_PIPE_DIRECTORY/../servers" ;;
        get_server_status) cat "$CUDA_MPS_PIPE_DIRECTORY/../status" ;;
    esac
done
"""


class World:
    """A daemon that this process plays, so that what it starts is the daemon's child."""

    def __init__(self, folder: Path) -> None:
        self.folder = DomainFolder(folder / "gpu0")
        self.folder.make()
        program = folder / PROGRAM
        program.write_text(ANSWERS)
        program.chmod(0o755)
        environment = {"PATH": f"{folder}:/usr/bin:/bin"}
        setup = CanarySetup((), (), lambda: "")
        place = DaemonPlace(self.folder, environment, with_gate=False, cgroup=None, canary=setup)
        self.child = subprocess.Popen(["sleep", "600"])
        self.ends = 0
        self.daemon = DomainDaemon(place, ("GPU-1",), self._ended, logger(role="test"))
        self.pipe = ControlPipe(self.folder.pipe, environment, SOON_S)

    def _ended(self) -> None:
        self.ends += 1

    def answers(self, servers: str, status: str = "") -> None:
        (self.folder.path / "servers").write_text(servers)
        (self.folder.path / "status").write_text(status)

    def logs(self, *texts: str) -> None:
        with self.folder.log.open("a") as log:
            log.writelines(f"[2026-11-28 01:00:00.000 {text}\n" for text in texts)

    def adopt(self) -> None:
        """In the loop of the test."""
        assert self.daemon.adopt(processes.identity_of(os.getpid()))
        self.daemon.settled = True


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.child.kill()
    made.child.wait()


async def test_a_server_that_ends_before_it_answers_could_not_start(world: World) -> None:
    world.adopt()
    world.answers(f"{world.child.pid}\n")
    await world.daemon.start_server(world.pipe)
    assert await world.daemon.list_servers(world.pipe) == (world.child.pid,)
    assert not world.daemon.no_server
    world.logs(f"Server {world.child.pid:>5}] Failed to create server context with status 46")
    world.child.kill()
    await until(lambda: world.ends, SOON_S, "its end is seen")
    assert world.daemon.no_server
    assert not world.daemon.settled
    assert world.daemon.is_news(), "the daemon is asked"
    assert "Failed to create server context" in world.daemon.server_words
    with pytest.raises(ControlFailed, match="no MPS server starts"):
        await world.daemon.until_server_is_up(world.pipe, SOON_S)


async def test_one_that_has_answered_once_has_started(world: World) -> None:
    world.adopt()
    world.answers(f"{world.child.pid}\n", "ACTIVE\n")
    assert await world.daemon.ask_for_health(world.pipe) == (
        (world.child.pid,),
        ServerStatus.ACTIVE,
    )
    assert not world.daemon.is_server_due
    await world.daemon.until_server_is_up(world.pipe, SOON_S)
    world.child.kill()
    await until(lambda: world.ends, SOON_S, "its end is seen")
    assert not world.daemon.no_server
    assert world.daemon.settled
    assert world.daemon.is_news()
    assert world.daemon.is_server_due


async def test_one_that_has_answered_and_is_listed_no_more_has_ended(world: World) -> None:
    world.answers(f"{world.child.pid}\n", "ACTIVE\n")
    await world.daemon.ask_for_health(world.pipe)
    world.answers("")
    assert await world.daemon.list_servers(world.pipe) == ()
    assert world.daemon.is_server_due
    world.child.kill()
    world.child.wait()
    world.answers("", "ACTIVE\n")
    await world.daemon.ask_for_health(world.pipe)
    assert not world.daemon.no_server


async def test_a_pid_that_is_no_child_of_the_daemon_is_no_server_of_it(
    world: World, tmp_path: Path
) -> None:
    world.adopt()
    note = tmp_path / "pid"
    words = f"sleep 600 & echo $! > {note}; wait"
    shell = subprocess.Popen(["sh", "-c", words])  # noqa: ASYNC220 - it waits for nothing
    await until(lambda: note.exists() and note.read_text().strip(), SOON_S, "it runs")
    grandchild = int(note.read_text())
    identity = processes.identity_of(grandchild)
    assert identity
    world.answers(f"{grandchild}\n{world.child.pid}\n")
    await world.daemon.list_servers(world.pipe)
    processes.send_signal(identity, signal.SIGKILL)
    await until(lambda: not processes.is_alive(identity), SOON_S, "it has ended")
    world.child.kill()
    await until(lambda: world.ends, SOON_S, "the other's end is seen")
    shell.wait()
    assert world.ends == 1


async def test_no_line_of_the_log_ends_a_server_or_starts_one(world: World) -> None:
    world.adopt()
    world.answers(f"{world.child.pid}\n")
    await world.daemon.list_servers(world.pipe)
    pid = world.child.pid
    for line in (
        "Control    77] Starting new server 771 for user 0",
        "Control    77] Server 771 exited with status 1",
        f"Control    77] Starting new server {pid} for user 0",
        f"Control    77] Server {pid} exited with status 1",
        f"Control    77] NEW SERVER {pid}: Ready",
    ):
        world.logs(line)
        assert world.daemon.is_news(), "the daemon is asked"
        assert not world.daemon.no_server
        assert world.daemon.settled
        assert world.daemon.is_server_due
        assert not world.daemon.is_news()


async def test_a_server_that_is_never_listed_could_not_start(world: World) -> None:
    world.adopt()
    world.answers("")
    await world.daemon.probe(SOON_S, with_clients=False)
    assert not world.daemon.no_server

    async def probed() -> bool:
        # the deadline of a command is how long a server may be missing
        await world.daemon.probe(0.5, with_clients=False)
        return world.daemon.no_server

    while not await probed():
        pass
    assert not world.daemon.settled
    assert world.daemon.unanswered == 0
