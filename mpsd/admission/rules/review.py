"""The answer to an AdmissionReview: what is refused (validating) and what is changed (mutating).

What is looked up beside the object is advice; where it is missing, the policy's own mode counts.
"""

import base64
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from mpsd.admission.rules.environment import config_maps_within_reach
from mpsd.admission.rules.host import host_ipc_is_added
from mpsd.admission.rules.rule import RequestContext, RuleFinding
from mpsd.admission.rules.verdict import (
    HOST_IPC,
    Change,
    NamespaceModes,
    is_exempt,
    judge,
    modes_in,
    of_mode,
    patch_for_debugging,
    patch_for_pod,
)
from mpsd.model.fields import TOO_MANY_FIELDS, FieldReader, Fields, at
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.policy import Policy, RuleId, RuleMode
from mpsd.model.problem import Problem, shown
from mpsd.model.request import asks_for_gpu
from mpsd.platform.rules.kubernetes_objects import KubernetesObject, read_object

# -- what an AdmissionReview of `admission.k8s.io/v1` asks, read from decoded JSON ---------------------------------

API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
_SPECIFIED = ("spec", "template")  # where every kind keeps what a pod is made of
_DESCRIBED = ("labels", "annotations")


class MalformedReview(Exception):
    """The body is no AdmissionReview, with every reason, for whoever sent it; the answer is 400."""


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
    shape = FieldReader()
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


def _object(shape: FieldReader, request: Fields, key: str, operation: Operation, typed: Fields) -> Fields:
    """The object under `key` with the type that the API server says it has; empty where nobody needs one."""
    if (key, operation) not in _NEEDED:
        return {}
    thing = shape.needed(request, key, "request")
    return {} if thing is None else {**thing, **typed}


def _operation(shape: FieldReader, request: Fields) -> Operation:
    text = _needed_text(shape, request, "operation", "request")
    if text and text not in Operation.__members__:
        remedy = f"write one of {', '.join(Operation)}"
        shape.problems.append(Problem("value-unknown", "request.operation", shown(text), "is no operation", remedy))
    return Operation.__members__.get(text, Operation.CONNECT)


def _version(shape: FieldReader, kind: Fields) -> str:
    group, version = (shape.text(kind, key, "request.kind") for key in ("group", "version"))
    return f"{group}/{version}" if group else version


def _needed_text(shape: FieldReader, fields: Fields, key: str, path: str) -> str:
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


# -- the answer as Kubernetes reads it -----------------------------------------------------------------------------
# The sentences are those of `mpsd explain`; only their lines are cut to the length that Kubernetes asks for.

# Kubernetes asks for warnings of at most 120 characters, and cuts them once all together pass 4096.
_WARNING_LENGTH = 119
_MOST_WARNINGS = 30
_MOST_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class AdmissionAnswer:
    """One answer. message: every problem, empty where it is allowed. audit: rules by mode, for the audit log.

    verdicts: each rule that found something, and how hard it is taken, for metrics.
    """

    uid: str
    allowed: bool = True
    code: int = 200
    message: str = ""
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=dict)
    patch: tuple[Change, ...] = ()
    verdicts: tuple[tuple[str, str], ...] = ()

    def record(self) -> dict[str, object]:
        """The AdmissionReview that is sent back."""
        response: dict[str, object] = {"uid": self.uid, "allowed": self.allowed}
        if not self.allowed:
            response["status"] = {"code": self.code, "reason": "Forbidden", "message": self.message}
        if self.warnings:
            response["warnings"] = list(self.warnings)
        if self.audit:
            response["auditAnnotations"] = dict(self.audit)
        if self.patch:
            encoded = base64.b64encode(json.dumps(self.patch).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": encoded}
        return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def answer_to(uid: str, name: str, found: Iterable[RuleFinding], there: NamespaceModes) -> AdmissionAnswer:
    """What is said about the findings in an object of this name, in a namespace where these modes count."""
    taken = tuple(finding for finding in found if finding.rule in there.modes)
    refused = of_mode(RuleMode.ENFORCE, taken, there.modes)
    verdicts = tuple(dict.fromkeys((str(finding.rule), str(there.modes[finding.rule])) for finding in taken))
    return AdmissionAnswer(
        uid,
        allowed=not refused,
        code=403 if refused else 200,
        message=refusal(name, [finding.problem for finding in refused]) if refused else "",
        warnings=warnings_of(taken, there),
        audit=_audit(verdicts),
        verdicts=verdicts,
    )


def warnings_of(found: Iterable[RuleFinding], there: NamespaceModes) -> tuple[str, ...]:
    """The lines for the findings that only warn, and for labels of the namespace that say nothing."""
    return tuple(_few(_warnings(of_mode(RuleMode.WARN, found, there.modes), there.remarks), _MOST_WARNINGS))


def refusal(name: str, problems: Iterable[Problem]) -> str:
    """Every problem of an object, a line each."""
    lines = list(map(str, problems))
    counted = f"{len(lines)} problem{'' if len(lines) == 1 else 's'}"
    return "\n  ".join([f"{name} is refused, {counted}", *_few(lines, _MOST_PROBLEMS)])


def _warnings(found: Iterable[RuleFinding], remarks: Iterable[str]) -> Iterator[str]:
    """What is wrong and what to do, each led by the rule: kubectl shows a line that comes twice once."""
    for finding in found:
        for sentence in (finding.problem.fault, finding.problem.remedy):
            yield from _lines(f"{finding.rule}: {sentence}")
    for remark in remarks:
        yield from _lines(remark)


def _lines(sentence: str) -> Iterator[str]:
    """The sentence in lines that are short enough, cut between words where there are any; textwrap takes 40 µs."""
    while len(sentence) > _WARNING_LENGTH:
        blank = sentence.rfind(" ", 1, _WARNING_LENGTH + 1)
        end = blank if blank > 0 else _WARNING_LENGTH
        yield sentence[:end]
        sentence = sentence[end:].lstrip()
    yield sentence


def _few(lines: Iterable[str], most: int) -> Iterator[str]:
    shown = list(lines)
    yield from shown[:most]
    if len(shown) > most:
        yield f"and {len(shown) - most} more"


def _audit(verdicts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The rules by mode; the API server puts the webhook's name before each key."""
    by_mode = {mode: ",".join(rule for rule, taken in verdicts if taken == mode) for mode in map(str, RuleMode)}
    return {mode: named for mode, named in by_mode.items() if named}


# -- how a review is answered --------------------------------------------------------------------------------------

ConfigMapName = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class AdmissionContext:
    """What was looked up. namespace_labels: None where not known. config_maps: the keys of those that are known."""

    namespace_labels: Mapping[str, str] | None = None
    config_maps: Mapping[ConfigMapName, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReviewNeeds:
    """What an answer needs to know. namespace: whose labels, empty for none. Most objects need nothing."""

    namespace: str = ""
    config_maps: tuple[ConfigMapName, ...] = ()


NOTHING = ReviewNeeds()
EPHEMERAL_CONTAINERS = "ephemeralcontainers"


def needed_to_validate(review: Review, policy: Policy, facts: GpuFacts) -> ReviewNeeds:
    """What to look up before `validate`."""
    pod = review.found.pod
    if pod is None or _is_idle(review, policy):
        return NOTHING
    if asks_for_gpu(pod, policy.resources):
        maps = tuple((review.found.namespace, name) for name in config_maps_within_reach(pod, policy))
        return ReviewNeeds(review.found.namespace, tuple(dict.fromkeys(maps)))
    return ReviewNeeds(review.found.namespace) if _found(review, policy, facts, AdmissionContext()) else NOTHING


def validate(review: Review, policy: Policy, facts: GpuFacts, seen: AdmissionContext) -> AdmissionAnswer:
    """Whether the object may be: every problem that was not there before."""
    found = () if _is_idle(review, policy) else _found(review, policy, facts, seen)
    if not found:
        return AdmissionAnswer(review.uid)
    return answer_to(review.uid, review.found.name, found, _modes(policy, seen))


def needed_to_mutate(review: Review, policy: Policy) -> ReviewNeeds:
    """What to look up before `mutate`."""
    return ReviewNeeds(review.found.namespace) if _patch(review, policy) else NOTHING


def mutate(review: Review, policy: Policy, seen: AdmissionContext) -> AdmissionAnswer:
    """What is changed in the pod. Nothing is refused here: `validate` comes later, and sees what others changed."""
    pod, patch, there = review.found.pod, _patch(review, policy), _modes(policy, seen)
    if pod is None or not patch or not there.changes_pods:
        return AdmissionAnswer(review.uid)
    told = [RuleFinding(RuleId.HOST_IPC_ADDED, host_ipc_is_added(pod))] if HOST_IPC in patch else []
    return AdmissionAnswer(review.uid, patch=patch, warnings=warnings_of(told, there))


def _patch(review: Review, policy: Policy) -> tuple[Change, ...]:
    """Only what could be read without a fault is changed; the rest is refused by whoever reads it next."""
    found = review.found
    if found.pod is None or found.problems or review.kind != "Pod" or _is_idle(review, policy):
        return ()
    if review.operation is Operation.CREATE:
        return patch_for_pod(review.thing, found.pod, policy)
    before = review.found_before().pod if review.subresource == EPHEMERAL_CONTAINERS else None
    return patch_for_debugging(review.thing, found.pod, policy, before) if before else ()


def _is_idle(review: Review, policy: Policy) -> bool:
    return review.leaves_pods_as_they_are or is_exempt(review.found, policy)


def _modes(policy: Policy, seen: AdmissionContext) -> NamespaceModes:
    return modes_in(seen.namespace_labels or {}, policy.admission.rules)


def _found(review: Review, policy: Policy, facts: GpuFacts, seen: AdmissionContext) -> tuple[RuleFinding, ...]:
    """What is wrong with the object, less what was wrong with it before."""
    space = review.found.namespace
    maps = {name: frozenset(keys) for (place, name), keys in seen.config_maps.items() if place == space}
    known = RequestContext(writer=review.writer, config_maps=maps, is_changed=True)
    if review.operation is Operation.CREATE:
        return judge(review.found, policy, facts, known).found
    before = review.found_before()
    annotations = before.pod.annotations if before.pod else {}
    now = replace(known, annotations_before=annotations)
    found = judge(review.found, policy, facts, now).found
    if not found:
        return ()
    old = {_mark(finding) for finding in judge(before, policy, facts, now).found}
    return tuple(finding for finding in found if _mark(finding) not in old or _is_unread(finding))


def _is_unread(finding: RuleFinding) -> bool:
    """Nobody can say what was there before and what is new in an object that was not read."""
    return finding.problem.rule == TOO_MANY_FIELDS


def _mark(finding: RuleFinding) -> tuple[str, str, str]:
    """What makes a problem the same as before, in whatever words."""
    return finding.problem.rule, finding.problem.where, finding.problem.value
