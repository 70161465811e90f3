"""`mpsd doctor` on broken machines: the first line of its answer names what is broken, and what to
do."""

import os
import re
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mpsd.platform import records
from mpsd.simulator.card import DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED
from tests.whole.machine import test_doctor_daemons, test_doctor_host
from tests.whole.machine.asking_doctor import asked, first_line, found, write
from tests.whole.machine.asking_doctor import host as host
from tests.whole.machine.machine import CONTROL, MPSD, SOON_S, Machine, eventually

# -- a machine with nothing wrong -----------------------------------------------------------------


def test_a_machine_that_serves_is_well_and_so_is_what_is_around_it(
    served: Machine, host: Path
) -> None:
    served.client(4)

    alone, around = asked(served), asked(served, "--root", host, "-v")

    assert (alone.exit_code(), around.exit_code()) == (0, 0), f"{alone}{around}"
    assert alone.output.startswith("all is well: ")
    assert "  launcher-broken: engines can start containers with GPUs" in around.output
    assert "unknown" not in around.output


def test_a_simulated_mpsd_that_runs_is_recognized_without_being_named(served: Machine) -> None:
    answer = served.start([MPSD, "doctor"], {"MPSD_SIMULATE": ""})
    assert (answer.exit_code(), answer.output.startswith("all is well: ")) == (0, True), answer


def test_it_changes_nothing(machine: Machine) -> None:
    before = sorted(machine.run_directory.rglob("*"))
    assert (
        first_line(machine)
        == "neither mpsd nor a daemon of mpsd runs here; start it with `mpsd up`"
    )
    assert sorted(machine.run_directory.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_what_another_user_may_not_see_is_unknown_and_not_well(served: Machine) -> None:
    served.run_directory.parent.chmod(0o755)
    other = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    answer = served.start([*other, MPSD, "doctor"])
    assert answer.exit_code() == 1, answer
    assert answer.output.startswith(
        "nothing wrong was found, but not known is whether every control daemon is mpsd's: "
    )
    assert "may not be read; ask again as root" in answer.output


# -- the driver and the GPUs ---------------------------------------------------------------------


def test_no_driver(machine: Machine) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("a driver answers on this machine")
    environment = {
        name: value for name, value in machine.environment.items() if name != "MPSD_SIMULATE"
    }
    done = subprocess.run(
        [MPSD, "doctor"], env=environment, capture_output=True, text=True, timeout=SOON_S
    )
    assert done.returncode == 1
    assert done.stdout.startswith(
        "NVML: nvmlInit failed: NVML Shared Library Not Found; no NVIDIA driver answers here;"
    )


def test_a_gpu_that_fell_off_the_bus(pair: Machine) -> None:
    pair.card(1).lost = True
    assert first_line(pair).startswith(
        "gpu1 does not answer: NVML: nvmlDeviceGetHandleByIndex failed: GPU is lost; "
    )
    pair.card(1).lost = False


def test_a_driver_that_is_too_old(machine: Machine) -> None:
    write(machine.simulation.folder / "driver", "470.57.02\n")
    assert first_line(machine).startswith(
        "driver 470.57.02 is too old: MPS has memory limits since driver 495; install"
    )


def test_a_gpu_from_before_volta(machine: Machine) -> None:
    """NVIDIA/k8s-device-plugin#685: a Tesla P4, "Failed to start : invalid argument", over and
    over."""
    file = machine.simulation.folder / "gpus.json"
    file.write_text(file.read_text().replace('"8.0"', '"6.1"'))
    assert first_line(machine).startswith(
        "gpu0 (NVIDIA A30) has compute capability 6.1: MPS enforces no limits"
    )


def test_a_gpu_that_the_facts_do_not_list(machine: Machine) -> None:
    file = machine.simulation.folder / "gpus.json"
    file.write_text(file.read_text().replace('"8.0"', '"13.7"'))
    assert first_line(machine).startswith(
        "gpu0 (NVIDIA A30) has compute capability 13.7, which gpus.yaml does not list"
    )


def test_a_compute_mode_that_a_crash_left_behind(machine: Machine) -> None:
    """NVIDIA/k8s-dra-driver-gpu#1262."""
    service = machine.up()
    daemon = machine.daemon()
    service.kill()
    machine.kill(daemon)
    eventually(lambda: not machine.processes_left(), "all of it is gone")
    assert machine.card().compute_mode == EXCLUSIVE_PROCESS
    expected = (
        "gpu0 (NVIDIA A30) is in compute mode EXCLUSIVE_PROCESS while no mpsd runs; `mpsd control"
        " --release` puts"
    )
    assert first_line(machine).startswith(expected)


def test_a_compute_mode_that_somebody_else_has_set(machine: Machine) -> None:
    machine.card().compute_mode = PROHIBITED
    expected = (
        "gpu0 (NVIDIA A30) is in compute mode PROHIBITED while no mpsd runs; run `nvidia-smi -i 0"
        " -c DEFAULT`"
    )
    assert first_line(machine) == expected


def test_the_policy_is_that_of_the_mpsd_that_runs_where_none_is_named(served: Machine) -> None:
    card = served.card()
    served.set_policy(exclusive_process=False)
    eventually(lambda: card.compute_mode == DEFAULT, "it is put back")
    nobody_says = {"MPSD_LIMITS": ""}
    answer = served.start([MPSD, "doctor"], nobody_says)
    assert answer.exit_code() == 0, answer
    served.set_policy()
    eventually(lambda: card.compute_mode == EXCLUSIVE_PROCESS, "it is taken again")


def test_a_compute_mode_that_somebody_took_away(served: Machine) -> None:
    served.card().compute_mode = 0
    assert first_line(served).startswith(
        "gpu0 (NVIDIA A30) is not in compute mode EXCLUSIVE_PROCESS, as the policy"
    )
    served.card().compute_mode = EXCLUSIVE_PROCESS


# -- mpsd's own files ----------------------------------------------------------------------------


def test_limits_files_that_are_not_sound(served: Machine) -> None:
    served.write_policy("version: v1\nplacement: everywhere\n")
    assert "placement" in asked(served).output
    assert found(served)[0] == "limits-unsound"
    assert "`mpsd check " in first_line(served)
    served.set_policy()


def test_no_mps_on_path(machine: Machine) -> None:
    """NVIDIA/k8s-device-plugin#1105: "executable file not found in $PATH", after 30 s of something
    else."""
    machine.program(CONTROL).unlink()
    assert (
        first_line(machine)
        == "nvidia-cuda-mps-control is not on PATH; install the driver's compute utilities"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
def test_a_run_directory_of_somebody_else(machine: Machine) -> None:
    """nebuly-ai/nos#19: the wrong uid, and clients that hang."""
    os.chown(machine.run_directory, 65534, 65534)
    expected = (
        f"the run directory {machine.run_directory} belongs to user 65534, not to user 0; chown 0 "
    )
    assert first_line(machine).startswith(expected)


def test_a_record_of_another_version(served: Machine) -> None:
    service = served.part("up")
    service.send(signal.SIGSTOP)
    record = served.folder_of().record
    sound = record.read_text()
    records.write(record, replace(served.record(), version=2), mode=0o644)
    assert first_line(served).startswith(
        "gpu0: its record is of version 2, and this mpsd reads 1; restart `mpsd contr"
    )
    record.write_text("{")
    unreadable = first_line(served)
    record.write_text(sound)
    service.send(signal.SIGCONT)
    assert unreadable.startswith(f"a domain's record cannot be read: {record}: ")


# -- all of it


def test_twelve_failures_that_users_of_peers_reported_are_broken_here_each_with_its_issue() -> None:
    issues = re.compile(r"\b[\w.-]+/[\w.-]+#\d+")
    places = (globals(), vars(test_doctor_daemons), vars(test_doctor_host))
    told = {
        name: thing.__doc__ or ""
        for place in places
        for name, thing in place.items()
        if name.startswith("test_")
    }
    assert sum(bool(issues.match(words)) for words in told.values()) >= 12
