"""What the GPUs of a cluster have left, as one scheduler knows it.

One rule: a row of the table is written anew when something of its node changes, and never because somebody asks.
"""

from collections.abc import Callable, Mapping, Sequence

from mpsd.core.gpu_table import GpuTable
from mpsd.core.node_books import NodeBooks
from mpsd.core.policy import Policy
from mpsd.core.shared_pod import SharedPod
from mpsd.edge.kube import Kube


class ClusterBooks:
    """Kept by watches on MPSNodes, Nodes and pods, and by what this scheduler has promised.

    clients: of a GPU whose node does not say how many it serves.
    """

    def __init__(self, kube: Kube, policy: Callable[[], Policy], clients: int) -> None:
        self._table = GpuTable()

    @property
    def table(self) -> GpuTable:
        """As last heard."""
        return self._table

    @property
    def policy(self) -> Policy:
        """The one in force, with the resources that this process began with."""
        raise NotImplementedError

    async def run(self) -> None:
        """Until it is cancelled."""
        raise NotImplementedError

    def policy_changed(self) -> None:
        """Writes every row anew, by the policy that is in force now."""
        raise NotImplementedError

    @property
    def trouble(self) -> str:
        """Why the books must not be asked now, a sentence; empty where they may be."""
        raise NotImplementedError

    def pod(self, namespace: str, name: str) -> SharedPod | None:
        """One that asks for GPUs and has not finished; None for any other, and for one not heard of yet."""
        raise NotImplementedError

    def pods_on(self, node: str) -> Sequence[SharedPod]:
        """Those bound there that have not finished, the oldest first."""
        raise NotImplementedError

    def promised_to(self, uid: str) -> Mapping[str, NodeBooks]:
        """By node, where a pod that is not bound has a promise, the books as they are without it.

        The pod itself fits there by these: the promise that a bind cut off has left is its own.
        """
        raise NotImplementedError

    def address(self, node: str) -> str:
        """The InternalIP of the Node; empty where it is not known."""
        raise NotImplementedError
