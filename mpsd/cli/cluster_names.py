"""What shell completion offers: the nodes and GPUs that a cluster has.

One rule: whoever presses Tab waits no longer than a moment.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from mpsd.core.cluster_status import ClusterStatus
from mpsd.edge import logs
from mpsd.edge.kubeconfig import open_kube_of_user
from mpsd.roles.cluster_look import look

_DEADLINE_S = 2.0


def nodes(given: Mapping[str, Any]) -> list[str]:
    """given: the command line so far, of which --kubeconfig and --context count, and what stands there already."""
    there = given.get("nodes") or ()
    return [node.name for node in _look(given, ()).nodes if node.name not in there]


def gpus(given: Mapping[str, Any]) -> list[str]:
    """Those of the node that was named before."""
    there = given.get("gpus") or ()
    status = _look(given, [given["node"]])
    return [label for node in status.nodes for label in (*node.labels.values(), "all") if label not in there]


def _look(given: Mapping[str, Any], names: list[str] | tuple[()]) -> ClusterStatus:
    logs.be_silent()

    async def main() -> ClusterStatus:
        kube = open_kube_of_user(given.get("kubeconfig"), given.get("context"))
        try:
            async with asyncio.timeout(_DEADLINE_S):
                return await look(kube, names)
        finally:
            kube.close()

    return asyncio.run(main())
