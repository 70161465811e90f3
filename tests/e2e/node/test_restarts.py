"""What a program that holds memory on a GPU does not notice: every restart."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.cluster import Cluster, Object
from tests.e2e.installation import AGENT, SYSTEM, Installation
from tests.e2e.machine import Machine
from tests.e2e.restarts import Witness
from tests.e2e.shares import Pods, assert_fills, container, share
from tests.e2e.versions import pods_outlive_reboot
from tests.e2e.waiting import eventually

_GIB = 5


@pytest.fixture(scope="module")
def witness(mpsd: Installation, pods: Pods) -> Witness:
    made = Witness(mpsd, pods, _GIB)
    made.begin("alloc=9000")
    return made


def test_the_agent_deleted_costs_no_program_anything(
    mpsd: Installation, pods: Pods, witness: Witness
) -> None:
    mpsd.wait_for_another_agent(mpsd.kill_agent())
    pods.start("after-delete", 2)
    witness.has_noticed_nothing()


def test_rolling_the_agent_while_pods_come(
    cluster: Cluster, mpsd: Installation, pods: Pods, witness: Witness
) -> None:
    """A pod that comes to a node without a plugin is refused for good, and its Job makes another:
    how many were?

    One that kubelet accepted without devices, or with those of another (1.20 may while a pod ends),
    is evicted.
    """
    agent = mpsd.agent()
    with _coming(pods) as names:
        eventually(lambda: len(names) > 2, "pods that come")
        cluster.do("rollout", "restart", f"daemonset/{AGENT}", "-n", SYSTEM)
        mpsd.wait_for_another_agent(agent)
        enough = len(names) + 2
        eventually(lambda: len(names) > enough, "pods after it")

    def ended() -> dict[str, Object]:
        listed = cluster.get("pods", "-n", pods.namespace)["items"]
        found = {
            pod["metadata"]["name"]: pod["status"]
            for pod in listed
            if pod["metadata"]["name"] in names
        }
        assert all(status["phase"] in {"Succeeded", "Failed"} for status in found.values()), found
        return found

    found = eventually(ended, "all of them done", within_s=90.0)
    failed = [status.get("message") for status in found.values() if status["phase"] == "Failed"]
    evicted = {
        name: {event["reason"]: event["message"] for event in pods.events(name)}
        for name in names - found.keys()
    }
    assert len(failed) <= 1, failed
    assert all("LimitsMismatch" in events for events in evicted.values()), evicted
    witness.has_noticed_nothing()


@contextmanager
def _coming(pods: Pods) -> Iterator[set[str]]:
    """A short pod every second, as Jobs make them."""
    names: set[str] = set()
    over = threading.Event()

    def work() -> None:
        while not over.wait(1.0):
            name = f"comes-{len(names)}"
            pods.create(share(name, container(pods.image, 1)))
            names.add(name)

    working = threading.Thread(target=work, daemon=True)
    working.start()
    try:
        yield names
    finally:
        over.set()
        working.join(timeout=30)


def test_the_control_container_killed_costs_no_program_anything(witness: Witness) -> None:
    witness.sees_control_killed()


def test_kubelet_restarted_costs_no_program_anything(machine: Machine, witness: Witness) -> None:
    witness.sees_kubelet_restarted(machine)


def test_a_container_that_is_started_again_has_its_limit_again(
    pods: Pods, witness: Witness
) -> None:
    """kubelet starts it from its checkpoint and asks nobody for devices."""
    pods.start("again", 3, "alloc=9000", restartPolicy="Always")
    pods.run_in("again", "python", "-c", "import os; os.kill(1, 15)")
    eventually(lambda: pods.status("again").get("restartCount") == 1, "started again")
    said = pods.wait_until_holding("again")
    assert_fills(said, 3)


def test_after_a_reboot_no_container_starts_before_its_domain_serves(
    cluster: Cluster, mpsd: Installation, pods: Pods, machine: Machine, witness: Witness
) -> None:
    outlives = pods_outlive_reboot(cluster)
    first, back = witness.is_held_back_after_a_reboot(machine), witness.name
    if pods.phase(back) != "Failed":
        # kubelet tries again more and more seldom
        eventually(lambda: witness.runs_since(first), "the container", within_s=150.0)
    else:
        assert not outlives
        assert pods.get(back)["status"]["reason"] == "UnexpectedAdmissionError"
        mpsd.wait_until_offered()
        back = "another"  # as its controller makes one
        pods.start(back, _GIB, "alloc=9000")
    said = pods.wait_until_holding(back)
    assert_fills(said, _GIB)
    eventually(lambda: mpsd.granted_mib(pods.namespace).get(back) == _GIB * 1024, "its grant")
    eventually(
        lambda: {back} == {witness.name, back} & mpsd.granted_mib(pods.namespace).keys(),
        "nothing for one that ended",
    )
