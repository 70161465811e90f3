"""`mpsd doctor` on broken machines: the first line of its answer names what is broken, and what to do."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpsd.core.domain_states import State
from mpsd.core.runtime_launcher import launcher
from mpsd.sim.card import EXCLUSIVE_PROCESS, PROHIBITED, Quirk
from tests.roles.conftest import on_machine
from tests.roles.machine import CONTROL, MPSD, SOON_S, Machine, Program, eventually

DOCKER = {"runtimes": {"mpsd": {"path": "/usr/local/bin/mpsd-runtime"}}}


@pytest.fixture
def untried() -> Iterator[Machine]:
    """One A30, on which no canary was ever run."""
    yield from on_machine("A30", tried=False)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder that stands for /, of a machine with docker, the runtime mpsd, the toolkit and nothing wrong."""
    write(tmp_path / "dev/nvidia-uvm", "")
    write(tmp_path / "etc/docker/daemon.json", json.dumps(DOCKER))
    write(tmp_path / "opt/python", "#!/bin/sh\n")
    write(tmp_path / "opt/mpsd/runtime/main.py", "")
    write(tmp_path / "usr/bin/nvidia-container-runtime", "#!/bin/sh\n").chmod(0o755)
    text = launcher("/opt/python", "/opt", "/run/mpsd", "", "/var/log/mpsd/runtime.log")
    write(tmp_path / "usr/local/bin/mpsd-runtime", text).chmod(0o755)
    (tmp_path / "var/lib/kubelet/device-plugins").mkdir(parents=True)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def asked(machine: Machine, *options: object) -> Program:
    program = machine.start([MPSD, "doctor", *map(str, options)])
    program.exit_code()
    return program


def first_line(machine: Machine, *options: object) -> str:
    """Of the answer of a machine on which something is wrong."""
    answer = asked(machine, *options)
    assert answer.exit_code() == 1, answer
    assert answer.errors == ""
    return answer.output.partition("\n")[0]


def found(machine: Machine, *options: object) -> list[str]:
    """The checks that found something, the worst first."""
    told: dict[str, Any] = json.loads(asked(machine, "-o", "json", *options).output)
    return [check["id"] for check in told["checks"] if check["verdict"] == "found"]


# -- a machine with nothing wrong ------------------------------------------------------------------------------------


def test_a_machine_that_serves_is_well_and_so_is_what_is_around_it(machine: Machine, host: Path) -> None:
    machine.up()
    machine.client(4)

    alone, around = asked(machine), asked(machine, "--root", host, "-v")

    assert (alone.exit_code(), around.exit_code()) == (0, 0), f"{alone}{around}"
    assert alone.output.startswith("all is well: ")
    assert "  launcher-broken: mpsd-runtime can start" in around.output
    assert "unknown" not in around.output


def test_it_changes_nothing(machine: Machine) -> None:
    before = sorted(machine.run_directory.rglob("*"))
    assert first_line(machine) == "mpsd does not run here, and no daemon of its own; start it with `mpsd up`"
    assert sorted(machine.run_directory.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_what_another_user_may_not_see_is_unknown_and_not_well(machine: Machine) -> None:
    machine.run_directory.parent.chmod(0o755)
    machine.up()
    other = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    answer = machine.start([*other, MPSD, "doctor"])
    assert answer.exit_code() == 1, answer
    assert answer.output.startswith(
        "nothing wrong was found, but not known is whether every control daemon is mpsd's: "
    )
    assert "may not be read; ask again as root" in answer.output


# -- the driver and the GPUs -----------------------------------------------------------------------------------------


def test_no_driver(machine: Machine) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("a driver answers on this machine")
    environment = {name: value for name, value in machine.environment.items() if name != "MPSD_SIMULATE"}
    done = subprocess.run([MPSD, "doctor"], env=environment, capture_output=True, text=True, timeout=SOON_S)
    assert done.returncode == 1
    assert done.stdout.startswith(
        "NVML: nvmlInit failed: NVML Shared Library Not Found; no NVIDIA driver answers here;"
    )


def test_a_gpu_that_fell_off_the_bus(pair: Machine) -> None:
    pair.card(1).lost = True
    assert first_line(pair).startswith("gpu1 does not answer: NVML: nvmlDeviceGetHandleByIndex failed: GPU is lost; ")
    pair.card(1).lost = False


def test_a_driver_that_is_too_old(machine: Machine) -> None:
    write(machine.simulation.folder / "driver", "470.57.02\n")
    assert first_line(machine).startswith("driver 470.57.02 is too old: MPS takes memory limits from 495 on; install")


def test_a_driver_that_nobody_has_tried_is_no_reason_not_to_start(machine: Machine) -> None:
    machine.up()
    write(machine.simulation.folder / "driver", "610.1\n")
    assert first_line(machine).startswith("nobody has tried driver 610.1: ")
    assert found(machine) == ["driver-untested"]


def test_a_gpu_from_before_volta(machine: Machine) -> None:
    file = machine.simulation.folder / "gpus.json"
    file.write_text(file.read_text().replace('"8.0"', '"6.1"'))
    assert first_line(machine).startswith("gpu0 (NVIDIA A30) has compute capability 6.1: before 7.0 MPS holds no")


def test_a_gpu_that_the_facts_do_not_list(machine: Machine) -> None:
    file = machine.simulation.folder / "gpus.json"
    file.write_text(file.read_text().replace('"8.0"', '"13.7"'))
    assert first_line(machine).startswith(
        "gpu0 (NVIDIA A30) has compute capability 13.7, which gpus.yaml does not list"
    )


def test_mig(pair: Machine) -> None:
    pair.card(1).mig = True
    control = pair.service("control")
    eventually(lambda: control.logged("state", state="refused"), "it is refused")
    assert first_line(pair).startswith("MIG is on for gpu1 (NVIDIA A30), and MPS does not share such a GPU; switch it")
    assert found(pair)[:2] == ["mig-on", "domain-stopped"]


def test_a_compute_mode_that_a_crash_left_behind(machine: Machine) -> None:
    service = machine.up()
    daemon = machine.daemon()
    service.kill()
    machine.kill(daemon)
    eventually(lambda: not machine.processes_left(), "all of it is gone")
    assert machine.card().compute_mode == EXCLUSIVE_PROCESS
    expected = (
        "gpu0 (NVIDIA A30) is in compute mode EXCLUSIVE_PROCESS while no mpsd runs; `mpsd control --release` puts"
    )
    assert first_line(machine).startswith(expected)


def test_a_compute_mode_that_somebody_else_has_set(machine: Machine) -> None:
    machine.card().compute_mode = PROHIBITED
    expected = "gpu0 (NVIDIA A30) is in compute mode PROHIBITED while no mpsd runs; run `nvidia-smi -i 0 -c DEFAULT`"
    assert first_line(machine) == expected


def test_a_compute_mode_that_somebody_took_away(machine: Machine) -> None:
    machine.up()
    machine.card().compute_mode = 0
    assert first_line(machine).startswith("gpu0 (NVIDIA A30) is not in compute mode EXCLUSIVE_PROCESS, as the policy")
    machine.card().compute_mode = EXCLUSIVE_PROCESS


# -- mpsd's own files ------------------------------------------------------------------------------------------------


def test_limits_files_that_are_not_sound(machine: Machine) -> None:
    machine.up()
    machine.write_policy("version: v1\nplacement: everywhere\n")
    assert "placement" in asked(machine).output
    assert found(machine)[0] == "limits-unsound"
    assert "`mpsd check " in first_line(machine)
    machine.set_policy()


def test_no_mps_on_path(machine: Machine) -> None:
    machine.program(CONTROL).unlink()
    assert first_line(machine) == "nvidia-cuda-mps-control is not on PATH; install the driver's compute utilities"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
def test_a_run_directory_of_somebody_else(machine: Machine) -> None:
    os.chown(machine.run_directory, 65534, 65534)
    expected = f"the run directory {machine.run_directory} belongs to user 65534, not to user 0; chown 0 "
    assert first_line(machine).startswith(expected)


def test_a_record_of_another_version(machine: Machine) -> None:
    service = machine.up()
    service.send(signal.SIGSTOP)
    record = machine.folder_of().record
    sound = record.read_text()
    record.write_text(sound.replace('"version": 1', '"version": 2'))
    assert first_line(machine).startswith(
        "gpu0: its record is of version 2, and this mpsd reads 1; restart `mpsd contr"
    )
    record.write_text("{")
    unreadable = first_line(machine)
    record.write_text(sound)
    service.send(signal.SIGCONT)
    assert unreadable.startswith(f"a domain's record cannot be read: {record}: ")


# -- daemons ---------------------------------------------------------------------------------------------------------


def test_another_control_daemon(machine: Machine, tmp_path: Path) -> None:
    machine.up()
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    there = {
        **machine.simulation.environment,
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(pipe),
    }
    other = machine.start([machine.program(CONTROL), "-f"], there)
    eventually((pipe / "control").exists, "it listens")
    expected = (
        f"another control daemon (pid {other.pid} in {pipe}) is on this machine, which mpsd has not started; stop"
    )
    assert first_line(machine).startswith(expected)
    other.kill()


def test_a_daemon_that_cannot_stay_up(machine: Machine) -> None:
    machine.up()
    machine.replace_control_program("echo cannot open the driver; exit 1")
    machine.kill(machine.daemon())
    eventually(lambda: machine.record().restarts_total > 1, "it was tried again")
    eventually(lambda: first_line(machine).startswith("gpu0 is down: "), "it says so")
    machine.restore_control_program()
    machine.in_state(State.READY)


def test_a_daemon_that_is_wedged(machine: Machine) -> None:
    machine.up()
    daemon = machine.daemon()
    os.kill(daemon, signal.SIGSTOP)
    machine.in_state(State.WEDGED)
    assert first_line(machine).startswith('gpu0 is wedged: no answer to "get_server_list')
    os.kill(daemon, signal.SIGCONT)
    machine.in_state(State.READY)


def test_a_fault(machine: Machine) -> None:
    machine.set_policy(graces={"command_s": 1, "start_s": 5, "fault_grace_s": 60})
    machine.up()
    client = machine.run("--gpu-mem 4", "sim-cuda", "fault", "linger")
    machine.in_state(State.FAULT)
    assert first_line(machine).startswith("gpu0 is in fault: ")
    client.kill()
    machine.in_state(State.READY)


def test_a_canary_that_failed(untried: Machine) -> None:
    untried.card().quirks = Quirk.IGNORES_MEMORY_LIMITS
    untried.service("up")
    eventually(lambda: untried.folder_of().record.exists() and untried.record().state is State.REFUSED, "it is refused")
    assert first_line(untried).startswith("gpu0: the canary failed under driver 580.159.04: gpu0: a client under a ser")


def test_an_agent_that_does_not_run(machine: Machine) -> None:
    control, agent = machine.apart()
    agent.kill()
    expected = f"mpsd does not run here as a whole: pid {control.pid} holds its daemons, and no agent answers on "
    assert first_line(machine).startswith(expected)
    machine.service("agent")
    machine.until_ready()


def test_daemons_that_nobody_looks_after(machine: Machine) -> None:
    service = machine.up()
    service.kill()
    expected = "neither `mpsd up` nor `mpsd control` runs: nobody looks after the daemons of gpu0; start it again: "
    assert first_line(machine).startswith(expected)
    machine.up()


def test_a_process_outside_the_books(machine: Machine) -> None:
    machine.set_policy(exclusive_process=False, violations={"outside_mps": {"action": "observe"}}, canary="skip")
    machine.up()
    beside = {**machine.simulation.environment, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
    stranger = machine.start([machine.program("sim-cuda"), "hold"], beside)
    stranger.heard("ready")
    eventually(lambda: machine.node().clients, "the agent sees it")
    assert first_line(machine).startswith(f"pid {stranger.pid} uses gpu0 beside MPS, without limits: ")


# -- what is around it -----------------------------------------------------------------------------------------------


def test_no_uvm_device(machine: Machine, host: Path) -> None:
    (host / "dev/nvidia-uvm").unlink()
    machine.up()
    assert first_line(machine, "--root", host).startswith("/dev/nvidia-uvm is not there, and CUDA cannot start without")


def test_a_launcher_that_is_gone_or_whose_python_is(machine: Machine, host: Path) -> None:
    machine.up()
    (host / "opt/python").unlink()
    expected = "/usr/local/bin/mpsd-runtime, with which docker starts containers, needs /opt/python, which is gone; "
    assert first_line(machine, "--root", host) == expected + "`mpsd install docker` writes it anew"
    (host / "usr/local/bin/mpsd-runtime").unlink()
    assert first_line(machine, "--root", host).startswith("/usr/local/bin/mpsd-runtime is not there, and docker would")


def test_no_container_toolkit(machine: Machine, host: Path) -> None:
    machine.up()
    (host / "usr/bin/nvidia-container-runtime").rename(host / "usr/bin/runc")
    assert first_line(machine, "--root", host).startswith(
        "nvidia-container-runtime is not installed, and containers of"
    )


def test_no_folder_for_device_plugins(machine: Machine, host: Path) -> None:
    machine.up()
    (host / "var/lib/kubelet/device-plugins").rename(host / "var/lib/kubelet/pods")
    expected = (
        f"{host}/var/lib/kubelet/device-plugins is not there: kubelet takes no device plugin, so pods get no share"
    )
    assert first_line(machine, "--root", host).startswith(expected)


def test_selinux(machine: Machine, host: Path) -> None:
    machine.up()
    enforce = write(host / "sys/fs/selinux/enforce", "1")
    expected = f"SELinux is enforcing, and {machine.folder_of().client} has the type (none), which confined containers"
    assert first_line(machine, "--root", host).startswith(expected)
    enforce.write_text("0")
    assert found(machine, "--root", host) == []


def test_the_default_pipe_directory(machine: Machine, host: Path) -> None:
    machine.up()
    (host / "tmp/nvidia-mps").mkdir(parents=True)
    assert first_line(machine, "--root", host).startswith("/tmp/nvidia-mps is there: some runtimes mount it into every")


def test_a_root_that_is_no_folder_is_a_wrong_question(machine: Machine) -> None:
    answer = asked(machine, "--root", "/nonexistent")
    assert (answer.exit_code(), answer.output) == (2, "")
    assert "--root is /nonexistent: is no folder that is there" in answer.errors


def test_help_teaches(machine: Machine) -> None:
    said = asked(machine, "--help").output
    assert "Exits with 0 when all is well" in said
