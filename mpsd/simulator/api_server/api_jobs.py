"""Runs the Jobs of the simulated cluster: makes their pods, and says how they end.

One rule: a Job's state is counted from its pods, each time anew.
"""

import copy
import time
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from mpsd.simulator.api_server.api_kinds import EVENTS, JOBS, PODS, Object
from mpsd.simulator.api_server.api_objects import Objects
from mpsd.simulator.api_server.api_store import Key
from mpsd.simulator.api_server.defaults import stamp
from mpsd.simulator.api_server.refusals import Refused

_RETRY_S = 1.0


class Jobs:
    """create: makes a pod in a namespace, as anybody makes one, so that admission has its say."""

    def __init__(self, objects: Objects, create: Callable[[str, Object], Awaitable[Object]]) -> None:
        self._objects = objects
        self._create = create
        self._not_before: dict[str, float] = {}  # by uid, of those whose pod was refused

    async def look(self) -> None:
        for key, job in self._objects.store.all(JOBS):
            if not job["metadata"].get("deletionTimestamp") and not _has_ended(job):
                await self._run(key, job)

    async def _run(self, key: Key, job: Object) -> None:
        spec, pods = job["spec"], self._pods_of(job)
        phases = [pod["status"].get("phase") for pod in pods]
        succeeded, failed = phases.count("Succeeded"), phases.count("Failed")
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

    def _pods_of(self, job: Object) -> list[Object]:
        uid = job["metadata"]["uid"]
        pods = (pod for _key, pod in self._objects.store.all(PODS, job["metadata"]["namespace"]))
        return [pod for pod in pods if any(one["uid"] == uid for one in pod["metadata"].get("ownerReferences") or ())]

    async def _start(self, job: Object) -> bool:
        metadata, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        about = {**(template.get("metadata") or {}), "generateName": f"{metadata['name']}-", "ownerReferences": [owner]}
        try:
            await self._create(metadata["namespace"], {"metadata": about, "spec": template["spec"]})
        except Refused as error:  # by admission, or because its namespace is going
            self._say_refused(job, error)
            self._not_before[metadata["uid"]] = time.monotonic() + _RETRY_S
            return False
        return True

    def _say_refused(self, job: Object, error: Refused) -> None:
        """As an event on the Job, once for each reason."""
        metadata = job["metadata"]
        event = {
            "metadata": {"name": f"{metadata['name']}.{zlib.crc32(error.message.encode()):08x}"},
            "involvedObject": {"apiVersion": "batch/v1", "kind": "Job"}
            | {field: metadata[field] for field in ("namespace", "name", "uid")},
            "reason": "FailedCreate",
            "message": f"Error creating: {error.message}",
            "type": "Warning",
            "source": {"component": "job-controller"},
            "firstTimestamp": stamp(),
            "lastTimestamp": stamp(),
            "count": 1,
        }
        with suppress(Refused):  # told already, or the namespace is going
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
    failed = {"reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}
    condition = {"type": ended, "status": "True", "lastTransitionTime": now, **(failed if ended == "Failed" else {})}
    return {"conditions": [condition], **({"completionTime": now} if ended == "Complete" else {})}


def _has_ended(job: Object) -> bool:
    return any(one["status"] == "True" for one in job["status"].get("conditions") or ())
