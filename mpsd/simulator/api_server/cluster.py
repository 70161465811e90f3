"""The simulated cluster behind the API: its objects, who may change them, and the controllers that
do.

It knows nothing of HTTP; `api_server` is one way to it.
"""

import asyncio
import copy
import json
import time
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from mpsd.simulator.api_server.admission import Admitted, Attempt, Reviews, WebhookAdmission
from mpsd.simulator.api_server.bodies import patched, stamp
from mpsd.simulator.api_server.kinds import (
    DAEMON_SETS,
    EVENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    REVISIONS,
    ApiRefusal,
    Cause,
    Kinds,
    Object,
    ObjectKind,
    invalid,
    labels_of,
    modified,
)
from mpsd.simulator.api_server.objects import ObjectKey, Objects, Store
from mpsd.simulator.api_server.pod_claims import PodClaims
from mpsd.simulator.api_server.scheduler import Scheduler, is_kept_away


def _owner(api: str, kind: str, thing: Object) -> Object:
    """An owner reference to it."""
    named = {field: thing["metadata"][field] for field in ("name", "uid")}
    api_kind = {"apiVersion": api, "kind": kind}
    return {**api_kind, **named, "controller": True, "blockOwnerDeletion": True}


def _owned(objects: Objects, kind: ObjectKind, owner: Object) -> list[Object]:
    metadata = owner["metadata"]
    found = []
    for _key, thing in objects.store.all(kind, metadata["namespace"]):
        references = thing["metadata"].get("ownerReferences") or ()
        if any(one["uid"] == metadata["uid"] for one in references):
            found.append(thing)
    return found


def _ends(thing: Object) -> bool:
    return bool(thing["metadata"].get("deletionTimestamp"))


# Runs the DaemonSets of the simulated cluster: a pod on every node that their selector picks, and a
# ControllerRevision for every template that they have had.
#
# As in Kubernetes the newest revision is the one with the highest number, pods name theirs in the
# label `controller-revision-hash`, and under OnDelete nothing but its own end replaces an old pod.
#
# A pod is made with its node written in it, where Kubernetes writes an affinity and lets the
# scheduler bind it.

HASH = "controller-revision-hash"
_ENDED = frozenset({"Succeeded", "Failed"})


class DaemonSets:
    """create: makes a pod in a namespace, as anybody makes one, so that admission has its say."""

    def __init__(
        self, objects: Objects, create: Callable[[str, Object], Awaitable[Object]]
    ) -> None:
        self._objects = objects
        self._create = create

    async def look(self) -> None:
        for key, daemon_set in self._objects.store.all(DAEMON_SETS):
            if not _ends(daemon_set):
                await self._run(key, daemon_set)

    async def _run(self, key: ObjectKey, daemon_set: Object) -> None:
        revision = self._newest_revision(daemon_set)
        wanted = {
            node["metadata"]["name"]
            for _key, node in self._objects.store.all(NODES)
            if _belongs(daemon_set, node)
        }
        pods = _owned(self._objects, PODS, daemon_set)
        for pod in pods:
            if pod["spec"].get("nodeName") not in wanted or pod["status"].get("phase") in _ENDED:
                self._end(pod)
        for name in sorted(wanted - {pod["spec"].get("nodeName") for pod in pods}):
            with suppress(ApiRefusal):  # by admission, or because its namespace is going
                await self._create(key.namespace, _pod(daemon_set, revision, name))
        pods = _owned(self._objects, PODS, daemon_set)
        ready = [pod for pod in pods if _is_ready(pod)]
        current = [pod for pod in pods if labels_of(pod).get(HASH) == revision]
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
        kept = {labels_of(one)[HASH]: one for one in _owned(self._objects, REVISIONS, daemon_set)}
        newest = max((one["revision"] for one in kept.values()), default=0)
        metadata = daemon_set["metadata"]
        if made not in kept:
            labels = {**(template.get("metadata", {}).get("labels") or {}), HASH: made}
            name = f"{metadata['name']}-{made}"
            about = {
                "name": name,
                "labels": labels,
                "ownerReferences": [_owner("apps/v1", "DaemonSet", daemon_set)],
            }
            data = {"spec": {"template": {**copy.deepcopy(template), "$patch": "replace"}}}
            with suppress(ApiRefusal):
                body = {"metadata": about, "data": data, "revision": newest + 1}
                self._objects.create(REVISIONS, metadata["namespace"], body)
        elif kept[made]["revision"] < newest:  # the template is again what it was
            key = self._objects.key(
                REVISIONS, metadata["namespace"], kept[made]["metadata"]["name"]
            )
            self._objects.change(key, lambda thing: thing.update(revision=newest + 1))
        return made

    def _end(self, pod: Object) -> None:
        if not _ends(pod):
            self._objects.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], {})


def _belongs(daemon_set: Object, node: Object) -> bool:
    spec = daemon_set["spec"]["template"]["spec"]
    picked = (spec.get("nodeSelector") or {}).items() <= labels_of(node).items()
    return picked and not is_kept_away(spec, node)


def _pod(daemon_set: Object, revision: str, node: str) -> Object:
    template = copy.deepcopy(daemon_set["spec"]["template"])
    about = template.get("metadata") or {}
    labels = {**(about.get("labels") or {}), HASH: revision}
    name = {
        "generateName": f"{daemon_set['metadata']['name']}-",
        "ownerReferences": [_owner("apps/v1", "DaemonSet", daemon_set)],
    }
    return {
        "metadata": {**about, **name, "labels": labels},
        "spec": {**template["spec"], "nodeName": node},
    }


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)


# Removes what has lost its reason in the simulated cluster: what belonged to an object that is
# gone, and the contents of a namespace that ends.
#
# An object goes when every owner that it names is gone, however it came to name them.


class Garbage:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def look(self) -> None:
        everything = self._objects.store.everything()
        uids = {thing["metadata"]["uid"] for _key, thing in everything}
        ending = {
            key.name for key, thing in everything if _is(key, NAMESPACES.plural) and _ends(thing)
        }
        nodes = {key.name for key, _thing in everything if _is(key, NODES.plural)}
        for key, thing in everything:
            owners = thing["metadata"].get("ownerReferences") or []
            orphaned = bool(owners) and not any(owner["uid"] in uids for owner in owners)
            if (orphaned or key.namespace in ending) and not _ends(thing):
                self._delete(key)
            elif (
                _is(key, PODS.plural)
                and _ends(thing)
                and thing["spec"].get("nodeName") not in nodes
            ):
                self._objects.remove(PODS, key)  # no kubelet will ever say that it has ended
        inhabited = {key.namespace for key, _thing in self._objects.store.everything()}
        for name in ending - inhabited:
            self._objects.remove(NAMESPACES, self._objects.key(NAMESPACES, "", name))

    def _delete(self, key: ObjectKey) -> None:
        kind = next(
            kind
            for kind in self._objects.kinds
            if (kind.group, kind.plural) == (key.group, key.plural)
        )
        if self._objects.store.get(key) is not None:
            self._objects.delete(kind, key.namespace, key.name, {})


def _is(key: ObjectKey, plural: str) -> bool:
    return (key.group, key.plural) == ("", plural)


# Runs the Jobs of the simulated cluster: makes their pods, and says how they end.
#
# A Job's state is counted from its pods, each time anew.

_RETRY_S = 1.0


class Jobs:
    """create: makes a pod in a namespace, as anybody makes one, so that admission has its say."""

    def __init__(
        self, objects: Objects, create: Callable[[str, Object], Awaitable[Object]]
    ) -> None:
        self._objects = objects
        self._create = create
        self._not_before: dict[str, float] = {}  # by uid, of those whose pod was refused

    async def look(self) -> None:
        for key, job in self._objects.store.all(JOBS):
            if not _ends(job) and not _has_ended(job):
                await self._run(key, job)

    async def _run(self, key: ObjectKey, job: Object) -> None:
        spec = job["spec"]
        pods = _owned(self._objects, PODS, job)
        phases = [pod["status"].get("phase") for pod in pods]
        succeeded = phases.count("Succeeded")
        failed = phases.count("Failed")
        active = len(phases) - succeeded - failed
        ended = _end(succeeded, failed, spec)
        if not ended and time.monotonic() >= self._not_before.get(job["metadata"]["uid"], 0.0):
            wanted = min(spec["parallelism"], spec["completions"] - succeeded) - active
            for _ in range(wanted):
                active += await self._start(job)
        status: dict[str, Any] = {"startTime": job["status"].get("startTime") or stamp()}
        status |= {
            name: number
            for name, number in (("active", active), ("succeeded", succeeded), ("failed", failed))
            if number
        }
        self._objects.change(key, lambda thing: thing.update(status=status | _conditions(ended)))

    async def _start(self, job: Object) -> bool:
        metadata = job["metadata"]
        template = copy.deepcopy(job["spec"]["template"])
        about = {
            **(template.get("metadata") or {}),
            "generateName": f"{metadata['name']}-",
            "ownerReferences": [_owner("batch/v1", "Job", job)],
        }
        try:
            await self._create(metadata["namespace"], {"metadata": about, "spec": template["spec"]})
        except ApiRefusal as error:  # by admission, or because its namespace is going
            self._say_refused(job, error)
            self._not_before[metadata["uid"]] = time.monotonic() + _RETRY_S
            return False
        return True

    def _say_refused(self, job: Object, error: ApiRefusal) -> None:
        """As an event on the Job, once for each reason."""
        metadata = job["metadata"]
        event = {
            "metadata": {"name": f"{metadata['name']}.{zlib.crc32(error.message.encode()):08x}"},
            "involvedObject": (
                {"apiVersion": "batch/v1", "kind": "Job"}
                | {field: metadata[field] for field in ("namespace", "name", "uid")}
            ),
            "reason": "FailedCreate",
            "message": f"Error creating: {error.message}",
            "type": "Warning",
            "source": {"component": "job-controller"},
            "firstTimestamp": stamp(),
            "lastTimestamp": stamp(),
            "count": 1,
        }
        with suppress(ApiRefusal):  # told already, or the namespace is going
            self._objects.create(EVENTS, metadata["namespace"], event)


def _end(succeeded: int, failed: int, spec: Object) -> str:
    """The condition that ends a Job; empty while it goes on."""
    if succeeded >= spec["completions"]:
        return "Complete"
    return "Failed" if failed > spec["backoffLimit"] else ""


def _conditions(ended: str) -> dict[str, Any]:
    if not ended:
        return {}
    now = stamp()
    failed = {
        "reason": "BackoffLimitExceeded",
        "message": "Job has reached the specified backoff limit",
    }
    condition = {
        "type": ended,
        "status": "True",
        "lastTransitionTime": now,
        **(failed if ended == "Failed" else {}),
    }
    return {"conditions": [condition], **({"completionTime": now} if ended == "Complete" else {})}


def _has_ended(job: Object) -> bool:
    return any(one["status"] == "True" for one in job["status"].get("conditions") or ())


ADMIN = "simulated-admin"
CONTROLLER = "system:serviceaccount:kube-system:simulated-controller"
_LOOK_S = 0.5  # between two looks of the controllers that no change asked for
_TRIES = 5  # of a change that loses a race while admission takes its time


class SimulatedCluster:
    def __init__(self, store: Store | None = None) -> None:
        self.kinds = Kinds()
        self.objects = Objects(store or Store(), self.kinds)
        self.store = self.objects.store
        self.reviews = Reviews(self.objects, self.kinds)
        # by namespace, pod, and whether it is the one before
        self.logs: dict[tuple[str, str, bool], str] = {}
        self._admission = WebhookAdmission(self.objects)
        self._controllers: asyncio.Task[None] | None = None  # None while they do not run
        for namespace in ("default", "kube-system"):
            with suppress(ApiRefusal):
                self.objects.create(NAMESPACES, "", {"metadata": {"name": namespace}})

    def start(self) -> None:
        self._controllers = asyncio.create_task(self._control())

    async def stop(self) -> None:
        if self._controllers:
            self._controllers.cancel()
            await asyncio.gather(self._controllers, return_exceptions=True)
        await self._admission.close()
        self._admission = WebhookAdmission(self.objects)

    async def create(
        self,
        kind: ObjectKind,
        version: str,
        namespace: str,
        body: Object,
        *,
        user: str = ADMIN,
        dry_run: bool = False,
    ) -> Admitted:
        thing = self.objects.new(kind, version, namespace, body)
        admitted = await self._admission.admit(
            Attempt("CREATE", kind, version, thing, None, user, dry_run=dry_run)
        )
        if not dry_run:
            admitted.thing = self.objects.add(kind, admitted.thing)
        return admitted

    async def update(
        self, kind: ObjectKind, version: str, namespace: str, body: Object, path: tuple[str, str]
    ) -> Admitted:
        """path: the name and the subresource that the request names."""
        return await self._change(kind, version, namespace, path, lambda _before: body)

    async def patch(
        self,
        kind: ObjectKind,
        version: str,
        namespace: str,
        patch: Any,
        content_type: str,
        path: tuple[str, str],
    ) -> Admitted:
        def body(before: Object) -> Object:
            thing: Object = patched(content_type, before, patch, custom=kind.custom)
            metadata = before["metadata"]
            if thing["metadata"].get("uid") != metadata["uid"]:
                cause = Cause(
                    "metadata.uid",
                    f'Invalid value: "{thing["metadata"].get("uid")}": field is immutable',
                )
                raise invalid(kind.name, metadata["name"], [cause])
            return thing

        return await self._change(kind, version, namespace, path, body)

    async def _change(
        self, kind: ObjectKind, version: str, namespace: str, path: tuple[str, str], body: Any
    ) -> Admitted:
        """A change that names no version is tried again where another came between."""
        name, subresource = path
        for _try in range(_TRIES):
            before = self.objects.found(kind, namespace, name)
            thing = self.objects.changed(kind, version, before, body(before), subresource)
            attempt = Attempt("UPDATE", kind, version, thing, before, ADMIN, subresource)
            admitted = await self._admission.admit(attempt)
            if self.store.get(self.objects.key(kind, namespace, name)) is before:
                admitted.thing = self.objects.replace(kind, before, admitted.thing)
                return admitted
        raise modified(kind.plural, name)

    async def _create_pod(self, namespace: str, body: Object) -> Object:
        return (await self.create(PODS, "v1", namespace, body, user=CONTROLLER)).thing

    async def _control(self) -> None:
        """Lets every controller look, after each change and now and then."""
        jobs = Jobs(self.objects, self._create_pod)
        daemon_sets = DaemonSets(self.objects, self._create_pod)
        claims = PodClaims(self.objects)
        garbage = Garbage(self.objects)
        scheduler = Scheduler(self.objects, claims)
        while True:
            version = self.store.version
            await jobs.look()
            await daemon_sets.look()
            claims.look()
            scheduler.look()
            garbage.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self.store.changed(version)
