"""The default scheduler of the simulated cluster: a pod goes to a node that has the devices it asks
for.

It counts extended resources (those with a slash in their name), resource claims, labels, taints and
`unschedulable`, and nothing else; cores and memory of the machine are never short here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from mpsd.simulator.api_server.kinds import (
    NODES,
    PODS,
    ApiRefusal,
    Object,
    labels_of,
    tolerates,
)
from mpsd.simulator.api_server.objects import ObjectKey, Objects, set_condition
from mpsd.simulator.api_server.pod_claims import PodClaims

_NAME = "default-scheduler"
_ENDED = frozenset({"Succeeded", "Failed"})


class Scheduler:
    def __init__(self, objects: Objects, claims: PodClaims) -> None:
        self._objects = objects
        self._claims = claims

    def look(self) -> None:
        """Binds every pod for which there is room, the oldest first."""
        pods = self._objects.store.all(PODS)
        waiting = [(key, pod) for key, pod in pods if _is_waiting(pod)]
        if not waiting:
            return
        nodes = [node for _key, node in self._objects.store.all(NODES)]
        used = {node["metadata"]["name"]: _used(node, pods) for node in nodes}
        for key, pod in sorted(
            waiting, key=lambda pair: int(pair[1]["metadata"]["resourceVersion"])
        ):
            reasons = {
                name: _unfit(pod, node, used) or self._claims.unfit(pod, name)
                for node in nodes
                for name in [node["metadata"]["name"]]
            }
            fit = [name for name, reason in reasons.items() if not reason]
            if not fit:
                self._say_unschedulable(key, reasons.values())
                continue
            chosen = min(fit, key=lambda name: (used[name].total(), name))
            used[chosen] += asked(pod)
            self._claims.reserve(pod, chosen)
            self._bind(key, chosen)

    def _bind(self, key: ObjectKey, node: str) -> None:
        try:
            self._objects.bind(key.namespace, key.name, {"target": {"kind": "Node", "name": node}})
        except ApiRefusal:  # it was bound or deleted in this very look
            return

    def _say_unschedulable(self, key: ObjectKey, reasons: Iterable[str]) -> None:
        counted = Counter(reasons)
        each = ", ".join(f"{number} {reason}" for reason, number in sorted(counted.items()))
        message = f"0/{counted.total()} nodes are available{f': {each}' if each else ''}."
        self._objects.change(
            key, lambda pod: set_condition(pod, "PodScheduled", "False", "Unschedulable", message)
        )


def asked(pod: Object) -> Counter[str]:
    """The devices that a pod needs at once: of its containers together, or of one init container if
    that is more."""
    spec = pod["spec"]
    main: Counter[str] = Counter()
    for container in spec["containers"]:
        main += _devices(container)
    for container in spec.get("initContainers") or ():
        main |= _devices(container)
    return main


def _devices(container: Object) -> Counter[str]:
    requests = (container.get("resources") or {}).get("requests") or {}
    return Counter({name: int(amount) for name, amount in requests.items() if "/" in name})


def _is_waiting(pod: Object) -> bool:
    spec = pod["spec"]
    metadata = pod["metadata"]
    ours = spec.get("schedulerName") == _NAME and not spec.get("nodeName")
    return (
        ours and not metadata.get("deletionTimestamp") and pod["status"].get("phase") not in _ENDED
    )


def _used(node: Object, pods: list[tuple[ObjectKey, Object]]) -> Counter[str]:
    here: Counter[str] = Counter()
    for _key, pod in pods:
        if (
            pod["spec"].get("nodeName") == node["metadata"]["name"]
            and pod["status"].get("phase") not in _ENDED
        ):
            here += asked(pod)
    return here


def _unfit(pod: Object, node: Object, used: Mapping[str, Counter[str]]) -> str:
    """Why a pod cannot go to a node, in the scheduler's words; empty where it can."""
    spec = pod["spec"]
    name = node["metadata"]["name"]
    if not (spec.get("nodeSelector") or {}).items() <= labels_of(node).items():
        return "node(s) didn't match Pod's node affinity"
    if (node.get("spec") or {}).get("unschedulable"):
        return "node(s) were unschedulable"
    if is_kept_away(spec, node):
        return "node(s) had taints that the pod didn't tolerate"
    has = (node.get("status") or {}).get("allocatable") or {}
    for resource, amount in asked(pod).items():
        if used[name][resource] + amount > int(has.get(resource, 0)):
            return f"Insufficient {resource}"
    return ""


def is_kept_away(spec: Object, node: Object) -> bool:
    """Whether a taint of the node keeps a pod of this spec away."""
    return any(
        not _is_tolerated(taint, spec) for taint in (node.get("spec") or {}).get("taints") or ()
    )


def _is_tolerated(taint: Object, spec: Object) -> bool:
    if taint.get("effect") == "PreferNoSchedule":
        return True
    return any(tolerates(toleration, taint) for toleration in spec.get("tolerations") or ())
