"""The answer to an AdmissionReview: what is refused, or changed (`patch`). What is looked up beside
the object is advice; where it is missing, the policy's own mode counts."""

import base64
import json
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from mpsd.admission.rules.configurations import PROBE, PROBE_KIND
from mpsd.admission.rules.environment import config_maps_within_reach
from mpsd.admission.rules.host import added_host_ipc, host_ipc_is_added
from mpsd.admission.rules.patch import (
    HOST_IPC,
    OF_GPU_PODS,
    Change,
    patch_for_debugging,
    patch_for_pod,
)
from mpsd.admission.rules.requests import ENTRY, TemplateWanted, claiming, template_wanted
from mpsd.admission.rules.rule import ClaimClasses, RequestContext, RuleFinding
from mpsd.admission.rules.verdict import NamespaceModes, is_exempt, judge, modes_in, of_mode
from mpsd.model.fields import TOO_MANY_FIELDS, Fields
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.pod import ClaimName, Pod
from mpsd.model.policy import Policy, RuleMode
from mpsd.model.problem import printable, shown_name
from mpsd.model.request import asks_for_gpu
from mpsd.platform.rules.kubernetes_objects import KubernetesObject, read_object

# -- what an AdmissionReview of `admission.k8s.io/v1` asks, read from decoded JSON

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"


class MalformedReview(Exception):
    """Why the body is no AdmissionReview; the answer is 400."""


class Operation(StrEnum):
    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CONNECT = "CONNECT"


@dataclass(frozen=True, slots=True)
class Review:
    """thing: the object as it would be, or empty; found: what was read from it. old: as it is,
    empty on CREATE. writer: the user's name."""

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
        """An object that goes may always go."""
        if self.operation is not Operation.UPDATE:
            return self.operation is not Operation.CREATE
        # Only the API server sets this, and it stays set.
        is_going = bool(_metadata(self.old).get("deletionTimestamp"))
        return is_going or _is_same(self.thing, self.old)

    def found_before(self) -> KubernetesObject:
        return read_object(self.old, self.namespace)


class _Kind(Struct):
    kind: Annotated[str, Meta(min_length=1)]
    group: str = ""
    version: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}".removeprefix("/")


class _User(Struct):
    username: str = ""


class _Request(Struct, rename="camel"):
    uid: Annotated[str, Meta(min_length=1)]
    kind: _Kind
    operation: Operation
    namespace: str = ""
    subresource: str = msgspec.field(default="", name="subResource")
    user_info: _User = msgspec.field(default_factory=_User)
    dry_run: bool | None = None
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None


class _AdmissionReview(Struct, rename="camel"):
    api_version: Literal["admission.k8s.io/v1"]
    kind: Literal["AdmissionReview"]
    request: _Request


def read_review(review: object) -> Review:
    """MalformedReview where there is none."""
    try:
        request = msgspec.convert(review, _AdmissionReview).request
    except msgspec.ValidationError as error:
        raise MalformedReview(f"the body is no {KIND} of {API_VERSION}: {error}") from None
    typed = {"apiVersion": request.kind.api_version, "kind": request.kind.kind}
    thing: Fields = {}
    old: Fields = {}
    found = KubernetesObject("", request.namespace, None, ())
    if request.operation in (Operation.CREATE, Operation.UPDATE):
        thing = _needed(request.object, "object") | typed
        found = read_object(thing, request.namespace)
    if request.operation is Operation.UPDATE:
        old = _needed(request.old_object, "oldObject") | typed
    return Review(
        uid=request.uid,
        operation=request.operation,
        subresource=request.subresource,
        namespace=request.namespace,
        writer=request.user_info.username,
        is_dry_run=bool(request.dry_run),
        kind=request.kind.kind,
        thing=thing,
        found=found,
        old=old,
    )


def _needed(thing: dict[str, Any] | None, key: str) -> dict[str, Any]:
    if thing is None:
        raise MalformedReview(f"request.{key} is missing")
    return thing


def _is_same(thing: Fields, old: Fields) -> bool:
    """Status, finalizers and owners cost nothing."""
    try:
        return _looked_at(thing) == _looked_at(old)
    except RecursionError:  # deeper than any object of a kind that is read here
        return False


def _looked_at(thing: Fields) -> list[object]:
    """spec and template are where every kind keeps what a pod is made of."""
    metadata = _metadata(thing)
    return [thing.get("spec"), thing.get("template"), *map(metadata.get, ("labels", "annotations"))]


def _metadata(thing: Fields) -> Fields:
    metadata = thing.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


# -- the answer as Kubernetes reads it
# The sentences are those of `mpsd explain`; only their lines are cut to the length that Kubernetes
# asks for.

# Kubernetes asks for warnings of at most 120 characters, and cuts them once all together pass 4096.
_WARNING_LENGTH = 119
_MOST_WARNINGS = 30
_MOST_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class AdmissionAnswer:
    """message: every problem, empty where it is allowed. audit: rules by mode, for the audit log.
    verdicts: each rule that found something, and its mode, for metrics. is_probe: it answers a
    webhook's own question."""

    uid: str
    allowed: bool = True
    message: str = ""
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=dict)
    patch: tuple[Change, ...] = ()
    verdicts: tuple[tuple[str, str], ...] = ()
    is_probe: bool = False
    # that must be in the namespace before the pod is; None where none must
    template: TemplateWanted | None = None

    def record(self) -> dict[str, object]:
        response: dict[str, object] = {"uid": self.uid, "allowed": self.allowed}
        if not self.allowed:
            response["status"] = {"code": 403, "reason": "Forbidden", "message": self.message}
        if self.warnings:
            response["warnings"] = list(self.warnings)
        if self.audit:
            response["auditAnnotations"] = dict(self.audit)
        if self.patch:
            encoded = base64.b64encode(json.dumps(self.patch).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": encoded}
        return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def warnings_of(found: Iterable[RuleFinding], there: NamespaceModes) -> tuple[str, ...]:
    """The findings that only warn, and labels of the namespace that say nothing. Each line is led
    by its rule: kubectl shows a line that comes twice once."""
    lines = []
    for finding in of_mode(RuleMode.WARN, found, there.modes):
        lines += _lines(f"{finding.rule}: {finding.problem.fault}")
        lines += _lines(f"{finding.rule}: {finding.problem.remedy}")
    for remark in there.remarks:
        lines += _lines(remark)
    return _few(lines, _MOST_WARNINGS)


def _lines(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, _WARNING_LENGTH, break_on_hyphens=False)


def _few(lines: Sequence[str], most: int) -> tuple[str, ...]:
    if len(lines) <= most:
        return tuple(lines)
    return (*lines[:most], f"and {len(lines) - most} more")


# -- how a review is answered


@dataclass(frozen=True, slots=True)
class AdmissionContext:
    """What was looked up. namespace_labels: None where not known. config_maps: the keys of those
    that are known. claims: the device classes of those that are known. has_sleep: whether the API
    server is known to take PRE_STOP."""

    namespace_labels: Mapping[str, str] | None = None
    config_maps: Mapping[str, Collection[str]] = field(default_factory=dict)
    claims: ClaimClasses = field(default_factory=dict)
    has_sleep: bool = False


@dataclass(frozen=True, slots=True)
class ReviewNeeds:
    """What an answer needs to know. namespace: whose labels, empty for none; config_maps, claims:
    names in it. is_faultless: whatever else is known."""

    namespace: str = ""
    config_maps: tuple[str, ...] = ()
    claims: tuple[ClaimName, ...] = ()
    is_faultless: bool = False


def probed(review: Review) -> str:
    """The word by which a webhook learns whether API servers call it, or empty."""
    if review.operation is not Operation.CREATE or review.kind != PROBE_KIND:
        return ""
    annotations = _metadata(review.thing).get("annotations")
    if not isinstance(annotations, dict) or not isinstance(annotations.get(PROBE), str):
        return ""
    return str(annotations[PROBE])


def needed_to_validate(review: Review, policy: Policy, facts: GpuFacts) -> ReviewNeeds:
    pod = review.found.pod
    if pod is None or _is_idle(review, policy) or probed(review):
        return ReviewNeeds()
    claims = _claims_of(pod)
    if claims or asks_for_gpu(pod, policy.resources) or claiming(pod, policy, {}):
        config_maps = tuple(dict.fromkeys(config_maps_within_reach(pod, policy)))
        return ReviewNeeds(review.found.namespace, config_maps, claims)
    if _found(review, policy, facts, AdmissionContext()):
        return ReviewNeeds(review.found.namespace)
    return ReviewNeeds(is_faultless=True)


def validate(
    review: Review, policy: Policy, facts: GpuFacts, seen: AdmissionContext
) -> AdmissionAnswer:
    """Every problem that was not there before."""
    if word := probed(review):
        return AdmissionAnswer(review.uid, allowed=False, message=f"{PROBE}: {word}", is_probe=True)
    found = () if _is_idle(review, policy) else _found(review, policy, facts, seen)
    if not found:
        return AdmissionAnswer(review.uid)
    there = modes_in(seen.namespace_labels or {}, policy.admission.rules)
    modes = there.modes
    taken = {str(one.rule): str(modes[one.rule]) for one in found if one.rule in modes}
    audit: dict[str, str] = {}
    for mode in map(str, RuleMode):
        if rules := ",".join(rule for rule in taken if taken[rule] == mode):
            audit[mode] = rules
    problems = [str(finding.problem) for finding in of_mode(RuleMode.ENFORCE, found, modes)]
    message = ""
    if problems:
        counted = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        head = f"{review.found.name} is refused, {counted}"
        message = "\n  ".join((head, *_few(problems, _MOST_PROBLEMS)))
    return AdmissionAnswer(
        review.uid,
        allowed=not problems,
        message=message,
        warnings=(*_unknown_claims(review, seen), *warnings_of(found, there)),
        audit=audit,
        verdicts=tuple(taken.items()),
    )


def _claims_of(pod: Pod) -> tuple[ClaimName, ...]:
    return tuple(dict.fromkeys(pod.claims.values()))


def _unknown_claims(review: Review, seen: AdmissionContext) -> tuple[str, ...]:
    """Why a pod is judged by more than people know. A dry run makes no template."""
    pod = review.found.pod
    if pod is None or pod.path:
        return ()
    lines = []
    for one in _assumed(pod, seen):
        if not (review.is_dry_run and one == pod.claims.get(ENTRY)):
            name = f"{one.kind} {one.name} cannot be read (create it first)"
            sentence = f"{name}, and so counts as one for a GPU of mpsd"
            lines += _lines(printable(sentence, _WARNING_LENGTH * 4))
    return tuple(lines)


def needed_to_mutate(review: Review, policy: Policy, facts: GpuFacts) -> ReviewNeeds:
    pod = review.found.pod
    if pod is None:
        return ReviewNeeds()
    claims = _claims_of(pod)
    template = _template(review, policy, facts, {})
    assumed = dict.fromkeys(claims, policy.admission.device_classes)
    patch = _patch(review, policy, AdmissionContext(claims=assumed), template)
    if not patch:
        return ReviewNeeds()
    if template is None and OF_GPU_PODS.isdisjoint(change["path"] for change in patch):
        claims = ()
    return ReviewNeeds(review.found.namespace, claims=claims)


def mutate(
    review: Review, policy: Policy, facts: GpuFacts, seen: AdmissionContext
) -> AdmissionAnswer:
    """Nothing is refused here: `validate` comes later, and sees what others changed."""
    pod = review.found.pod
    template = _template(review, policy, facts, seen.claims)
    patch = _patch(review, policy, seen, template)
    there = modes_in(seen.namespace_labels or {}, policy.admission.rules)
    if pod is None or not patch or not there.changes_pods:
        return AdmissionAnswer(review.uid)
    warnings = []
    if template:
        what = f"{policy.resources.memory} of container {shown_name(template.container)}"
        warnings += _lines(f"{what} is replaced by a claim of {template.name}")
    added = [added_host_ipc.finding(host_ipc_is_added(pod))] if HOST_IPC in patch else ()
    warnings += warnings_of(added, there)
    return AdmissionAnswer(review.uid, patch=patch, warnings=tuple(warnings), template=template)


def _template(
    review: Review, policy: Policy, facts: GpuFacts, claims: ClaimClasses
) -> TemplateWanted | None:
    found = review.found
    is_created = review.operation is Operation.CREATE and review.kind == "Pod"
    if not is_created or found.pod is None or found.problems or is_exempt(found, policy):
        return None
    return template_wanted(found.pod, policy, facts, claims)


def _patch(
    review: Review, policy: Policy, seen: AdmissionContext, template: TemplateWanted | None
) -> tuple[Change, ...]:
    """Only what could be read without a fault is changed; the rest is refused by whoever reads it
    next. For a claim that is not known no pod gets the host's IPC namespace."""
    found = review.found
    if found.pod is None or found.problems or review.kind != "Pod" or _is_idle(review, policy):
        return ()
    if review.operation is Operation.CREATE:
        return patch_for_pod(
            review.thing, found.pod, policy, seen.claims, template, has_sleep=seen.has_sleep
        )
    if review.subresource != "ephemeralcontainers" or not (before := review.found_before().pod):
        return ()
    return patch_for_debugging(review.thing, found.pod, policy, before)


def _is_idle(review: Review, policy: Policy) -> bool:
    return review.leaves_pods_as_they_are or is_exempt(review.found, policy)


def _found(
    review: Review, policy: Policy, facts: GpuFacts, seen: AdmissionContext
) -> tuple[RuleFinding, ...]:
    """Less what was wrong before."""
    before = None
    annotations: Fields = {}
    if review.operation is not Operation.CREATE:
        before = review.found_before()
        annotations = before.pod.annotations if before.pod else {}
    assumed = _assumed(review.found.pod, seen)
    context = RequestContext(
        review.writer,
        seen.config_maps,
        annotations,
        is_changed=True,
        claims={**dict.fromkeys(assumed, policy.admission.device_classes), **seen.claims},
        assumed=assumed,
    )
    found = judge(review.found, policy, facts, context)
    if before is None or not found:
        return found
    old = {_mark(finding) for finding in judge(before, policy, facts, context)}
    # Nobody can say what was there before and what is new in an object that was not read.
    return tuple(
        one for one in found if _mark(one) not in old or one.problem.rule == TOO_MANY_FIELDS
    )


def _assumed(pod: Pod | None, seen: AdmissionContext) -> tuple[ClaimName, ...]:
    """The claims of a pod that are not known, and so count as mpsd's: they may be made later. What
    a template's pods claim is looked up when they are created."""
    if pod is None or pod.path:
        return ()
    return tuple(name for name in _claims_of(pod) if name not in seen.claims)


def _mark(finding: RuleFinding) -> tuple[str, str, str]:
    """In whatever words."""
    return finding.problem.rule, finding.problem.where, finding.problem.value
