"""What the end-to-end tests ran on and how they ended: `--record FOLDER` writes it, docs/install.md
prints it.

A file for each pair of Kubernetes and container runtime. A run replaces the parts that it ran, and
a record of other versions as a whole, so that no row mixes two.
"""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster

RECORDS = Path(__file__).parent / "records"
_ENDS = ("passed", "failed", "skipped")


class RunRecord:
    """A plugin of pytest. In `ends` is how each test ended, by its id; what failed in any phase has
    failed."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster, self.ends = folder, cluster, dict[str, str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        is_an_end = report.when == "call" or report.outcome != "passed"
        if is_an_end and self.ends.get(report.nodeid) != "failed":
            self.ends[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        if self.ends:
            of, today = versions(self.cluster), datetime.now(UTC).date().isoformat()
            self.folder.mkdir(exist_ok=True)
            file = (
                self.folder / f"{of['kubernetes']}-{of['container runtime'].replace(' ', '-')}.json"
            )
            before = json.loads(file.read_text()) if file.exists() else {}
            file.write_text(json.dumps(merged(before, of, self.ends, today), indent=2) + "\n")


def merged(
    before: Mapping[str, Any], versions: Mapping[str, str], ends: Mapping[str, str], date: str
) -> dict[str, Any]:
    """The record after a run. ends: by the ids of tests, whose folders are the parts."""
    counts: dict[str, Counter[str]] = {}
    for test, end in ends.items():
        counts.setdefault(str(Path(test.partition("::")[0]).parent), Counter())[end] += 1
    parts = {
        name: {"date": date, **{end: count[end] for end in _ENDS}} for name, count in counts.items()
    }
    kept = before.get("parts", {}) if before.get("versions") == versions else {}
    return {"versions": dict(versions), "parts": dict(sorted({**kept, **parts}.items()))}


def versions(cluster: Cluster) -> dict[str, str]:
    """What runs there, as far as the API or this machine says; empty where neither does."""
    nodes = (
        cluster.get("nodes", "-l", "ack.node.gpu.schedule=mps")["items"]
        or cluster.get("nodes")["items"]
    )
    node = nodes[0] if nodes else {}
    seen = node.get("status", {}).get("nodeInfo", {})
    return {
        "kubernetes": json.loads(cluster.do("version", "-o", "json").out)["serverVersion"][
            "gitVersion"
        ],
        "container runtime": seen.get("containerRuntimeVersion", "").replace("://", " "),
        "runc": _runc(),
        "cgroup": _cgroup(cluster, node.get("metadata", {}).get("name", "")),
    }


def _is_here() -> bool:
    """Whether the cluster is one of with-cluster.sh, whose node is this machine."""
    return "MPSD_E2E_STATE" in os.environ


def _runc() -> str:
    runc = shutil.which("runc")
    if not runc or not _is_here():
        return ""
    said = subprocess.run([runc, "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[2]


def _cgroup(cluster: Cluster, node: str) -> str:
    """kubelet 1.31 and newer says it in its metrics."""
    told = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/metrics").out
    if found := re.search(r"^kubelet_cgroup_version (\d)", told, re.MULTILINE):
        return f"v{found[1]}"
    return (
        ("v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1") if _is_here() else ""
    )


def cluster_rows(folder: Path = RECORDS) -> list[tuple[str, ...]]:
    """A row for each record, the newest Kubernetes first; of its parts the sums, and the day of the
    oldest."""
    found = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    return [_row(one) for one in sorted(found, key=_age, reverse=True)]


def _age(record: Mapping[str, Any]) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", record["versions"]["kubernetes"])]


def _row(record: Mapping[str, Any]) -> tuple[str, ...]:
    of, parts = record["versions"], record["parts"].values()
    sums = [str(sum(part[end] for part in parts)) for end in _ENDS]
    runs = [
        of[name] or "not known" for name in ("kubernetes", "container runtime", "runc", "cgroup")
    ]
    return (*runs, *sums, min(part["date"] for part in parts))
