"""Who may command the daemon: by user, and by which of its two sockets the command comes.

Every row is tried on a live server with two clients, one of root and one of another user.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT
from tests.contract.platforms import Program
from tests.contract.processes import Answer, Client
from tests.contract.results import SERVER_GONE, TERMINATED
from tests.contract.tenants import ReadOnlyMount
from tests.contract.world import OTHER_UID, Daemon, Directory, World, child_of

NO_QUIT = "Not enough privilege to execute quit command"
SETTINGS = [
    "set_default_active_thread_percentage 50",
    "set_default_device_pinned_mem_limit 0 1G",
    "set_default_client_priority 1",
]
ON_THE_SERVER = [
    "terminate_client {server} {roots}",
    "terminate_client {server} {others}",
    "shutdown_server {server}",
    "shutdown_server {server} -f",
    "set_device_pinned_mem_limit {server} 0 1G",
    "set_active_thread_percentage {server} 10",
    "start_server -uid 0",
]
READS = [
    "ps",
    "get_server_list",
    "get_server_status {server}",
    "get_client_list {server}",
    "get_device_client_list {server}",
    "get_active_thread_percentage {server}",
    "get_device_pinned_mem_limit {server} 0",
    "get_default_active_thread_percentage",
    "get_default_device_pinned_mem_limit 0",
    "get_default_client_priority",
    "device_query --csv",
]

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be root and another user")


def refusal(uid: int) -> str:
    return (
        f"Insufficient privileges for UID {uid}. Control deamon settings can only be modified by"
        " the user who started it or by the root user."
    )


def _code(command: str) -> str:
    """What ends the answer: `terminate_client` adds a CUDA error, CUDA_ERROR_NOT_PERMITTED here."""
    return "\n800" if command.startswith("terminate_client") else ""


def _no(command: str, uid: int) -> str:
    return NO_QUIT if command.startswith("quit") else refusal(uid) + _code(command)


@dataclass
class Shared:
    """A daemon, its server, and two clients; `part` is a directory with the socket `control`
    alone."""

    daemon: Daemon
    server: int
    part: Path
    roots: Client
    others: Client

    @cached_property
    def at_first(self) -> str:
        return self.settings()

    @cached_property
    def read_by_owner(self) -> dict[str, str]:
        return {command: self.ask(command, 0, self.daemon.pipe).text for command in READS}

    def ask(self, command: str, uid: int, directory: Directory) -> Answer:
        text = command.format(server=self.server, roots=self.roots.pid, others=self.others.pid)
        return self.daemon.command(text, directory=directory, uid=uid)

    def settings(self) -> str:
        commands = [
            command
            for command in READS
            if command.startswith("get_") and "client_list" not in command
        ]
        return self.ask("\n".join(commands), 0, self.daemon.pipe).text

    def both_compute(self) -> bool:
        return all(_computes(client) for client in (self.roots, self.others))


def _computes(client: Client) -> bool:
    client.go_on()
    assert client.next_line("launches_per_s")["n"] > 0
    client.next_line("ready")
    return True


def _stepping(daemon: Daemon, uid: int) -> Client:
    return daemon.ready_client(*["step", "launch=0.01"] * 60, "step", uid=uid)


@pytest.fixture(scope="class")
def part(daemon: Daemon) -> Path:
    return daemon.directory_with("control")


@pytest.fixture(scope="class")
def shared(daemon: Daemon, part: Path) -> Shared:
    roots, others = _stepping(daemon, 0), _stepping(daemon, OTHER_UID)
    shared = Shared(daemon, daemon.server, part, roots, others)
    assert shared.at_first
    return shared


@pytest.fixture
def own(world: World) -> Iterator[Shared]:
    daemon = world.daemon()
    roots, others = _stepping(daemon, 0), _stepping(daemon, OTHER_UID)
    yield Shared(daemon, daemon.server, daemon.directory_with("control"), roots, others)
    daemon.stop()


class TestCommandsThatAreRefused:
    @pytest.mark.parametrize("way", ["only control", "the whole directory"])
    @pytest.mark.parametrize("command", [*SETTINGS, *ON_THE_SERVER, "quit", "quit -t 1"])
    def test_another_user_changes_nothing(self, shared: Shared, command: str, way: str) -> None:
        directory = shared.part if way == "only control" else shared.daemon.pipe
        self._changes_nothing(shared, command, OTHER_UID, directory)

    @pytest.mark.parametrize("command", [*SETTINGS, "quit", "quit -t 1"])
    def test_root_with_only_control_changes_no_default_and_does_not_quit(
        self, shared: Shared, command: str
    ) -> None:
        self._changes_nothing(shared, command, 0, shared.part)

    def _changes_nothing(self, shared: Shared, command: str, uid: int, directory: Path) -> None:
        assert shared.ask(command, uid, directory).text == _no(command, uid)
        assert shared.settings() == shared.at_first
        assert shared.daemon.running
        assert shared.both_compute()

    def test_a_new_client_is_served_as_before_all_of_them(
        self, shared: Shared, world: World
    ) -> None:
        first = shared.daemon.client().finished().line("pid")
        assert first["sms"] == world.gpu.sms
        assert first["meminfo_free_MiB"] > world.gpu.memory_mib / 2


class TestReading:
    @pytest.mark.parametrize("uid", [0, OTHER_UID])
    @pytest.mark.parametrize("command", READS)
    def test_anybody_may_read_with_only_control(
        self, shared: Shared, command: str, uid: int
    ) -> None:
        assert shared.ask(command, uid, shared.part).text == shared.read_by_owner[command]


@pytest.mark.parametrize("way", ["only control", "the whole directory"])
class TestRootOnTheServer:
    def _ask(self, own: Shared, command: str, way: str) -> str:
        return own.ask(command, 0, own.part if way == "only control" else own.daemon.pipe).text

    @pytest.mark.parametrize("victim", ["roots", "others"])
    def test_ends_any_client_and_only_that_one(self, own: Shared, way: str, victim: str) -> None:
        assert self._ask(own, f"terminate_client {{server}} {{{victim}}}", way) == "0"
        hit, spared = (own.roots, own.others) if victim == "roots" else (own.others, own.roots)
        assert hit.broke(TERMINATED)
        assert _computes(spared)
        assert own.daemon.server == own.server
        assert own.daemon.client().ended_well()

    def test_sets_its_limits_and_shuts_no_server_down_that_has_clients(
        self, own: Shared, way: str, world: World
    ) -> None:
        assert self._ask(own, "set_device_pinned_mem_limit {server} 0 1G", way) == ""
        assert own.daemon.shows(world.gpu.seen(server_mib=1024))
        assert self._ask(own, "set_active_thread_percentage {server} 10", way) == "10.0"
        expected = world.gpu.seen(server_mib=1024, server_percent=10)
        assert own.daemon.shows(expected)
        for command in ("start_server -uid 0", "shutdown_server {server}"):
            assert self._ask(own, command, way) == ""
            assert own.daemon.server == own.server
            assert own.both_compute()
        assert own.daemon.shows(expected)

    def test_shuts_it_down_by_force_and_every_client_with_it(self, own: Shared, way: str) -> None:
        assert self._ask(own, "shutdown_server {server} -f", way) == ""
        assert own.roots.broke(SERVER_GONE)
        assert own.others.broke(SERVER_GONE)
        assert own.daemon.client().ended_well()
        assert own.daemon.server != own.server


class TestADirectoryWithOnlyControl:
    @pytest.mark.parametrize("uid", [0, OTHER_UID])
    def test_is_enough_to_be_a_client_with_limits(
        self, daemon: Daemon, part: Path, world: World, uid: int
    ) -> None:
        client = daemon.client("hold", environment={MEMORY_LIMIT: "0=2G"}, uid=uid, directory=part)
        client.next_line("ready")
        assert client.saw(world.gpu.seen(memory="0=2G"))
        assert client.pid in world.mib_on_mps()


@pytest.fixture(scope="class")
def privileged(daemon: Daemon) -> Path:
    return daemon.directory_with("control_privileged")


class TestADirectoryWithOnlyThePrivilegedSocket:
    def test_is_enough_for_root_to_command(self, daemon: Daemon, privileged: Path) -> None:
        command = "set_default_active_thread_percentage 90"
        assert daemon.command(command, uid=0, directory=privileged).text == "90.0"

    def test_is_no_daemon_to_another_user(self, daemon: Daemon, privileged: Path) -> None:
        answer = daemon.command("get_server_list", uid=OTHER_UID, directory=privileged)
        assert (answer.exit_code, answer.stdout) == (1, "")
        assert answer.stderr.strip() == "Cannot find MPS control daemon process"

    @pytest.mark.parametrize("uid", [0, OTHER_UID])
    def test_is_not_enough_to_be_a_client_which_then_runs_without_limits(
        self, daemon: Daemon, privileged: Path, world: World, uid: int
    ) -> None:
        client = daemon.client(
            "hold", environment={MEMORY_LIMIT: "0=2G"}, uid=uid, directory=privileged
        )
        client.next_line("ready")
        assert client.line("pid")["meminfo_free_MiB"] > world.gpu.memory_mib / 2
        assert client.pid not in world.mib_on_mps()
        assert client.pid in world.mib_on()


@pytest.fixture(scope="class")
def mount(daemon: Daemon, part: Path) -> ReadOnlyMount:
    """What a pod has: docs/security.md says what follows from this for its neighbours."""
    try:
        answer = daemon.command("get_server_list", directory=daemon.mounted(part))
    except FileNotFoundError:
        pytest.skip("needs util-linux, to make a container's namespaces")
    if "unshare" in answer.stderr or "mount" in answer.stderr:
        pytest.skip(f"no namespaces may be made here: {answer.stderr.strip()}")
    return daemon.mounted(part)


class TestAReadOnlyMountInAContainer:
    @pytest.mark.parametrize("uid", [0, OTHER_UID])
    def test_is_enough_to_be_a_client_with_limits(
        self, daemon: Daemon, mount: ReadOnlyMount, world: World, uid: int
    ) -> None:
        client = daemon.client("step", environment={MEMORY_LIMIT: "0=2G"}, uid=uid, directory=mount)
        client.next_line("ready")
        assert client.saw(world.gpu.seen(memory="0=2G"))
        assert child_of(client.pid) in world.mib_on_mps()
        client.go_on()
        assert client.exit_code() == 0

    @pytest.mark.parametrize(
        ("uid", "commands"),
        [
            pytest.param(
                OTHER_UID,
                [*SETTINGS, *ON_THE_SERVER, "quit", "quit -t 1"],
                id="another user: no command",
            ),
            pytest.param(0, [*SETTINGS, "quit", "quit -t 1"], id="root: no default, no quit"),
        ],
    )
    def test_lets_nobody_quit_or_set_defaults_and_no_other_user_command_anything(
        self, shared: Shared, mount: ReadOnlyMount, uid: int, commands: list[str]
    ) -> None:
        answers = {command: shared.ask(command, uid, mount).text for command in commands}
        assert answers == {command: _no(command, uid) for command in commands}
        assert shared.settings() == shared.at_first
        assert shared.daemon.running
        assert shared.both_compute()

    def test_lets_root_raise_the_servers_limit_end_a_neighbour_and_the_server(
        self, own: Shared, mount: ReadOnlyMount, world: World
    ) -> None:
        inside = own.daemon.mounted(own.part)
        assert own.ask("set_device_pinned_mem_limit {server} 0 3G", 0, inside).text == ""
        assert own.daemon.shows(world.gpu.seen(server_mib=3072), directory=inside)
        assert own.ask("terminate_client {server} {others}", 0, inside).text == "0"
        assert own.others.broke(TERMINATED)
        assert own.ask("shutdown_server {server} -f", 0, inside).text == ""
        assert own.roots.broke(SERVER_GONE)
        assert own.daemon.running

    def test_keeps_root_from_putting_another_socket_there(
        self, mount: ReadOnlyMount, world: World
    ) -> None:
        before = [path.name for path in mount.source.iterdir()]
        tries = f"rm {mount.target}/control; touch {mount.target}/control_privileged"
        done = world.run(mount.inside(Program(("sh", "-c", tries))))
        assert done.stderr.count("Read-only file system") == 2
        assert [path.name for path in mount.source.iterdir()] == before
