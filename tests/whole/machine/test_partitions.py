"""threads: exclusive: a share of the threads is a static SM partition, on a simulated H200 with a newer controller."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.model.cuda_limit_parser import SM_PARTITION, THREAD_PERCENT
from mpsd.model.domain import State
from mpsd.model.node_report import PartitionReport
from mpsd.model.violations import ViolationKind
from mpsd.platform.processes import environment_of
from mpsd.simulator.mps.control_daemon import VERSION, WITH_PARTITIONS
from tests.whole.machine.conftest import as_before, on_machine
from tests.whole.machine.machine import MPSD, Machine, Program, eventually

REFUSED = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"


class NewerMachine(Machine):
    """Its controller is the first with static SM partitions."""

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {VERSION: str(WITH_PARTITIONS)}


@pytest.fixture(scope="module")
def parted() -> Iterator[Machine]:
    machine = NewerMachine("H200")
    machine.set_policy(threads="exclusive")
    try:
        machine.apart()
        yield machine
        machine.stop()
    finally:
        machine.destroy()


@pytest.fixture
def apart(parted: Machine) -> Iterator[Machine]:
    yield parted
    as_before(parted)
    eventually(lambda: not names(parted), "no partition is left without its grant")


def names(machine: Machine) -> set[str]:
    """Of the partitions that the daemon has."""
    return {row.split()[1] for row in machine.ask_daemon("lspart").splitlines() if row.endswith(("Yes", "No"))}


def holding(machine: Machine, percent: int, *, environment: dict[str, str] | None = None) -> Program:
    """A program with this share that has its context; it waits where a daemon or its control has just been started."""
    program = machine.run(f"--gpu-mem 2 --gpu-core {percent} --wait", "sim-cuda", "hold", environment=environment)
    program.heard("ready")
    return program


def partition_of(program: Program) -> str:
    return (environment_of(program.pid) or {})[SM_PARTITION]


def test_two_grants_have_sms_of_their_own_and_a_third_is_refused_or_waits(apart: Machine) -> None:
    canary = apart.domain().canary
    assert canary
    assert (canary.partitioned, canary.problem, canary.warning, canary.sms) == (True, "", "", 8)
    a, b = holding(apart, 30), holding(apart, 60)
    assert (a.heard("sms"), b.heard("sms")) == (40, 80)
    assert apart.grant_of(a).partitions == (PartitionReport(5, 40),)
    assert apart.grant_of(b).partitions == (PartitionReport(10, 80),)
    assert {partition_of(a).partition("/")[2], partition_of(b).partition("/")[2]} == names(apart)
    assert THREAD_PERCENT not in (environment_of(a.pid) or {})
    assert (apart.domain().chunks, apart.domain().free_chunks) == (16, 1)

    third = apart.run("--gpu-mem 2 --gpu-core 10", "sim-cuda")
    assert third.exit_code() == 1
    assert "10 % of the threads (2 chunks): gpu0 has" in third.errors
    assert "1 of 16 chunks of its SMs" in third.errors
    assert apart.run("--gpu-mem 2 --gpu-core 20", "sim-cuda").exit_code() == 1

    waits = apart.run("--gpu-mem 2 --gpu-core 20 --wait", "sim-cuda", "hold")
    eventually(lambda: apart.queue == [waits.pid], "it waits")
    before = partition_of(a)
    a.kill()
    assert waits.heard("sms") == 32
    assert before.partition("/")[2] not in names(apart)
    assert b.running


def test_status_shows_partitions_and_not_their_names(apart: Machine) -> None:
    program = holding(apart, 30)
    shown = apart.start([MPSD, "status"])
    assert shown.exit_code() == 0
    assert re.search(r"30 % +40 SMs", shown.output)
    as_json = apart.start([MPSD, "status", "-o", "json"])
    assert as_json.exit_code() == 0
    assert '"partitions"' in as_json.output
    assert partition_of(program).partition("/")[2] not in as_json.output


def test_a_request_without_a_share_is_refused_with_what_to_do(apart: Machine) -> None:
    refused = apart.run("--gpu-mem 2", "sim-cuda")
    assert refused.exit_code() == 2
    assert "--gpu-core: is missing: the policy has threads: exclusive" in refused.errors


def test_a_percentage_of_its_own_counts_for_nothing(apart: Machine) -> None:
    program = apart.run("--gpu-mem 2 --gpu-core 30", "env", f"{THREAD_PERCENT}=100", "sim-cuda", "hold")
    assert program.heard("sms") == 40
    found = apart.node().violations
    assert found is not None
    assert not [one for one in found.last if one.pid == program.pid]


def test_one_that_names_another_s_partition_is_in_it_and_is_reported(apart: Machine) -> None:
    neighbour = holding(apart, 60)
    named = f"{SM_PARTITION}={partition_of(neighbour)}"
    program = apart.run("--gpu-mem 2 --gpu-core 30", "env", named, "sim-cuda", "hold")
    assert program.heard("sms") == 80

    def reported() -> list[str]:
        found = apart.node().violations
        seen = found.last if found else ()
        return [one.message for one in seen if (one.kind, one.pid) == (ViolationKind.LIMIT_LIFTED, program.pid)]

    (message,) = eventually(reported, "it is reported")
    assert f"{SM_PARTITION} is" in message
    assert "which is not its grant's" in message


@pytest.mark.parametrize("value", ["", "GPU-1/Dabc", "Dabc"])
def test_one_that_names_none_that_is_there_gets_no_context(apart: Machine, value: str) -> None:
    program = apart.run("--gpu-mem 2 --gpu-core 30", "env", f"{SM_PARTITION}={value}", "sim-cuda")
    assert REFUSED in program.heard("err")


def test_a_restart_of_the_agent_keeps_partitions_and_frees_those_of_what_ended_meanwhile(apart: Machine) -> None:
    lasting, ended = holding(apart, 30), holding(apart, 60)
    kept = partition_of(lasting)
    apart.part("agent").kill()
    ended.kill()
    assert len(names(apart)) == 2

    apart.service("agent")

    apart.until_ready()
    eventually(lambda: names(apart) == {kept.partition("/")[2]}, "only the partition that is held is left")
    assert apart.grant_of(lasting).partitions == (PartitionReport(5, 40),)
    assert lasting.running
    assert holding(apart, 60).heard("sms") == 80


def test_what_an_agent_left_of_a_grant_that_it_did_not_save_is_removed(apart: Machine) -> None:
    gpu = apart.simulation.gpus[0].uuid
    assert "created" in apart.ask_daemon(f"sm_partition add {gpu} 16")
    assert holding(apart, 100).heard("sms") == 128


def test_a_new_daemon_has_no_partition_of_an_old_one_and_gives_new_grants_theirs(
    apart: Machine, tmp_path: Path
) -> None:
    script = tmp_path / "shell"
    script.write_text(f"sim-cuda hold; until [ -e {tmp_path}/go ]; do sleep 0.02; done; sim-cuda; exec sleep 600")
    shell = apart.run("--gpu-mem 2 --gpu-core 60", "sh", str(script))
    shell.heard("ready")
    daemon = apart.daemon()
    os.kill(daemon, signal.SIGKILL)
    apart.new_daemon(daemon)
    (tmp_path / "go").touch()
    eventually(lambda: REFUSED in shell.output, "what it starts later names a partition that is gone")
    eventually(lambda: apart.grant_of(shell).partitions == (PartitionReport(10, None),), "it is known to be gone")
    assert holding(apart, 30).heard("sms") == 40
    shown = apart.start([MPSD, "status"])
    assert shown.exit_code() == 0
    assert re.search(r"60 % +gone", shown.output), shown.output


def test_control_that_is_started_again_adopts_a_daemon_with_its_partitions(apart: Machine) -> None:
    program = holding(apart, 30)
    daemon = apart.daemon()
    apart.part("control").kill()
    apart.service("control")
    apart.until_ready()
    assert apart.daemon() == daemon
    assert apart.domain().partitioned
    assert apart.grant_of(program).partitions == (PartitionReport(5, 40),)


def test_a_share_cannot_be_changed_and_memory_can(apart: Machine) -> None:
    program = holding(apart, 30)
    grant = apart.grant_of(program).id
    refused = apart.start([MPSD, "set", grant, "--percent", "20"])
    assert refused.exit_code() != 0
    why = "the percentage is 20: cannot be set: an SM partition keeps its size; end it, and start it with that"
    assert why in " ".join(refused.errors.split())
    assert apart.grant_of(program).partitions == (PartitionReport(5, 40),)
    assert apart.start([MPSD, "set", grant, "--mem", "4GiB"]).exit_code() == 0


class TestWhatHasNone:
    def test_an_older_controller_refuses_its_gpus_and_serves_once_the_policy_is_shared(self) -> None:
        for machine in on_machine("H200"):
            machine.set_policy(threads="exclusive")
            machine.service("up")
            machine.until_known()
            reason = machine.in_state(State.REFUSED).reason
            assert "nvidia-cuda-mps-control is version 13000, and 13010 is the first" in reason
            assert "install a driver of CUDA 13.1 or newer, or write threads: shared" in reason
            machine.set_policy()
            machine.in_state(State.READY)
            assert machine.client(2).heard("sms") == 132

    def test_a_generation_without_them_is_refused(self) -> None:
        machine = NewerMachine("T4")
        try:
            machine.set_policy(threads="exclusive")
            machine.service("up")
            machine.until_known()
            assert "no static SM partitions of compute capability 7.5" in machine.in_state(State.REFUSED).reason
            machine.stop()
        finally:
            machine.destroy()

    def test_a_daemon_that_serves_keeps_its_mode_when_the_policy_changes(self) -> None:
        machine = NewerMachine("H200")
        try:
            machine.up()
            program = machine.client(2)
            machine.set_policy(threads="exclusive")
            eventually(lambda: machine.run("--gpu-mem 2", "true").exit_code() == 2, "the policy is in force")
            assert program.running
            assert not machine.domain().partitioned
            program.kill()
            machine.until_no_grants()
            daemon = machine.daemon()
            os.kill(daemon, signal.SIGTERM)
            machine.new_daemon(daemon)
            assert machine.domain().partitioned
            machine.stop()
        finally:
            machine.destroy()
