"""NVIDIA's GPU operator replaces the driver of a node with two pods on its GPUs: a real kubelet,
simulated GPUs."""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.driver_upgrades import Operator, changed_policy, operator_of
from tests.e2e.installation import UNITS, Installation
from tests.e2e.machine import Machine
from tests.e2e.shares import Pods, share
from tests.e2e.waiting import eventually

_CARD = "/run/mpsd/simulation/card"  # in the place of /dev/nvidia0


@pytest.fixture
def operator(mpsd: Installation, machine: Machine) -> Iterator[Operator]:
    with operator_of(mpsd, _CARD) as plays:
        yield plays


def test_two_pods_are_waited_for_then_nobody_has_the_driver_open_and_a_pod_comes_to_the_new_one(
    mpsd: Installation, pods: Pods, operator: Operator
) -> None:
    for name, gib in (("first", 3), ("second", UNITS)):
        pods.start(name, gib, "alloc=1000")
    assert len(operator.users_of_the_driver()) > 2, "what is looked for is found"
    operator.begins()
    pods.create(share("late", pods.asks(2, "hold")))
    operator.waits_for(pods, "first", "second")
    assert pods.phase("late") == "Pending"
    operator.assert_gone_and_back()
    pods.wait_until_holding("late")
    eventually(lambda: mpsd.granted_mib(pods.namespace) == {"late": 2048}, "its grant alone")


def test_two_pods_are_evicted_where_the_policy_says_so_and_not_before_the_operator_waits(
    cluster: Cluster, mpsd: Installation, pods: Pods, operator: Operator
) -> None:
    with changed_policy(mpsd, driver_upgrade="evict"):
        for name in ("evicted-first", "evicted-second"):
            pods.start(name, 3, "alloc=1000")
        operator.reaches("cordon-required")
        eventually(
            lambda: "/evicted-first" in operator.condition(), "the node says who is waited for"
        )
        for name in ("evicted-first", "evicted-second"):
            pods.assert_holds(name)
        operator.begins()
        for name in ("evicted-first", "evicted-second"):
            assert "driver" in pods.event(name, "MPSEvicted")

        def have_ended() -> bool:
            # Kubelet 1.20 may leave their objects to its garbage collection, once a minute:
            # https://github.com/kubernetes/kubernetes/issues/97288
            left = cluster.get("pods", "-n", pods.namespace)["items"]
            return all(
                "deletionTimestamp" in pod["metadata"]
                and pod["status"]["phase"] in ("Succeeded", "Failed")
                for pod in left
            )

        eventually(have_ended, "both evicted", within_s=60.0)
        operator.assert_gone_and_back()
