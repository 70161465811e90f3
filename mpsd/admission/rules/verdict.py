"""Every problem in an object at once, and how hard each rule is taken there."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from mpsd.admission.rules.claims import (
    asked_by_class,
    asked_of,
    claimed_requests,
    classes_of,
    wrong_in_claim,
)
from mpsd.admission.rules.environment import ENVIRONMENT_RULES
from mpsd.admission.rules.host import HOST_RULES
from mpsd.admission.rules.patch import added_grace_s, hooked_paths
from mpsd.admission.rules.requests import REQUEST_RULES, claiming
from mpsd.admission.rules.rule import RequestContext, Rule, RuleFinding, RuleInput, RuleScope
from mpsd.model.fields import FieldReader, Fields
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.pod import CLAIM, CLAIM_TEMPLATE, ClaimName, Pod, PodPriority
from mpsd.model.policy import Policy, RuleId, RuleMode
from mpsd.model.problem import Problem, shown, shown_name
from mpsd.model.request import ContainerRequest, PodRequest, asks, asks_for_gpu, read_share
from mpsd.platform.rules.kubernetes_objects import KubernetesObject, objects_in, read_object

# In the order of the policy, which is the one in which they are reported.
RULES: tuple[Rule, ...] = tuple(
    sorted(
        (*REQUEST_RULES, *ENVIRONMENT_RULES, *HOST_RULES),
        key=lambda rule: list(RuleId).index(rule.id),
    )
)
_FOR_ASKING = tuple(rule for rule in RULES if rule.scope is not RuleScope.NOT_ASKING)
_FOR_OTHERS = tuple(rule for rule in RULES if rule.scope is not RuleScope.ASKING)


# -- how hard each rule is taken
# The policy's mode, and what a namespace's labels make of it. The three labels work as those of Pod
# Security Admission do, each for itself; the strongest that names a rule counts.

Modes = Mapping[RuleId, RuleMode]

# What each label covers without a value: those rules of the policy, and the stronger ones, so that
# a rule that is not enforced in a namespace is still warned of.
_COVERED: Mapping[RuleMode, frozenset[RuleMode]] = {
    RuleMode.ENFORCE: frozenset({RuleMode.ENFORCE}),
    RuleMode.WARN: frozenset({RuleMode.ENFORCE, RuleMode.WARN}),
    RuleMode.AUDIT: frozenset(RuleMode),
}
_OTHER_VALUES: Mapping[object, frozenset[RuleMode]] = {
    "all": frozenset(RuleMode),
    "none": frozenset(),
}


@dataclass(frozen=True, slots=True)
class NamespaceModes:
    """modes: of the rules that count. remarks: labels not understood."""

    modes: Modes
    remarks: tuple[str, ...] = ()
    changes_pods: bool = True


def label_of(mode: RuleMode) -> str:
    return f"mpsd.io/{mode}"


def modes_in(labels: Fields, rules: Modes) -> NamespaceModes:
    """Where a namespace enforces nothing, its pods are not changed either."""
    values = {mode: labels[label_of(mode)] for mode in RuleMode if label_of(mode) in labels}
    if not values:
        return NamespaceModes(rules)
    modes: dict[RuleId, RuleMode] = {}
    for mode in RuleMode:  # the strongest first
        covered = _OTHER_VALUES.get(str(values.get(mode)), _COVERED[mode])
        for rule, own in rules.items():
            if own in covered:
                modes.setdefault(rule, mode)
    remarks = tuple(
        f"the namespace's label {label_of(mode)} is {shown(value)}: write all, none or default"
        for mode, value in values.items()
        if value not in ("all", "none", "default")
    )
    return NamespaceModes(modes, remarks, values.get(RuleMode.ENFORCE) != "none")


@dataclass(frozen=True, slots=True)
class AdmissionVerdict:
    """What is said about one object. problems: what refuses it. noted: what only the audit log
    would say. requests: what its containers get. remark: a sentence about an object that gets
    nothing and need not, or would be judged otherwise if it were created; else empty. priority: of
    a pod with requests; else None. grace_added_s: by which the webhook lengthens its grace at most:
    one second less before Kubernetes 1.31."""

    object_name: str
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    noted: tuple[Problem, ...] = ()
    requests: tuple[ContainerRequest, ...] = ()
    remark: str = ""
    priority: PodPriority | None = None
    grace_added_s: int = 0

    @property
    def admitted(self) -> bool:
        return not self.problems


# by namespace, resource claims and templates of them
Claims = Mapping[str, Mapping[ClaimName, Fields]]


def review_all(
    document: object, policy: Policy, facts: GpuFacts, claims: Claims = MappingProxyType({})
) -> tuple[AdmissionVerdict, ...]:
    return tuple(review(thing, policy, facts, claims) for thing in objects_in(document))


def claims_in(documents: Iterable[object]) -> Claims:
    claims: dict[str, dict[ClaimName, Fields]] = {}
    for document in documents:
        for thing in objects_in(document):
            if isinstance(thing, dict) and (kind := thing.get("kind")) in (CLAIM, CLAIM_TEMPLATE):
                fields = FieldReader()  # its bound is of one object
                metadata = fields.mapping(thing, "metadata", "")
                namespace = fields.text(metadata, "namespace", "") or "default"
                if name := fields.text(metadata, "name", ""):
                    claims.setdefault(namespace, {})[ClaimName(kind, name)] = thing
    return claims


def review(
    thing: object, policy: Policy, facts: GpuFacts, claims: Claims = MappingProxyType({})
) -> AdmissionVerdict:
    """As if an unknown person created the object now. A pod that a node runs already
    (`status.startTime`) keeps its place, and the remark says so where it matters."""
    found = read_object(thing)
    if is_exempt(found, policy):
        return AdmissionVerdict(found.name, remark=f"namespace {found.namespace} is exempt")
    pod = found.pod
    here = claims.get(found.namespace, {})
    classes = {}
    context = as_new = RequestContext()
    if pod:
        known = (name for name in pod.claims.values() if name in here)
        classes = {name: classes_of(here[name], name.kind) for name in known}
        context = as_new = RequestContext(claims=classes)
        if pod.is_placed:
            context = replace(as_new, annotations_before=pod.annotations, is_placed=True)
    judged = judge(found, policy, facts, context)
    problems, warnings, noted = (
        tuple(finding.problem for finding in of_mode(mode, judged, policy.admission.rules))
        for mode in RuleMode
    )
    if problems:
        return AdmissionVerdict(found.name, problems, warnings, noted)
    if pod is None:
        remark = found.unread or "asks for no GPU"
        return AdmissionVerdict(found.name, problems, warnings, noted, remark=remark)
    requests: tuple[ContainerRequest, ...] = ()
    remark = ""
    if asks_for_gpu(pod, policy.resources):
        requests = read_share(pod, policy, facts).requests
    if not requests:
        claimed = "; ".join(_claimed(pod, policy, facts, here))
        remark = found.unread or claimed or "asks for no GPU"
        requests = tuple(claimed_requests(pod, policy, facts, here))
    if pod.is_placed:
        now = {finding.rule for finding in judged}
        rules = dict.fromkeys(one.rule for one in judge(found, policy, facts, as_new))
        if anew := ", ".join(rule for rule in rules if rule not in now):
            what = "it runs already, by its status.startTime, and is judged as such"
            remark = f"{what}; a new one would break {anew}"
    verdict = AdmissionVerdict(found.name, problems, warnings, noted, requests, remark)
    if not requests:
        return verdict
    added_s = 0
    if not pod.is_placed:
        added_s = added_grace_s(pod, policy, hooked_paths(pod, policy, classes))
    return replace(verdict, priority=pod.priority, grace_added_s=added_s)


def _claimed(
    pod: Pod, policy: Policy, facts: GpuFacts, claims: Mapping[ClaimName, Fields]
) -> Iterator[str]:
    """What a pod gets by its claims, and what of them is not known."""
    used = {entry for container in pod.containers for entry in container.claims}
    for entry, name in pod.claims.items():
        words = f"{name.kind} {shown_name(name.name)}"
        if name not in claims:
            yield f"{words} is not in what was read, so it is judged without it"
        elif asked := asked_of(claims[name], name.kind, policy):
            but = ""
            if wrong_in_claim(claims[name], name.kind, policy, facts).problems:
                but = " and can never be served"
            elif entry not in used:
                but = ", and no container uses it"
            yield f"{words} asks for {asked}{but}"
    for container in pod.containers:
        if asked := asked_by_class(container, policy):
            yield (
                f"container {shown_name(container.name)} asks for {asked}, by the class as a"
                " resource"
            )


def judge(
    found: KubernetesObject, policy: Policy, facts: GpuFacts, context: RequestContext
) -> tuple[RuleFinding, ...]:
    """Before it is known how hard each is taken; exemptions are the caller's."""
    if found.pod is None:
        return tuple(RuleFinding(RuleId.OBJECT_MALFORMED, problem) for problem in found.problems)
    asking = [one for one in found.pod.containers if asks(one, policy.resources)]
    share = PodRequest((), ())
    if asking:
        share = read_share(found.pod, policy, facts)
    asking += [one for one in claiming(found.pod, policy, context.claims) if one not in asking]
    case = RuleInput(found.pod, found.problems, policy, context, tuple(asking), share)
    rules = _FOR_ASKING if asking else _FOR_OTHERS
    return tuple(rule.finding(one) for rule in rules for one in rule.look(case))


def is_exempt(found: KubernetesObject, policy: Policy) -> bool:
    return found.namespace in policy.admission.exempt_namespaces


def of_mode(mode: RuleMode, found: Iterable[RuleFinding], modes: Modes) -> tuple[RuleFinding, ...]:
    return tuple(finding for finding in found if modes.get(finding.rule) is mode)
