"""The sample Job at the door: refused without what it needs, admitted as it was published."""

from mpsd.simulator.demo import jobs
from mpsd.simulator.demo.cluster import DemoCluster, RequestRefused
from mpsd.simulator.demo.jobs import JobPod
from mpsd.simulator.demo.story import DemoStory

WORK = ("alloc=1024", "work")  # takes 1 GiB and computes until it is told to end


def admit(story: DemoStory, cluster: DemoCluster) -> JobPod:
    """The sample's pod."""
    story.chapter("Admission: the sample Job of the ACK guide, 7 GiB of a GPU")
    _refuse(story, cluster)
    job = jobs.played(jobs.sample(), *WORK)
    applied = cluster.api.apply(job)
    name = applied.thing["metadata"]["name"]
    story.tell("admitted", f"As published, Job {name} is admitted.", job=name, warnings=applied.warnings)
    for warning in applied.warnings:
        story.quote(f"Warning: {warning}")
    story.tell("played", "Its image is not pulled: sim-cuda, a program that plays a CUDA program, runs in its place.")
    return JobPod(cluster, name)


def _refuse(story: DemoStory, cluster: DemoCluster) -> None:
    job = jobs.played(jobs.sample(), *WORK)
    del jobs.pod_spec(job)["hostIPC"]
    try:
        cluster.api.apply(job)
    except RequestRefused as refused:
        words = str(refused)
        story.check("hostIPC" in words, f"the Job is refused for another reason: {words}")
        story.tell("refused-by-admission", "Without its hostIPC: true it is refused, over TLS:", reason=words)
        story.quote(words)
    else:
        story.check(False, "a Job without hostIPC is admitted")
