"""A container without a kubelet: where it may not mount, its variables lead it to the host's
paths."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.simulator.kubelet.containers import ContainerRun, Ended, NotStarted
from mpsd.simulator.programs import wait_until
from tests.simulator.kubelet.world import lives

NOBODY = 65534

# Python and mpsd may lie where another user may not read.
IMPORT_FIRST = """
import os, sys
from mpsd.simulator.kubelet import shim as kubelet_shim
os.setuid(int(sys.argv[2]) or os.geteuid())
kubelet_shim.main()
"""


def run(folder: Path, command: list[str], shim_uid: int = 0, **spec: object) -> ContainerRun:
    """One container, at its end. shim_uid: another than root may not mount."""
    (folder / "root").mkdir()
    told = {
        "command": command,
        "environment": {},
        "mounts": [],
        "devices": [],
        "cgroup": "",
        "uid": None,
        **spec,
    }
    (folder / "spec.json").write_text(json.dumps({**told, "root": str(folder / "root")}))
    if shim_uid:
        for each in (folder, folder / "root", folder / "spec.json"):
            os.chown(each, shim_uid, shim_uid)
    subprocess.run(
        [sys.executable, "-P", "-c", IMPORT_FIRST, str(folder), str(shim_uid)],
        timeout=30,
        check=False,
    )
    return ContainerRun(folder)


@pytest.fixture
def folder() -> Iterator[Path]:
    # pytest's own are below one that only root may enter
    with tempfile.TemporaryDirectory(prefix="shim-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_a_container_of_a_user_who_may_not_mount_is_led_to_the_host_s_paths(folder: Path) -> None:
    mounts = [{"source": "/srv/client", "inside": "/run/mpsd/client", "read_only": True}]
    environment = {
        "AT": "/run/mpsd/client",
        "BELOW": "/run/mpsd/client/control",
        "NOT": "/run/mpsd/clients",
    }
    ran = run(
        folder,
        ["/bin/sh", "-c", 'echo "$AT $BELOW $NOT"'],
        NOBODY,
        mounts=mounts,
        environment=environment,
    )
    assert isinstance(ran.state(), Ended)
    assert ran.log.read_text() == "/srv/client /srv/client/control /run/mpsd/clients\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
def test_a_container_runs_as_the_user_that_is_asked_for_and_ends_with_all_of_its_processes(
    folder: Path,
) -> None:
    command = ["/bin/sh", "-c", "id -u; sleep 60 & echo $!; exit 3"]
    ran = run(folder, command, environment={"PATH": os.environ["PATH"]}, uid=NOBODY)
    uid, left = map(int, ran.log.read_text().split())
    state = ran.state()
    assert isinstance(state, Ended)
    assert (uid, state.exit_code) == (NOBODY, 3)
    wait_until(lambda: not lives(left), 5, "what it left behind has ended")


def test_a_command_that_is_none_is_said_and_not_run(folder: Path) -> None:
    ran = run(folder, ["/no/such/program"])
    state = ran.state()
    assert isinstance(state, NotStarted)
    assert "/no/such/program: " in state.reason
    assert "No such file" in state.reason
