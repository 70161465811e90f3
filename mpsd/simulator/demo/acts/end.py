"""The Jobs end, the ledger is at zero, everything is stopped."""

from mpsd.simulator.demo.acts.sharing import told
from mpsd.simulator.demo.cluster import DemoCluster
from mpsd.simulator.demo.jobs import JobPod
from mpsd.simulator.demo.story import DemoStory


def end(story: DemoStory, cluster: DemoCluster, pods: tuple[JobPod, ...]) -> None:
    story.chapter("The Jobs end")
    for pod in pods:
        pod.finish()
    for pod in pods:
        pod.until_job_is("Complete")
    launches = {pod.job: pod.launches() for pod in pods}
    done = " and ".join(f"Job {job} is Complete after {number} kernels" for job, number in launches.items())
    story.tell("complete", f"{done}.", launches=launches)
    cluster.until(lambda: not cluster.node().grants, "every grant has come back")
    columns = dict(zip(*cluster.until(lambda: told(cluster, 0), "the MPSNode tells of no pods"), strict=True))
    node = cluster.node()
    story.table(node)
    granted = {gpu.label: gpu.granted_mib for gpu in node.gpus}
    story.check(not any(granted.values()), f"granted without a pod: {granted}")
    story.tell(
        "books",
        f"The books are at zero: {columns['GRANTED']} granted to {columns['PODS']} pods.",
        granted_mib=granted,
        mpsnode=columns,
    )
    story.chapter("Clean-up")
    codes = cluster.stop()
    story.check(not any(codes.values()), f"the programs ended with {codes}")
    story.tell("stopped", f"SIGTERM to each of {len(codes)} programs; all end with code 0.", exit_codes=codes)
