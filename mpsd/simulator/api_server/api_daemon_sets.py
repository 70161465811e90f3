"""Runs the DaemonSets of the simulated cluster: a pod on every node that their selector picks, and a ControllerRevision
for every template that they have had.

One rule: as in Kubernetes the newest revision is the one with the highest number, pods name theirs in the label
`controller-revision-hash`, and under OnDelete nothing but its own end replaces an old pod.

A pod is made with its node written in it, where Kubernetes writes an affinity and lets the scheduler bind it.
"""

import copy
import json
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from mpsd.simulator.api_server.api_kinds import DAEMON_SETS, NODES, PODS, REVISIONS, Object
from mpsd.simulator.api_server.api_objects import Objects
from mpsd.simulator.api_server.api_store import Key
from mpsd.simulator.api_server.refusals import Refused
from mpsd.simulator.api_server.scheduler import is_kept_away
from mpsd.simulator.api_server.selectors import labels_of

HASH = "controller-revision-hash"
_ENDED = frozenset({"Succeeded", "Failed"})


class DaemonSets:
    """create: makes a pod in a namespace, as anybody makes one, so that admission has its say."""

    def __init__(self, objects: Objects, create: Callable[[str, Object], Awaitable[Object]]) -> None:
        self._objects = objects
        self._create = create

    async def look(self) -> None:
        for key, daemon_set in self._objects.store.all(DAEMON_SETS):
            if not daemon_set["metadata"].get("deletionTimestamp"):
                await self._run(key, daemon_set)

    async def _run(self, key: Key, daemon_set: Object) -> None:
        revision = self._newest_revision(daemon_set)
        wanted = {
            node["metadata"]["name"] for _key, node in self._objects.store.all(NODES) if _belongs(daemon_set, node)
        }
        pods = self._owned(PODS, daemon_set)
        for pod in pods:
            if pod["spec"].get("nodeName") not in wanted or pod["status"].get("phase") in _ENDED:
                self._end(pod)
        for name in sorted(wanted - {pod["spec"].get("nodeName") for pod in pods}):
            with suppress(Refused):  # by admission, or because its namespace is going
                await self._create(key.namespace, _pod(daemon_set, revision, name))
        pods = self._owned(PODS, daemon_set)
        ready, current = (
            [pod for pod in pods if _is_ready(pod)],
            [pod for pod in pods if labels_of(pod).get(HASH) == revision],
        )
        rolls = daemon_set["spec"].get("updateStrategy", {}).get("type") != "OnDelete"
        old = [pod for pod in ready if pod not in current]
        if rolls and old and len(ready) == len(wanted):
            self._end(old[0])
        status = {
            "observedGeneration": daemon_set["metadata"]["generation"],
            "desiredNumberScheduled": len(wanted),
            "currentNumberScheduled": len(pods),
            "updatedNumberScheduled": len(current),
            "numberReady": len(ready),
            "numberMisscheduled": 0,
        }
        self._objects.change(key, lambda thing: thing.update(status=status))

    def _newest_revision(self, daemon_set: Object) -> str:
        """The hash of the template as it is now, kept as the newest ControllerRevision."""
        template = daemon_set["spec"]["template"]
        made = f"{zlib.crc32(json.dumps(template, sort_keys=True).encode()):08x}"
        kept = {labels_of(one)[HASH]: one for one in self._owned(REVISIONS, daemon_set)}
        newest = max((one["revision"] for one in kept.values()), default=0)
        metadata = daemon_set["metadata"]
        if made not in kept:
            labels = {**(template.get("metadata", {}).get("labels") or {}), HASH: made}
            name = f"{metadata['name']}-{made}"
            about = {"name": name, "labels": labels, "ownerReferences": [_owner(daemon_set)]}
            data = {"spec": {"template": {**copy.deepcopy(template), "$patch": "replace"}}}
            with suppress(Refused):
                body = {"metadata": about, "data": data, "revision": newest + 1}
                self._objects.create(REVISIONS, metadata["namespace"], body)
        elif kept[made]["revision"] < newest:  # the template is again what it was
            key = self._objects.key(REVISIONS, metadata["namespace"], kept[made]["metadata"]["name"])
            self._objects.change(key, lambda thing: thing.update(revision=newest + 1))
        return made

    def _owned(self, kind: Any, daemon_set: Object) -> list[Object]:
        metadata = daemon_set["metadata"]
        found = (thing for _key, thing in self._objects.store.all(kind, metadata["namespace"]))
        return [
            thing
            for thing in found
            if any(one["uid"] == metadata["uid"] for one in thing["metadata"].get("ownerReferences") or ())
        ]

    def _end(self, pod: Object) -> None:
        if not pod["metadata"].get("deletionTimestamp"):
            self._objects.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], {})


def _belongs(daemon_set: Object, node: Object) -> bool:
    spec = daemon_set["spec"]["template"]["spec"]
    picked = (spec.get("nodeSelector") or {}).items() <= labels_of(node).items()
    return picked and not is_kept_away(spec, node)


def _pod(daemon_set: Object, revision: str, node: str) -> Object:
    template = copy.deepcopy(daemon_set["spec"]["template"])
    about = template.get("metadata") or {}
    labels = {**(about.get("labels") or {}), HASH: revision}
    name = {"generateName": f"{daemon_set['metadata']['name']}-", "ownerReferences": [_owner(daemon_set)]}
    return {"metadata": {**about, **name, "labels": labels}, "spec": {**template["spec"], "nodeName": node}}


def _owner(daemon_set: Object) -> Object:
    metadata = daemon_set["metadata"]
    named = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": metadata["name"], "uid": metadata["uid"]}
    return {**named, "controller": True, "blockOwnerDeletion": True}


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)
