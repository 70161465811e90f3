"""`kubectl mps cordon` and `kubectl mps uncordon`: take GPUs of a node out of use, and put them back.

`spec.cordoned` of the node's MPSNode is changed as it was read: after a conflict it is read again, so no change of
somebody else's is lost.

Rights of whoever does it: get and patch of mpsnodes.mpsd.io.
"""

import asyncio
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Annotated, NoReturn, TypeVar

import typer

from mpsd.model.cluster_status import ClusterNode, pod_rows, silence
from mpsd.model.mpsnode_reading import read_mpsnode
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.operations.lifecycle.rules.upgrade import MARK, left_to_others, read_mark
from mpsd.platform.console import ExitCode, answers, complaints, one_line
from mpsd.platform.imports import INTERRUPTED
from mpsd.platform.kube import MPS_NODES, Conflict, Kube, Object, PatchKind, Unavailable
from mpsd.platform.settings import seconds
from mpsd.status.cluster import mpsnodes
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, GpuNames, Kubeconfig, NodeName
from mpsd.status.rules.cordon import CordonChange, cordon_change, effects, merge_patch, progress
from mpsd.status.tables import CLUSTER_GPU_COLUMNS, CLUSTER_POD_COLUMNS, table
from mpsd.status.terminal import WIDEST, console

PAUSE_S = 0.5  # between two looks at the cluster
_TRIES = 10  # an agent writes its node's status once a second at most
_HEARD_S = 5.0  # a node sees a cordon within a second, and reports within another
Answer = TypeVar("Answer")

DRAIN_RIGHTS = "docs/operations/upgrade-and-drain.md (Drain a node) lists the rights that this requires"

Evict = Annotated[
    bool, typer.Option("--evict", help="Evict the pods that hold something there; disruption budgets are kept.")
]


# -- what the verbs that change a cluster share: progress goes to standard error, the answer to standard output -------


def read_seconds(command: str, option: str, text: str, *, zero: bool = False) -> float:
    """The seconds of an option; InvalidInput for what is no time. zero: whether 0 is allowed, for no wait."""
    try:
        found = seconds(text)
        if not found and not zero:
            raise ValueError("write a time over 0, such as 10m")
    except ValueError as error:
        raise InvalidInput(command, [Problem("setting", option, shown(text), "cannot be used", str(error))]) from None
    return found


def say(sentence: str) -> None:
    """Prints a line of progress."""
    complaints().print(one_line(sentence))


def command(cluster: ClusterAccess, words: Sequence[str]) -> str:
    """A command of this program about the same cluster, to be copied into a shell."""
    return shlex.join(["kubectl", "mps", *words]) + options(cluster)


def options(cluster: ClusterAccess) -> str:
    """The options that name the cluster, with a leading blank; empty where there are none."""
    words = ["--kubeconfig", cluster.kubeconfig] if cluster.kubeconfig else []
    words += ["--context", cluster.context] if cluster.context else []
    return f" {shlex.join(words)}" if words else ""


def ask_and_say_what_stays(
    cluster: ClusterAccess, question: Callable[[Kube], Awaitable[Answer]], stays: Callable[[], str]
) -> Answer:
    """As `cluster.ask`; after an interruption or failure half way, what stays is printed, a line each."""

    def tell() -> None:
        for sentence in stays().splitlines():
            say(sentence)

    try:
        return cluster.ask(question)
    except (SystemExit, InvalidInput):
        tell()
        raise
    except KeyboardInterrupt:
        complaints().print(f"{cluster.program}: interrupted")
        tell()
        sys.exit(INTERRUPTED)


def end(*, well: bool) -> NoReturn:
    sys.exit(ExitCode.YES if well else ExitCode.NO)


async def seen_node(kube: Kube, name: str) -> ClusterNode:
    """InvalidInput where there is no such MPSNode."""
    (thing,) = await mpsnodes(kube, [name])
    return _read(thing)


def _read(thing: Object) -> ClusterNode:
    return read_mpsnode(thing, time.time())


async def change_cordon(
    kube: Kube, node: str, named: Sequence[str], *, cordon: bool
) -> tuple[ClusterNode, CordonChange]:
    """The node as it was before, and what was changed. InvalidInput where there is no such node or GPU."""
    for _attempt in range(_TRIES):
        (thing,) = await mpsnodes(kube, [node])
        before = _read(thing)
        change = cordon_change(before, named, cordon=cordon)
        patch, mark = merge_patch(change, str(thing["metadata"]["resourceVersion"])), read_mark(thing)
        taken_over = bool(mark and not mark.isdisjoint(change.gpus))
        if mark and taken_over:  # an upgrade in progress leaves these to others from now on
            patch["metadata"]["annotations"] = {MARK: left_to_others(mark, change.gpus)}
        if not change.changes and not taken_over:
            return before, change
        with suppress(Conflict):
            await kube.patch(MPS_NODES, node, patch, PatchKind.MERGE)
            return before, change
    raise Conflict(f"patch mpsnodes {node}: another client changed it first, {_TRIES} times")


async def node_when(
    kube: Kube,
    node: str,
    done: Callable[[ClusterNode], bool],
    within_s: float,
    seen: Callable[[ClusterNode, bool], Awaitable[None]] | None = None,
    away: Callable[[Unavailable | None], None] = lambda _error: None,
) -> tuple[ClusterNode, bool]:
    """The node once it is `done`, else as it is after `within_s`, and whether it is.

    seen: gets each look at it, and whether it is the last. away: hears at each look why the API server is not there,
    None where it is; it is waited for, and Unavailable where it does not come back.
    """
    deadline = time.monotonic() + within_s
    while True:
        is_last = time.monotonic() >= deadline
        try:
            now = await seen_node(kube, node)
        except Unavailable as error:
            if is_last:
                raise
            away(error)
        else:
            away(None)
            is_done = done(now)
            if seen:
                await seen(now, is_last or is_done)
            if is_last or is_done:
                return now, is_done
        await asyncio.sleep(PAUSE_S)


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
    _change(ClusterAccess("kubectl mps cordon", kubeconfig, context), node, gpus or (), cordon=True, wait=wait)


def uncordon(
    node: NodeName,
    gpus: GpuNames = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Put GPUs of a node back into use.

        kubectl mps uncordon gpu-a1 gpu0
        kubectl mps uncordon gpu-a1               every GPU

    The exit codes are those of cordon.
    """
    _change(ClusterAccess("kubectl mps uncordon", kubeconfig, context), node, gpus or (), cordon=False, wait=None)


def _change(cluster: ClusterAccess, node: str, gpus: Sequence[str], *, cordon: bool, wait: str | None) -> NoReturn:
    """Changes it and waits. wait None: only until the node has taken it up, if it does at once."""
    wait_s = None if wait is None else read_seconds(cluster.program, "--wait", wait, zero=True)
    last = ""

    def show(sentence: str) -> None:
        nonlocal last
        if sentence != last:
            answers().print(one_line(sentence))
            last = sentence

    async def change_it(kube: Kube) -> tuple[CordonChange, ClusterNode, bool]:
        before, change = await change_cordon(kube, node, gpus, cordon=cordon)
        for sentence in effects(before, change):
            show(sentence)
        if wait_s is not None:

            async def seen(now: ClusterNode, _is_last: bool) -> None:
                show(progress(now, change))

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
    pods = [pod for pod in pod_rows(node) if not labels.isdisjoint(pod.labels)]
    to = console(WIDEST)
    if gpus:
        to.print(table(CLUSTER_GPU_COLUMNS, gpus))
    if pods:
        to.print(table(CLUSTER_POD_COLUMNS, pods))
