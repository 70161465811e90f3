"""Binds a pod to a node and to GPUs of it.

One rule: no binding before the promise of its GPUs is written at the API server, under the resourceVersion that their
room was counted by.
"""

from dataclasses import dataclass

from mpsd.edge.kube import Kube
from mpsd.roles.scheduler_books import ClusterBooks


@dataclass(frozen=True, slots=True)
class BindArgs:
    """What kube-scheduler asks: ExtenderBindingArgs."""

    pod_namespace: str
    pod_name: str
    pod_uid: str
    node: str


class Binder:
    """Any number of binds at once; those to one node wait for each other."""

    def __init__(self, kube: Kube, books: ClusterBooks) -> None:
        self._kube = kube
        self._books = books

    async def bind(self, args: BindArgs) -> str:
        """Empty where the pod is bound there; else why not, for a person."""
        raise NotImplementedError
