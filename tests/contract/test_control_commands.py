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
    def test_it_prints_its_log_in_the_foreground(self, daemon: Daemon) -> None:
        log = daemon.output.read_text(encoding="utf-8")
        assert f"Starting control daemon using socket {daemon.pipe}/control\n" in log
        assert f"set env CUDA_MPS_PIPE_DIRECTORY={daemon.pipe}\n" in log

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

    def test_its_pid_file_has_its_pid(self, daemon: Daemon) -> None:
        written = (daemon.pipe / "nvidia-cuda-mps-control.pid").read_text(encoding="ascii")
        assert int(written.strip("\0\n ")) == daemon.pid

    @pytest.mark.parametrize(
        ("command", "answer"),
        [
            ("get_server_list", ""),
            ("get_default_active_thread_percentage", "100.0"),
            ("get_default_device_pinned_mem_limit 0", ""),
            ("get_default_client_priority", "0"),
            ("ps", "Server not found"),
            ("get_device_client_list", ""),
            ("get_server_status 1", "Server 1 not found"),
            ("terminate_client 1 2", "Server 1 not found\nServer 1 not found!\n1"),
            ("bogus", 'Unknown command "bogus"'),
            ("help", 'Unknown command "help"'),
        ],
    )
    def test_it_answers_with_exit_code_0(self, daemon: Daemon, command: str, answer: str) -> None:
        assert daemon.command(command).text == answer

    def test_it_answers_every_line_of_one_call(self, daemon: Daemon) -> None:
        assert daemon.command("get_default_client_priority\nps").text == "0\nServer not found"

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
        assert daemon.command("get_default_active_thread_percentage").text == "50.0"

    def test_a_thread_percentage_of_500_is_ignored(self, daemon: Daemon) -> None:
        daemon.command("set_default_active_thread_percentage 50")
        assert daemon.command("set_default_active_thread_percentage 500").text == "50.0"
        assert daemon.command("get_default_active_thread_percentage").text == "50.0"

    def test_a_memory_limit_is_read_back_as_it_was_written(self, daemon: Daemon) -> None:
        assert daemon.command("set_default_device_pinned_mem_limit 0 10G").text == ""
        assert daemon.command("get_default_device_pinned_mem_limit 0").text == "10G"

    def test_a_memory_limit_by_uuid_is_read_back_by_that_uuid_only(
        self, daemon: Daemon, world: World
    ) -> None:
        before = daemon.command("get_default_device_pinned_mem_limit 0").text
        daemon.command(f"set_default_device_pinned_mem_limit {world.gpu.uuid} 3G")
        assert daemon.command(f"get_default_device_pinned_mem_limit {world.gpu.uuid}").text == "3G"
        assert daemon.command("get_default_device_pinned_mem_limit 0").text == before

    @pytest.mark.parametrize("nonsense", ["9 10G", "0 bogus", "0 0"])
    def test_a_memory_limit_that_makes_no_sense_is_taken_in_silence(
        self, daemon: Daemon, nonsense: str
    ) -> None:
        answer = daemon.command(f"set_default_device_pinned_mem_limit {nonsense}")
        assert (answer.exit_code, answer.stdout, answer.stderr) == (0, "", "")
        # for the record
        daemon.command(f"get_default_device_pinned_mem_limit {nonsense.split()[0]}")


@pytest.fixture(scope="class")
def server(daemon: Daemon) -> int:
    return daemon.start_server()


class TestARunningServer:
    def test_it_starts_without_a_client_and_is_active(self, daemon: Daemon, server: int) -> None:
        assert daemon.command("get_server_list").pids == [server]
        assert daemon.command(f"get_server_status {server}").text == "ACTIVE"

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

    def test_it_is_not_started_twice(self, daemon: Daemon, server: int) -> None:
        assert daemon.command(f"start_server -uid {os.getuid()}").text == ""
        assert daemon.command("get_server_list").pids == [server]

    def test_it_lists_its_gpus_beside_the_daemons(
        self, daemon: Daemon, server: int, world: World
    ) -> None:
        text = daemon.command("device_query --csv").text
        assert f"Server {server}" in text
        assert text.count(world.gpu.uuid) == 2

    def test_a_thread_percentage_is_printed_and_read_back(
        self, daemon: Daemon, server: int
    ) -> None:
        assert daemon.command(f"set_active_thread_percentage {server} 40").text == "40.0"
        assert daemon.command(f"get_active_thread_percentage {server}").text == "40.0"

    def test_a_memory_limit_is_set_in_silence_and_read_back(
        self, daemon: Daemon, server: int
    ) -> None:
        assert daemon.command(f"set_device_pinned_mem_limit {server} 0 1G").text == ""
        assert daemon.command(f"get_device_pinned_mem_limit {server} 0").text == "1G"

    def test_a_memory_limit_by_uuid_is_read_back_by_the_ordinal(
        self, daemon: Daemon, server: int, world: World
    ) -> None:
        daemon.command(f"set_device_pinned_mem_limit {server} {world.gpu.uuid} 3G")
        assert daemon.command(f"get_device_pinned_mem_limit {server} 0").text == "3G"

    def test_a_memory_limit_that_makes_no_sense_takes_the_old_one_away_in_silence(
        self, daemon: Daemon, server: int
    ) -> None:
        daemon.command(f"set_device_pinned_mem_limit {server} 0 1G")
        assert daemon.command(f"set_device_pinned_mem_limit {server} 9 1G").text == ""
        assert daemon.command(f"set_device_pinned_mem_limit {server} 0 zzz").text == ""
        assert daemon.command(f"get_device_pinned_mem_limit {server} 0").text == ""


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
