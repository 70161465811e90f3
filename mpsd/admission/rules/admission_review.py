"""Answers an AdmissionReview: what is refused (validating) and what is changed (mutating).

One rule: what is looked up beside the object is advice; where it is missing the policy's own word counts.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from mpsd.admission.rules.admission import is_exempt, judge
from mpsd.admission.rules.admission_answer import AdmissionAnswer, answer_to, warnings_of
from mpsd.admission.rules.admission_case import Circumstances
from mpsd.admission.rules.admission_environment import config_maps_within_reach
from mpsd.admission.rules.admission_host import host_ipc_is_added
from mpsd.admission.rules.admission_modes import NamespaceModes, modes_in
from mpsd.admission.rules.admission_patch import HOST_IPC, Change, patch_for_debugging, patch_for_pod
from mpsd.admission.rules.admission_request import MalformedReview, Operation, Review, read_review
from mpsd.admission.rules.table import Finding
from mpsd.model.fields import TOO_MANY_FIELDS
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.policy import Policy, RuleId
from mpsd.model.share_request import asks_for_gpu

__all__ = [
    "AdmissionAnswer",
    "AdmissionContext",
    "MalformedReview",
    "Needs",
    "Review",
    "mutate",
    "needed_to_mutate",
    "needed_to_validate",
    "read_review",
    "validate",
]

ConfigMapName = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class AdmissionContext:
    """What was looked up. namespace_labels: None where not known. config_maps: the keys of those that are known."""

    namespace_labels: Mapping[str, str] | None = None
    config_maps: Mapping[ConfigMapName, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Needs:
    """What an answer needs to know. namespace: whose labels, empty for none. Most objects need nothing."""

    namespace: str = ""
    config_maps: tuple[ConfigMapName, ...] = ()


NOTHING = Needs()
EPHEMERAL_CONTAINERS = "ephemeralcontainers"


def needed_to_validate(review: Review, policy: Policy, facts: GpuFacts) -> Needs:
    """What to look up before `validate`."""
    pod = review.found.pod
    if pod is None or _is_idle(review, policy):
        return NOTHING
    if asks_for_gpu(pod, policy.resources):
        maps = tuple((review.found.namespace, name) for name in config_maps_within_reach(pod, policy))
        return Needs(review.found.namespace, tuple(dict.fromkeys(maps)))
    return Needs(review.found.namespace) if _found(review, policy, facts, AdmissionContext()) else NOTHING


def validate(review: Review, policy: Policy, facts: GpuFacts, seen: AdmissionContext) -> AdmissionAnswer:
    """Whether the object may be: every problem that was not there before."""
    found = () if _is_idle(review, policy) else _found(review, policy, facts, seen)
    if not found:
        return AdmissionAnswer(review.uid)
    return answer_to(review.uid, review.found.name, found, _modes(policy, seen))


def needed_to_mutate(review: Review, policy: Policy) -> Needs:
    """What to look up before `mutate`."""
    return Needs(review.found.namespace) if _patch(review, policy) else NOTHING


def mutate(review: Review, policy: Policy, seen: AdmissionContext) -> AdmissionAnswer:
    """What is changed in the pod. Nothing is refused here: `validate` comes later, and sees what others changed."""
    pod, patch, there = review.found.pod, _patch(review, policy), _modes(policy, seen)
    if pod is None or not patch or not there.changes_pods:
        return AdmissionAnswer(review.uid)
    told = [Finding(RuleId.HOST_IPC_ADDED, host_ipc_is_added(pod))] if HOST_IPC in patch else []
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


def _found(review: Review, policy: Policy, facts: GpuFacts, seen: AdmissionContext) -> tuple[Finding, ...]:
    """What is wrong with the object, less what was wrong with it before."""
    space = review.found.namespace
    maps = {name: frozenset(keys) for (place, name), keys in seen.config_maps.items() if place == space}
    known = Circumstances(writer=review.writer, config_maps=maps, is_changed=True)
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


def _is_unread(finding: Finding) -> bool:
    """Nobody can say what was there before and what is new in an object that was not read."""
    return finding.problem.rule == TOO_MANY_FIELDS


def _mark(finding: Finding) -> tuple[str, str, str]:
    """What makes a problem the same as before, in whatever words."""
    return finding.problem.rule, finding.problem.where, finding.problem.value
