"""threads: exclusive below a kubelet: a pod's share of the threads is a static SM partition of its GPU."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from mpsd.model.cuda_limit_parser import SM_PARTITION, THREAD_PERCENT
from mpsd.model.grants import Request
from mpsd.model.mpsnode import read_mpsnode
from mpsd.model.node_status import PartitionStatus
from mpsd.platform.limits_files import load_limits
from mpsd.platform.processes import environment_of
from mpsd.scheduler.rules.capacity import Terms, node_capacity
from mpsd.scheduler.rules.filter import why_not
from mpsd.simulator.mps.control_daemon import VERSION, WITH_PARTITIONS
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import Cluster, PodProgram, pod
from tests.whole.node.conftest import begun


class NewerCluster(Cluster):
    """The controller of its node is the first with static SM partitions."""

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {VERSION: str(WITH_PARTITIONS)}


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[Cluster]:
    cluster = NewerCluster("H200")
    cluster.set_policy(threads="exclusive")
    yield from begun(cluster)


def given(program: PodProgram) -> dict[str, str]:
    """What the program was started with."""
    return dict(environment_of(program.heard("pid")[-1]) or {})


def names(cluster: Cluster) -> set[str]:
    """Of the partitions that the daemon has."""
    return {row.split()[1] for row in cluster.ask_daemon("lspart").splitlines() if row.endswith(("Yes", "No"))}


def why_not_by_mpsnode(cluster: Cluster, percent: int) -> str:
    """Why a scheduler would place no pod of 2 GiB with this share there; empty where it would."""
    node = read_mpsnode(cluster.mpsnode(), time.time())
    return why_not(Request(2 * 1024, percent, 1), node_capacity(node, "", [], [], Terms(load_limits(None).policy, 48)))


def partition_of(program: PodProgram) -> str:
    return given(program)[SM_PARTITION].partition("/")[2]


def test_pods_have_partitions_of_their_own_until_they_end(cluster: Cluster) -> None:
    a, b = cluster.running("a", 2, 30), cluster.running("b", 2, 60)
    assert [one.heard("sms")[0] for one in (a, b)] == [40, 80]
    assert names(cluster) == {partition_of(a), partition_of(b)}
    assert THREAD_PERCENT not in given(a)
    assert cluster.grant("a").partitions == (PartitionStatus(5, 40),)
    eventually(lambda: "gpu0 has 1 of 2 chunks of its SMs free" in why_not_by_mpsnode(cluster, 10), "schedulers see it")
    assert not why_not_by_mpsnode(cluster, 6)

    cluster.apply(pod("c", 2, 10))
    eventually(lambda: cluster.phase("c") == "Failed", "no partition is left for it")
    (message,) = eventually(lambda: cluster.events("AllocationRefused"), "an event says why")
    assert "10 % of its threads take 2 of the 16 chunks of its SMs, and 1 is free" in message

    freed = partition_of(a)
    cluster.delete("a")
    eventually(lambda: freed not in names(cluster), "its partition has gone with it")
    assert cluster.running("d", 2, 35).heard("sms")[0] == 48


def test_a_pod_without_a_share_gets_none(cluster: Cluster) -> None:
    cluster.apply(pod("whole", 2))
    eventually(lambda: cluster.phase("whole") == "Failed", "it has no partition")
    why = "a program without a share of the threads can have none"
    eventually(lambda: any(why in message for message in cluster.events("AllocationRefused")), "an event says why")


def test_a_restart_of_the_agent_keeps_what_pods_have(cluster: Cluster) -> None:
    lasting, ended = cluster.running("lasting", 2, 30), cluster.running("ended", 2, 50)
    kept = partition_of(lasting)
    cluster.agent.kill()
    cluster.delete("ended")
    assert partition_of(ended) in names(cluster)
    cluster.agent = cluster.start_agent()
    eventually(lambda: names(cluster) == {kept}, "only the partition that is held is left")
    assert cluster.grant("lasting").partitions == (PartitionStatus(5, 40),)


def test_a_container_that_comes_back_after_its_daemon_is_evicted_since_its_partition_is_gone(cluster: Cluster) -> None:
    cluster.running("again", 2, 30, restartPolicy="Always")
    daemon = cluster.daemon()
    os.kill(daemon, signal.SIGKILL)
    cluster.new_daemon(daemon)
    eventually(lambda: cluster.is_gone("again"), "it is evicted")
    assert any("its SM partition is gone" in message for message in cluster.events("LimitsMismatch"))
    assert cluster.running("anew", 2, 30).heard("sms")[0] == 40
