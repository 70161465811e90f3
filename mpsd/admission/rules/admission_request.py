"""What an AdmissionReview of `admission.k8s.io/v1` asks, read from JSON that has been decoded.

One rule: any JSON is a review or a `MalformedReview` with every reason; nothing else is raised.
"""

from dataclasses import dataclass
from enum import StrEnum

from mpsd.model.fields import Fields, Shape, at
from mpsd.model.problem import Problem, shown
from mpsd.platform.rules.kubernetes_objects import KubernetesObject, read_object

API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
_SPECIFIED = ("spec", "template")  # where every kind keeps what a pod is made of
_DESCRIBED = ("labels", "annotations")


class MalformedReview(Exception):
    """What is no AdmissionReview. Its text is the reason, for whoever sent it; the answer is 400."""


class Operation(StrEnum):
    """What is done to the object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CONNECT = "CONNECT"


@dataclass(frozen=True, slots=True)
class Review:
    """A question. thing: the object as it would be, empty where there is none; found: what was read from it.

    old: the object as it is, empty on CREATE. writer: the user's name.
    """

    uid: str
    operation: Operation
    subresource: str
    namespace: str
    writer: str
    is_dry_run: bool
    kind: str
    thing: Fields
    found: KubernetesObject
    old: Fields

    @property
    def leaves_pods_as_they_are(self) -> bool:
        """Nothing is created or changed that a rule could speak of; an object that goes may always go."""
        if self.operation is Operation.UPDATE:
            return _is_going(self.old) or _is_same(self.thing, self.old)
        return self.operation is not Operation.CREATE

    def found_before(self) -> KubernetesObject:
        """What is read from the object as it is."""
        return read_object(self.old, self.namespace)


def read_review(review: object) -> Review:
    """The question in a decoded AdmissionReview; MalformedReview with every reason why there is none."""
    if not isinstance(review, dict):
        raise MalformedReview(f"the body is {shown(review)}, and not an AdmissionReview")
    if (review.get("apiVersion"), review.get("kind")) != (API_VERSION, KIND):
        sent = f"{shown(review.get('kind'))} of {shown(review.get('apiVersion'))}"
        raise MalformedReview(f"the body is {sent}, and what is read here is {KIND} of {API_VERSION}")
    shape = Shape()
    request = shape.needed(review, "request", "") or {}
    kind = shape.needed(request, "kind", "request") or {}
    user = shape.mapping(request, "userInfo", "request")
    operation = _operation(shape, request)
    typed = {"apiVersion": _version(shape, kind), "kind": _needed_text(shape, kind, "kind", "request.kind")}
    namespace = shape.text(request, "namespace", "request")
    thing, old = (_object(shape, request, key, operation, typed) for key in ("object", "oldObject"))
    question = Review(
        uid=_needed_text(shape, request, "uid", "request"),
        operation=operation,
        subresource=shape.text(request, "subResource", "request"),
        namespace=namespace,
        writer=shape.text(user, "username", "request.userInfo"),
        is_dry_run=shape.flag(request, "dryRun", "request"),
        kind=typed["kind"],
        thing=thing,
        found=read_object(thing, namespace) if thing else KubernetesObject("", namespace, None, ()),
        old=old,
    )
    problems = [*shape.problems, *([shape.too_many] if shape.too_many else [])]
    if problems:
        raise MalformedReview("; ".join(map(str, problems)))
    return question


# The objects that an operation cannot do without.
_NEEDED = {("object", Operation.CREATE), ("object", Operation.UPDATE), ("oldObject", Operation.UPDATE)}


def _object(shape: Shape, request: Fields, key: str, operation: Operation, typed: Fields) -> Fields:
    """The object under `key` with the type that the API server says it has; empty where nobody needs one."""
    if (key, operation) not in _NEEDED:
        return {}
    thing = shape.needed(request, key, "request")
    return {} if thing is None else {**thing, **typed}


def _operation(shape: Shape, request: Fields) -> Operation:
    text = _needed_text(shape, request, "operation", "request")
    if text and text not in Operation.__members__:
        remedy = f"write one of {', '.join(Operation)}"
        shape.problems.append(Problem("value-unknown", "request.operation", shown(text), "is no operation", remedy))
    return Operation.__members__.get(text, Operation.CONNECT)


def _version(shape: Shape, kind: Fields) -> str:
    group, version = (shape.text(kind, key, "request.kind") for key in ("group", "version"))
    return f"{group}/{version}" if group else version


def _needed_text(shape: Shape, fields: Fields, key: str, path: str) -> str:
    if fields and fields.get(key) in (None, ""):
        shape.problems.append(Problem("field-missing", at(path, key), "", "is missing", "add it"))
    return shape.text(fields, key, path)


def _is_going(old: Fields) -> bool:
    """Only the API server sets this, and it stays set."""
    return bool(_metadata(old).get("deletionTimestamp"))


def _is_same(thing: Fields, old: Fields) -> bool:
    """Whether nothing differs that a rule looks at, so that status, finalizers and owners cost nothing."""
    try:
        return all(thing.get(key) == old.get(key) for key in _SPECIFIED) and all(
            _metadata(thing).get(key) == _metadata(old).get(key) for key in _DESCRIBED
        )
    except RecursionError:  # deeper than any object of a kind that is read here
        return False


def _metadata(thing: Fields) -> Fields:
    metadata = thing.get("metadata")
    return metadata if isinstance(metadata, dict) else {}
