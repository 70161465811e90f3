"""Pods for the second scheduler, and what is said of them while they wait."""

from typing import Any

from tests.e2e.cluster import Object
from tests.e2e.installation import SCHEDULER, Installation
from tests.e2e.shares import Pods, container, share

GPU_ANNOTATION = "mpsd.io/gpu"


def shared(pods: Pods, name: str, gib: int, *actions: str, **spec: Any) -> Object:
    """A pod for the second scheduler that holds a context until it is told to end, unless actions
    say otherwise."""
    return share(
        name, container(pods.image, gib, *(actions or ("hold",))), schedulerName=SCHEDULER, **spec
    )


def said_of(pods: Pods, name: str, reason: str) -> list[str]:
    return [
        str(event.get("message", "")) for event in pods.events(name) if event["reason"] == reason
    ]


def placed(mpsd: Installation, pods: Pods) -> dict[str, tuple[str, ...]]:
    """By pod of the namespace, the labels of the GPUs where its devices lie, as kubelet told the
    agent."""
    told = mpsd.told()
    labels = {gpu["uuid"]: gpu["label"] for gpu in told["gpus"]}
    named = {tuple(grant["pod"].split("/")): grant["gpus"] for grant in told.get("grants", ())}
    return {
        name: tuple(labels[uuid] for uuid in gpus)
        for (where, name), gpus in named.items()
        if where == pods.namespace
    }
