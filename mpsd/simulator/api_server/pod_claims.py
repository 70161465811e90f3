"""The resource claims of pods in the simulated cluster: made from templates, allocated with the
pod's node, freed when the last of their pods has ended.

A claim that a test allocated by itself, without the finalizer, is left alone.
"""

import secrets
from collections.abc import Mapping
from contextlib import suppress

from mpsd.simulator.api_server.allocation import (
    CannotAllocate,
    ConsumedCapacity,
    allocated,
    offered,
    results_of,
)
from mpsd.simulator.api_server.kinds import (
    CLAIM_TEMPLATES,
    CLAIMS,
    DEVICE_CLASSES,
    PODS,
    SLICES,
    ApiRefusal,
    Object,
    claim_names,
    labels_of,
)
from mpsd.simulator.api_server.objects import ObjectKey, Objects

FINALIZER = "resource.kubernetes.io/delete-protection"
_ENDED = frozenset({"Succeeded", "Failed"})


class PodClaims:
    """What the scheduler plugin DynamicResources and the controller of resource claims do."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    # -- the scheduler

    def unfit(self, pod: Object, node: str) -> str:
        """Why the pod's claims keep it from a node, in the scheduler's words; empty where they do
        not."""
        try:
            self._plan(pod, node)
        except CannotAllocate as error:
            return str(error)
        return ""

    def reserve(self, pod: Object, node: str) -> None:
        """Allocates the claims there where they are not, and reserves all of them for the pod."""
        metadata = pod["metadata"]
        consumer = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
        for key, planned in self._plan(pod, node).items():

            def edit(claim: Object, planned: Object = planned) -> None:
                status = claim.setdefault("status", {})
                if not status.get("allocation"):
                    status["allocation"] = planned
                    finalizers = claim["metadata"].setdefault("finalizers", [])
                    finalizers += [FINALIZER] if FINALIZER not in finalizers else []
                if consumer not in status.setdefault("reservedFor", []):
                    status["reservedFor"].append(consumer)

            self._objects.change(key, edit)

    def _plan(self, pod: Object, node: str) -> dict[ObjectKey, Object]:
        """The allocation of each of the pod's claims if it goes to this node. CannotAllocate."""
        store = self._objects.store
        used = ConsumedCapacity()
        found: dict[ObjectKey, Object] = {}
        names = claim_names(pod)
        if not names:
            return found
        for _key, other in store.all(CLAIMS):
            for result in results_of(other):
                used.add(result)
        devices = list(offered((thing for _key, thing in store.all(SLICES)), node))
        classes = {thing["metadata"]["name"]: thing for _key, thing in store.all(DEVICE_CLASSES)}
        for entry, name in names.items():
            key = self._objects.key(CLAIMS, pod["metadata"]["namespace"], name)
            if not name:
                raise CannotAllocate(
                    f'pod "{pod["metadata"]["name"]}": ResourceClaim {entry} not created yet'
                )
            claim = store.get(key)
            if claim is None:
                raise CannotAllocate(f'resourceclaim "{name}" not found')
            if claim["metadata"].get("deletionTimestamp"):
                raise CannotAllocate(f'resourceclaim "{name}" is being deleted')
            before = (claim.get("status") or {}).get("allocation")
            if before and node not in _nodes_of(before, node):
                raise CannotAllocate("resourceclaim not available on the node")
            found[key] = before or allocated(claim, node, devices, classes, used)
        return found

    # -- the controller

    def look(self) -> None:
        for pod_key, pod in self._objects.store.all(PODS):
            if not pod["metadata"].get("deletionTimestamp"):
                self._make(pod_key, pod)
        for claim_key, claim in self._objects.store.all(CLAIMS):
            if FINALIZER in (claim["metadata"].get("finalizers") or ()):
                self._release(claim_key, claim)

    def _make(self, key: ObjectKey, pod: Object) -> None:
        """The claims that the pod's templates ask for, once; then they are named in its status."""
        names = claim_names(pod)
        metadata = pod["metadata"]
        owner = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": key.name,
            "uid": metadata["uid"],
            "controller": True,
        }
        for entry in pod["spec"].get("resourceClaims") or ():
            named = entry.get("resourceClaimTemplateName", "")
            template = self._objects.store.get(
                self._objects.key(CLAIM_TEMPLATES, key.namespace, named)
            )
            if template is None or names[entry["name"]]:
                continue
            name = f"{key.name}-{entry['name']}-{secrets.token_hex(3)[:5]}"
            about = {
                "name": name,
                "ownerReferences": [owner],
                "labels": labels_of(template["spec"]),
            }
            status = {"name": entry["name"], "resourceClaimName": name}

            def edit(thing: Object, status: Object = status) -> None:
                thing["status"].setdefault("resourceClaimStatuses", []).append(status)

            with suppress(ApiRefusal):  # its namespace is going
                self._objects.create(
                    CLAIMS, key.namespace, {"metadata": about, "spec": template["spec"]["spec"]}
                )
                self._objects.change(key, edit)

    def _release(self, key: ObjectKey, claim: Object) -> None:
        reserved = (claim.get("status") or {}).get("reservedFor") or []
        left = [one for one in reserved if self._is_held(key.namespace, one)]
        if left and left == reserved:
            return

        def edit(thing: Object) -> None:
            thing["status"]["reservedFor"] = left
            if not left:
                thing["status"].pop("allocation", None)
                thing["metadata"]["finalizers"] = [
                    one for one in thing["metadata"]["finalizers"] if one != FINALIZER
                ]

        self._objects.change(key, edit)
        now = self._objects.store.get(key)
        if (
            now
            and now["metadata"].get("deletionTimestamp")
            and not now["metadata"].get("finalizers")
        ):
            self._objects.remove(CLAIMS, key)

    def _is_held(self, namespace: str, consumer: Mapping[str, str]) -> bool:
        pod = self._objects.store.get(self._objects.key(PODS, namespace, consumer["name"]))
        return bool(
            pod
            and pod["metadata"]["uid"] == consumer["uid"]
            and pod["status"].get("phase") not in _ENDED
        )


def _nodes_of(allocation: Object, node: str) -> list[str]:
    """Where it can be used: on `node` too where it names none."""
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()
    return [
        name
        for term in terms
        for field in term.get("matchFields") or ()
        for name in field["values"]
    ] or [node]
