"""The table of clusters in docs/install.md: a run of tests/e2e with `--record` writes what it is
printed from."""

import json
from pathlib import Path

from tests.e2e.run_record import cluster_rows, merged

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
NODE = {"tests/e2e/node/test_c.py::test_three": "failed"}


def test_the_runs_of_one_cluster_add_up_part_by_part() -> None:
    first = merged({}, OLD, ADMISSION, "2026-11-20")
    both = merged(first, OLD, NODE, "2026-11-23")
    assert both["parts"] == {
        "tests/e2e/admission": {"date": "2026-11-20", "passed": 1, "failed": 0, "skipped": 1},
        "tests/e2e/node": {"date": "2026-11-23", "passed": 0, "failed": 1, "skipped": 0},
    }


def test_a_row_adds_the_parts_up_and_the_newest_kubernetes_is_first(tmp_path: Path) -> None:
    old = merged(merged({}, OLD, ADMISSION, "2026-11-20"), OLD, NODE, "2026-11-23")
    for name, record in (("old", old), ("new", merged({}, NEW, NODE, "2026-11-22"))):
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    assert cluster_rows(tmp_path) == [
        ("v1.36.2", "containerd 1.6.20", "not known", "v1", "0", "1", "0", "2026-11-22"),
        ("v1.20.2", "containerd 1.6.20", "1.1.5", "v1", "1", "1", "1", "2026-11-20"),
    ]
