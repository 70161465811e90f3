"""A glance holds the nodes that were asked for, all of them, or nothing."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from mpsd.model.times import DAY_S, HOUR_S, stamp
from mpsd.status.glance import Glance, mpsnodes
from tests.mpsnodes import NAMES, mpsnode


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a kubectl answers, which is the only program there is."""
    answer = tmp_path / "answer"
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\nexec /bin/cat {answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return answer


def listed(*things: Any) -> str:
    """They have just reported."""
    for thing in things:
        if "status" in thing:
            thing["status"]["reportedAt"] = stamp(time.time())
    return json.dumps({"kind": "MPSNodeList", "items": things})


def test_a_glance_holds_every_node_and_one_odd_field_takes_nothing_from_the_others(
    kubectl: Path,
) -> None:
    odd = mpsnode("gpu-a1") | {"metadata": {"name": "odd"}}
    odd["status"]["gpus"][0]["usedMiB"] = "much"
    kubectl.write_text(listed(*map(mpsnode, reversed(NAMES)), odd))
    status = Glance((), None, None).status()
    assert status is not None
    assert [node.name for node in status.nodes] == [*NAMES, "odd"]
    assert [bool(node.unreadable) for node in status.nodes] == [*(False for _name in NAMES), True]


def test_only_nodes_that_were_asked_for_are_told_of_and_all_of_them(kubectl: Path) -> None:
    kubectl.write_text(listed(*map(mpsnode, NAMES)))
    status = Glance(NAMES[:2], None, None).status()
    assert status is not None
    assert [node.name for node in status.nodes] == list(NAMES[:2])
    assert Glance([NAMES[0], "nobody"], None, None).status() is None


def test_a_list_and_one_object_are_answers_and_nothing_else_is() -> None:
    one = mpsnode("gpu-a1") | {"kind": "MPSNode"}
    assert mpsnodes(json.dumps({"kind": "MPSNodeList", "items": [one, 3]}).encode()) == [one, 3]
    assert mpsnodes(json.dumps(one).encode()) == [one]
    for other in (
        b"",
        b"[",
        b"{}",
        b"[]",
        b"\xff",
        b'{"kind": "MPSNodeList"}',
        b'{"kind": 3}',
        b"[" * 100_000,
    ):
        assert mpsnodes(other) is None


@pytest.mark.parametrize("off_s", [-2 * DAY_S, -HOUR_S, HOUR_S, 2 * DAY_S])
def test_a_glance_by_a_clock_that_is_off_tells_nothing(
    kubectl: Path, off_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl.write_text(listed(*map(mpsnode, NAMES)))
    assert Glance((), None, None).status() is not None
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + off_s)
    assert Glance((), None, None).status() is None
