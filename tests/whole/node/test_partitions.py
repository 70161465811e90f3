"""threads: exclusive below a kubelet: a pod's share of the threads is a static SM partition of its GPU."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.model.cuda_limit_parser import SM_PARTITION, THREAD_PERCENT
from mpsd.model.grants import Request
from mpsd.model.mpsnode import read_mpsnode
from mpsd.model.node_report import PartitionReport
from mpsd.platform.limits_files import load_limits
from mpsd.platform.processes import environment_of
from mpsd.scheduler.rules.capacity import Terms, node_capacity
from mpsd.scheduler.rules.filter import why_not
from mpsd.simulator.mps.control_daemon import VERSION, WITH_PARTITIONS
from tests.platform.pod_cgroup import needs_cgroups
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import Cluster, PodProgram, pod
from tests.whole.node.conftest import begun
from tests.whole.node.test_claims import DRIVER, ClaimCluster, _pod_with, pod_here


class NewerCluster(Cluster):
    """The controller of its node is the first with static SM partitions."""

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {VERSION: str(WITH_PARTITIONS)}


class NewerClaims(NewerCluster, ClaimCluster):
    """Its agent serves claims."""

    def file(self, uid: str) -> Path:
        return self.cdi / f"{DRIVER}-claim-{uid}.json"

    def given(self, uid: str) -> str:
        """The name of the partition that containers with the claim are started in."""
        text = self.file(uid).read_text()
        assert THREAD_PERCENT not in text
        return (
            str(json.loads(text)["devices"][0]["containerEdits"]["env"]).partition(f"{SM_PARTITION}=")[2].split("'")[0]
        )

    def partitions(self) -> dict[str, tuple[PartitionReport, ...]]:
        """By the id of each grant."""
        return {grant.id: grant.partitions for grant in self.node().grants}


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
    assert cluster.grant("a").partitions == (PartitionReport(5, 40),)
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
    assert cluster.grant("lasting").partitions == (PartitionReport(5, 40),)


def test_a_container_that_comes_back_after_its_daemon_is_evicted_since_its_partition_is_gone(cluster: Cluster) -> None:
    cluster.running("again", 2, 30, restartPolicy="Always")
    daemon = cluster.daemon()
    os.kill(daemon, signal.SIGKILL)
    cluster.new_daemon(daemon)
    eventually(lambda: cluster.is_gone("again"), "it is evicted")
    assert any("its SM partition is gone" in message for message in cluster.events("LimitsMismatch"))
    assert cluster.running("anew", 2, 30).heard("sms")[0] == 40


# -- resource claims ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served() -> Iterator[NewerClaims]:
    cluster = NewerClaims("H200")
    cluster.set_policy(threads="exclusive")
    yield from begun(cluster)


@pytest.fixture
def claims(served: NewerClaims) -> Iterator[NewerClaims]:
    yield served
    served.empty()
    eventually(lambda: not names(served), "no partition is left without its claim")


@needs_cgroups
def test_all_pods_of_a_claim_are_in_its_one_partition(claims: NewerClaims) -> None:
    with pod_here(claims) as first, pod_here(claims, 1) as second:
        uid = claims.allocate("share", 20, 30, pods=[first.uid, second.uid])
        claims.prepared("share", uid)
        (own,) = names(claims)
        assert claims.given(uid).endswith(f"/{own}")
        programs = [claims.client_in(home, uid, "info") for home in (first, second)]
        assert [one.heard("sms") for one in programs] == [40, 40]
        assert claims.partitions() == {uid: (PartitionReport(5, 40),)}
        assert not claims.unprepare("share", uid)
        assert names(claims) == {own}
    eventually(lambda: not names(claims), "it is removed with the last of them")


def test_a_claim_for_which_chunks_do_not_suffice_waits_with_the_reason(claims: NewerClaims) -> None:
    first = claims.allocate("first", 2, 95)
    claims.prepared("first", first)
    second = claims.allocate("second", 2, 5)
    why = claims.prepare("second", second).error
    assert "gets no SM partition: 5 % of its threads take 1 of the 16 chunks of its SMs, and 0 are free" in why
    assert claims.unprepare("first", first) == ""
    claims.prepared("second", second)
    assert claims.partitions() == {second: (PartitionReport(1, 8),)}


def test_a_claim_without_a_share_is_refused_with_what_to_do(claims: NewerClaims) -> None:
    why = claims.prepare("whole", claims.allocate("whole", 2)).error
    assert "asks for no threads, and its SMs are divided into static partitions" in why
    assert not claims.granted()


@pytest.mark.parametrize("lost", ["", "journal"])
def test_a_restart_of_the_agent_keeps_what_claims_have(claims: NewerClaims, lost: str) -> None:
    uid = claims.allocate("share", 2, 30)
    claims.apply(_pod_with("share", "share"))
    claims.prepared("share", uid)
    before = claims.given(uid)
    claims.agent.kill()
    if lost:
        claims.journal.write_text("no journal")
    claims.agent = claims.start_agent()
    eventually(lambda: claims.partitions() == {uid: (PartitionReport(5, 40),)}, "it is known")
    claims.prepared("share", uid)
    assert claims.given(uid) == before
    assert names(claims) == {before.partition("/")[2]}
    claims.delete("share")


def test_a_new_daemon_gives_claims_another_which_later_containers_are_started_in(claims: NewerClaims) -> None:
    uid = claims.allocate("share", 2, 30)
    claims.prepared("share", uid)
    before = claims.given(uid)
    daemon = claims.daemon()
    os.kill(daemon, signal.SIGKILL)
    claims.new_daemon(daemon)
    eventually(lambda: claims.partitions() == {uid: (PartitionReport(5, 40),)}, "it has one again")
    eventually(lambda: names(claims) == {claims.given(uid).partition("/")[2]}, "its file names the new one")
    assert claims.given(uid) != before
    claims.prepared("share", uid)
