"""Pods under driver 615: the cgroup of each holds what all of its containers take together."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT
from mpsd.model.node_view import CAP_HOLDS
from mpsd.model.violations import ViolationKind
from mpsd.platform.containers import ProgramCgroups, v2_tree
from mpsd.simulator.gpus import MIB
from tests.whole.machine.machine import Machine, eventually
from tests.whole.machine.test_memory_caps import set_driver
from tests.whole.node.cluster import Cluster, pod

_WHY_NOT = ProgramCgroups().why_not or (
    "" if v2_tree(Path("/sys/fs/cgroup")) else "cgroup v2 is not mounted"
)
pytestmark = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)


def limits(machine: Machine) -> dict[str, int]:
    """MiB by cgroup, as the simulated driver has them."""
    file = machine.simulation.folder / "memory-limits.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    return {path: row[1] // MIB for rows in known.values() for path, row in rows.items()}


def is_stopped(lines: Sequence[Mapping[str, Any]]) -> bool:
    return any(str(line.get("rc")).startswith("2:CUDA_ERROR_OUT_OF_MEMORY") for line in lines)


def violations(machine: Machine) -> list[ViolationKind]:
    seen = machine.node().violations
    assert seen is not None
    return [one.kind for one in seen.last]


class NewDriver(Cluster):
    def begin(self) -> None:
        set_driver(self, "615.71.09")
        super().begin()


CLUSTER = NewDriver


def test_a_pod_that_lifts_its_limit_is_stopped_at_its_allocation(cluster: Cluster) -> None:
    """It allocates again and again, from its start on."""
    canary = cluster.record().canary
    assert canary
    assert canary.memory_cap == CAP_HOLDS
    program = cluster.running("sample", 2)
    eventually(lambda: cluster.grant("sample").memory_cap == "cgroup", "its cgroup holds it")
    uid = cluster.pod("sample")["metadata"]["uid"]
    assert [(mib, path.endswith(f"/pod{uid}")) for path, mib in limits(cluster).items()] == [
        (2048, True)
    ]
    assert program.lines

    lifted = pod("lifted", 3, actions=("hold=3", "alloc=6000", "info", "hold"))
    lifted["spec"]["containers"][0]["env"] = [{"name": MEMORY_LIMIT, "value": "garbage"}]
    cluster.apply(lifted)
    tenant = cluster.program_of("lifted")
    eventually(lambda: is_stopped(tenant.lines), "it is stopped at its allocation")
    cluster.until_watched()
    assert cluster.phase("lifted") == "Running"
    assert ViolationKind.MEMORY_OVER_GRANT not in violations(cluster)
    assert [line["meminfo_total_MiB"] for line in tenant.lines if "meminfo_total_MiB" in line][
        -1
    ] == 3 * 1024
