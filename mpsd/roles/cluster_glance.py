"""One look at the MPSNodes of a cluster for somebody who waits at a terminal: by kubectl, which answers first.

One rule: it tells of all that was asked for, or is None; `cluster_look` then looks, and says what is wrong.

Nothing is imported here before kubectl has been asked: what a status is made of loads while kubectl asks.
"""

import time
from collections.abc import Iterator, Sequence

from mpsd.edge.kubectl_raw import KubectlRead

TYPE_CHECKING = False  # of typing, which takes as long to load as all that kubectl is asked with
if TYPE_CHECKING:
    import msgspec

    from mpsd.core.cluster_status import ClusterStatus
    from mpsd.core.node_rows import NodeRow
    from mpsd.core.top_rows import TopGpu

_ALL = "/apis/mpsd.io/v1alpha1/mpsnodes"


class Glance:
    """names: of nodes; all where none is named. now: when it was answered, in seconds since 1970."""

    def __init__(self, names: Sequence[str], kubeconfig: str | None, context: str | None) -> None:
        self.now = time.time()
        self._names = frozenset(names)
        one = len(self._names) == 1 and next(iter(self._names)).replace("-", "").replace(".", "").isalnum()
        self._read = KubectlRead(f"{_ALL}/{names[0]}" if one else _ALL, kubeconfig, context)
        self._found: Sequence[msgspec.Raw] | None = None
        self._is_answered = False

    def rows(self) -> "tuple[NodeRow, ...] | None":
        """The nodes by name, and only what is said of each in one row: that takes a tenth of the time. Else as
        `status`.
        """
        from mpsd.core.mpsnode_reading import read_mpsnode
        from mpsd.core.node_rows import ToldNode, node_row, told_row
        from mpsd.edge.kube_time import seconds
        from mpsd.edge.mpsnode_json import read, reader

        told = reader(ToldNode)

        def row(thing: "msgspec.Raw") -> "NodeRow":
            plain = told(thing)
            found = None if plain is None else told_row(plain, self.now, seconds)
            return found or node_row(read_mpsnode(read(thing), self.now, seconds))

        try:
            rows = sorted([row(thing) for thing in self._answer()], key=lambda one: one.name)
        except ValueError:
            return None
        asked = tuple([one for one in rows if not self._names or one.name in self._names])
        return asked if self._names <= {one.name for one in asked} else None

    def top_gpus(self) -> "list[TopGpu] | None":
        """The GPUs of all nodes as `top` shows them, likewise."""
        from mpsd.core.mpsnode_reading import read_mpsnode
        from mpsd.core.top_rows import gpus_of
        from mpsd.core.top_told import ToldTopNode, told_gpus
        from mpsd.edge.kube_time import seconds
        from mpsd.edge.mpsnode_json import read, reader

        told = reader(ToldTopNode)

        def gpus(thing: "msgspec.Raw") -> "Iterator[TopGpu]":
            plain = told(thing)
            if plain is None:
                return gpus_of(read_mpsnode(read(thing), self.now, seconds))
            return told_gpus(plain, self.now, seconds)

        try:
            return [gpu for thing in self._answer() for gpu in gpus(thing)]
        except ValueError:
            return None

    def status(self) -> "ClusterStatus | None":
        """Waits for it. None too where a node that was asked for is not there."""
        from mpsd.core.cluster_status import ClusterStatus
        from mpsd.core.mpsnode_reading import cluster_status
        from mpsd.edge.kube_time import seconds
        from mpsd.edge.mpsnode_json import read

        try:
            status = cluster_status([read(thing) for thing in self._answer()], self.now, seconds)
        except ValueError:
            return None
        nodes = tuple([node for node in status.nodes if not self._names or node.name in self._names])
        return ClusterStatus(self.now, nodes) if self._names <= {node.name for node in nodes} else None

    def stop(self) -> None:
        """Nobody waits for it any more."""
        self._read.stop()

    def _answer(self) -> "Sequence[msgspec.Raw]":
        """ValueError where there is none."""
        from mpsd.edge.mpsnode_json import mpsnodes

        if not self._is_answered:
            self._found, self.now, self._is_answered = mpsnodes(self._read.answer() or b""), time.time(), True
        if self._found is None:
            raise ValueError("kubectl has no answer")
        return self._found
