"""Takes GPUs of a node out of use through its MPSNode, and waits for what comes of it.

One rule: `spec.cordoned` is changed as it was read; who was faster is read anew, and nobody's change is lost.

Rights of whoever does it: get and patch of mpsnodes.mpsd.io.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from mpsd.model.cluster_status import ClusterNode
from mpsd.model.mpsnode_reading import read_mpsnode
from mpsd.operations.lifecycle.rules.upgrade_step import MARK, left_to_others, read_mark
from mpsd.platform.kube import Away, Conflict, Kube, Object, PatchKind
from mpsd.platform.kube_time import seconds
from mpsd.status.cluster_look import mpsnodes
from mpsd.status.report_node import MPS_NODES
from mpsd.status.rules.cordon import CordonChange, cordon_change, merge_patch

PAUSE_S = 0.5  # between two looks at the cluster
_TRIES = 10  # an agent writes its node's status once a second at most


async def seen_node(kube: Kube, name: str) -> ClusterNode:
    """InvalidInput where there is no such MPSNode."""
    (thing,) = await mpsnodes(kube, [name])
    return _read(thing)


def _read(thing: Object) -> ClusterNode:
    return read_mpsnode(thing, time.time(), seconds)


async def change_cordon(
    kube: Kube, node: str, named: Sequence[str], *, cordon: bool
) -> tuple[ClusterNode, CordonChange]:
    """The node as it was before, and what was changed. InvalidInput where there is no such node or GPU."""
    for _attempt in range(_TRIES):
        (thing,) = await mpsnodes(kube, [node])
        before = _read(thing)
        change = cordon_change(before, named, cordon=cordon)
        patch, mark = merge_patch(change, _version(thing)), read_mark(thing)
        taken_over = bool(mark and not mark.isdisjoint(change.gpus))
        if mark and taken_over:  # an upgrade that is under way has no say in these any more
            patch["metadata"]["annotations"] = {MARK: left_to_others(mark, change.gpus)}
        if not change.changes and not taken_over:
            return before, change
        with suppress(Conflict):
            await kube.patch(MPS_NODES, node, patch, PatchKind.MERGE)
            return before, change
    raise Conflict(f"patch mpsnodes {node}: somebody else was faster {_TRIES} times")


async def _unseen(_node: ClusterNode, _is_last: bool) -> None: ...


def _unheard(_error: Away | None) -> None: ...


async def node_when(
    kube: Kube,
    node: str,
    done: Callable[[ClusterNode], bool],
    within_s: float,
    seen: Callable[[ClusterNode, bool], Awaitable[None]] = _unseen,
    away: Callable[[Away | None], None] = _unheard,
) -> tuple[ClusterNode, bool]:
    """The node once it is `done`, else as it is after `within_s`, and whether it is.

    seen: gets each look at it, and whether it is the last. away: hears at each look why the API server is not there,
    None where it is; it is waited for, and Away where it does not come back.
    """
    deadline = time.monotonic() + within_s
    while True:
        is_last = time.monotonic() >= deadline
        try:
            now = await seen_node(kube, node)
        except Away as error:
            if is_last:
                raise
            away(error)
        else:
            away(None)
            is_done = done(now)
            await seen(now, is_last or is_done)
            if is_last or is_done:
                return now, is_done
        await asyncio.sleep(PAUSE_S)


def _version(thing: Object) -> str:
    return str(thing["metadata"]["resourceVersion"])
