"""What a client gets under the limits of its own environment and of the server, against the
transcripts."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from mpsd.model.cuda_limit_parser import (
    CUDA_VISIBLE_DEVICES,
    MEMORY_LIMIT,
    PARTITIONING,
    THREAD_PERCENT,
)
from tests.simulator.comparing import Replay, same_memory
from tests.simulator.machine import Client, Daemon, Machine
from tests.simulator.transcripts import steps, transcript

FREE_AND_SMS = re.compile(r"\((?P<free>\d+), (?P<sms>\d+)\)")
OUT_OF_MEMORY = "2:CUDA_ERROR_OUT_OF_MEMORY"


def assert_gets(client: Client, free_mib: int, sms: int) -> None:
    first = client.lines[0]
    assert same_memory(first["meminfo_free_MiB"], free_mib), (first, free_mib)
    assert first["sms"] == sms


def test_every_limit_in_a_client_s_environment_does_what_it_did(
    machine: Machine, daemon: Daemon
) -> None:
    replay = Replay(machine)
    for step in steps(transcript(2, machine.uuids).section("P2")):
        replay.play(step)


def test_a_limit_on_the_running_server_does_what_it_did(machine: Machine, daemon: Daemon) -> None:
    machine.start_server()
    replay = Replay(machine)
    for step in steps(transcript(2, machine.uuids).section("P6")):
        replay.play(step)


def test_ordinals_count_the_gpus_that_the_process_sees(pair: Machine, pair_daemon: Daemon) -> None:
    replay = Replay(pair)
    for step in steps(transcript(3, pair.uuids).section("Q1")):
        replay.play(step)


def test_a_container_with_one_gpu_s_device_node_sees_it_as_its_first(
    pair: Machine, pair_daemon: Daemon
) -> None:
    only_second = {"MPSD_SIMULATION_DEVICES": pair.uuids[1]}
    section = transcript(4, pair.uuids).section("R3")
    rows = re.findall(
        r'^\$ (\{.*\})\n +\{.*"devices": (\d).*"meminfo_free_MiB": (\d+)', section, re.MULTILINE
    )
    assert len(rows) == 7
    for environment, devices, free in rows:
        client = pair.run_client(environment=only_second | ast.literal_eval(environment))
        assert client.lines[0]["devices"] == int(devices)
        assert same_memory(client.lines[0]["meminfo_free_MiB"], int(free)), environment
        assert client.lines[0]["uuid"] == pair.uuids[1]


TENANT_SECTIONS = (
    "set on the running server",
    "default before the server",
    "default by UUID before the server",
)


@pytest.mark.parametrize("title", TENANT_SECTIONS)
def test_a_tenant_s_environment_gets_past_the_server_where_it_did(
    machine: Machine, daemon: Daemon, title: str
) -> None:
    section = transcript(5, machine.uuids).section(title)
    table = section[: section.index("CUDA_VISIBLE_DEVICES=0")]
    if title == TENANT_SECTIONS[0]:
        machine.start_server()
    replay = Replay(machine)
    for step in steps(table):
        replay.play(step)
    rows = list(tenant_rows(section))
    assert len(rows) == 20
    for environment, expected in rows:
        assert_like_the_row(machine, environment, expected)


def tenant_rows(section: str) -> Iterator[tuple[Mapping[str, str], Mapping[str, Any]]]:
    """The rows of transcript 5: what was in the environment, and what the client got."""
    for label, result in re.findall(
        r"(?:^| )((?:percent |CUDA|per-ctx|'|None).*?) (\{'free'.*?\})", section, re.MULTILINE
    ):
        if not label.startswith("'") or label.count("'") == 2:
            yield labelled(label), ast.literal_eval(result)


def labelled(label: str) -> Mapping[str, str]:
    """The environment that a row's label stands for."""
    if label == "None":
        return {}
    if label.startswith("'"):
        return {MEMORY_LIMIT: ast.literal_eval(label)}
    if label.startswith("percent "):
        return {THREAD_PERCENT: label.removeprefix("percent ")}
    return {PARTITIONING: "1"} if label.startswith("per-ctx") else {CUDA_VISIBLE_DEVICES: "0"}


def assert_like_the_row(
    machine: Machine, environment: Mapping[str, str], expected: Mapping[str, Any]
) -> None:
    client = machine.run_client("alloc=6016", environment=environment)
    if expected["sms"] is None:
        assert client.lines == [{"fail": "ctx", "err": expected["free"]}], environment
        return
    got = client.lines[0]["meminfo_free_MiB"]
    assert client.lines[0]["sms"] == expected["sms"], environment
    if PARTITIONING in environment:
        # a context that gets past the server's share so is 4 MiB smaller on the hardware; that is
        # not played
        return
    assert same_memory(got, expected["free"]), (environment, got)
    assert client.lines[1]["alloc_MiB"] == expected["alloc"], environment


def test_a_server_limit_changes_for_new_clients_only(machine: Machine, daemon: Daemon) -> None:
    server = machine.start_server()
    machine.ask(f"set_device_pinned_mem_limit {server} 0 3G")
    before = machine.start_client("step", "alloc=2000")
    before.heard("ready")
    machine.ask(f"set_device_pinned_mem_limit {server} 0 1G")
    assert machine.run_client("alloc=2000").lines[1]["rc"] == OUT_OF_MEMORY
    before.proceed()
    assert before.heard("alloc_MiB")["rc"] == "0:CUDA_SUCCESS"


def test_a_deny_limit_keeps_everyone_out_but_him_who_lifts_it(
    machine: Machine, daemon: Daemon
) -> None:
    machine.ask(f"set_device_pinned_mem_limit {machine.start_server()} 0 8M")
    assert machine.run_client().lines == [{"fail": "ctx", "err": OUT_OF_MEMORY}]
    poisoned = machine.run_client("alloc=6016", environment={MEMORY_LIMIT: "5=1G"})
    assert poisoned.lines[1] == {
        "alloc_MiB": 6016,
        "rc": "0:CUDA_SUCCESS",
        "free_after_MiB": poisoned.lines[0]["meminfo_free_MiB"] - 6016,
        "total_after_MiB": 143155,
    }


DEVICES_OF_LABEL: Mapping[str, Mapping[str, str]] = {
    "dev0": {CUDA_VISIBLE_DEVICES: "0"},
    "dev1": {CUDA_VISIBLE_DEVICES: "1"},
    "both-dev0": {},
    "env2G-on-dev1": {CUDA_VISIBLE_DEVICES: "1", MEMORY_LIMIT: "0=2G"},
}


@pytest.mark.parametrize("multiuser", [False, True])
def test_a_server_limit_goes_by_the_client_s_ordinal(
    pair: Machine, flags: Sequence[str], multiuser: bool
) -> None:
    if multiuser and not flags:
        pytest.skip("only root may start a daemon with -M")
    pair.start_daemon(*(flags if multiuser else ()))
    pair.start_server()
    played = transcript(4, pair.uuids).section("R1").split("control pid ")[2 if multiuser else 1]
    replay = Replay(pair)
    environments = {**DEVICES_OF_LABEL, "dev1-by-uuid": {CUDA_VISIBLE_DEVICES: pair.uuids[1]}}
    for part in re.split(r"(?=^> set_device)", played, flags=re.MULTILINE):
        for step in steps(part.partition("> quit")[0]):
            replay.play(step)
        for label, free, sms in re.findall(r"([\w-]+) \((\d+), (\d+)\)", part.partition("key ")[2]):
            client = pair.run_client(environment=environments[label])
            assert_gets(client, int(free), int(sms))
        if OUT_OF_MEMORY in part:
            assert pair.run_client().lines == [{"fail": "ctx", "err": OUT_OF_MEMORY}]
        if lifted := re.search(r"0 on 0: \((\d+), (\d+)\)", part):
            assert_gets(pair.run_client(), int(lifted[1]), int(lifted[2]))


@pytest.mark.parametrize("by", ["0", "GPU"])
def test_defaults_hold_for_the_next_server(pair: Machine, pair_daemon: Daemon, by: str) -> None:
    section = transcript(4, pair.uuids).section("R1")
    commands, values = re.findall(r"((?:> set_default.*\n.*\n)+)defaults by (.*)", section)[
        by == "GPU"
    ]
    for step in steps(commands):
        Replay(pair).play(step)
    environments = [
        {CUDA_VISIBLE_DEVICES: "0"},
        {CUDA_VISIBLE_DEVICES: "1"},
        {CUDA_VISIBLE_DEVICES: "0", MEMORY_LIMIT: "0=4G"},
        {MEMORY_LIMIT: "0=1G"},
    ]
    for environment, (free, sms) in zip(environments, FREE_AND_SMS.findall(values), strict=True):
        assert_gets(pair.run_client(environment=environment), int(free), int(sms))


def test_the_daemon_s_own_percentage_counts_and_its_own_memory_limit_does_not(
    pair: Machine, flags: tuple[str, ...]
) -> None:
    pair.start_daemon(*flags, environment={MEMORY_LIMIT: "0=3G", THREAD_PERCENT: "50"})
    row = re.search(
        r"limit\+percentage in the daemon's own env: (.*)", transcript(4, pair.uuids).section("R1")
    )
    assert row
    environments = [
        {},
        {CUDA_VISIBLE_DEVICES: "1"},
        {THREAD_PERCENT: "100"},
        {THREAD_PERCENT: "20"},
    ]
    for environment, (free, sms) in zip(environments, FREE_AND_SMS.findall(row[1]), strict=True):
        assert_gets(pair.run_client(environment=environment), int(free), int(sms))


def test_each_device_of_a_domain_of_two_has_its_own_limit(
    pair: Machine, pair_daemon: Daemon
) -> None:
    pair.start_server()
    replay = Replay(pair)
    for part in re.split(r"(?=^> )", transcript(9, pair.uuids).section("U3"), flags=re.MULTILINE):
        for step in steps(part.partition("> quit")[0]):
            replay.play(step)
        for row in re.finditer(r"^(?P<name>[a-z].*?) +dev0 (?P<cells>.*)$", part, re.MULTILINE):
            limit = re.search(r"client (\S+)", row["name"])
            assert_row_of_two(
                pair, {MEMORY_LIMIT: limit[1]} if limit else {}, "dev0 " + row["cells"]
            )


def assert_row_of_two(pair: Machine, environment: Mapping[str, str], cells: str) -> None:
    alone = {**environment, CUDA_VISIBLE_DEVICES: "1"}
    clients = {
        "dev0": pair.run_client(environment=environment),
        "dev1": pair.run_client("device=1", environment=environment),
        "alone-1": pair.run_client(environment=alone),
    }
    for label, cell in re.findall(r"(dev0|dev1|alone-1) \((.*?)\)", cells):
        free, _, sms = cell.partition(", ")
        if sms == "None":
            assert clients[label].lines == [{"fail": "ctx", "err": OUT_OF_MEMORY}]
        else:
            assert_gets(clients[label], int(free), int(sms))


def test_the_partitioning_flag_lifts_the_server_s_share_unless_it_is_0(
    pair: Machine, pair_daemon: Daemon
) -> None:
    pair.ask(f"set_active_thread_percentage {pair.start_server()} 30")
    rows = re.findall(
        r"^flag (\w+) \(\d+, (\d+)\) with 20 % \(\d+, (\d+)\)",
        transcript(9, pair.uuids).section("U2"),
        re.MULTILINE,
    )
    assert len(rows) == 3
    for flag, sms, sms_of_20 in rows:
        environment = {} if flag == "None" else {PARTITIONING: flag}
        assert pair.run_client(environment=environment).lines[0]["sms"] == int(sms)
        assert pair.run_client(environment=environment | {THREAD_PERCENT: "20"}).lines[0][
            "sms"
        ] == int(sms_of_20)
