"""The options of verbs that ask a cluster, in kubectl's words, and how they are completed at Tab.

What only a question needs is imported where it is asked: shell completion has a short deadline.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mpsd.platform.command_line import OneOf, flag, option
from mpsd.platform.console import StatusFormat

if TYPE_CHECKING:
    from mpsd.model.cluster_status import ClusterStatus
    from mpsd.platform.kube import Kube

Answer = TypeVar("Answer")
_DEADLINE_S = 2.0

KUBECONFIG = option("--kubeconfig", metavar="FILE", help="As kubectl finds it, where not given.")
CONTEXT = option("--context", metavar="NAME", help="Which cluster of the kubeconfig.")
STATUS_OUTPUT = option(
    "-o",
    "--output",
    type=OneOf(StatusFormat),
    metavar="FORMAT",
    help="text or wide for people, json or yaml for machines.",
)
WATCH = flag(
    "-w",
    "--watch",
    help="Show it again at every change, until Ctrl-C (exit code 130).",
)


def _nodes(given: Mapping[str, Any]) -> list[str]:
    there = given.get("nodes") or ()
    return [node.name for node in _look(given, ()).nodes if node.name not in there]


def _gpus(given: Mapping[str, Any]) -> list[str]:
    there = given.get("gpus") or ()
    (node,) = _look(given, [given["node"]]).nodes
    return [label for label in (*node.labels.values(), "all") if label not in there]


def _pods(given: Mapping[str, Any]) -> list[str]:
    """Those that ask for a GPU by the names of the policy that was shipped."""
    if given.get("pod"):
        return []
    from mpsd.kubelet.rules.gpu_choice import read_shared_pod
    from mpsd.model.pod import Pod
    from mpsd.platform.kube import PODS
    from mpsd.platform.kube_access import namespace_of_user
    from mpsd.platform.limits_files import load_limits

    namespace = given.get("namespace") or namespace_of_user(
        given.get("kubeconfig"), given.get("context")
    )
    policy = load_limits(None).policy

    async def names(kube: "Kube") -> list[str]:
        pods = [read_shared_pod(one, policy) async for one in kube.each(PODS, namespace, None, Pod)]
        return [pod.name.name for pod in pods if pod]

    return _ask(given, names)


def _look(given: Mapping[str, Any], names: Sequence[str]) -> "ClusterStatus":
    from mpsd.status.cluster import look

    return _ask(given, lambda kube: look(kube, names))


def _ask(given: Mapping[str, Any], question: "Callable[[Kube], Awaitable[Answer]]") -> Answer:
    """TimeoutError after a moment: somebody has pressed Tab, and waits."""
    from mpsd.status.cluster_answers import ClusterAccess

    return ClusterAccess("", given.get("kubeconfig"), given.get("context")).answer(
        question, _DEADLINE_S
    )


NODE_NAMES = option("nodes", nargs="*", metavar="NODE", help="Only these nodes.", complete=_nodes)
NODE_NAME = option("node", metavar="NODE", help="The node.", complete=_nodes)
POD_NAME = option("pod", nargs="?", metavar="POD", help="The pod, or what made it.", complete=_pods)
GPU_NAMES = option(
    "gpus",
    nargs="*",
    metavar="GPU",
    help="Such as gpu0, or a UUID; all where none is named.",
    complete=_gpus,
)
GPU_OPTIONS = option(
    "--gpu",
    dest="gpus",
    action="append",
    metavar="GPU",
    help="Such as gpu0, or a UUID; again for each; all where none is named.",
    complete=_gpus,
)
