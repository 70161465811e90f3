"""What does not go: to take more than was granted, and to ask for more than any GPU has."""

from mpsd.simulator.demo import jobs
from mpsd.simulator.demo.cluster import DemoCluster
from mpsd.simulator.demo.jobs import JobPod
from mpsd.simulator.demo.story import DemoStory

_GREEDY_UNITS, _WANTED_MIB = 2, 4096


def refuse(story: DemoStory, cluster: DemoCluster, others: tuple[JobPod, ...]) -> None:
    """others: run meanwhile, and must not be touched."""
    story.chapter("A program takes more than its grant")
    _take_too_much(story, cluster, others)
    story.chapter("A Job asks for more than any GPU has")
    _ask_too_much(story, cluster)


def _take_too_much(story: DemoStory, cluster: DemoCluster, others: tuple[JobPod, ...]) -> None:
    limits = {cluster.resources.memory: _GREEDY_UNITS}
    cluster.api.apply(jobs.like_the_sample("greedy", limits, f"alloc={_WANTED_MIB}"))
    greedy = JobPod(cluster, "greedy")
    took = greedy.next("alloc_MiB")
    error = took["rc"].partition(":")[2]
    story.check(took["rc"].startswith("2:"), f"the greedy program got {took}")
    story.tell(
        "out-of-memory",
        f"Granted {_GREEDY_UNITS} GiB, it wants {_WANTED_MIB} MiB: {error} after {took['alloc_MiB']} MiB.",
        pod=greedy.name,
        got_mib=took["alloc_MiB"],
        error=took["rc"],
    )
    greedy.until_phase("Succeeded")
    cluster.until(lambda: greedy.name not in cluster.grants(), "its grant is given back")
    launches = {other.job: other.newer_launches() for other in others}
    story.tell("given-back", "It ended, its grant is free again, and its neighbours compute on.", launches=launches)


def _ask_too_much(story: DemoStory, cluster: DemoCluster) -> None:
    resources = cluster.resources
    largest = max(gpu.promised_mib for gpu in cluster.node().gpus) // resources.memory_unit_mib
    wanted, offered = largest + 1, cluster.offered(resources.memory)
    story.check(wanted <= offered, f"{wanted} are more than the node's {offered}")
    cluster.api.apply(jobs.like_the_sample("impossible", {resources.memory: wanted}, "info"))
    pod = JobPod(cluster, "impossible")
    refused = pod.until_phase("Failed")["status"]
    story.tell(
        "refused",
        f"It wants {wanted} GiB; no GPU has more than {largest}, though the node offers {offered}. Pod {pod.name} "
        f"fails: {refused['reason']}.",
        pod=pod.name,
        reason=refused["reason"],
        wanted=wanted,
        largest=largest,
    )
    words = pod.event("AllocationRefused")
    story.tell("event", "The event on the pod says why:", event=words)
    story.quote(words)
    pod.until_job_is("Failed")
