"""Whether an object may have what it asks for: one verdict, whoever asks.

One rule: everything that is wrong with an object is said at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mpsd.admission.rules.admission_case import Circumstances, case_of
from mpsd.admission.rules.admission_modes import Modes
from mpsd.admission.rules.table import Finding, findings
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.policy import Mode, Policy, RuleId
from mpsd.model.problem import Problem
from mpsd.model.share_request import ContainerRequest
from mpsd.platform.rules.kubernetes_objects import KubernetesObject, objects_in, read_object


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said about one object.

    problems: what refuses it. warnings: what does not. noted: what only the audit log would say.
    requests: what its containers get, empty when it is refused.
    remark: one sentence for people about an object that gets nothing and need not, else empty.
    """

    object_name: str
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    noted: tuple[Problem, ...] = ()
    requests: tuple[ContainerRequest, ...] = ()
    remark: str = ""

    @property
    def admitted(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found in one object, before anybody says how hard it is taken."""

    found: tuple[Finding, ...]
    requests: tuple[ContainerRequest, ...] = ()


def review_all(document: object, policy: Policy, facts: GpuFacts) -> tuple[Verdict, ...]:
    """A verdict on each object of a decoded document, which may be a List of them."""
    return tuple(review(thing, policy, facts) for thing in objects_in(document))


def review(thing: object, policy: Policy, facts: GpuFacts) -> Verdict:
    """The verdict on one decoded object, whatever JSON it is, as if an unknown person created it now.

    A pod that a node runs already keeps the place that it was given.
    """
    found = read_object(thing)
    if is_exempt(found, policy):
        return Verdict(found.name, remark=f"namespace {found.namespace} is exempt")
    placed = found.pod is not None and found.pod.is_placed
    annotations = found.pod.annotations if found.pod and placed else {}
    judged = judge(found, policy, facts, Circumstances(annotations_before=annotations, is_placed=placed))
    problems, warnings, noted = (of_mode(mode, judged.found, policy.admission.rules) for mode in Mode)
    return Verdict(
        found.name,
        problems=_problems(problems),
        warnings=_problems(warnings),
        noted=_problems(noted),
        requests=() if problems else judged.requests,
        remark="" if problems or judged.requests else found.unread or "asks for no GPU",
    )


def judge(found: KubernetesObject, policy: Policy, facts: GpuFacts, circumstances: Circumstances) -> Judgement:
    """What the rules find in an object; exemptions are the caller's."""
    if found.pod is None:
        return Judgement(tuple(Finding(RuleId.OBJECT_MALFORMED, problem) for problem in found.problems))
    case = case_of(found.pod, found.problems, policy, facts, circumstances)
    return Judgement(tuple(findings(case)), case.share.requests)


def is_exempt(found: KubernetesObject, policy: Policy) -> bool:
    """Whether nothing is said about an object because of where it is."""
    return found.namespace in policy.admission.exempt_namespaces


def of_mode(mode: Mode, found: Iterable[Finding], modes: Modes) -> tuple[Finding, ...]:
    """The findings of rules that are taken this hard."""
    return tuple(finding for finding in found if modes.get(finding.rule) is mode)


def _problems(found: Iterable[Finding]) -> tuple[Problem, ...]:
    return tuple(finding.problem for finding in found)
