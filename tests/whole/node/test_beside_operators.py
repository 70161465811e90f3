"""A node of mpsd's beside programs that write to its Node: autoscalers' taints, and NVIDIA's GPU
operator's labels."""

from tests.whole.machine.machine import Service, eventually
from tests.whole.node.cluster import Cluster, Object, pod

_TAINT: Object = {"key": "mpsd.io/not-ready", "effect": "NoSchedule"}
_OTHERS: Object = {"key": "example.com/slow", "effect": "PreferNoSchedule"}


class Operated(Cluster):
    """A cluster whose agent has settings of its own."""

    flags: tuple[str, ...] = ()

    @property
    def agent_words(self) -> list[str]:
        return [*super().agent_words, *self.flags]

    def restart_agent(self, *flags: str) -> Service:
        self.flags = flags
        return super().restart_agent()

    def taints(self) -> list[Object]:
        return self.node_object().get("spec", {}).get("taints", [])

    def taint(self, *taints: Object) -> None:
        """As a node group gives them to its new nodes."""
        self.patch_node({"spec": {"taints": [*taints]}})

    def is_said(self, words: str) -> bool:
        return any(words in one["message"] for one in self.conditions())


CLUSTER = Operated


def test_the_startup_taint_is_removed_once_gpus_are_served(cluster: Operated) -> None:
    cluster.cordon("all")
    eventually(lambda: cluster.is_said("every GPU is cordoned"), "the node serves nothing")
    cluster.taint(_OTHERS, _TAINT, _TAINT | {"effect": "NoExecute"})
    cluster.restart_agent("--startup-taint", "mpsd.io/not-ready")
    cluster.apply(pod("early", 3))
    eventually(
        lambda: cluster.domain("gpu0").state == "drained", "the new agent knows of the cordon"
    )
    assert cluster.taints() == [_OTHERS, _TAINT, _TAINT | {"effect": "NoExecute"}]
    assert cluster.phase("early") == "Pending"
    cluster.cordon()
    cluster.program_of("early")
    assert cluster.taints() == [_OTHERS]
    assert cluster.agent.logged("startup taint removed")
