"""Two Jobs on one GPU at the same time, each under its limits."""

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT, THREAD_PERCENT
from mpsd.simulator.demo import jobs
from mpsd.simulator.demo.acts.admission import WORK
from mpsd.simulator.demo.cluster import MPSNODES, NODE, DemoCluster
from mpsd.simulator.demo.jobs import JobPod
from mpsd.simulator.demo.story import DemoStory

_SECOND_UNITS, _SECOND_PERCENT = 4, 25


def share(story: DemoStory, cluster: DemoCluster, sample: JobPod) -> JobPod:
    """The second Job's pod."""
    story.chapter("The Job runs: scheduled, allocated, under its limits")
    sample_gpu = _tell_start(story, cluster, sample)
    story.chapter("A second Job on the same GPU, at the same time")
    limits = {cluster.resources.memory: _SECOND_UNITS, cluster.resources.percent: _SECOND_PERCENT}
    cluster.api.apply(jobs.like_the_sample("second", limits, *WORK))
    second = JobPod(cluster, "second")
    second_gpu = _tell_start(story, cluster, second)
    story.check(sample_gpu == second_gpu, f"the two Jobs are on different GPUs: {sample_gpu}, {second_gpu}")
    launches = {pod.job: pod.newer_launches() for pod in (sample, second)}
    story.tell("side-by-side", "Both compute at the same time.", launches=launches)
    _tell_status(story, cluster)
    return second


def _tell_start(story: DemoStory, cluster: DemoCluster, pod: JobPod) -> str:
    """Follows a pod from the scheduler to its program's first words; the GPU's label."""
    seen = pod.next("meminfo_free_MiB")
    node, environment = pod.object()["spec"]["nodeName"], pod.environment()
    story.check(node == NODE, f"pod {pod.name} is on {node}")
    gpu = next(gpu for gpu in cluster.node().gpus if gpu.uuid == seen["uuid"])
    said = {name: environment[name] for name in (MEMORY_LIMIT, THREAD_PERCENT)}
    words = ", ".join(f"{name}={value}" for name, value in said.items())
    story.tell(
        "allocated",
        f"Pod {pod.name} is on {node}; Allocate gave it a share of {gpu.label}: {words}.",
        pod=pod.name,
        **said,
    )
    unit_mib = cluster.resources.memory_unit_mib
    granted_mib = pod.asked(cluster.resources.memory) * unit_mib
    percent = pod.asked(cluster.resources.percent)
    free_mib, sms = seen["meminfo_free_MiB"], seen["sms"]
    story.check(
        granted_mib - unit_mib < free_mib <= granted_mib, f"it sees {free_mib} MiB free under {granted_mib} MiB"
    )
    story.check(sms <= gpu.sms * (percent or 100) / 100 + 2, f"it sees {sms} SMs of {gpu.sms} under {percent} %")
    holds_mib = pod.next("alloc_MiB")["alloc_MiB"]
    share = f"{granted_mib} MiB and {percent} % of the threads" if percent else f"{granted_mib} MiB"
    story.tell(
        "limits",
        f"Granted {share}, it sees {free_mib} MiB free and {sms} of {gpu.sms} SMs, and holds {holds_mib} MiB.",
        pod=pod.name,
        gpu=gpu.label,
        granted_mib=granted_mib,
        percent=percent,
        free_mib=free_mib,
        sms=sms,
        holds_mib=holds_mib,
    )
    return gpu.label


def _tell_status(story: DemoStory, cluster: DemoCluster) -> None:
    story.chapter("mpsd status on the node, and kubectl get mps")
    node = cluster.node()
    if not cluster.has_cgroups:
        story.tell("no-cgroups", "This user may make no cgroups, by which it is known whose pod a program is in.")
    story.table(node)
    rows = cluster.until(lambda: told(cluster, len(node.grants)), "the MPSNode tells of both Jobs")
    story.rows(rows)
    columns = dict(zip(*rows, strict=True))
    story.tell(
        "status",
        f"The MPSNode tells the cluster the same: {columns['GRANTED']} granted to {columns['PODS']} pods.",
        mpsnode=columns,
    )


def told(cluster: DemoCluster, pods: int) -> list[list[str]]:
    """The MPSNode's columns and values, once it tells of so many pods."""
    rows = cluster.api.table(f"{MPSNODES}/{NODE}")
    return rows if dict(zip(*rows, strict=True))["PODS"] == str(pods) else []
