"""The pods of a node that ask for no GPU of ours.

One rule: nothing is read of such a pod but what tells it from every other and what else it may have been given, since
there may be hundreds of them.
"""

from dataclasses import dataclass

from mpsd.kubelet.rules.node_pods import asked_of_plugins
from mpsd.model.fields import Shape
from mpsd.model.identity import PodName
from mpsd.model.pod import read_pod


@dataclass(frozen=True, slots=True)
class Bystander:
    """Enough of a pod to know its processes. asked: as `NodePod` has it."""

    identity: PodName
    asked: tuple[str, ...]


def read_bystander(thing: object) -> Bystander | None:
    """The pod in a decoded object of the API, where it is no `NodePod`; None where any doubt is left."""
    if not isinstance(thing, dict) or thing.get("kind", "Pod") != "Pod":
        return None
    shape = Shape()
    pod = read_pod(shape, thing, "")
    metadata = shape.mapping(thing, "metadata", "")
    namespace, name, uid = (shape.text(metadata, key, "metadata") for key in ("namespace", "name", "uid"))
    if shape.problems or shape.too_many or not (namespace and name and uid):
        return None
    return Bystander(PodName(namespace, name, uid), asked_of_plugins(pod))
