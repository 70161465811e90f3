"""The agent is killed in the middle, and no program notices."""

import time

from mpsd.platform import local_api
from mpsd.simulator.demo.cluster import DemoCluster
from mpsd.simulator.demo.jobs import JobPod
from mpsd.simulator.demo.story import DemoStory

_ALONE_S = 1.0  # at least so long there is no agent


def restart_agent(story: DemoStory, cluster: DemoCluster, pods: tuple[JobPod, ...]) -> None:
    """pods: run meanwhile."""
    story.chapter("The agent is killed (SIGKILL) while both Jobs compute")
    before, grants = cluster.pid("agent"), _ledger(cluster)
    computed = {pod: pod.newer_launches() for pod in pods}
    cluster.kill("agent")
    killed = time.monotonic()
    cluster.until(lambda: time.monotonic() > killed + _ALONE_S, "a while without an agent")
    alone = {pod.job: pod.newer_launches() - computed[pod] for pod in pods}
    story.tell(
        "without-agent",
        f"Nobody watches for {time.monotonic() - killed:.1f} s, and both compute on: "
        f"{' and '.join(map(str, alone.values()))} kernels meanwhile.",
        launches=alone,
    )
    cluster.start_agent()
    cluster.until(lambda: _knows_all(cluster), "the agent has heard from kubelet who holds what")
    story.check(_ledger(cluster) == grants, f"the books were {grants} and are {_ledger(cluster)}")
    story.tell(
        "agent-back",
        f"A new agent (pid {cluster.pid('agent')} after {before}) finds the same grants again after "
        f"{time.monotonic() - killed:.1f} s.",
        grants={pod: list(grant) for pod, grant in grants.items()},
    )
    for pod in pods:
        pod.newer_launches()
        story.check(pod.restarts == 0, f"pod {pod.name} was restarted")
        trouble = [line for line in pod.lines() if "broke" in line]
        story.check(not trouble, f"the program of {pod.name} lost its GPU: {trouble}")
    silence_s = {pod.job: round(pod.longest_silence_s(), 2) for pod in pods}
    story.tell(
        "unnoticed",
        f"Same processes, no errors; they say how far they are four times a second, and were never silent for more "
        f"than {max(silence_s.values())} s.",
        silence_s=silence_s,
    )


def _knows_all(cluster: DemoCluster) -> bool:
    try:
        return not cluster.node().unknown
    except local_api.NotRunning:
        return False


def _ledger(cluster: DemoCluster) -> dict[str, tuple[int, int]]:
    """By pod: the MiB and the percent of its grant."""
    return {pod: (grant.memory_mib, grant.thread_percent) for pod, grant in cluster.grants().items()}
