"""`mpsd doctor` on a whole machine: what it looks at is what is there, and its first line says what
is wrong.

What it makes of what it saw: tests/operations/test_doctor.py.
"""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from mpsd.platform import records
from mpsd.simulator.card import DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED
from tests.whole.machine.asking_doctor import asked, first_line, found, write
from tests.whole.machine.asking_doctor import host as host
from tests.whole.machine.machine import CONTROL, MPSD, Machine, eventually


def test_a_machine_that_serves_is_well_and_so_is_what_is_around_it(
    served: Machine, host: Path
) -> None:
    served.client(4)

    alone, around = asked(served), asked(served, "--root", host, "-v")

    assert (alone.exit_code(), around.exit_code()) == (0, 0), f"{alone}{around}"
    assert alone.output.startswith("all is well: ")
    assert "  launcher-broken: engines can start containers with GPUs" in around.output
    assert "unknown" not in around.output
    unnamed = served.start([MPSD, "doctor"], {"MPSD_SIMULATE": "", "MPSD_LIMITS": ""})
    assert (unnamed.exit_code(), unnamed.output.startswith("all is well: ")) == (0, True), unnamed


def test_it_changes_nothing(machine: Machine) -> None:
    before = sorted(machine.run_directory.rglob("*"))
    assert found(machine)[0] == "not-running"
    assert sorted(machine.run_directory.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_what_another_user_may_not_see_is_unknown_and_not_well(served: Machine) -> None:
    served.run_directory.parent.chmod(0o755)
    other = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    answer = served.start([*other, MPSD, "doctor"])
    assert answer.exit_code() == 1, answer
    assert not answer.output.startswith("all is well: ")
    assert "may not be read; ask again as root" in answer.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
def test_what_is_wrong_before_mpsd_runs_is_found(pair: Machine) -> None:
    write(pair.simulation.folder / "driver", "470.57.02\n")
    gpus = pair.simulation.folder / "gpus.json"
    gpus.write_text(gpus.read_text().replace('"8.0"', '"6.1"'))
    pair.card(0).compute_mode = PROHIBITED
    pair.card(1).lost = True
    pair.program(CONTROL).unlink()
    os.chown(pair.run_directory, 65534, 65534)
    assert {
        *("driver-old", "capability", "gpu-lost"),
        *("compute-mode-left", "no-control-program", "run-directory"),
    } <= {*found(pair)}
    pair.card(1).lost = False


def test_what_is_wrong_with_records_and_compute_modes_is_found(served: Machine) -> None:
    service, record = served.part("up"), served.folder_of().record
    service.send(signal.SIGSTOP)
    served.card().compute_mode = DEFAULT
    sound = record.read_text()
    records.write(record, replace(served.record(), version=2), mode=0o644)
    assert {"record-strange", "compute-mode-lost"} <= {*found(served)}
    record.write_text("{")
    assert "record-strange" in found(served)
    record.write_text(sound)
    served.card().compute_mode = EXCLUSIVE_PROCESS
    service.send(signal.SIGCONT)


def test_what_is_wrong_around_mpsd_is_found(served: Machine, host: Path) -> None:
    (host / "dev/nvidia-uvm").unlink()
    (host / "opt/python").unlink()
    (host / "usr/bin/nvidia-container-runtime").rename(host / "usr/bin/runc")
    (host / "var/lib/kubelet/device-plugins").rename(host / "var/lib/kubelet/pods")
    write(host / "sys/fs/selinux/enforce", "1")
    (host / "tmp/nvidia-mps").mkdir(parents=True)
    assert {*found(served, "--root", host)} == {
        *("no-uvm", "launcher-broken", "kubelet-folder", "selinux", "default-pipe")
    }
    assert first_line(served, "--root", host).startswith("/dev/nvidia-uvm is missing; ")
    wrong = asked(served, "--root", "/nonexistent")
    assert (wrong.exit_code(), wrong.output) == (2, "")


def test_another_control_daemon_is_named_with_how_to_stop_it(
    served: Machine, tmp_path: Path
) -> None:
    there = {
        **served.simulation.environment,
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path),
    }
    other = served.start([served.program(CONTROL), "-f"], there)
    eventually((tmp_path / "control").exists, "it listens")
    line = first_line(served)
    other.kill()
    assert line.startswith(f"another control daemon (pid {other.pid} in {tmp_path}) runs on this")
    assert "stop it (echo quit | " in line
