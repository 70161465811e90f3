"""A pod of the cluster as a scheduler needs it: what it asks of GPUs, where it is, and what was chosen for it.

One rule: it holds no more than that, since a cluster has tens of thousands of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mpsd.kubelet.rules.node_pods import read_node_pod
from mpsd.kubelet.rules.placement_annotations import CHOICE_KEYS
from mpsd.model.grants import Request
from mpsd.model.identity import PodName
from mpsd.model.policy import Policy
from mpsd.model.share_request import Share


@dataclass(frozen=True, slots=True)
class SharedPod:
    """request: on each of its GPUs, when it holds most. node: empty where it is not bound. choice: the annotations that
    say which GPUs it has, those that are there. created: RFC 3339.

    finished: it has ended, and holds nothing. terminating: its end was asked for, and it still holds what it has.
    """

    name: PodName
    request: Request
    node: str
    choice: Mapping[str, str]
    scheduler: str
    priority: int
    created: str
    finished: bool
    terminating: bool


def read_shared_pod(thing: object, policy: Policy) -> SharedPod | None:
    """The pod in a decoded object of the API; None for what asks for no GPU or cannot be read."""
    pod = read_node_pod(thing, policy)
    if pod is None or not isinstance(thing, dict):
        return None
    spec = thing.get("spec") or {}
    share = Share(pod.requests, ())
    priority, node, scheduler = spec.get("priority"), spec.get("nodeName"), spec.get("schedulerName")
    return SharedPod(
        name=pod.identity,
        request=Request(share.memory_mib, share.thread_percent or None, pod.requests[0].gpus),
        node=node if isinstance(node, str) else "",
        choice={key: pod.annotations[key] for key in CHOICE_KEYS if key in pod.annotations},
        scheduler=scheduler if isinstance(scheduler, str) else "",
        priority=priority if isinstance(priority, int) else 0,
        created=pod.created,
        finished=pod.is_finished,
        terminating=pod.terminating,
    )
