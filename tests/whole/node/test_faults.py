"""A pod's fault takes the others on its GPU with it, and every pod hears of it."""

from tests.platform.pod_cgroup import needs_cgroups
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import NODE, Cluster, PodProgram, pod

pytestmark = needs_cgroups


POLICY = {"graces": {"command_s": 1, "start_s": 5, "drain_s": 30, "fault_grace_s": 1}}


def told(cluster: Cluster, name: str) -> list[str]:
    return cluster.events("MPSFault", name)


def test_every_pod_that_is_hit_hears_so_and_of_its_end(cluster: Cluster) -> None:
    cluster.apply(pod("bystander", 4, actions=("linger",)))
    eventually(
        lambda: cluster.domain().servers and cluster.grant("bystander").clients, "it is on its GPU"
    )
    cluster.apply(pod("trainer", 4, actions=("fault", "linger")))

    eventually(
        lambda: any("was killed" in one for one in told(cluster, "bystander")),
        "it is told of its end",
    )
    fault = "MPS domain gpu0: a program's fault ended the work of 1 GPU process of this pod"
    for name in ("bystander", "trainer"):
        assert any(one.startswith(fault) for one in told(cluster, name))

    assert any(
        "default/trainer (1)" in one and "default/bystander (1)" in one
        for one in told(cluster, NODE)
    )
    assert cluster.domain().restarts == 0


def test_a_pod_that_is_killed_in_mid_kernel_is_named_to_whom_it_struck(cluster: Cluster) -> None:
    """As the kernel's OOM killer does it."""
    cluster.apply(pod("neighbour", 4, actions=("linger",)))
    cluster.apply(pod("struck", 4, actions=("kernel=100", "work")))
    programs = [PodProgram(cluster, name, "main") for name in ("neighbour", "struck")]
    eventually(
        lambda: programs[0].heard("lingering") and programs[1].heard("launches"),
        "both are on their GPU",
    )
    neighbour, struck = (program.heard("pid")[0] for program in programs)
    cluster.until_listed(neighbour, struck)

    cluster.kill(struck)

    cause = "; likely cause, ended just before it: default/struck: killed by SIGKILL"
    for name in ("neighbour", NODE):
        eventually(
            lambda name=name: any(cause in one for one in told(cluster, name)),
            f"{name} is told who did it",
        )

    def causes() -> list[tuple[str, str]]:
        (domain,) = cluster.mpsnode()["status"]["domains"]
        return [(one["pod"], one["how"]) for one in domain.get("faults", {}).get("causes", ())]

    eventually(
        lambda: causes() == [("default/struck", "killed by SIGKILL")], "the MPSNode names it"
    )

    status = cluster.pod("struck")["status"]
    status["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    cluster.patch("/api/v1/namespaces/default/pods/struck/status", {"status": status})

    said = "killed by SIGKILL (OOMKilled)"
    eventually(lambda: causes() == [("default/struck", said)], "the MPSNode says why")
    for name in ("neighbour", NODE):
        eventually(
            lambda name=name: any(one.endswith(said) for one in told(cluster, name)),
            f"{name} is told why",
        )
