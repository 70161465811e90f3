"""Everything that may be restarted is, while programs hold memory on the GPUs."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.cluster import Cluster
from tests.e2e.installation import AGENT, SYSTEM, Installation
from tests.e2e.machine import Machine
from tests.e2e.shares import Pods, container, refused_at, share
from tests.e2e.waiting import eventually, never

_NOWHERE, _HERE = {"mpsd.io/e2e": "nowhere"}, {"ack.node.gpu.schedule": "mps"}


def _assert_runs_on(pods: Pods, *names: str) -> None:
    """The very same processes, whose contexts never broke: `hold` ends where its context does."""
    for name in names:
        status = pods.status(name)
        assert "running" in status["state"], pods.why(name)
        assert status["restartCount"] == 0
        assert not any("broke" in line for line in pods.said(name))


def _agent_is_another(mpsd: Installation, old: str) -> bool:
    return mpsd.is_ready("agent") and mpsd.pods("agent")[0]["metadata"]["name"] != old


def test_the_agent_deleted_costs_no_program_anything(cluster: Cluster, mpsd: Installation, pods: Pods) -> None:
    pods.start("before", 5, "alloc=9000")
    (old,) = mpsd.pods("agent")
    cluster.do("delete", "pod", old["metadata"]["name"], "-n", SYSTEM, "--wait=false")
    eventually(lambda: _agent_is_another(mpsd, old["metadata"]["name"]), "another agent", within_s=60.0)
    mpsd.wait_until_offered()
    pods.start("after", 6, "alloc=9000")
    _assert_runs_on(pods, "before")
    wanted = {f"{pods.namespace}/before": 5120, f"{pods.namespace}/after": 6144}
    eventually(lambda: {name: grant["memoryMiB"] for name, grant in mpsd.grants().items()} == wanted, "both grants")


def test_rolling_the_agent_while_pods_come(cluster: Cluster, mpsd: Installation, pods: Pods) -> None:
    """A pod that comes to a node without a plugin is refused for good, and its Job makes another: how many were?"""
    pods.start("before", 5)
    (old,) = mpsd.pods("agent")
    with _coming(pods, mpsd.image) as names:
        eventually(lambda: len(names) > 3, "pods that come")
        cluster.do("rollout", "restart", f"daemonset/{AGENT}", "-n", SYSTEM)
        eventually(lambda: _agent_is_another(mpsd, old["metadata"]["name"]), "another agent", within_s=60.0)
        mpsd.wait_until_offered()
        enough = len(names) + 3
        eventually(lambda: len(names) > enough, "pods after it")

    def phases() -> Counter[str]:
        found = Counter(pods.phase(name) for name in names)
        assert not found["Pending"] + found["Running"], found
        return found

    found = eventually(phases, "all of them done", within_s=90.0)
    print(f"\n{found['Failed']} of {len(names)} pods failed that came while the agent was rolled")
    _assert_runs_on(pods, "before")
    assert found["Succeeded"] >= len(names) - 3, {name: pods.why(name) for name in names}


@contextmanager
def _coming(pods: Pods, image: str) -> Iterator[list[str]]:
    """A short pod every half second, as Jobs make them."""
    names: list[str] = []
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.5):
            name = f"comes-{len(names)}"
            pods.create(share(name, container(image, 1)))
            names.append(name)

    working = threading.Thread(target=work, daemon=True)
    working.start()
    try:
        yield names
    finally:
        over.set()
        working.join(timeout=30)


def test_kubelet_restarted_costs_no_program_anything(
    cluster: Cluster, mpsd: Installation, pods: Pods, machine: Machine
) -> None:
    pods.start("before", 5, "alloc=9000")
    (agent,) = mpsd.pods("agent")
    registered = mpsd.logs("agent").count('"registered"')
    machine.kubelet("kill")
    machine.kubelet("start")
    eventually(lambda: mpsd.logs("agent").count('"registered"') >= registered + 2, "both resources again")
    mpsd.wait_until_offered()
    pods.start("after", 6, "alloc=9000")
    _assert_runs_on(pods, "before")
    assert mpsd.pods("agent")[0]["metadata"]["uid"] == agent["metadata"]["uid"]
    wanted = {f"{pods.namespace}/before": 5120, f"{pods.namespace}/after": 6144}
    eventually(lambda: {name: grant["memoryMiB"] for name, grant in mpsd.grants().items()} == wanted, "both grants")


def test_a_container_that_is_started_again_has_its_limit_again(mpsd: Installation, pods: Pods) -> None:
    """kubelet starts it from its checkpoint and asks nobody for devices."""
    pods.start("again", 5, "alloc=9000", restartPolicy="Always")
    pods.run_in("again", "python", "-c", "import os; os.kill(1, 9) if os.getpid() == 1 else os.kill(1, 15)")
    eventually(lambda: pods.status("again")["restartCount"] == 1, "started again")
    said = pods.wait_until_holding("again")
    assert 5120 - 256 < refused_at(said) <= 5120


def test_after_a_reboot_no_container_starts_before_its_domain_serves(
    mpsd: Installation, pods: Pods, machine: Machine
) -> None:
    """Neither control nor agent is there when kubelet comes up, and kubelet has the pod's devices in its checkpoint."""
    pods.start("before", 5, "alloc=9000", restartPolicy="Always")
    machine.kubelet("kill")
    mpsd.put_where(_NOWHERE)
    machine.reboot()
    machine.kubelet("start")
    eventually(lambda: not mpsd.pods("control") and not mpsd.pods("agent"), "neither control nor agent", within_s=90.0)

    def is_held_back() -> str:
        state = pods.status("before")["state"]
        assert "running" not in state, "it runs without MPS and without a limit"
        return str(state["waiting"].get("message", ""))

    eventually(is_held_back, "held back", within_s=60.0)
    print(f"\nkubelet meanwhile: {pods.status('before')['state']['waiting']}")
    never(lambda: "running" in pods.status("before")["state"], "it runs without MPS and without a limit", for_s=5.0)
    mpsd.put_where(_HERE)
    mpsd.wait_until_ready()
    eventually(lambda: "running" in pods.status("before")["state"], "the container", within_s=120.0)
    said = pods.wait_until_holding("before")
    assert 5120 - 256 < refused_at(said) <= 5120
    eventually(lambda: mpsd.grants()[f"{pods.namespace}/before"]["memoryMiB"] == 5120, "its grant")
