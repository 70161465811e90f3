"""What `nvidia-cuda-mps-control` answers, and what it takes without a word."""

import os
import stat
import time

import pytest

from tests.contract.processes import eventually
from tests.contract.results import SERVER_GONE
from tests.contract.world import FLAGS, Daemon, World

NO_DAEMON = "Cannot find MPS control daemon process"


class TestWithoutADaemon:
    def test_a_command_says_so_on_standard_error_and_exits_1(self, world: World) -> None:
        answer = world.command("get_server_list", directory=world.nowhere)
        assert (answer.exit_code, answer.stdout, answer.stderr.strip()) == (1, "", NO_DAEMON)


class TestADaemonWithoutAServer:
    def test_its_directory_has_a_socket_for_all_and_one_for_its_owner(self, daemon: Daemon) -> None:
        modes = {path.name: path.stat().st_mode for path in daemon.pipe.iterdir()}
        assert {name: stat.S_IFMT(mode) for name, mode in modes.items()} == {
            "control": stat.S_IFSOCK,
            "control_privileged": stat.S_IFSOCK,
            "control_lock": stat.S_IFREG,
            "log": stat.S_IFIFO,
            "nvidia-cuda-mps-control.pid": stat.S_IFREG,
        }
        assert modes["control"] & stat.S_IWOTH
        assert not modes["control_privileged"] & (stat.S_IWGRP | stat.S_IWOTH)
        written = (daemon.pipe / "nvidia-cuda-mps-control.pid").read_text(encoding="ascii")
        assert int(written.strip("\0\n ")) == daemon.pid
        log = daemon.output.read_text()
        assert f"Starting control daemon using socket {daemon.pipe}/control\n" in log

    @pytest.mark.parametrize(
        ("command", "answer"),
        [
            ("get_server_list", ""),
            ("get_default_active_thread_percentage", "100.0"),
            ("get_default_device_pinned_mem_limit 0", ""),
            ("get_default_client_priority\nps", "0\nServer not found"),
            ("get_device_client_list", ""),
            ("get_server_status 1", "Server 1 not found"),
            ("terminate_client 1 2", "Server 1 not found\nServer 1 not found!\n1"),
            ("bogus", 'Unknown command "bogus"'),
        ],
    )
    def test_it_answers_with_exit_code_0(self, daemon: Daemon, command: str, answer: str) -> None:
        assert daemon.command(command).text == answer

    def test_it_lists_the_gpus_it_was_given(self, daemon: Daemon, world: World) -> None:
        heading, names, *rows = daemon.command("device_query --csv").text.splitlines()
        assert (heading, names) == ("Default", "Device Ordinal,PCI IDs,UUID,Name,Attributes")
        assert [row.split(",")[0::2] for row in rows] == [["0", world.gpu.uuid, "N/A"]]

    def test_a_second_one_in_the_same_directory_is_refused(
        self, daemon: Daemon, world: World
    ) -> None:
        answer = world.start_in(daemon.pipe, FLAGS)
        assert answer.exit_code == 1
        assert "An instance of this daemon is already running" in answer.stdout + answer.stderr
        assert daemon.command("get_server_list").text == ""


class TestDefaultsForTheNextServer:
    def test_a_thread_percentage_is_printed_as_it_now_is(self, daemon: Daemon) -> None:
        assert daemon.command("set_default_active_thread_percentage 50").text == "50.0"
        assert daemon.command("set_default_active_thread_percentage 500").text == "50.0"
        assert daemon.command("get_default_active_thread_percentage").text == "50.0"

    def test_a_memory_limit_is_read_back_as_it_was_written_and_by_that_key_only(
        self, daemon: Daemon, world: World
    ) -> None:
        uuid, read = world.gpu.uuid, "get_default_device_pinned_mem_limit"
        assert daemon.command("set_default_device_pinned_mem_limit 0 10G").text == ""
        daemon.command(f"set_default_device_pinned_mem_limit {uuid} 3G")
        assert daemon.command(f"{read} 0\n{read} {uuid}").text == "10G\n3G"
        for nonsense in ("9 10G", "0 bogus", "0 0"):
            answer = daemon.command(f"set_default_device_pinned_mem_limit {nonsense}")
            assert (answer.exit_code, answer.stdout, answer.stderr) == (0, "", "")


@pytest.fixture(scope="class")
def server(daemon: Daemon) -> int:
    return daemon.start_server()


class TestARunningServer:
    def test_it_starts_without_a_client_and_is_started_once(
        self, daemon: Daemon, server: int, world: World
    ) -> None:
        assert daemon.command(f"get_server_status {server}").text == "ACTIVE"
        assert daemon.command(f"start_server -uid {os.getuid()}").text == ""
        assert daemon.command("get_server_list").pids == [server]
        listed = daemon.command("device_query --csv").text
        assert f"Server {server}" in listed
        assert listed.count(world.gpu.uuid) == 2

    @pytest.mark.parametrize(
        ("command", "answer"),
        [
            ("get_client_list {server}", ""),
            ("get_active_thread_percentage {server}", "100.0"),
            ("get_device_pinned_mem_limit {server} 0", ""),
            ("ps", ""),
            ("get_device_client_list {server}", ""),
            ("terminate_client {server} 999999", "Invalid process 999999!\n1"),
        ],
    )
    def test_it_answers_before_its_first_client(
        self, daemon: Daemon, server: int, command: str, answer: str
    ) -> None:
        assert daemon.command(command.format(server=server)).text == answer

    def test_its_limits_are_read_back_and_nonsense_takes_one_away_in_silence(
        self, daemon: Daemon, server: int, world: World
    ) -> None:
        change, read = "set_device_pinned_mem_limit", f"get_device_pinned_mem_limit {server} 0"
        assert daemon.command(f"set_active_thread_percentage {server} 40").text == "40.0"
        assert daemon.command(f"get_active_thread_percentage {server}").text == "40.0"
        assert daemon.command(f"{change} {server} {world.gpu.uuid} 3G").text == ""
        assert daemon.command(read).text == "3G"
        assert daemon.command(f"{change} {server} 0 1G").text == ""
        assert daemon.command(read).text == "1G"
        for nonsense in ("9 1G", "0 zzz"):
            assert daemon.command(f"{change} {server} {nonsense}").text == ""
        assert daemon.command(read).text == ""


class TestQuit:
    def test_without_clients_it_is_done_at_once_and_clears_most_files(self, world: World) -> None:
        daemon = world.daemon()
        daemon.start_server()
        assert daemon.command("quit -t 5", deadline_s=4).text == ""
        eventually(lambda: not daemon.running)
        assert daemon.process.returncode == 0
        assert sorted(path.name for path in daemon.pipe.iterdir()) == [
            "control",
            "control_lock",
            "control_privileged",
        ]
        assert daemon.command("get_server_list").exit_code == 1

    def test_with_a_live_client_it_waits_as_long_as_it_was_told(self, world: World) -> None:
        daemon = world.daemon()
        client = daemon.ready_client("hold")
        asked = time.monotonic()
        assert daemon.command("quit -t 1").text == ""
        assert time.monotonic() - asked > 0.9
        assert client.broke(SERVER_GONE)
        eventually(lambda: not daemon.running)
