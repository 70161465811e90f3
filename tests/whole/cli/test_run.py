"""`mpsd run`: what its command sees, how it is refused, and what its exit code says."""

import os
import signal
from pathlib import Path

import pytest

from mpsd.model import client_limits
from mpsd.model.client_limits import ClientLimit
from tests.whole.machine.machine import MPSD, Machine, eventually

OUT_OF_MEMORY = "2:CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture
def machine(served: Machine) -> Machine:
    return served


def test_a_program_sees_its_grant_as_its_memory_and_its_threads(machine: Machine) -> None:
    card = machine.facts.card("A30")
    assert card
    capability = machine.facts.capability(card.compute_capability)
    assert capability
    sms = capability.sms_given(30, card.sms)
    program = machine.run("--gpu-mem 7 --gpu-core 30", "sim-cuda")
    assert program.exit_code() == 0
    assert program.heard("sms") == sms
    assert program.heard("meminfo_free_MiB") == 7 * 1024 - capability.context_cost_mib(sms)


def test_a_signal_to_mpsd_run_is_one_to_the_command(machine: Machine) -> None:
    program = machine.run(
        "--gpu-mem 1", "sh", "-c", "trap 'exit 9' INT; echo '{\"trapped\": 1}'; while :; do :; done"
    )
    program.heard("trapped")
    program.send(signal.SIGINT)
    assert program.exit_code() == 9


def test_a_command_that_is_not_there_or_cannot_be_run_says_so_as_a_shell_does(
    machine: Machine, tmp_path: Path
) -> None:
    missing = machine.run("--gpu-mem 1", "no-such-command")
    assert missing.exit_code() == 127
    assert missing.errors == "mpsd run: no-such-command: no such command\n"
    (tmp_path / "text").touch(mode=0o644)
    forbidden = machine.run("--gpu-mem 1", str(tmp_path / "text"))
    assert forbidden.exit_code() == 126
    assert forbidden.errors == f"mpsd run: {tmp_path / 'text'}: Permission denied\n"


def test_the_limits_replace_whatever_the_caller_had(machine: Machine) -> None:
    lifted = {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "garbage",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "1",
        "CUDA_MPS_PIPE_DIRECTORY": "/nowhere",
        "CUDA_VISIBLE_DEVICES": "7",
        "KEPT": "yes",
    }
    program = machine.run("--gpu-mem 7 --gpu-core 30", "env", environment=lifted)
    assert program.exit_code() == 0
    seen = dict(line.split("=", 1) for line in program.output.splitlines() if "=" in line)
    wanted = client_limits.environment(ClientLimit(7 * 1024, 30), str(machine.folder_of().client))
    wanted |= {"CUDA_VISIBLE_DEVICES": machine.simulation.gpus[0].uuid, "KEPT": "yes"}
    assert wanted.items() <= seen.items()


def test_a_program_for_which_there_is_no_room_is_refused_with_the_reason_and_the_remedy(
    machine: Machine,
) -> None:
    machine.client(20)
    refused = machine.run("--gpu-mem 7", "true")
    assert refused.exit_code() == 1
    assert "gpu0 has 3.4 of the needed 7 GiB free; use --wait to join the queue" in refused.errors


@pytest.mark.parametrize("options", ["--gpu-mem 24", "--gpu-mem 7.5", "--gpu-mem 8 --gpus 2"])
def test_what_can_never_be_is_refused_at_once_even_by_who_would_wait(
    machine: Machine, options: str
) -> None:
    assert machine.run(f"{options} --wait", "true").exit_code() == 2


def test_a_command_whose_name_and_arguments_are_no_unicode_runs_and_is_shown(
    machine: Machine, tmp_path: Path
) -> None:
    strange = tmp_path / os.fsdecode(b"caf\xe9")
    strange.symlink_to("/bin/sh")
    waits = "trap 'kill $!; exit' TERM; sleep 60 & wait"  # nothing of it outlives the test
    runs = machine.run("--gpu-mem 1", str(strange), "-c", waits, os.fsdecode(b"\xff\xfe"))
    eventually(lambda: machine.node().grants, "it has its grant")
    (grant,) = machine.node().grants
    assert "caf\ufffd" in grant.command
    shown = machine.start([MPSD, "status"])
    assert shown.exit_code() == 0, shown
    runs.send(signal.SIGTERM)
    runs.exit_code()
    refused = machine.start([MPSD, "run", "--gpu-mem", os.fsdecode(b"1\xff"), "--", "true"])
    assert refused.exit_code() == 2
    assert "Traceback" not in refused.errors
    missing = machine.run("--gpu-mem 1", os.fsdecode(b"/no/such\xff"))
    assert missing.exit_code() == 127
    assert "no such command" in missing.errors


def test_ctrl_c_ends_the_wait(machine: Machine) -> None:
    machine.client(20)
    waits = machine.run("--gpu-mem 7 --wait", "true")
    eventually(lambda: waits.errors and machine.queue == [waits.pid], "it waits, and has said so")
    waits.send(signal.SIGINT)
    assert waits.exit_code() == 128 + signal.SIGINT
    assert (
        waits.errors == "mpsd run: waiting for room, at most 3600 s (Ctrl-C to give up): "
        "no single GPU has 7 GiB: gpu0 has 3.4 of the needed 7 GiB free\n"
    )
    eventually(lambda: machine.queue == [], "it waits no more")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_tenant_who_waits_for_a_whole_gpu_holds_back_neither_root_nor_what_fits(
    machine: Machine,
) -> None:
    machine.run_directory.parent.chmod(0o755)
    ann = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", MPSD, "run"]
    machine.client(2)
    first = machine.start([*ann, *["--gpu-mem", "23", "--wait", "--", "true"]])
    eventually(lambda: machine.queue == [first.pid], "it waits")
    second = machine.start([*ann, *["--gpu-mem", "22", "--wait", "--", "true"]])
    assert second.exit_code() == 1
    (waits,) = machine.node().waiting
    assert f"user 65534 has request {waits.id} waiting (pid {first.pid}" in second.errors
    assert "gave up" not in second.errors
    assert machine.run("--gpu-mem 21", "true").exit_code() == 0
    held_back = machine.start([*ann[:2], "65533", *ann[3:], *["--gpu-mem", "1", "--", "true"]])
    assert held_back.exit_code() == 1
    assert f"it would delay request {waits.id}" in held_back.errors
    assert machine.queue == [first.pid]
