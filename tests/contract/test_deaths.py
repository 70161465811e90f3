"""The control daemon or its server is killed or stopped: what becomes of running clients, new ones
and commands."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from os import kill
from pathlib import Path

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT
from tests.contract.processes import eventually
from tests.contract.results import SERVER_GONE, SUCCESS
from tests.contract.world import Daemon, World

LIMITED = {MEMORY_LIMIT: "0=2G"}
HANGS_S = 0.5  # a client takes 0.1 s and a command 0.002 s when nothing is in the way


@pytest.fixture
def daemon(world: World) -> Iterator[Daemon]:
    """One for each test, since it does not survive."""
    daemon = world.daemon()
    yield daemon
    daemon.stop()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        kill(pid, signal.SIGCONT)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class TestADaemonThatDies:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
    def test_takes_its_server_and_every_client_with_it(
        self, daemon: Daemon, number: signal.Signals
    ) -> None:
        clients = [daemon.ready_client("hold"), daemon.ready_client("alloc=64", "hold")]
        server = daemon.server
        daemon.send(number)
        for client in clients:
            assert client.broke(SERVER_GONE)
        assert daemon.process.wait(5) == -number
        eventually(lambda: not _alive(server))

    def test_leaves_its_files_and_clients_beside_mps_until_another_takes_its_place(
        self, daemon: Daemon, world: World
    ) -> None:
        daemon.start_server()
        before = sorted(path.name for path in daemon.pipe.iterdir())
        daemon.send(signal.SIGKILL)
        daemon.process.wait(5)
        assert sorted(path.name for path in daemon.pipe.iterdir()) == before
        answer = daemon.command("get_server_list")
        assert answer.exit_code == 1
        assert answer.stderr.strip() == "Cannot find MPS control daemon process"
        client = daemon.ready_client("alloc=3072", "hold", environment=LIMITED)
        assert client.result == SUCCESS
        assert client.pid not in world.mib_on_mps()
        assert client.pid in world.mib_on()
        successor = world.daemon(pipe=daemon.pipe)
        client = successor.ready_client("hold", environment=LIMITED)
        assert client.saw(world.gpu.seen(memory=LIMITED[MEMORY_LIMIT]))
        assert client.pid in world.mib_on_mps()

    def test_serves_clients_again_through_a_link_that_is_made_again(
        self, daemon: Daemon, world: World
    ) -> None:
        part = daemon.directory_with("control")
        daemon.send(signal.SIGKILL)
        daemon.process.wait(5)
        successor = world.daemon(pipe=daemon.pipe)
        outside = successor.client(environment=LIMITED, directory=part).finished()
        assert outside.line("pid")["meminfo_free_MiB"] > world.gpu.memory_mib / 2
        (part / "new").hardlink_to(successor.pipe / "control")
        (part / "new").rename(part / "control")
        assert successor.shows(world.gpu.seen(memory="0=2G"), environment=LIMITED, directory=part)


class TestAServerThatIsKilled:
    def test_takes_its_clients_with_it_and_the_next_client_starts_another(
        self, daemon: Daemon
    ) -> None:
        client = daemon.ready_client("hold")
        server = daemon.server
        kill(server, signal.SIGKILL)
        assert client.broke(SERVER_GONE)
        eventually(lambda: daemon.command("get_server_list").text == "")
        assert daemon.running
        assert daemon.client().ended_well()
        assert daemon.server != server


class TestADaemonThatIsStopped:
    def test_answers_no_command_and_takes_no_client_while_those_there_go_on(
        self, daemon: Daemon
    ) -> None:
        client = daemon.ready_client("step", "launch=0.01", "step")
        with stopped(daemon.pid):
            assert not daemon.command("get_server_list", deadline_s=HANGS_S).answered
            new = daemon.client()
            assert new.is_silent_for(HANGS_S)
            client.launches()
        assert new.ended_well()
        client.go_on()
        assert client.ended_well()


class TestAServerThatIsStopped:
    def test_hangs_what_asks_it_while_clients_there_go_on(self, daemon: Daemon) -> None:
        client = daemon.ready_client("step", "launch=0.01", "step")
        server = daemon.server
        with stopped(server):
            assert daemon.command("get_server_list").pids == [server]
            for command in (f"get_server_status {server}", f"get_client_list {server}", "ps"):
                assert not daemon.command(command, deadline_s=HANGS_S).answered, command
            new = daemon.client()
            assert new.is_silent_for(HANGS_S)
            client.launches()
        assert new.ended_well()
        client.go_on()
        assert client.ended_well()
