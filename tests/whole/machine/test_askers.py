"""A grant goes to the process that connected, or to nobody."""

import json
import os

import pytest

from tests.whole.machine.machine import Machine
from tests.world.reused_pid import another_with, asked, connected_by_the_dead

PROGRAM = {"gpu_mem": "1", "gpu_core": None, "gpus": "1", "wait_s": 0, "command": "not mine"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root chooses the next pid")
@pytest.mark.parametrize(
    ("path", "wanted"),
    [("grants", PROGRAM), ("containers/environment", {"root": "/run/runc", "id": "none"})],
)
def test_nobody_asks_in_the_name_of_who_has_a_dead_process_s_pid(
    served: Machine, path: str, wanted: dict[str, object]
) -> None:
    connection, pid = connected_by_the_dead(served.run_directory / "mpsd.sock")
    with connection, another_with(pid, "sleep", "600") as other:
        found = asked(connection, f"POST /v1/{path}", json.dumps(wanted))
        assert found.split()[1] == b"400"
        assert served.holders == set()
        assert other.poll() is None
