"""Grants of programs: how they come back, who gets them next, and who waits for one."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mpsd.model.client_limits import DENY_MIB
from tests.whole.machine.machine import MPSD, Machine, eventually

# A shell that leaves a program on the GPU and ends.
_LEAVES_A_CHILD = (
    "sim-cuda hold & while ! grep -q ready /proc/self/fd/1; do sleep 0.01; done; exit 0"
)


def test_the_grant_comes_back_when_the_command_ends(served: Machine) -> None:
    assert served.run("--gpu-mem 20", "true").exit_code() == 0
    served.until_no_grants()
    assert (
        served.run("--gpu-mem 20", "sh", "-c", "kill -SEGV $$").exit_code() == 128 + signal.SIGSEGV
    )
    served.until_no_grants()
    assert served.run("--gpu-mem 20", "no-such-command").exit_code() == 127
    served.until_no_grants()
    killed = served.client(20)
    killed.kill()
    served.until_no_grants()
    eventually(lambda: served.limit_mib() == DENY_MIB, "new clients are denied again")


@contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """A file system of 256 KiB in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Returns the file that takes all its space."""
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return folder / "filler"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
@pytest.mark.parametrize("where", ["grants", "gpu0"])
def test_a_full_run_directory_is_told_at_once_and_the_queue_outlives_it(
    machine: Machine, where: str
) -> None:
    with mounted(machine.run_directory / where):
        machine.up()
        filler = fill(machine.run_directory / where)
        refused = machine.run("--gpu-mem 7", "true")
        assert refused.exit_code(within_s=15.0) == 1
        assert f"in {machine.run_directory}: No space left on device; free " in refused.errors
        assert machine.node().grants == ()
        queued = machine.run("--gpu-mem 7 --wait", "true")
        eventually(lambda: machine.queue == [queued.pid], "it waits")
        filler.unlink()
        assert queued.exit_code() == 0
        machine.stop()


_CONNECTS = """
import os, socket, sys
os.setresuid(65534, 65534, 65534)
for place in sys.argv[1:]:
    there = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if place.endswith(".sock"):
        there = socket.socket(socket.AF_UNIX)
    try:
        there.connect(place)
    except OSError as error:
        print(error.strerror)
    else:
        print("connected")
try:
    open(f"{os.path.dirname(sys.argv[1])}/theirs", "w")
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, and another user")
@pytest.mark.parametrize("umask", ["077", "000"])
def test_whatever_umask_root_has_others_reach_what_they_need_alone(
    machine: Machine, umask: str
) -> None:
    machine.run_directory.parent.chmod(0o755)
    below = machine.run_directory / "made" / "run"
    ours = {"MPSD_RUN_DIR": str(below)}
    # it makes two folders
    service = machine.service("up", ours, wrap=("sh", "-c", 'umask "$0" && exec "$@"', umask))
    record = below / "gpu0" / "record.json"
    eventually(lambda: record.exists() and '"ready"' in record.read_text(), "it serves")
    eventually((below / "mpsd.sock").exists, "it listens")

    places = [below / "mpsd.sock", below / "gpu0/client/control", below / "gpu0/pipe/control"]
    other = machine.start([sys.executable, "-c", _CONNECTS, *places])

    assert other.exit_code() == 0
    denied = "Permission denied"
    assert other.output.split("\n")[:4] == ["connected", "connected", denied, denied]
    modes = {path: path.stat().st_mode for path in below.parent.rglob("*") if path.is_dir()}
    own = {path: mode for path, mode in modes.items() if "simulation" not in path.parts}
    assert not {path: oct(mode) for path, mode in own.items() if mode & stat.S_IWOTH}
    service.send(signal.SIGTERM)
    assert service.exit_code() == 0
    shutil.rmtree(machine.run_directory)


def test_a_request_that_comes_while_gpus_are_divided_waits_for_them(pair: Machine) -> None:
    pair.up()
    assert pair.run("--gpus 2 --gpu-mem 8", "true").exit_code() == 0
    eventually(lambda: "gpu0-1" not in {one.name for one in pair.node().domains}, "it is divided")
    assert pair.run("--gpu-mem 7", "true").exit_code() == 0


def test_a_grant_lasts_until_the_last_child_of_its_command_has_left_the_gpu(
    served: Machine,
) -> None:
    parent = served.run("--gpu-mem 20", "sh", "-c", _LEAVES_A_CHILD)
    assert parent.exit_code() == 0
    child = parent.heard("ready")
    (grant,) = eventually(
        lambda: [one for one in served.node().grants if one.ended], "its holder's end is seen"
    )
    assert (grant.holder_pid, grant.clients) == (parent.pid, 1)
    refused = served.run("--gpu-mem 20", "true")
    assert refused.exit_code() == 1

    served.kill(child)

    served.until_no_grants()


def test_a_program_that_waits_is_told_that_the_agent_went_away(apart: Machine) -> None:
    agent = apart.part("agent")
    apart.client(20)
    waits = apart.run("--gpu-mem 20 --wait", "true")
    eventually(lambda: apart.queue == [waits.pid], "it waits")
    agent.kill()
    assert waits.exit_code() == 1
    assert "mpsd closed the connection" in waits.errors
    apart.service("agent")
    apart.until_ready()


def test_a_grant_that_nobody_can_prove_closes_its_gpu_until_its_file_is_removed(
    machine: Machine,
) -> None:
    service = machine.up()
    client = machine.run("--gpu-mem 20", "env", "-u", "MPSD_GRANT", "sim-cuda", "hold")
    client.heard("ready")
    (path,) = machine.run_directory.glob(f"grants/{machine.grant_of(client).id}.json")
    limit_mib = machine.limit_mib()
    service.kill()
    damaged = path.read_bytes()[:20]
    path.write_bytes(damaged)

    machine.up()

    refused = machine.run("--gpu-mem 1", "sim-cuda")
    assert refused.exit_code() == 1, refused
    remedy = f"once no program uses it, run `rm {path}`"
    assert "gpu0 takes no new grant" in refused.errors
    assert remedy in " ".join(refused.errors.split())
    assert any(remedy in what for what in machine.node().unknown)
    for verb in ("status", "doctor"):
        said = machine.start([MPSD, verb], {"COLUMNS": "1000"})
        said.exit_code()
        assert str(path) in said.output, said
    machine.until_watched()
    assert client.running
    assert machine.node().violations.counts == ()
    assert machine.limit_mib() == limit_mib
    assert path.read_bytes() == damaged

    client.kill()
    path.unlink()
    eventually(lambda: not machine.node().unknown, "the file is missed")
    assert machine.run("--gpu-mem 21", "true").exit_code() == 0
