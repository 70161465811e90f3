"""`kubectl mps cordon` and `kubectl mps uncordon`: take GPUs of a node out of use, and put them back."""

import sys
import time
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from mpsd.model.cluster_status import ClusterNode
from mpsd.model.node_troubles import silence
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.model.status_rows import pod_rows
from mpsd.operations.lifecycle.cluster_cordon import change_cordon, node_when
from mpsd.platform.kube import Kube
from mpsd.platform.output import ExitCode, answers, complaints, one_line
from mpsd.platform.setting_rows import seconds
from mpsd.status.cluster_answers import Cluster
from mpsd.status.cluster_options import Context, GpuNames, Kubeconfig, NodeName
from mpsd.status.frames import WIDEST, console
from mpsd.status.rules.cordon import CordonChange, effects, progress
from mpsd.status.tables import CLUSTER_GPU_COLUMNS, CLUSTER_POD_COLUMNS, table

_HEARD_S = 5.0  # a node hears of it within a second, and tells within another

Wait = Annotated[
    str | None,
    typer.Option(
        "--wait", metavar="TIME", help="Until no program is left there; at most 30m, say.", show_default=False
    ),
]


def cordon(
    node: NodeName,
    gpus: GpuNames = None,
    wait: Wait = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Take GPUs of a node out of use: no new pods; what runs there goes on until it ends.

    A domain of several GPUs drains as a whole. Exits with 0 when it is asked for (with --wait: when it is done), 1 when
    it is not, 2 when there is no such node or GPU.

        kubectl mps cordon gpu-a1 gpu0
        kubectl mps cordon gpu-a1 --wait 30m      every GPU, and wait for the last program
    """
    _change(Cluster("kubectl mps cordon", kubeconfig, context), node, gpus or (), cordon=True, wait=wait)


def uncordon(
    node: NodeName,
    gpus: GpuNames = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Put GPUs of a node back into use. The exit codes are those of cordon.

    kubectl mps uncordon gpu-a1 gpu0
    kubectl mps uncordon gpu-a1               every GPU
    """
    _change(Cluster("kubectl mps uncordon", kubeconfig, context), node, gpus or (), cordon=False, wait=None)


def _seconds(wait: str | None) -> float | None:
    try:
        return None if wait is None else seconds(wait)
    except ValueError as error:
        problem = Problem("setting", "--wait", shown(wait), "cannot be used", str(error))
        raise InvalidInput("kubectl mps cordon", [problem]) from None


def _change(cluster: Cluster, node: str, gpus: Sequence[str], *, cordon: bool, wait: str | None) -> NoReturn:
    """wait None: only until the node has taken it up, if it does at once."""
    wait_s = _seconds(wait)
    said = ""

    def say(sentence: str) -> None:
        nonlocal said
        if sentence != said:
            answers().print(one_line(sentence))
            said = sentence

    async def change_it(kube: Kube) -> tuple[CordonChange, ClusterNode, bool]:
        before, change = await change_cordon(kube, node, gpus, cordon=cordon)
        for sentence in effects(before, change):
            say(sentence)
        if wait_s is not None:

            async def seen(now: ClusterNode, _is_last: bool) -> None:
                say(progress(now, change))

            after = await node_when(kube, node, change.is_drained, wait_s, seen)
        else:
            within_s = _HEARD_S if before.told_at is not None and not before.stale else 0.0
            after = await node_when(kube, node, change.is_done, within_s)
        return change, *after

    change, after, is_done = cluster.ask(change_it)
    _show(after, change)
    if is_done:
        sys.exit(ExitCode.YES)
    if wait_s is None:
        why = silence(after, time.time())
        answers().print(why or f"{node} has not taken it up yet; `kubectl mps {node}` shows when it has")
        sys.exit(ExitCode.YES)
    complaints().print(f"{cluster.program}: programs are left there after {wait}")
    sys.exit(ExitCode.NO)


def _show(node: ClusterNode, change: CordonChange) -> None:
    gpus = [gpu for gpu in node.gpus if gpu.uuid in change.touched.union(change.gpus)]
    labels = {gpu.label for gpu in gpus}
    pods = [pod for pod in pod_rows(node) if not labels.isdisjoint(pod.gpus)]
    to = console(WIDEST)
    if gpus:
        to.print(table(CLUSTER_GPU_COLUMNS, gpus))
    if pods:
        to.print(table(CLUSTER_POD_COLUMNS, pods))
