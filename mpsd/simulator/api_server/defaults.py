"""What the API server adds to an object that is created, and what it will not take.

One rule: only what mpsd, its kubelet and its tests can see is added; a field without a reader is not worth a line.
"""

import copy
import re
import secrets
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from mpsd.model.problem import LONGEST_NAME
from mpsd.simulator.api_server.kinds import JOBS, NAMESPACES, PODS, Object, ObjectKind, causes, pruned
from mpsd.simulator.api_server.refusals import Cause, bad_request, invalid

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.:]*[a-z0-9])?")  # with the colon of RBAC's names
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def random_suffix() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(5))


def new_object(kind: ObjectKind, version: str, namespace: str, body: Object) -> Object:
    """The object that a request to create makes, before it is stored. Refused for what Kubernetes would refuse."""
    thing = typed(kind, version, body)
    metadata = thing.setdefault("metadata", {})
    if metadata.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"] + random_suffix()
    if metadata.get("namespace") not in (None, "", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp()}
    if kind.namespaced:
        metadata["namespace"] = namespace
    if kind.counts:
        metadata["generation"] = 1
    if kind.has_status and kind.plural != "nodes":
        thing.pop("status", None)
    default = _DEFAULTS.get(kind.plural)
    if default:
        default(thing)
    return thing


def typed(kind: ObjectKind, version: str, body: Object) -> Object:
    """A copy of the body with its type, less what a custom resource's definition does not name."""
    if body.get("kind", kind.name) != kind.name or (kind.custom and "kind" not in body):
        raise bad_request(f"{kind.plural} of kind {body.get('kind')!r} cannot be handled as a {kind.name}")
    thing = copy.deepcopy(body) | {"apiVersion": kind.api(version), "kind": kind.name}
    return pruned(thing, kind.schema) if kind.schema else thing


def check(kind: ObjectKind, thing: Object) -> None:
    """Refused with everything that is wrong."""
    name = thing["metadata"].get("name") or ""
    wrong = list(causes(thing, kind.schema)) if kind.schema else []
    if not name:
        wrong.append(Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired"))
    elif not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        wrong.append(Cause("metadata.name", f"Invalid value: {name!r}"))
    if kind is PODS:
        wrong += _pod_causes(thing)
    if wrong:
        raise invalid(kind.name, name, wrong)


def _pod_causes(pod: Object) -> Iterator[Cause]:
    containers = (pod.get("spec") or {}).get("containers")
    if not containers:
        yield Cause("spec.containers", "Required value", "FieldValueRequired")
    for index, container in enumerate(containers or ()):
        if not container.get("name"):
            yield Cause(f"spec.containers[{index}].name", "Required value", "FieldValueRequired")


def _default_pod(pod: Object) -> None:
    spec = pod.setdefault("spec", {})
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.setdefault("resources", {})
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    pod["status"] = {"phase": "Pending", "qosClass": "BestEffort"}


def _default_namespace(namespace: Object) -> None:
    namespace["status"] = {"phase": "Active"}


def _default_job(job: Object) -> None:
    spec: dict[str, Any] = job.setdefault("spec", {})
    spec.setdefault("parallelism", 1)
    spec.setdefault("completions", spec["parallelism"])
    spec.setdefault("backoffLimit", 6)
    labels = {"controller-uid": job["metadata"]["uid"], "job-name": job["metadata"]["name"]}
    template = spec.setdefault("template", {}).setdefault("metadata", {})
    template["labels"] = {**(template.get("labels") or {}), **labels}
    spec.setdefault("selector", {"matchLabels": {"controller-uid": job["metadata"]["uid"]}})
    job["status"] = {}


_DEFAULTS = {PODS.plural: _default_pod, NAMESPACES.plural: _default_namespace, JOBS.plural: _default_job}
