"""One look at the MPSNodes of a cluster for somebody who waits at a terminal: by kubectl, which answers first.

It holds all that was asked for, or is None; `cluster_look` then looks, and says what is wrong. What a status is made of
loads while kubectl asks, so nothing of it is imported before.
"""

import time
from collections.abc import Sequence

from mpsd.status.kubectl_raw import KubectlRead

TYPE_CHECKING = False  # of typing, which takes as long to load as all that kubectl is asked with
if TYPE_CHECKING:
    from mpsd.model.cluster_status import ClusterStatus

_ALL = "/apis/mpsd.io/v1alpha1/mpsnodes"


class Glance:
    """names: of nodes; all where none is named."""

    def __init__(self, names: Sequence[str], kubeconfig: str | None, context: str | None) -> None:
        self._names = frozenset(names)
        one = len(self._names) == 1 and next(iter(self._names)).replace("-", "").replace(".", "").isalnum()
        self._read = KubectlRead(f"{_ALL}/{names[0]}" if one else _ALL, kubeconfig, context)

    def status(self) -> "ClusterStatus | None":
        """Waits for it. None too where a node that was asked for is not there."""
        from mpsd.model.cluster_status import ClusterStatus
        from mpsd.model.mpsnode_reading import cluster_status

        found, now = mpsnodes(self._read.answer() or b""), time.time()
        if found is None:
            return None
        status = cluster_status(found, now)
        nodes = tuple([node for node in status.nodes if not self._names or node.name in self._names])
        return ClusterStatus(now, nodes) if self._names <= {node.name for node in nodes} else None

    def stop(self) -> None:
        """Nobody waits for it any more."""
        self._read.stop()


def mpsnodes(body: bytes) -> Sequence[object] | None:
    """The objects of what the API server answers, a list or one MPSNode; None for anything else."""
    import msgspec

    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    match answer:
        case {"kind": "MPSNodeList", "items": [*items]}:
            return items
        case {"kind": "MPSNode"}:
            return [answer]
        case _:
            return None
