"""The table of clusters in docs/install.md: a run of tests/e2e with `--record` writes what it is
printed from."""

import json
from pathlib import Path
from typing import Literal

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run_record import RunRecord, cluster_rows, merged

OLD = {
    "kubernetes": "v1.20.2",
    "container runtime": "containerd 1.6.20",
    "runc": "1.1.5",
    "cgroup": "v1",
}
NEW = OLD | {"kubernetes": "v1.36.2", "runc": ""}
ADMISSION = {
    "tests/e2e/admission/test_a.py::test_one": "passed",
    "tests/e2e/admission/test_b.py::test_two[x]": "skipped",
}
_PHASES: tuple[tuple[Literal["setup", "call", "teardown"], Literal["passed", "failed"]], ...] = (
    ("setup", "passed"),
    ("call", "passed"),
    ("teardown", "failed"),
)
NODE = {"tests/e2e/node/test_c.py::test_three": "failed"}


def test_the_runs_of_one_cluster_add_up_part_by_part() -> None:
    first = merged({}, OLD, ADMISSION, "2026-11-20")
    both = merged(first, OLD, NODE, "2026-11-23")
    assert both["parts"] == {
        "tests/e2e/admission": {"date": "2026-11-20", "passed": 1, "failed": 0, "skipped": 1},
        "tests/e2e/node": {"date": "2026-11-23", "passed": 0, "failed": 1, "skipped": 0},
    }


def test_a_run_of_a_part_replaces_it() -> None:
    once = merged({}, OLD, ADMISSION, "2026-11-20")
    assert merged(once, OLD, dict.fromkeys(ADMISSION, "passed"), "2026-11-23")["parts"] == {
        "tests/e2e/admission": {"date": "2026-11-23", "passed": 2, "failed": 0, "skipped": 0}
    }


def test_nothing_is_kept_of_other_versions() -> None:
    record = merged(merged({}, OLD, ADMISSION, "2026-11-20"), NEW, NODE, "2026-11-23")
    assert (record["versions"], [*record["parts"]]) == (NEW, ["tests/e2e/node"])


def test_what_fails_at_its_end_has_failed(tmp_path: Path) -> None:
    kept = RunRecord(tmp_path, Cluster(tmp_path))
    for when, outcome in _PHASES:
        kept.pytest_runtest_logreport(
            pytest.TestReport("a.py::b", ("a.py", 1, "b"), {}, outcome, None, when)
        )
    assert kept.ends == {"a.py::b": "failed"}


def test_a_row_adds_the_parts_up_and_the_newest_kubernetes_is_first(tmp_path: Path) -> None:
    old = merged(merged({}, OLD, ADMISSION, "2026-11-20"), OLD, NODE, "2026-11-23")
    for name, record in (("old", old), ("new", merged({}, NEW, NODE, "2026-11-22"))):
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    assert cluster_rows(tmp_path) == [
        ("v1.36.2", "containerd 1.6.20", "not known", "v1", "0", "1", "0", "2026-11-22"),
        ("v1.20.2", "containerd 1.6.20", "1.1.5", "v1", "1", "1", "1", "2026-11-20"),
    ]
