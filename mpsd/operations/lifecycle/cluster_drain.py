"""Empties GPUs of a node through its MPSNode: takes them out of use, and waits until nobody is left there.

One rule: nothing is changed for a node that cannot say when its GPUs are empty, and what is waited for is said once a
change.

Rights of whoever does it: get and patch of mpsnodes.mpsd.io; to evict those of `cluster_evictions`.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from mpsd.model.cluster_status import ClusterNode
from mpsd.model.domain_states import State
from mpsd.model.node_troubles import silence
from mpsd.operations.lifecycle.cluster_cordon import change_cordon, node_when, seen_node
from mpsd.operations.lifecycle.cluster_evictions import Evictions
from mpsd.operations.lifecycle.rules.drain_progress import (
    are_empty,
    no_answer,
    not_taken_up,
    refusals,
    serving,
    states,
    what_is_left,
)
from mpsd.platform.kube import Away, Kube, KubeError
from mpsd.status.rules.cordon import CordonChange, cordon_change

_HEARD_S = 15.0  # a node hears of a cordon within a second, and tells within another

Say = Callable[[str], None]


class NodeSilent(KubeError):
    """The node cannot say whether its GPUs are empty, so nothing was changed."""


class Telling:
    """Says a sentence of each subject only where it is another one than before."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._said: dict[str, str] = {}

    def __call__(self, subject: str, sentence: str | None) -> None:
        """None: there is nothing to be said of it, and what comes next is new."""
        if sentence is None:
            self._said.pop(subject, None)
        elif self._said.get(subject) != sentence:
            self._said[subject] = sentence
            self._say(sentence)

    def away(self, error: Away | None) -> None:
        """None: the API server is there."""
        self("away", f"{error}; still waiting" if error else None)


async def begin_drain(kube: Kube, name: str, named: Sequence[str]) -> tuple[ClusterNode, CordonChange]:
    """Cordons. The node as it was before, and the change.

    Before anything is changed: InvalidInput where there is no such MPSNode or GPU, NodeSilent where nobody answers.
    """
    node = await seen_node(kube, name)
    cordon_change(node, named, cordon=True)  # for what it says of GPUs that are not there
    if why := no_answer(node, time.time()):
        raise NodeSilent(why)
    return await change_cordon(kube, name, named, cordon=True)


@dataclass(frozen=True, slots=True)
class Emptying:
    """evictions None: the pods are left to end by themselves."""

    node: str
    gpus: Collection[str]
    within_s: float
    evictions: Evictions | None


async def until_empty(kube: Kube, emptying: Emptying, say: Say) -> tuple[ClusterNode, bool]:
    """The node once nobody is left on these GPUs, else as it is at the deadline; and whether that is so.

    An API server that goes away meanwhile is waited for; Away where it does not come back.
    """
    telling, began = Telling(say), time.monotonic()

    def is_done(node: ClusterNode) -> bool:
        return are_empty(node, emptying.gpus)

    async def seen(node: ClusterNode, is_last: bool) -> None:
        if not is_last:  # else whoever asked says how it is
            telling("left", f"{node.name}: {what_is_left(node, emptying.gpus)}")
        _tell(telling, node, emptying, time.monotonic() - began)
        if emptying.evictions and not node.stale and not is_done(node):
            await emptying.evictions.look(node, emptying.gpus)

    return await node_when(kube, emptying.node, is_done, emptying.within_s, seen, telling.away)


def _tell(telling: Telling, node: ClusterNode, emptying: Emptying, waited_s: float) -> None:
    telling("silence", silence(node, time.time()))
    unheard = waited_s >= _HEARD_S and any(
        gpu.state == State.READY for gpu in node.gpus if gpu.uuid in emptying.gpus and not node.stale
    )
    telling("unheard", not_taken_up(node, time.time(), _HEARD_S) if unheard else None)


async def until_serving(kube: Kube, name: str, gpus: Collection[str], within_s: float, say: Say) -> ClusterNode:
    """The node once all of these GPUs serve, or one never will, else as it is at the deadline.

    A node that has told nothing of late is not waited for. Away where the API server stays away.
    """
    telling = Telling(say)

    def is_decided(node: ClusterNode) -> bool:
        return serving(node, gpus) or bool(silence(node, time.time())) or any(refusals(node, gpus))

    async def seen(node: ClusterNode, is_last: bool) -> None:
        if not is_last:
            telling("states", f"{node.name}: {states(node, gpus)}")

    node, _is_decided = await node_when(kube, name, is_decided, within_s, seen, telling.away)
    return node
