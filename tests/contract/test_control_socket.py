"""What a tenant sends to the socket itself: forged lines of the log, junk, silence. It may do so
without end, and its neighbours, the daemon and mpsd beside it go on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest
from msgspec.structs import replace

from mpsd.bench.testbeds import BenchShare, UnderMpsd
from mpsd.platform.limits_files import shipped_folder
from mpsd.platform.processes import parent_of
from tests.contract.gpus import facts
from tests.contract.platforms import SIMULATED
from tests.contract.processes import Client, eventually
from tests.contract.raw_control import COMMANDER, CREDENTIALS, Talk, command, connected
from tests.contract.world import OTHER_UID, Daemon, World
from tests.fuzz.control_socket import a_seed, talks

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")

TIMES = 100
START_S = 60.0  # of a program, under mpsd; only a failing test takes it
# With pids of the server, of a neighbour and of the daemon.
KINDS = {
    "fault": "Server {server:>5}] Server is handling a fatal GPU error.",
    "torn down": "Server {server:>5}] Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn"
    " down",
    "sticky": "Server {server:>5}] The following client process have a sticky error set:",
    "a pid": "Server {server:>5}] {pid}",
    "fatal": "Server {server:>5}] Server encountered a fatal exception. Shutting down",
    "connected": "Server {server:>5}] Client {{PID: {pid}, Context ID: 0}} connected",
    "disconnected": "Server {server:>5}] Client process {pid} disconnected",
    "refused": "Server {server:>5}] Failed to accept client {{PID: {pid}, Context ID: 0}} with"
    " status 807",
    "ready": "Control {control:>5}] NEW SERVER 771: Ready",
    "starting": "Control {control:>5}] Starting new server 771 for user 0",
    "exited": "Control {control:>5}] Server 771 exited with status 1",
    "its server exited": "Control {control:>5}] Server {server} exited with status 1",
    "daemon exits": "Control {control:>5}] Exit with status 0",
}


def forged(kind: str, number: int, **pids: int | None) -> str:
    """A line of the log, another for each number."""
    return f"[2026-11-28 01:00:00.{number:03} {KINDS[kind].format(**pids)}"


def spoken(line: str) -> Talk:
    """A command with that line behind a line break."""
    return command(f"x\n{line}".encode())


@pytest.fixture(scope="class")
def neighbour(daemon: Daemon) -> Client:
    return daemon.ready_client(*["step", "launch=0.01"] * 60, "step")


def both_go_on(daemon: Daemon, neighbour: Client, server: int) -> None:
    assert daemon.running
    assert daemon.server == server
    assert daemon.status == "ACTIVE"
    neighbour.go_on()
    assert neighbour.next_line("launches_per_s")["n"] > 0
    neighbour.next_line("ready")


@contextmanager
def said_to(daemon: Daemon, said: Talk) -> Iterator[None]:
    """By a connection that says nothing more, and stays."""
    with connected(daemon.pipe / "control") as connection:
        for packet in said:
            connection.send(packet)
        yield


class TestLinesOfTheLogThatATenantForges:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_hundred_stand_there_word_for_word_and_harm_nobody(
        self, daemon: Daemon, neighbour: Client, kind: str
    ) -> None:
        server = daemon.server
        pids = {"server": server, "pid": neighbour.pid, "control": daemon.pid}
        lines = [forged(kind, number, **pids) for number in range(TIMES)]
        before = daemon.log_size

        answers = daemon.speak([spoken(line) for line in lines], OTHER_UID)

        assert answers == [[b'\0\0\0\0Unknown command "x"']] * TIMES
        eventually(lambda: set(lines) <= set(daemon.log_since(before).splitlines()))
        both_go_on(daemon, neighbour, server)

    def test_a_new_client_is_served_after_all_of_them(self, daemon: Daemon) -> None:
        assert daemon.client().ended_well()


class TestOtherBytesThatATenantSends:
    def test_of_no_kind_end_the_daemon_or_a_neighbour(
        self, daemon: Daemon, neighbour: Client
    ) -> None:
        self._are_sent(daemon, neighbour, as_clients=False)

    def test_nor_do_those_of_who_says_that_it_is_a_client(
        self, daemon: Daemon, neighbour: Client
    ) -> None:
        """What the real one makes of these was not observed."""
        self._are_sent(daemon, neighbour, as_clients=True)

    def _are_sent(self, daemon: Daemon, neighbour: Client, *, as_clients: bool) -> None:
        seed = a_seed()
        print(f"MPSD_FUZZ_SEED={seed}")
        server = daemon.server
        daemon.speak([*islice(talks(seed, as_clients=as_clients), 300)], OTHER_UID)
        both_go_on(daemon, neighbour, server)
        assert daemon.client().ended_well()


class TestAConnectionThatSaysNothing:
    @pytest.mark.parametrize(
        "said",
        [(), (CREDENTIALS,), command(b"ps")[:3]],
        ids=["at all", "after the credentials", "of the command that it announced"],
    )
    def test_keeps_the_daemon_from_answering_anybody_else_until_it_ends(
        self, daemon: Daemon, neighbour: Client, said: Talk
    ) -> None:
        server = daemon.server
        with said_to(daemon, said):
            assert daemon.command("get_server_list", deadline_s=2).exit_code is None
            waits = daemon.client()
            neighbour.go_on()
            assert neighbour.next_line("launches_per_s")["n"] > 0
            neighbour.next_line("ready")
            assert waits.running
        assert waits.finished().ended_well()
        both_go_on(daemon, neighbour, server)

    @pytest.mark.parametrize(
        "said",
        [(CREDENTIALS, COMMANDER), command(b"ps")[:4]],
        ids=["after who it is", "after its command"],
    )
    def test_holds_up_no_client_once_it_is_a_commander(
        self, daemon: Daemon, neighbour: Client, said: Talk
    ) -> None:
        server = daemon.server
        with said_to(daemon, said):
            assert daemon.client().ended_well()
        both_go_on(daemon, neighbour, server)


class TestACommandOfFiveThousandBytes:
    def test_ends_the_daemon(self, daemon: Daemon) -> None:
        """Driver 580.159.04: any user's; 4 000 bytes do not."""
        assert daemon.speak([command(b"x" * 3998)], OTHER_UID)
        assert daemon.running
        daemon.speak([command(b"x" * 4998)], OTHER_UID)
        eventually(lambda: not daemon.running)


@pytest.fixture(scope="class")
def bed(world: World, request: pytest.FixtureRequest) -> Iterator[UnderMpsd]:
    """`mpsd up` on the same GPUs, with the shipped policy but for the compute mode."""
    simulate = "" if request.config.getoption("--gpu") else SIMULATED
    with UnderMpsd(simulate, facts(), shipped_folder()) as made:
        made.folder.chmod(0o755)  # as /run is, so that another user finds the socket
        yield made


class TestMpsdBesideForgedLines:
    def test_counts_no_fault_ends_nobody_and_restarts_no_daemon(
        self, bed: UnderMpsd, world: World
    ) -> None:
        neighbour = bed.start([*["step", "launch=0.01"] * len(KINDS), "step"], BenchShare(2))
        uuid = neighbour.line_with("uuid", START_S)["uuid"]
        neighbour.line_with("ready", START_S)
        (before,) = (one for one in bed.mpsd.node().domains if uuid in one.gpus)
        socket = bed.mpsd.run_directory / before.name / "client" / "control"
        pids = {"server": before.servers[0], "pid": neighbour.pid, "control": before.daemon_pid}
        for kind in KINDS:
            lines = [forged(kind, number, **pids) for number in range(TIMES)]
            world.speak([spoken(line) for line in lines], socket, OTHER_UID)
            neighbour.go_on()
            assert neighbour.line_with("launches_per_s", START_S)["n"] > 0
        log = bed.folder / "mpsd.log"
        eventually(lambda: "fault not recorded" in log.read_text(), START_S)
        # Whoever asks for a GPU now gets it.
        assert bed.start(["alloc=100"], BenchShare(2)).exit_code(START_S) == 0
        assert replace(bed.mpsd.domain(before.name), unwatched=False) == before


class TestTheServer:
    def test_is_a_child_of_its_daemon(self, daemon: Daemon) -> None:
        """By which mpsd knows it; what a line of the log calls a server is none."""
        assert parent_of(daemon.start_server()) == daemon.pid
