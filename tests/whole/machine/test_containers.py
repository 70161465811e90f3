"""Containers without Kubernetes, as `mpsd up` sees them. Real ones are in tests/host, and who holds
a grant when is in tests/grants."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mpsd.platform import local_api, processes
from tests.whole.machine.machine import Machine, eventually

TWO_GIB = {"EGPU": "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=2048,WEIGHT=10"}


def ask(machine: Machine, root: Path) -> tuple[int, Mapping[str, Any]]:
    """As the runtime that makes a container: this very process."""
    asks = {"root": str(root), "id": "c1", "name": "", "environment": TWO_GIB}
    status, body = local_api.ask(
        machine.run_directory / "mpsd.sock", "POST", "/v1/containers", asks
    )
    return status, json.loads(body)


def test_a_container_holds_its_grant_alone_until_its_first_process_ends(
    served: Machine, tmp_path: Path
) -> None:
    status, answer = ask(served, tmp_path)
    assert status == 201
    assert answer["environment"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M"
    assert served.holders == {os.getpid()}
    first = served.start(["sleep", "600"])
    found = processes.identity_of(first.pid)
    assert found
    (tmp_path / "c1").mkdir()
    state = {"init_process_pid": found.pid, "init_process_start": found.start_ticks}
    (tmp_path / "c1" / "state.json").write_text(json.dumps(state))
    eventually(lambda: served.holders == {first.pid}, "its first process holds it")

    status, again = ask(served, tmp_path)

    (reason,) = again["reasons"]
    assert status == 409
    assert f"already holds grant {answer['grant']}, and its pid {first.pid} is running" in reason
    first.kill()
    served.until_no_grants()
    assert list((served.run_directory / "grants").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user")
def test_another_user_is_refused(served: Machine) -> None:
    assert served.answer_to_nobody("/v1/containers", {}).startswith("HTTP/1.0 403")
