"""Who may command the daemon through which socket, against transcripts 6, 8 and 9."""

import ast
import json
import os
import re
from pathlib import Path

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT
from tests.simulator.comparing import LIMITED_BELOW_MIB, same_memory
from tests.simulator.machine import Client, Daemon, Machine, wait_until
from tests.simulator.transcripts import transcript

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")

# What each directory of transcript 6 holds, as hard links.
LINKS = {
    "pub_control": ["control"],
    "pub_control_log": ["control", "log"],
    "pub_all_but_priv": ["control", "control_lock", "log", "nvidia-cuda-mps-control.pid"],
    "priv_only": ["control_privileged"],
    "priv_full": [
        "control",
        "control_lock",
        "control_privileged",
        "log",
        "nvidia-cuda-mps-control.pid",
    ],
}


def link(machine: Machine, name: str) -> Path:
    directory = machine.folder / name
    directory.mkdir()
    for file in LINKS[name]:
        (directory / file).hardlink_to(machine.pipe / file)
    return directory


def test_a_directory_with_fewer_files_allows_what_it_allowed(
    machine: Machine, daemon: Daemon
) -> None:
    section = transcript(6, machine.uuids).section("S1")
    server = "407"
    directories = {f"/tmp/{name}": link(machine, name) for name in LINKS} | {
        "/run/mps/pipe": machine.pipe
    }
    for line in section.splitlines():
        if line.startswith("unlink"):
            (machine.pipe / "control_privileged").unlink()
        if row := re.fullmatch(r"\[(\S+) uid (\d+)\] client -> \['(.*)'\]", line):
            client = machine.run_client(
                environment={MEMORY_LIMIT: "0=2G"}, pipe=directories[row[1]], uid=int(row[2])
            )
            assert same_memory(
                client.lines[0]["meminfo_free_MiB"], json.loads(row[3])["meminfo_free_MiB"]
            ), line
        if row := re.fullmatch(r"\[(\S+) uid (\d+)\] ('.*?') -> rc (\d) ('.*') ('.*')", line):
            answer = machine.ask(
                ast.literal_eval(row[3]), pipe=directories[row[1]], uid=int(row[2])
            )
            expected = ast.literal_eval(row[5]).replace(
                server, str(machine_server(machine, directories))
            )
            assert (answer.exit, answer.output, answer.error) == (
                int(row[4]),
                expected,
                ast.literal_eval(row[6]),
            ), line
    assert daemon.process.wait(10) == 0


def machine_server(machine: Machine, directories: dict[str, Path]) -> str:
    return machine.ask("get_server_list", pipe=directories["/tmp/pub_control"]).output


def test_a_missing_server_is_told_before_a_missing_privilege_where_it_was(
    machine: Machine, daemon: Daemon
) -> None:
    client_directory = link(machine, "pub_control")
    rows = re.findall(
        r"^uid 65534 ('.*?') -> rc 0 ('.*') ''$", transcript(8, machine.uuids).text, re.MULTILINE
    )
    assert len(rows) == 14
    for command, expected in rows:
        answer = machine.ask(ast.literal_eval(command), pipe=client_directory, uid=65534)
        # The transcript cut its longest line.
        assert answer.output.startswith(ast.literal_eval(expected).strip()), command
        assert (answer.exit, answer.error) == (0, "")


ALONE = re.compile(
    r"^uid +(?P<uid>\d+) (?P<command>.*?) +-> (?P<output>'.*') '' \| server"
    r" (?P<server>same|\[.*\]) \| "
    r"a new client then \((?P<free>\d+), (?P<sms>\d+)\) \| client uid 0 (?P<root>.*) \| client uid"
    r" 1000 (?P<user>.*)$",
    re.MULTILINE,
)
# MiB that a context of 132 SMs takes of the card, and how far the simulator may be from it.
CONTEXT_MIB, CONTEXT_OFF_MIB = 516, 6


def test_each_command_through_the_client_s_socket_does_what_it_did(
    pair: Machine, pair_daemon: Daemon
) -> None:
    client_directory = link(pair, "pub_control")
    rows = list(ALONE.finditer(transcript(9, pair.uuids).section("U1")))
    assert len(rows) == 21
    for row in rows:
        clients = {
            uid: pair.start_client("step", uid=uid, pipe=client_directory) for uid in (0, 1000)
        }
        for client in clients.values():
            client.heard("ready")
        server = pair.server()
        command = filled_in(row["command"], server, clients)
        answer = pair.ask(command, pipe=client_directory, uid=int(row["uid"]))
        assert answer.output.startswith(ast.literal_eval(row["output"]).strip()), row[0]
        assert bool(answer.output) == (row["output"] != "''")
        assert (pair.ask("get_server_list").output == str(server)) == (row["server"] == "same")
        ended = [
            end_of(clients[uid], row[name]) for uid, name in ((0, "root"), (1000, "user"))
        ].count(True)
        newcomer = pair.run_client(pipe=client_directory).lines[0]
        # Those of the transcript did not look, and kept their memory; ours do, and end.
        expected_mib = int(row["free"]) + (
            ended * CONTEXT_MIB if int(row["free"]) > LIMITED_BELOW_MIB else 0
        )
        assert abs(newcomer["meminfo_free_MiB"] - expected_mib) <= 2 * CONTEXT_OFF_MIB, row[0]
        assert newcomer["sms"] == int(row["sms"])
        pair.ask(
            f"set_device_pinned_mem_limit {server} 0 0",
            f"set_active_thread_percentage {server} 100",
        )
        for client in clients.values():
            go_home(client)


def filled_in(command: str, server: int, clients: dict[int, Client]) -> str:
    """The command with the pids it means; `own` is the client of uid 1000, `other` that of root."""
    pids = {
        "{S}": server,
        "{own}": clients[1000].heard("pid")["pid"],
        "{other}": clients[0].heard("pid")["pid"],
    }
    for name, pid in pids.items():
        command = command.replace(name, str(pid))
    return command


def end_of(client: Client, expected: str) -> bool:
    """Whether the command ended this client, having seen that it did so with the error of the
    transcript."""
    result = re.findall(r'"(\d+:\w+)"', expected)[-1]
    if result == "0:CUDA_SUCCESS":
        return False
    assert client.heard("broke")["broke"] == result
    assert client.finish() == 4
    return True


def go_home(client: Client) -> None:
    if client.process.poll() is None:
        client.proceed()
        assert client.heard("end")["end"] == "0:CUDA_SUCCESS"
        client.finish()


def test_without_multiuser_a_second_user_waits_until_the_first_has_gone(machine: Machine) -> None:
    machine.start_daemon()
    first = machine.start_client("step")
    first.heard("ready")
    server = machine.server()
    second = machine.start_client(uid=65534)
    wait_until(lambda: "in use by another user" in machine_log(machine), "the second has asked")
    assert second.silent(0.2)
    first.proceed()
    assert second.heard("end")["end"] == "0:CUDA_SUCCESS"
    assert machine.server() != server


def machine_log(machine: Machine) -> str:
    return (machine.folder / "pipe.out").read_text()


def test_with_multiuser_two_users_share_one_server(machine: Machine, daemon: Daemon) -> None:
    clients = [machine.start_client("hold", uid=uid) for uid in (0, 65534)]
    for client in clients:
        client.heard("ready")
    assert len(machine.ask("ps").output.splitlines()) == 3
