"""A glance tells first what is shown first, the same as all of it tells, or nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from mpsd.core.node_rows import node_row
from mpsd.core.top_rows import cluster_top
from mpsd.roles.cluster_glance import Glance
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
    return json.dumps({"kind": "MPSNodeList", "items": things})


def test_what_is_shown_first_is_what_all_of_it_tells(kubectl: Path) -> None:
    odd = mpsnode("gpu-a1") | {"metadata": {"name": "odd"}}
    odd["status"]["gpus"][0]["usedMiB"] = "much"
    kubectl.write_text(listed(*map(mpsnode, reversed(NAMES)), odd))
    glance = Glance((), None, None)
    rows, status, gpus = glance.rows(), glance.status(), glance.top_gpus()
    assert status is not None
    assert rows == tuple(map(node_row, status.nodes))
    assert [row.name for row in rows] == [*NAMES, "odd"]
    assert gpus is not None
    assert sorted(gpus, key=str) == sorted(cluster_top(status, None).gpus, key=str)


def test_only_nodes_that_were_asked_for_are_told_of_and_all_of_them(kubectl: Path) -> None:
    kubectl.write_text(listed(*map(mpsnode, NAMES)))
    glance = Glance(NAMES[:2], None, None)
    assert [row.name for row in glance.rows() or ()] == list(NAMES[:2])
    missing = Glance([NAMES[0], "nobody"], None, None)
    assert (missing.rows(), missing.status()) == (None, None)


@pytest.mark.parametrize("answer", ["", "{}", "[", '{"kind": "MPSNodeList", "items": [{]}'])
def test_of_no_answer_nothing_is_told(kubectl: Path, answer: str) -> None:
    kubectl.write_text(answer)
    glance = Glance((), None, None)
    assert (glance.rows(), glance.top_gpus(), glance.status()) == (None, None, None)


def test_without_a_kubectl_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Glance((), None, None).rows() is None
