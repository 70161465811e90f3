"""A cluster of one node comes up."""

from mpsd.model.quantity import gib
from mpsd.simulator.demo.cluster import NODE, DemoCluster
from mpsd.simulator.demo.story import DemoStory


def begin(story: DemoStory, cluster: DemoCluster) -> None:
    story.chapter("A Kubernetes cluster of one node, simulated")
    cluster.start()
    story.tell(
        "cluster",
        "An API server and a kubelet are played; beside them run mpsd webhook, mpsd control and mpsd agent.",
        node=NODE,
        folder=str(cluster.folder),
    )
    memory, percent = cluster.resources.memory, cluster.resources.percent
    gpus = cluster.node().gpus
    units = sum(gpu.promised_mib // cluster.resources.memory_unit_mib for gpu in gpus)
    offered = {memory: units, percent: 100 * len(gpus)}

    def is_offered() -> bool:  # one GPU after the other, as their daemons serve
        return {name: cluster.offered(name) for name in offered} == offered

    cluster.until(is_offered, f"kubelet offers {offered} of {len(gpus)} GPUs")
    for gpu in gpus:
        story.tell(
            "gpu",
            f"{gpu.label}: {gpu.name}, {gib(gpu.promised_mib)} GiB to share.",
            gpu=gpu.label,
            name=gpu.name,
            promised_mib=gpu.promised_mib,
        )
    story.tell(
        "offered",
        f"kubelet offers {offered[memory]} of {memory} and {offered[percent]} of {percent} on {NODE}.",
        offered=offered,
    )
