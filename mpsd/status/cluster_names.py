"""What shell completion offers: the nodes, GPUs and pods that a cluster has.

One rule: whoever presses Tab waits no longer than a moment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from mpsd.kubelet.rules.gpu_choice import read_shared_pod
from mpsd.model.cluster_status import ClusterStatus
from mpsd.platform import logs
from mpsd.platform.kube import PODS, Kube, open_kube_of_user
from mpsd.platform.kube_access import namespace_of_user
from mpsd.platform.limits_files import load_limits
from mpsd.status.cluster import look

_DEADLINE_S = 2.0
Answer = TypeVar("Answer")


def nodes(given: Mapping[str, Any]) -> list[str]:
    """given: the command line so far, of which --kubeconfig and --context count, and what stands there already."""
    there = given.get("nodes") or ()
    return [node.name for node in _look(given, ()).nodes if node.name not in there]


def gpus(given: Mapping[str, Any]) -> list[str]:
    """Those of the node that was named before."""
    there = given.get("gpus") or ()
    status = _look(given, [given["node"]])
    return [label for node in status.nodes for label in (*node.labels.values(), "all") if label not in there]


def pods(given: Mapping[str, Any]) -> list[str]:
    """Those of the namespace that ask for a GPU, as the policy that was shipped names such resources."""
    if given.get("pod"):
        return []
    namespace = given.get("namespace") or namespace_of_user(given.get("kubeconfig"), given.get("context"))
    policy = load_limits(None).policy
    things = _ask(given, lambda kube: kube.list(PODS, namespace))
    return [pod.name.name for thing in things if (pod := read_shared_pod(thing, policy))]


def _look(given: Mapping[str, Any], names: list[str] | tuple[()]) -> ClusterStatus:
    return _ask(given, lambda kube: look(kube, names))


def _ask(given: Mapping[str, Any], question: Callable[[Kube], Awaitable[Answer]]) -> Answer:
    logs.be_silent()

    async def main() -> Answer:
        kube = open_kube_of_user(given.get("kubeconfig"), given.get("context"))
        try:
            async with asyncio.timeout(_DEADLINE_S):
                return await question(kube)
        finally:
            kube.close()

    return asyncio.run(main())
