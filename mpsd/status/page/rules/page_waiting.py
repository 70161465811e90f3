"""Pods that wait for a GPU, as the page of a node and that of a cluster show them.

One rule: every sentence is the one that `kubectl mps explain` has, whoever shows it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpsd.model.cluster_status import Seconds
from mpsd.model.mpsnode_reading import read_mpsnode
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.problem import shown_name
from mpsd.status.page.rules.page_view import Level, PodsHeard, PodsHere, WaitingCard, shown_text
from mpsd.status.rules.explanation import story
from mpsd.status.rules.mpsnode import Stamp, mpsnode_status
from mpsd.status.rules.pod_scene import Scene, Story, Why
from mpsd.status.rules.pod_seen import PodSeen

MOST_ON_NODE = 200
# Nothing that happens in the cluster by itself ends these.
_FOR_EVER = frozenset({Why.ASKS_UNREADABLY, Why.OTHER_SCHEDULER, Why.NO_NODE, Why.TOO_LARGE})


@dataclass(frozen=True, slots=True)
class Times:
    """How times are written in the API, and read."""

    stamp: Stamp
    seconds: Seconds


def pod_card(pod: PodSeen, told: Story, seconds: Seconds) -> WaitingCard:
    request = pod.shared.request if pod.shared else None
    began = pod.bound if pod.node else pod.shared.created if pod.shared else ""
    return WaitingCard(
        id=pod.name.uid or str(pod.name),
        name=shown_name(str(pod.name)),
        level=Level.BAD if told.why in _FOR_EVER else Level.WARN,
        why=told.why.value,
        text=shown_text(told.sentence),
        memory_mib=request.memory_mib if request else None,
        thread_percent=request.thread_percent if request else None,
        gpus=request.gpus if request else None,
        since=seconds(began),
    )


def own_scene(node: str, view: NodeView, policy: Policy, times: Times) -> Scene:
    """What is known around the pods of a node on the node itself: what its MPSNode will tell of this view."""
    status = mpsnode_status(view, policy, {}, times.stamp)
    told = read_mpsnode({"metadata": {"name": node}, "status": status}, view.now, times.seconds)
    return Scene(policy, view.now, {node: told}, {}, None)


def pods_here(
    pods: Sequence[PodSeen], warnings: Mapping[str, str], around: Scene, heard: PodsHeard, times: Times
) -> PodsHere:
    """pods: those bound to the node that do not run yet. warnings: by uid, the last event that each was told."""
    listed = pods[:MOST_ON_NODE]
    cards = (pod_card(pod, story(pod, around, warnings.get(pod.name.uid, "")), times.seconds) for pod in listed)
    return PodsHere(tuple(cards), len(pods) - len(listed), heard)
