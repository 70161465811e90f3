"""Pods under driver 615: the cgroup of each holds what all of its containers take together."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT
from mpsd.model.violations import ViolationKind
from mpsd.platform.containers import ProgramCgroups, v2_tree
from tests.whole.machine.machine import eventually
from tests.whole.machine.test_memory_caps import is_stopped, limits, set_driver, violations
from tests.whole.node.cluster import Cluster, pod
from tests.whole.node.conftest import begun

_WHY_NOT = ProgramCgroups().why_not or (
    "" if v2_tree(Path("/sys/fs/cgroup")) else "cgroup v2 is not mounted"
)
pytestmark = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[Cluster]:
    made = Cluster("A30")
    set_driver(made, "615.71.09")
    yield from begun(made)


def test_a_pod_that_lifts_its_limit_is_stopped_at_its_allocation(cluster: Cluster) -> None:
    """It allocates again and again, from its start on."""
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
