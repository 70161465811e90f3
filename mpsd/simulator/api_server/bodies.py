"""What the API server adds to an object that is created, and what it will not take.

Only what mpsd, its kubelet and its tests can see is added; a field without a reader is not worth a
line.
"""

import copy
import re
import secrets
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from mpsd.model.problem import LONGEST_NAME
from mpsd.simulator.api_server.kinds import (
    JOBS,
    NAMESPACES,
    PODS,
    ApiRefusal,
    Cause,
    Object,
    ObjectKind,
    bad_request,
    causes,
    invalid,
    pruned,
)

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.:]*[a-z0-9])?")  # with the colon of RBAC's names
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def random_suffix() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(5))


def new_object(kind: ObjectKind, version: str, namespace: str, body: Object) -> Object:
    """The object that a request to create makes, before it is stored. Refused for what Kubernetes
    would refuse."""
    thing = typed(kind, version, body)
    metadata = thing.setdefault("metadata", {})
    if metadata.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"] + random_suffix()
    if metadata.get("namespace") not in (None, "", namespace):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
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
        raise bad_request(
            f"{kind.plural} of kind {body.get('kind')!r} cannot be handled as a {kind.name}"
        )
    thing = copy.deepcopy(body) | {"apiVersion": kind.api(version), "kind": kind.name}
    return pruned(thing, kind.schema) if kind.schema else thing


def check(kind: ObjectKind, thing: Object) -> None:
    """Refused with everything that is wrong."""
    name = thing["metadata"].get("name") or ""
    wrong = list(causes(thing, kind.schema)) if kind.schema else []
    if not name:
        wrong.append(
            Cause(
                "metadata.name",
                "Required value: name or generateName is required",
                "FieldValueRequired",
            )
        )
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


_DEFAULTS = {
    PODS.plural: _default_pod,
    NAMESPACES.plural: _default_namespace,
    JOBS.plural: _default_job,
}


# -- the three ways of patching an object
# A patch is applied to a copy; what it was applied to stays as it was.

# By which field the elements of a list are the same, for a strategic merge patch; a list that is
# not here is replaced.
_KEYS: Mapping[str, str] = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "addresses": "type",
    "ownerReferences": "uid",
    "secrets": "name",
    "webhooks": "name",
    "hostAliases": "ip",
}
_SETS = frozenset({"finalizers"})


def patched(content_type: str, thing: Any, patch: Any, *, custom: bool) -> Any:
    """Refused for a patch that cannot be applied, and for a strategic one of a custom resource."""
    match content_type:
        case "application/merge-patch+json":
            return merged(thing, patch)
        case "application/strategic-merge-patch+json" if not custom:
            return _strategic(copy.deepcopy(thing), patch, "")
        case "application/json-patch+json":
            return edited(thing, patch)
        case _:
            message = "the body of the request was in an unknown format"
            raise ApiRefusal(415, "UnsupportedMediaType", f"{message}: {content_type}")


def merged(thing: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(thing) if isinstance(thing, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _strategic(thing: Any, patch: Any, field: str) -> Any:
    if isinstance(patch, dict):
        return _strategic_map(thing if isinstance(thing, dict) else {}, patch)
    if isinstance(patch, list) and isinstance(thing, list):
        if field in _KEYS:
            return _strategic_list(thing, patch, _KEYS[field])
        if field in _SETS:
            return [*thing, *(one for one in patch if one not in thing)]
    return copy.deepcopy(patch)


def _strategic_map(thing: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    if patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            thing[field] = [one for one in thing.get(field) or [] if one not in value]
        elif key.startswith("$"):  # $setElementOrder, $retainKeys: about order and unions
            continue
        elif value is None:
            thing.pop(key, None)
        else:
            thing[key] = _strategic(thing.get(key), value, key)
    return thing


def _strategic_list(things: list[Any], patch: list[Any], key: str) -> list[Any]:
    if any(isinstance(one, dict) and one.get("$patch") == "replace" for one in patch):
        return [copy.deepcopy(one) for one in patch if "$patch" not in one]
    found = list(things)
    for one in patch:
        if not isinstance(one, dict) or key not in one:
            raise bad_request(f"map: {one} does not contain declared merge key: {key}")
        place = next(
            (index for index, other in enumerate(found) if other.get(key) == one[key]), None
        )
        if one.get("$patch") == "delete":
            if place is not None:
                del found[place]
        elif place is None:
            found.append(_strategic_map({}, one))
        else:
            found[place] = _strategic_map(found[place], one)
    return found


# -- RFC 6902


def edited(thing: Any, operations: Any) -> Any:
    """RFC 6902: add, remove, replace, move, copy, test."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    root = {"": copy.deepcopy(thing)}
    for operation in operations:
        try:
            _edit(root, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise ApiRefusal(
                422, "Invalid", f"the server rejected our request: {operation}: {error!r}"
            ) from None
    return root[""]


def _edit(root: dict[str, Any], operation: dict[str, Any]) -> None:
    path = _steps(operation["path"])
    match operation["op"]:
        case "add":
            _add(root, path, copy.deepcopy(operation["value"]))
        case "replace":
            _get(root, path)
            _remove(root, path)
            _add(root, path, copy.deepcopy(operation["value"]))
        case "remove":
            _remove(root, path)
        case "move":
            _add(root, path, _remove(root, _steps(operation["from"])))
        case "copy":
            _add(root, path, copy.deepcopy(_get(root, _steps(operation["from"]))))
        case "test":
            if _get(root, path) != operation["value"]:
                raise ValueError(f"testing value {operation['path']} failed")
        case other:
            raise ValueError(f"unexpected kind: {other}")


def _steps(path: str) -> list[str]:
    """The steps from the root's own parent, whose one key is the empty text."""
    if path and not path.startswith("/"):
        raise ValueError(f"{path} does not start with /")
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")]


def _get(place: Any, steps: list[str]) -> Any:
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    return place


def _add(root: Any, steps: list[str], value: Any) -> None:
    parent = _get(root, steps[:-1])
    last = steps[-1]
    if isinstance(parent, list):
        index = len(parent) if last == "-" else int(last)
        if not 0 <= index <= len(parent):
            raise IndexError(last)
        parent.insert(index, value)
    else:
        parent[last] = value


def _remove(root: Any, steps: list[str]) -> Any:
    parent = _get(root, steps[:-1])
    last = steps[-1]
    return parent.pop(int(last)) if isinstance(parent, list) else parent.pop(last)
