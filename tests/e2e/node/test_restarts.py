"""Everything that may be restarted is, while a program holds memory on a GPU: the same one through
all of it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.cluster import Cluster, Object
from tests.e2e.installation import AGENT, SYSTEM, Installation
from tests.e2e.machine import Machine
from tests.e2e.shares import CONTEXT_MIB, Pods, container, refused_at, share
from tests.e2e.versions import pods_outlive_reboot
from tests.e2e.waiting import eventually, never

_NOWHERE, _HERE = {"mpsd.io/e2e": "nowhere"}, {"ack.node.gpu.schedule": "mps"}
_WITNESS, _GIB = "witness", 5


@pytest.fixture(scope="module")
def witness(pods: Pods) -> str:
    """Its kubelet would start it again."""
    pods.start(_WITNESS, _GIB, "alloc=9000", restartPolicy="Always")
    return _WITNESS


def _assert_noticed_nothing(pods: Pods, mpsd: Installation) -> None:
    """The very same process, whose context never broke (`hold` ends where its context does), and
    its grant."""
    pods.assert_holds(_WITNESS)
    assert pods.status(_WITNESS)["restartCount"] == 0
    eventually(lambda: mpsd.granted_mib(pods.namespace).get(_WITNESS) == _GIB * 1024, "its grant")


def test_the_agent_deleted_costs_no_program_anything(
    cluster: Cluster, mpsd: Installation, pods: Pods, witness: str
) -> None:
    """Without any grace, so that the next one may start while it still ends."""
    agent = mpsd.agent()
    cluster.do("delete", "pod", agent, "-n", SYSTEM, "--grace-period=0", "--force")
    mpsd.wait_for_another_agent(agent)
    pods.start("after-delete", 2)
    _assert_noticed_nothing(pods, mpsd)


def test_rolling_the_agent_while_pods_come(
    cluster: Cluster, mpsd: Installation, pods: Pods, witness: str
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
    print(
        f"\n{len(failed)} of {len(names)} pods failed that came while the agent was rolled,"
        f" evicted: {evicted}"
    )
    assert len(failed) <= 1, failed
    assert all("LimitsMismatch" in events for events in evicted.values()), evicted
    _assert_noticed_nothing(pods, mpsd)


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


def test_the_control_container_killed_costs_no_program_anything(
    mpsd: Installation, pods: Pods, witness: str
) -> None:
    """Its daemons are in no cgroup of the container, and the next one adopts them."""
    daemons = mpsd.daemons()
    mpsd.kill_control()
    pods.start("after-control", 2)
    assert mpsd.daemons() == daemons
    _assert_noticed_nothing(pods, mpsd)


def test_kubelet_restarted_costs_no_program_anything(
    mpsd: Installation, pods: Pods, machine: Machine, witness: str
) -> None:
    agent = mpsd.agent()
    mpsd.restart_kubelet(machine)
    pods.start("after-kubelet", 2)
    _assert_noticed_nothing(pods, mpsd)
    assert mpsd.agent() == agent


def test_a_container_that_is_started_again_has_its_limit_again(pods: Pods, witness: str) -> None:
    """kubelet starts it from its checkpoint and asks nobody for devices."""
    pods.start("again", 3, "alloc=9000", restartPolicy="Always")
    pods.run_in("again", "python", "-c", "import os; os.kill(1, 15)")
    eventually(lambda: pods.status("again")["restartCount"] == 1, "started again")
    said = pods.wait_until_holding("again")
    assert 3072 - CONTEXT_MIB < refused_at(said) <= 3072


def test_after_a_reboot_no_container_starts_before_its_domain_serves(
    cluster: Cluster, mpsd: Installation, pods: Pods, machine: Machine, witness: str
) -> None:
    """Neither control nor agent is there when kubelet comes up, and kubelet has the pod's devices
    in its checkpoint."""
    first = pods.status(witness)["containerID"]
    outlives = pods_outlive_reboot(cluster)
    machine.kubelet("kill")
    mpsd.put_where(_NOWHERE)
    try:
        machine.reboot()
        machine.kubelet("start")
        eventually(
            lambda: not mpsd.pods("control") and not mpsd.pods("agent"),
            "neither of the two",
            within_s=90.0,
        )

        def runs() -> bool:
            status = pods.status(witness)
            return "running" in status.get("state", {}) and status["containerID"] != first

        def is_held_back() -> str:
            assert not runs(), "it runs without MPS and without a limit"
            ended = pods.get(witness)["status"].get("message", "")
            return str(
                ended or pods.status(witness).get("state", {}).get("waiting", {}).get("message", "")
            )

        print(f"\nkubelet meanwhile: {eventually(is_held_back, 'held back', within_s=60.0)}")
        never(runs, "it runs without MPS and without a limit", for_s=3.0)
    finally:
        mpsd.put_where(_HERE)
    if pods.phase(witness) != "Failed":
        # kubelet tries again more and more seldom
        eventually(runs, "the container", within_s=150.0)
        back = witness
    else:
        assert not outlives
        assert pods.get(witness)["status"]["reason"] == "UnexpectedAdmissionError"
        mpsd.wait_until_offered()
        back = "another"  # as its controller makes one
        pods.start(back, _GIB, "alloc=9000")
    said = pods.wait_until_holding(back)
    assert _GIB * 1024 - CONTEXT_MIB < refused_at(said) <= _GIB * 1024
    eventually(lambda: mpsd.granted_mib(pods.namespace).get(back) == _GIB * 1024, "its grant")
    eventually(
        lambda: {back} == {witness, back} & mpsd.granted_mib(pods.namespace).keys(),
        "nothing for one that ended",
    )
