"""The options of verbs that ask a cluster, in kubectl's words, and how they are completed at Tab.

What only a question needs is imported where it is asked: shell completion has a short deadline.
"""

import io
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mpsd.platform.console import StatusFormat
from mpsd.platform.options import completed

if TYPE_CHECKING:
    from mpsd.model.cluster_status import ClusterStatus
    from mpsd.platform.kube import Kube

Answer = TypeVar("Answer")
_DEADLINE_S = 2.0

Kubeconfig = Annotated[
    str | None, typer.Option("--kubeconfig", metavar="FILE", help="As kubectl finds it, where not given.")
]
Context = Annotated[str | None, typer.Option("--context", metavar="NAME", help="Which cluster of the kubeconfig.")]
StatusOutput = Annotated[
    StatusFormat,
    typer.Option("-o", "--output", metavar="FORMAT", help="text or wide for people, json or yaml for machines."),
]
Watch = Annotated[
    bool, typer.Option("-w", "--watch", help="Show it again at every change, until Ctrl-C (exit code 130).")
]


@completed
def _nodes(given: Mapping[str, Any]) -> list[str]:
    there = given.get("nodes") or ()
    return [node.name for node in _look(given, ()).nodes if node.name not in there]


@completed
def _gpus(given: Mapping[str, Any]) -> list[str]:
    there = given.get("gpus") or ()
    status = _look(given, [given["node"]])
    return [label for node in status.nodes for label in (*node.labels.values(), "all") if label not in there]


@completed
def _pods(given: Mapping[str, Any]) -> list[str]:
    """Those of the namespace that ask for a GPU, as the policy that was shipped names such resources."""
    if given.get("pod"):
        return []
    from mpsd.kubelet.rules.gpu_choice import read_shared_pod
    from mpsd.platform.kube import PODS
    from mpsd.platform.kube_access import namespace_of_user
    from mpsd.platform.limits_files import load_limits

    namespace = given.get("namespace") or namespace_of_user(given.get("kubeconfig"), given.get("context"))
    policy = load_limits(None).policy
    things = _ask(given, lambda kube: kube.list(PODS, namespace))
    return [pod.name.name for thing in things if (pod := read_shared_pod(thing, policy))]


def _look(given: Mapping[str, Any], names: Sequence[str]) -> "ClusterStatus":
    from mpsd.status.cluster import look

    return _ask(given, lambda kube: look(kube, names))


def _ask(given: Mapping[str, Any], question: "Callable[[Kube], Awaitable[Answer]]") -> Answer:
    """TimeoutError after a moment: somebody has pressed Tab, and waits."""
    from mpsd.status.cluster_answers import ClusterAccess

    return ClusterAccess("", given.get("kubeconfig"), given.get("context")).answer(question, _DEADLINE_S)


NodeNames = Annotated[
    list[str] | None, typer.Argument(metavar="[NODE]...", help="Only these nodes.", autocompletion=_nodes)
]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The node.", autocompletion=_nodes)]
PodName = Annotated[str | None, typer.Argument(metavar="POD", help="The pod, or what made it.", autocompletion=_pods)]
GpuNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[GPU]...", help="Such as gpu0, or a UUID; all where none is named.", autocompletion=_gpus),
]
GpuOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="Such as gpu0, or a UUID; again for each; all where none is named.",
        autocompletion=_gpus,
    ),
]


# What kubectl asks its plugins at Tab: a line a word, then what cobra calls a directive.
# https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/ and kubectl's own pkg/cmd/plugin.


def offer(app: typer.Typer, program: str) -> None:
    """Says what may follow the words of the command line, the last of which is begun."""
    *words, incomplete = sys.argv[1:] or [""]
    line = shlex.join([program, *words]) + " " + (shlex.quote(incomplete) if incomplete else "")
    # typer's way to ask for completions is the environment; fish's form is a line a word, its help after a tab.
    asked = {
        f"_{program.replace('-', '_').upper()}_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    os.environ |= asked
    try:
        with redirect_stdout(io.StringIO()) as offered, suppress(SystemExit):
            app(prog_name=program)
    finally:
        for name in asked:
            del os.environ[name]
    lines = [line for line in offered.getvalue().splitlines() if line]  # an empty one would be offered too
    print(*lines, ":4", sep="\n")  # cobra's ShellCompDirectiveNoFileComp
