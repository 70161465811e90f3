"""What a run of tests/e2e_gpu ran on, how each case ended and what it measured: `--record FILE`
writes it.

The table in docs/install.md is printed from these files.
"""

import json
import platform
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run_record import versions
from tests.e2e_gpu.cards import Cards

_TOP = Path(__file__).parents[2]
RECORDS = _TOP / "docs" / "benchmarks"
READ = "mpsd on GPUs below a kubelet: tests/e2e_gpu"
_MOST_SAID = 2000


class GpuRunRecord:
    """A plugin of pytest. A case's figures are what it gave to `record_property`."""

    NAME: ClassVar[str] = "mpsd-e2e-gpu-record"

    def __init__(self, file: Path) -> None:
        self.file = file
        self.on: dict[str, Any] = {}
        self.cases: dict[str, dict[str, Any]] = {}

    def look_at(self, cluster: Cluster, cards: Cards) -> None:
        """What it runs on; before the first case."""
        node = cluster.get("nodes", "-l", "ack.node.gpu.schedule=mps")["items"][0]["status"][
            "nodeInfo"
        ]
        self.on = {
            "gpus": cards.names(),
            "driver": cards.driver(),
            "kernel": node["kernelVersion"],
            "kubelet": node["kubeletVersion"],
            "settings": cards.settings.splitlines(),
            **versions(cluster),
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        case = self.cases.setdefault(
            report.nodeid.rpartition("/")[2], {"outcome": "passed", "seconds": 0.0}
        )
        case["seconds"] = round(case["seconds"] + report.duration, 2)
        if report.outcome != "passed" and case["outcome"] != "failed":
            case["outcome"] = report.outcome
            case["said"] = str(report.longrepr).replace(f"{_TOP}/", "")[-_MOST_SAID:]
        if figures := dict(report.user_properties):
            case["figures"] = figures

    def pytest_sessionfinish(self) -> None:
        if self.cases:
            written = {
                "read": READ,
                "date": datetime.now(UTC).date().isoformat(),
                "kernel here": platform.release(),
                **self.on,
                "seconds": round(sum(case["seconds"] for case in self.cases.values()), 1),
                "cases": self.cases,
            }
            self.file.write_text(json.dumps(written, indent=1) + "\n")


def gpu_rows(folder: Path = RECORDS) -> list[tuple[str, ...]]:
    found = [
        json.loads(file.read_text())
        for file in sorted(folder.glob("*-e2e-gpu-*.json"), reverse=True)
    ]
    return [_row(record) for record in found]


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    names = Counter(record["gpus"])
    gpus = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in names.items())
    ends = Counter(case["outcome"] for case in record["cases"].values())
    runs = [
        record[name] or "not known"
        for name in ("driver", "kubernetes", "container runtime", "runc", "cgroup")
    ]
    return (
        gpus,
        *runs,
        *(str(ends[end]) for end in ("passed", "failed", "skipped")),
        record["date"],
    )
