"""One look at the MPSNodes of a cluster for somebody who waits at a terminal: by kubectl, which answers first.

One rule: it tells of all that was asked for, or is None; `cluster_look` then looks, and says what is wrong.

Nothing is imported here before kubectl has been asked: what a status is made of loads while kubectl asks.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpsd.edge.kubectl_raw import KubectlRead

if TYPE_CHECKING:
    from mpsd.core.cluster_status import ClusterStatus

_ALL = "/apis/mpsd.io/v1alpha1/mpsnodes"


class Glance:
    """names: of nodes; all where none is named."""

    def __init__(self, names: Sequence[str], kubeconfig: str | None, context: str | None) -> None:
        self._names = frozenset(names)
        one = len(self._names) == 1 and next(iter(self._names)).replace("-", "").replace(".", "").isalnum()
        self._read = KubectlRead(f"{_ALL}/{names[0]}" if one else _ALL, kubeconfig, context)

    def status(self) -> "ClusterStatus | None":
        """Waits for it. None too where a node that was asked for is not there."""
        from mpsd.core.cluster_status import cluster_status
        from mpsd.edge.kube_time import seconds

        found = _objects(self._read.answer())
        if found is None:
            return None
        status = cluster_status(found, time.time(), seconds)
        if not self._names:
            return status
        nodes = tuple(node for node in status.nodes if node.name in self._names)
        return type(status)(status.now, nodes) if {node.name for node in nodes} == self._names else None

    def stop(self) -> None:
        """Nobody waits for it any more."""
        self._read.stop()


def _objects(body: bytes | None) -> Sequence[object] | None:
    """Those of a list, or the one; None for anything else."""
    import msgspec

    try:
        read = msgspec.json.decode(body or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    match read:
        case {"kind": "MPSNodeList", "items": [*items]}:
            return items
        case {"kind": "MPSNode"}:
            return [read]
        case _:
            return None
