"""`mpsd bundle` on a simulated machine: everything is in it but what is secret, and nothing stays
after Ctrl-C."""

import json
import signal
import stat
import tarfile
from pathlib import Path

from tests.whole.machine.asking_doctor import host as host
from tests.whole.machine.machine import MPSD, Machine, Program, eventually

SECRETS = ("hunter2-in-an-argument", "hunter2-in-the-environment", "hunter2-in-a-log")


POLICY = {"violations": {"in_no_pod": {"action": "observe"}}}


def bundled(machine: Machine, *options: object) -> Program:
    program = machine.start([MPSD, "bundle", *map(str, options)])
    program.exit_code()
    return program


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        found = {entry.name.partition("/")[2]: tar.extractfile(entry) for entry in tar.getmembers()}
        return {name: file.read().decode() for name, file in found.items() if file}


def test_all_of_it_is_there_and_nothing_secret(served: Machine, host: Path, tmp_path: Path) -> None:
    beside = {**served.environment, "DB_PASSWORD": SECRETS[1]}
    program = served.start(
        [MPSD, "run", "--gpu-mem", "4", "--", "sim-cuda", "hold", f"--{SECRETS[0]}"], beside
    )
    eventually(lambda: served.node().grants, "it has a grant")
    with served.folder_of().log.open("a") as log:
        log.write(f"connecting with password={SECRETS[2]}\n")
    path = tmp_path / "out.tar.gz"

    answer = bundled(served, "-o", path, "--root", host)

    assert (answer.exit_code(), answer.output) == (0, f"{path}\n"), answer
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = contents(path)
    assert {
        "INDEX.txt",
        "doctor.json",
        "node.json",
        "metrics.txt",
        "gpus.json",
        "versions.json",
    } <= found.keys()
    assert {
        "limits/policy.yaml",
        "run/gpu0/record.json",
        "run/gpu0/log/control.log",
    } <= found.keys()
    for secret in SECRETS:
        assert [name for name, text in found.items() if secret in text] == []
    assert " server ready: " in found["run/gpu0/log/control.log"]
    assert json.loads(found["run/gpu0/record.json"])["domain"] == "gpu0"
    assert json.loads(found["limits/policy.yaml"])["violations"]["in_no_pod"]["action"] == "observe"
    assert json.loads(found["node.json"])["version"]
    assert "NVIDIA A30" in found["gpus.json"]
    index = found["INDEX.txt"]
    assert all(f"{name}: " in index for name in found if name != "INDEX.txt")
    assert "log/runtime.log: " in index.partition("Not here: ")[2]
    program.kill()


def test_a_signal_leaves_nothing_behind(served: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    service = served.part("up")
    service.send(signal.SIGSTOP)  # so that it waits for the agent
    program = served.start([MPSD, "bundle", "-o", str(folder / "out.tar.gz")])
    eventually(lambda: list(folder.iterdir()), "it writes")
    program.send(signal.SIGTERM)
    ended = program.exit_code()
    service.send(signal.SIGCONT)
    assert ended == 128 + signal.SIGTERM, program
    assert list(folder.iterdir()) == []


def test_a_full_disk_is_named_with_the_file_and_nothing_stays(
    machine: Machine, tmp_path: Path
) -> None:
    # as a disk with 1 KiB of room
    full = ["bash", "-c", 'ulimit -f 1; trap "" XFSZ; exec "$@"', "bash"]
    program = machine.start([*full, MPSD, "bundle", "-o", str(tmp_path / "out.tar.gz")])
    assert program.exit_code() == 2, program
    assert (
        f'-o is "{tmp_path}/out.tar.gz"' in program.errors
        or "cannot be written: File too large" in program.errors
    )
    assert list(tmp_path.glob("*out.tar.gz*")) == []
