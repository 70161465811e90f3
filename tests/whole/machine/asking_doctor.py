"""`mpsd doctor` as it is asked by tests, and a folder that stands for a host's /."""

import json
from pathlib import Path
from typing import Any

import pytest

from mpsd.containers.engines.launcher import launcher
from tests.whole.machine.machine import MPSD, Machine, Program

DOCKER = {"runtimes": {"mpsd": {"path": "/usr/local/bin/mpsd-runtime"}}}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder that stands for /, of a machine with docker, the runtime mpsd, the toolkit and
    nothing wrong."""
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
    answer = asked(machine, *options)
    assert answer.exit_code() == 1, answer
    assert answer.errors == ""
    return answer.output.partition("\n")[0]


def found(machine: Machine, *options: object) -> list[str]:
    """The checks that found something, the worst first."""
    told: dict[str, Any] = json.loads(asked(machine, "-o", "json", *options).output)
    return [check["id"] for check in told["checks"] if check["verdict"] == "found"]
