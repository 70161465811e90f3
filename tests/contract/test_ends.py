"""How a client ends, by what it computes at that moment, and whether its neighbours on the GPU go
with it.

A cell expects what was counted on H200s (driver 580.159.04). A neighbour has short kernels and
synchronises.
"""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import pytest

from tests.contract.gpus import NVML_NEAR_MIB, near
from tests.contract.processes import Client, eventually
from tests.contract.results import ILLEGAL_ADDRESS, LAUNCH_FAILED, SUCCESS, TERMINATED
from tests.contract.world import Daemon, World

MEMORY_BACK_S = 1.0  # seen: 0.05 to 0.07
LINGER_S = 1.0  # time enough for a command, of 0.002 s
HANGS_S = 5.0  # far above what the command takes to reach its daemon
STRUCK_BY_S = 0.3  # seen: at once, and the server well again after 0.13
DRY_S = {"kernel=1000": 3.0}  # what is queued lasts 2 s there
ELSE_DRY_S = 1.5  # and of the others half a second, on the simulator a whole one
TOO_SHORT_S = 0.3
STARTED_S = 60.0
ANSWERED_S = 2.0  # by whoever is asked to terminate a client, 2 of 12 times not at all


class Fate(Enum):
    LIVES = "lives"
    MAY_DIE = "may die"
    OFTEN_DIES = "often dies"
    DIES = "dies"

    def allows(self, died: int, tries: int) -> bool:
        match self:
            case Fate.LIVES:
                return died == 0
            case Fate.MAY_DIE:
                return True
            case Fate.OFTEN_DIES:
                return died > 0
            case Fate.DIES:
                return died == tries


@dataclass(frozen=True, slots=True)
class Trial:
    world: World
    daemon: Daemon
    neighbour: Client
    kernels: str

    def victim(self, *actions: str) -> Client:
        client = self.daemon.client(self.kernels, *actions)
        wait_until_it_computes(client)
        return client

    def stop(self, client: Client, seconds: float) -> None:
        """For so long, or until the neighbour ends."""
        client.send(signal.SIGSTOP)
        self.neighbour.ends_within(seconds)


End = Callable[[Trial], Client]


def sigkill(trial: Trial) -> Client:
    victim = trial.victim("work")
    victim.kill()
    return victim


def terminate_then_sigkill(trial: Trial) -> Client:
    victim = trial.victim("work")
    command = f"terminate_client {trial.daemon.server} {victim.pid}"
    answer = trial.daemon.command(command, deadline_s=ANSWERED_S)
    assert not answer.answered or answer.text == "0"
    victim.kill()
    return victim


def stop_wait_sigkill(trial: Trial) -> Client:
    victim = trial.victim("work")
    trial.stop(victim, DRY_S.get(trial.kernels, ELSE_DRY_S))
    victim.kill()
    return victim


def stop_too_shortly_then_sigkill(trial: Trial) -> Client:
    victim = trial.victim("work")
    trial.stop(victim, TOO_SHORT_S)
    victim.kill()
    return victim


def sigterm_by_default(trial: Trial) -> Client:
    """`work` handles it, and `launch` does not."""
    victim = trial.victim("work=0.3", "info", "launch=600")
    victim.next_line("sms")
    victim.terminate()
    assert victim.exit_code() == -signal.SIGTERM
    return victim


def sigterm_that_is_handled(trial: Trial) -> Client:
    victim = trial.victim("work")
    victim.terminate()
    assert victim.exit_code() == 0
    return victim


def exit_without_a_synchronise(trial: Trial) -> Client:
    victim = trial.victim("work=0.3", "exit")
    assert victim.exit_code() == 0
    return victim


def stop_while_its_context_is_made(trial: Trial) -> Client:
    """As soon as NVML lists it, which is before its context is there."""
    victim = trial.daemon.client(trial.kernels, "hold")
    gpu = trial.world.gpu
    eventually(lambda: victim.pid in trial.world.mib_on_mps(gpu), every_s=0.0002)
    trial.stop(victim, TOO_SHORT_S)
    victim.kill()
    return victim


@dataclass(frozen=True, slots=True)
class Cell:
    kernels: str
    name: str
    end: End
    fate: Fate
    beside: tuple[str, ...] = ()  # kernels of the neighbour; none are the short ones

    def __str__(self) -> str:
        return f"{self.kernels}, {self.name}"


def _cells() -> Iterator[Cell]:
    short, some, long = Fate.MAY_DIE, Fate.OFTEN_DIES, Fate.DIES  # 1 of 24, 21 of 30, 30 of 30
    lives = Fate.LIVES
    for kernels, killed, terminated in (
        ("kernel=1", short, lives),
        ("kernel=10", some, lives),
        ("kernel=100", long, lives),
        ("kernel=1000", long, lives),
        ("gemm=4096", lives, Fate.MAY_DIE),  # 0 of 40, 12 of 66
        ("gemm=16384", long, Fate.MAY_DIE),  # 11 of 11; 6 of 6 with PyTorch, 3 of 5 with cuBLAS
    ):
        yield Cell(kernels, "SIGKILL", sigkill, killed)
        yield Cell(kernels, "terminate", terminate_then_sigkill, terminated)
        yield Cell(kernels, "stop, wait, kill", stop_wait_sigkill, lives)
    for kernels, killed in (("kernel=10", some), ("kernel=1000", long)):
        yield Cell(kernels, "SIGTERM unhandled", sigterm_by_default, killed)
        yield Cell(kernels, "_exit", exit_without_a_synchronise, killed)
        stopped = stop_while_its_context_is_made
        yield Cell(kernels, "stop in its creation", stopped, lives, beside=(kernels,))
    yield Cell("kernel=100", "SIGTERM handled", sigterm_that_is_handled, lives)
    yield Cell("kernel=1000", "stop, 0.3 s, kill", stop_too_shortly_then_sigkill, long)


CELLS = [*_cells()]

Record = Callable[[str, object], None]


@pytest.fixture
def tries(request: pytest.FixtureRequest) -> int:
    asked: int | None = request.config.getoption("--tries")
    on_a_card = 5 if request.config.getoption("--gpu") else 1
    return asked or on_a_card


def wait_until_it_computes(client: Client) -> None:
    """Skips the test where the client finds no cuBLAS."""
    eventually(lambda: client.has("launches") or not client.running, within_s=STARTED_S)
    if client.has("fail") and client.line("fail")["fail"] == "gemm":
        pytest.skip(f"gemm: {client.line('fail')['err']}")
    client.next_line("launches")


def computing(daemon: Daemon, *kernels: str) -> Client:
    """Another one where the first takes what a client left that was killed alone on the GPU."""
    client = daemon.client(*kernels, "work")
    eventually(lambda: client.lines, within_s=STARTED_S)
    if client.has("fail") and client.line("fail")["err"] == LAUNCH_FAILED:
        client = daemon.client(*kernels, "work")
    wait_until_it_computes(client)
    return client


def of_the_server(log: str) -> list[str]:
    return [line for line in log.splitlines() if " Server " in line]


def was_struck(neighbour: Client, daemon: Daemon) -> bool:
    since = time.time() + STRUCK_BY_S
    eventually(lambda: not neighbour.running or neighbour.lines[-1].get("at", 0.0) > since)
    if neighbour.running:
        return False
    assert neighbour.broke(ILLEGAL_ADDRESS)
    eventually(lambda: daemon.status == "ACTIVE")
    return True


class TestANeighbour:
    @pytest.mark.parametrize("cell", CELLS, ids=str)
    def test_goes_with_a_client_or_lives(
        self, world: World, daemon: Daemon, cell: Cell, tries: int, record_property: Record
    ) -> None:
        neighbour, died = computing(daemon, *cell.beside), 0
        for _ in range(tries):
            if not neighbour.running:
                neighbour = computing(daemon, *cell.beside)
            cell.end(Trial(world, daemon, neighbour, cell.kernels)).exit_code()
            died += was_struck(neighbour, daemon)
        record_property("end", [cell.kernels, cell.name, died, tries])
        assert cell.fate.allows(died, tries), f"{died} of {tries} died, and it {cell.fate.value}"


class TestAClientThatIsAloneOnItsGpu:
    def test_fails_the_next_context_where_it_is_killed_in_mid_kernel(
        self, daemon: Daemon, tries: int, record_property: Record
    ) -> None:
        log, step = "", ""
        for _ in range(tries):
            victim = daemon.client("kernel=100", "work")
            wait_until_it_computes(victim)
            since = daemon.log_size
            victim.kill()
            eventually(lambda: not daemon.command(f"get_client_list {daemon.server}").pids)
            assert daemon.status == "ACTIVE"
            next_one = daemon.client().finished()
            assert (next_one.exit_code(), next_one.line("fail")["err"]) == (3, LAUNCH_FAILED)
            assert daemon.status == "ACTIVE"
            log, step = daemon.log_since(since), next_one.line("fail")["fail"]
            assert daemon.client().ended_well()
        record_property("log", of_the_server(log))
        record_property("fails at", step)

    def test_leaves_the_gpu_well_where_it_synchronises_before_its_end(
        self, daemon: Daemon, record_property: Record
    ) -> None:
        client = daemon.client("kernel=100", "work")
        wait_until_it_computes(client)
        since = daemon.log_size
        client.terminate()
        assert client.ended_well()
        eventually(lambda: not daemon.command(f"get_client_list {daemon.server}").pids)
        record_property("log", of_the_server(daemon.log_since(since)))
        assert daemon.client().ended_well()


class TestTerminateClient:
    def test_ends_that_clients_context_and_no_other_between_kernels(self, daemon: Daemon) -> None:
        client = daemon.ready_client("hold")
        neighbour = daemon.ready_client("hold", "launch=0.01")
        server = daemon.server
        assert daemon.command(f"terminate_client {server} {client.pid}").text == "0"
        assert client.broke(TERMINATED)
        assert daemon.status == "ACTIVE"
        neighbour.terminate()
        assert neighbour.next_line("n")["n"] > 0
        assert neighbour.ended_well()

    def test_leaves_the_memory_until_the_context_is_destroyed_and_lets_it_connect_again(
        self, daemon: Daemon, world: World
    ) -> None:
        actions = ("alloc=512", "step", f"linger={LINGER_S}", "reconnect", "launch=0.01", "step")
        client = daemon.ready_client(*actions)
        server, context_mib = daemon.server, world.gpu.context_mib()
        client.go_on()
        client.next_line("lingering")
        assert daemon.command(f"terminate_client {server} {client.pid}").text == "0"
        held_mib = world.mib_on_mps()[client.pid]
        assert held_mib == near(512 + context_mib, within=NVML_NEAR_MIB)
        assert str(client.pid) in daemon.command("ps").text
        assert client.next_line("destroy") == {"destroy": SUCCESS, "again": SUCCESS}
        assert client.next_line("n")["n"] > 0
        client.next_line("ready")
        held_mib = world.mib_on_mps()[client.pid]
        assert held_mib == near(context_mib, within=NVML_NEAR_MIB)

    def test_without_being_destroyed_the_context_stays_broken(self, daemon: Daemon) -> None:
        client = daemon.ready_client("step", f"linger={LINGER_S}")
        server = daemon.server
        client.go_on()
        client.next_line("lingering")
        daemon.command(f"terminate_client {server} {client.pid}")
        assert client.finished().line("end")["end"] == TERMINATED

    def test_of_a_stopped_client_hangs_until_that_is_continued(self, daemon: Daemon) -> None:
        client = daemon.ready_client("hold")
        command = f"terminate_client {daemon.server} {client.pid}"
        client.send(signal.SIGSTOP)
        assert not daemon.command(command, deadline_s=HANGS_S).answered
        assert client.running
        client.send(signal.SIGCONT)
        assert client.broke(TERMINATED)


class TestSigkillOfAClient:
    @pytest.mark.parametrize("doing", ["hold", "launch=30"])
    def test_in_short_kernels_or_none_gives_its_memory_back_and_harms_nobody(
        self, daemon: Daemon, world: World, doing: str
    ) -> None:
        neighbour = daemon.ready_client("hold", "launch=0.01")
        client = daemon.client("alloc=1024", doing)
        client.next_line("rc")
        assert world.mib_on_mps()[client.pid] >= 1024
        client.kill()
        eventually(lambda: client.pid not in world.mib_on(), within_s=MEMORY_BACK_S)
        assert daemon.status == "ACTIVE"
        eventually(
            lambda: daemon.command(f"get_client_list {daemon.server}").pids == [neighbour.pid]
        )
        neighbour.terminate()
        assert neighbour.next_line("n")["n"] > 0
        assert neighbour.ended_well()
