"""The kinds of objects that the simulated API server keeps, those of custom resource definitions
among them.

A kind that is not in the table does not exist, and asking for it is 404, as in Kubernetes.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# -- errors
# Code, reason and words are those of Kubernetes, since clients act by them.


@dataclass(frozen=True, slots=True)
class Cause:
    field: str
    message: str
    reason: str = "FieldValueInvalid"


class ApiRefusal(Exception):
    """An answer other than 2xx."""

    def __init__(
        self, code: int, reason: str, message: str, causes: tuple[Cause, ...] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = causes

    def status(self) -> dict[str, Any]:
        """The object that says it."""
        causes = [
            {"reason": one.reason, "message": one.message, "field": one.field}
            for one in self.causes
        ]
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
            **({"details": {"causes": causes}} if causes else {}),
        }


def not_found(plural: str, name: str) -> ApiRefusal:
    return ApiRefusal(404, "NotFound", f'{plural} "{name}" not found')


def no_such_path() -> ApiRefusal:
    return ApiRefusal(404, "NotFound", "the server could not find the requested resource")


def already_exists(plural: str, name: str) -> ApiRefusal:
    return ApiRefusal(409, "AlreadyExists", f'{plural} "{name}" already exists')


def conflict(plural: str, name: str, why: str) -> ApiRefusal:
    return ApiRefusal(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": {why}')


def modified(plural: str, name: str) -> ApiRefusal:
    why = (
        "the object has been modified; please apply your changes to the latest version and try"
        " again"
    )
    return conflict(plural, name, why)


def invalid(kind: str, name: str, causes: list[Cause]) -> ApiRefusal:
    words = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
    return ApiRefusal(422, "Invalid", f'{kind} "{name}" is invalid: {words}', tuple(causes))


def bad_request(message: str) -> ApiRefusal:
    return ApiRefusal(400, "BadRequest", message)


def forbidden(message: str) -> ApiRefusal:
    return ApiRefusal(403, "Forbidden", message)


def expired(version: str) -> ApiRefusal:
    return ApiRefusal(410, "Expired", f"too old resource version: {version}")


def too_new(version: str) -> ApiRefusal:
    cause = Cause("", "Too large resource version", "ResourceVersionTooLarge")
    return ApiRefusal(504, "Timeout", f"Timeout: Too large resource version: {version}", (cause,))


def too_many_requests(message: str) -> ApiRefusal:
    return ApiRefusal(429, "TooManyRequests", message)


Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """group: empty for the core group. has_status: the status is written through a subresource
    alone.

    counts: `metadata.generation` counts the changes of what is neither metadata nor status. custom:
    of a custom resource definition. schema: what an object of it may say; None where everything is
    taken as it comes.
    """

    group: str
    name: str
    plural: str
    namespaced: bool = True
    has_status: bool = False
    counts: bool = False
    custom: bool = False
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    columns: tuple[Object, ...] = ()
    versions: tuple[str, ...] = ("v1",)

    def api(self, version: str = "") -> str:
        """Group and version, as in apiVersion."""
        version = version or self.versions[0]
        return f"{self.group}/{version}" if self.group else version


def _spec(group: str, name: str, plural: str, *short: str, **more: Any) -> ObjectKind:
    """A kind with a spec, a status and a generation."""
    return ObjectKind(group, name, plural, has_status=True, counts=True, short_names=short, **more)


_RBAC = "rbac.authorization.k8s.io"
_WEBHOOKS = "admissionregistration.k8s.io"
CRDS = _spec(
    "apiextensions.k8s.io",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "crd",
    namespaced=False,
)
PODS = ObjectKind(
    "",
    "Pod",
    "pods",
    has_status=True,
    short_names=("po",),
    subresources=("binding", "eviction", "log"),
)
NODES = ObjectKind("", "Node", "nodes", namespaced=False, has_status=True, short_names=("no",))
NAMESPACES = ObjectKind(
    "", "Namespace", "namespaces", namespaced=False, has_status=True, short_names=("ns",)
)
EVENTS = ObjectKind("", "Event", "events", short_names=("ev",))
JOBS = _spec("batch", "Job", "jobs")
BUDGETS = _spec(
    "policy", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", versions=("v1", "v1beta1")
)
DAEMON_SETS = _spec("apps", "DaemonSet", "daemonsets", "ds")
REVISIONS = ObjectKind("apps", "ControllerRevision", "controllerrevisions")
SLICES = ObjectKind("resource.k8s.io", "ResourceSlice", "resourceslices", False, counts=True)
CLAIMS = ObjectKind("resource.k8s.io", "ResourceClaim", "resourceclaims", has_status=True)
CLAIM_TEMPLATES = ObjectKind("resource.k8s.io", "ResourceClaimTemplate", "resourceclaimtemplates")
DEVICE_CLASSES = ObjectKind("resource.k8s.io", "DeviceClass", "deviceclasses", False, counts=True)
VALIDATING = ObjectKind(
    _WEBHOOKS, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False
)
MUTATING = ObjectKind(
    _WEBHOOKS, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False
)

_BUILT_IN = (
    PODS,
    NODES,
    NAMESPACES,
    EVENTS,
    ObjectKind("", "ConfigMap", "configmaps", short_names=("cm",)),
    ObjectKind("", "Endpoints", "endpoints", short_names=("ep",)),
    ObjectKind("", "Secret", "secrets"),
    ObjectKind("", "PodTemplate", "podtemplates"),
    ObjectKind(
        "", "ServiceAccount", "serviceaccounts", short_names=("sa",), subresources=("token",)
    ),
    ObjectKind("", "Service", "services", has_status=True, short_names=("svc",)),
    _spec("apps", "Deployment", "deployments", "deploy"),
    DAEMON_SETS,
    REVISIONS,
    _spec("apps", "StatefulSet", "statefulsets", "sts"),
    _spec("apps", "ReplicaSet", "replicasets", "rs"),
    JOBS,
    _spec("batch", "CronJob", "cronjobs", versions=("v1", "v1beta1")),
    BUDGETS,
    VALIDATING,
    MUTATING,
    ObjectKind(_WEBHOOKS, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", False),
    ObjectKind(
        _WEBHOOKS, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", False
    ),
    CRDS,
    ObjectKind("coordination.k8s.io", "Lease", "leases"),
    CLAIMS,
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    SLICES,
    ObjectKind("scheduling.k8s.io", "PriorityClass", "priorityclasses", False),
    ObjectKind(_RBAC, "ClusterRole", "clusterroles", False),
    ObjectKind(_RBAC, "ClusterRoleBinding", "clusterrolebindings", False),
    ObjectKind(_RBAC, "Role", "roles"),
    ObjectKind(_RBAC, "RoleBinding", "rolebindings"),
)


class Kinds:
    """Every kind there is now."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], ObjectKind] = {
            (kind.group, kind.plural): kind for kind in _BUILT_IN
        }

    def __iter__(self) -> Iterator[ObjectKind]:
        return iter(self._kinds.values())

    def find(self, group: str, version: str, plural: str) -> ObjectKind | None:
        kind = self._kinds.get((group, plural))
        return kind if kind and version in kind.versions else None

    def named(self, api: str, name: str) -> ObjectKind | None:
        """By apiVersion and kind, as owner references have them."""
        return next(
            (kind for kind in self if kind.name == name and api in map(kind.api, kind.versions)),
            None,
        )

    def define(self, definition: Mapping[str, Any]) -> None:
        """Adds the kind of a custom resource definition, or what is new of it."""
        kind = kind_of_definition(definition)
        self._kinds[kind.group, kind.plural] = kind

    def drop(self, definition: Mapping[str, Any]) -> None:
        kind = kind_of_definition(definition)
        self._kinds.pop((kind.group, kind.plural), None)


def kind_of_definition(definition: Mapping[str, Any]) -> ObjectKind:
    spec = definition["spec"]
    names = spec["names"]
    served = [version for version in spec["versions"] if version.get("served")]
    stored = next(version for version in spec["versions"] if version.get("storage"))
    return ObjectKind(
        group=spec["group"],
        versions=tuple(version["name"] for version in served),
        name=names["kind"],
        plural=names["plural"],
        namespaced=spec["scope"] == "Namespaced",
        has_status="status" in (stored.get("subresources") or {}),
        counts=True,
        custom=True,
        short_names=tuple(names.get("shortNames") or ()),
        schema=(stored.get("schema") or {}).get("openAPIV3Schema"),
        columns=tuple(stored.get("additionalPrinterColumns") or ()),
    )


# -- the structural schemas of custom resources
# What an object may say, and what is silently dropped.
# What mpsd's own definitions use is checked; a keyword that is not known here is an error of the
# definition.

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_KNOWN = {
    *("type", "description", "properties", "items", "required", "enum", "pattern", "format"),
    *("maxItems", "default", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
}


def unknown_keywords(schema: Mapping[str, Any], path: str = "") -> list[str]:
    """What a definition says that is not simulated."""
    found = [f"{path}.{key}" for key in schema if key not in _KNOWN]
    for name, inner in (schema.get("properties") or {}).items():
        found += unknown_keywords(inner, f"{path}.{name}")
    return found + (unknown_keywords(schema["items"], f"{path}[]") if "items" in schema else [])


def pruned(value: Any, schema: Mapping[str, Any], *, top: bool = True) -> Any:
    """The value without the fields that its schema does not name; apiVersion, kind and metadata
    always stay."""
    if isinstance(value, list) and "items" in schema:
        return [pruned(one, schema["items"], top=False) for one in value]
    properties = schema.get("properties")
    if not isinstance(value, dict) or properties is None:
        return value
    always = {"apiVersion", "kind", "metadata"} if top else set()
    return {
        key: pruned(inner, properties[key], top=False) if key in properties else inner
        for key, inner in value.items()
        if key in properties or key in always
    }


def causes(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[Cause]:
    """Everything that is wrong with a value."""
    wanted = schema.get("type")
    if wanted and (
        not isinstance(value, _TYPES[wanted]) or (isinstance(value, bool) and wanted != "boolean")
    ):
        yield Cause(
            path, f"Invalid value: {value!r}: must be of type {wanted}", "FieldValueTypeInvalid"
        )
        return
    if "enum" in schema and value not in schema["enum"]:
        yield Cause(path, f"Unsupported value: {value!r}", "FieldValueNotSupported")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield Cause(path, f"Invalid value: {value!r}: should match '{schema['pattern']}'")
    if isinstance(value, dict):
        yield from _object_causes(value, schema, path)
    if isinstance(value, list):
        yield from _list_causes(value, schema, path)


def _object_causes(value: dict[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    for name in schema.get("required", ()):
        if name not in value:
            yield Cause(f"{path}.{name}".lstrip("."), "Required value", "FieldValueRequired")
    for name, inner in (schema.get("properties") or {}).items():
        if name in value:
            yield from causes(value[name], inner, f"{path}.{name}".lstrip("."))


def _list_causes(value: list[Any], schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if len(value) > schema.get("maxItems", len(value)):
        yield Cause(
            path, f"Invalid value: {len(value)}: must have at most {schema['maxItems']} items"
        )
    for index, one in enumerate(value):
        yield from causes(one, schema.get("items") or {}, f"{path}[{index}]")
    yield from _repetitions(value, schema, path)


def _repetitions(value: list[Any], schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    kind = schema.get("x-kubernetes-list-type")
    seen = []
    if kind not in {"map", "set"}:
        return
    for index, one in enumerate(value):
        key = (
            [one.get(name) for name in schema["x-kubernetes-list-map-keys"]]
            if kind == "map"
            else one
        )
        if key in seen:
            yield Cause(f"{path}[{index}]", f"Duplicate value: {key!r}", "FieldValueDuplicate")
        seen.append(key)


# -- label and field selectors
# A selector that Kubernetes would refuse is refused, so that nothing works here alone.

Test = Callable[[Object], bool]

_FIELDS = {
    PODS.plural: {
        *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.phase"),
        "status.podIP",
    },
    NODES.plural: {"spec.unschedulable"},
    SLICES.plural: {"spec.driver", "spec.nodeName"},
    EVENTS.plural: {
        *(f"involvedObject.{field}" for field in ("kind", "namespace", "name", "uid")),
        *("reason", "type", "source"),
    },
}
# a selector's field that is not where its name says
_ELSEWHERE = {(EVENTS.plural, "source"): "source.component"}
_TERM = re.compile(r"(?P<key>[^=!]+)(?P<operator>==|!=|=)(?P<value>.*)")
_SET = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s+\((?P<values>[^)]*)\)")
_COMMAS = re.compile(r",(?![^(]*\))")  # those that are not inside brackets


def selected(kind: ObjectKind, fields: str, labels: str) -> Test:
    """Whether an object is selected by both. Refused for what cannot be read, or a field that
    cannot be asked for."""
    tests = [_field(kind, term) for term in fields.split(",") if term]
    tests += [_label(term.strip()) for term in _COMMAS.split(labels) if term.strip()]
    return lambda thing: all(test(thing) for test in tests)


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A selector as objects hold it: matchLabels and matchExpressions. An empty one matches
    everything."""
    if not (selector.get("matchLabels") or {}).items() <= labels.items():
        return False
    return all(
        _expressed(expression, labels) for expression in selector.get("matchExpressions") or []
    )


def at(thing: Object, path: str) -> str:
    """The field at a path such as spec.nodeName; empty where there is none."""
    found: Any = thing
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return "" if found is None else str(found).lower() if isinstance(found, bool) else str(found)


def labels_of(thing: Object) -> dict[str, str]:
    return (thing.get("metadata") or {}).get("labels") or {}


def _field(kind: ObjectKind, term: str) -> Test:
    match = _TERM.fullmatch(term)
    if not match:
        raise bad_request(f"invalid field selector: {term!r}")
    key = match["key"]
    operator = match["operator"]
    value = match["value"]
    if key not in {"metadata.name", "metadata.namespace"} | _FIELDS.get(kind.plural, set()):
        raise bad_request(f'field label not supported: {key} (kind "{kind.name}")')
    path = _ELSEWHERE.get((kind.plural, key), key)
    return lambda thing: (at(thing, path) == value) is not (operator == "!=")


def _label(term: str) -> Test:
    if match := _SET.fullmatch(term):
        key = match["key"]
        values = {value.strip() for value in match["values"].split(",")}
        wanted = match["operator"] == "in"
        return lambda thing: (labels_of(thing).get(key) in values) is wanted
    if match := _TERM.fullmatch(term):
        key = match["key"].strip()
        value = match["value"].strip()
        differs = match["operator"] == "!="
        return lambda thing: (labels_of(thing).get(key) == value) is not differs
    if term.startswith("!"):
        return lambda thing: term[1:].strip() not in labels_of(thing)
    if re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?", term):
        return lambda thing: term in labels_of(thing)
    raise bad_request(f"unable to parse requirement: {term!r}")


def _expressed(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key = expression["key"]
    values = expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case other:
            raise bad_request(f'"{other}" is not a valid label selector operator')


# -- what several read of pods and nodes


def tolerates(toleration: Object, taint: Object) -> bool:
    """Whether a pod or a claim with this toleration may be where the taint is."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") in (None, ""):
        return bool(toleration.get("operator") == "Exists")
    same = toleration["key"] == taint["key"]
    return same and (
        toleration.get("operator") == "Exists"
        or toleration.get("value", "") == taint.get("value", "")
    )


def claim_names(pod: Object) -> dict[str, str]:
    """By the name of each entry of `spec.resourceClaims`; empty where its claim is not made yet."""
    made = {
        one["name"]: one.get("resourceClaimName", "")
        for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    entries = pod["spec"].get("resourceClaims") or ()
    return {
        one["name"]: one.get("resourceClaimName") or made.get(one["name"], "") for one in entries
    }
