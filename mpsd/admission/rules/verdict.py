"""Whether an object may have what it requests: every problem in it at once, and how hard each rule is taken there."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mpsd.admission.rules.environment import ENVIRONMENT_RULES
from mpsd.admission.rules.host import HOST_RULES
from mpsd.admission.rules.requests import REQUEST_RULES, has_device_of_another
from mpsd.admission.rules.rule import RequestContext, Rule, RuleFinding, RuleScope, rule_input
from mpsd.model.client_limits import VISIBLE_DEVICES
from mpsd.model.fields import Fields
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.pod import CONTAINER_FIELDS, Container, Pod
from mpsd.model.policy import HostIPC, Policy, RuleId, RuleMode
from mpsd.model.problem import Problem, shown
from mpsd.model.request import ContainerRequest, asks, asks_for_gpu
from mpsd.platform.rules.kubernetes_objects import KubernetesObject, objects_in, read_object

# In the order of the policy, which is the one in which they are reported.
RULES: tuple[Rule, ...] = tuple(
    sorted((*REQUEST_RULES, *ENVIRONMENT_RULES, *HOST_RULES), key=lambda rule: list(RuleId).index(rule.id))
)
_FOR_ASKING = tuple(rule for rule in RULES if rule.scope is not RuleScope.NOT_ASKING)
_FOR_OTHERS = tuple(rule for rule in RULES if rule.scope is not RuleScope.ASKING)


# -- how hard each rule is taken -----------------------------------------------------------------------------------
# The policy's mode, and what a namespace's labels make of it. The three labels work as those of Pod Security Admission
# do, each for itself; the strongest that names a rule counts.

Modes = Mapping[RuleId, RuleMode]

# What each label covers without a value: those rules of the policy, and the stronger ones, so that a rule that is not
# enforced in a namespace is still warned of.
_COVERED: Mapping[RuleMode, frozenset[RuleMode]] = {
    RuleMode.ENFORCE: frozenset({RuleMode.ENFORCE}),
    RuleMode.WARN: frozenset({RuleMode.ENFORCE, RuleMode.WARN}),
    RuleMode.AUDIT: frozenset(RuleMode),
}
_VALUES: Mapping[str, Callable[[RuleMode, RuleMode], bool]] = {
    "all": lambda _label, _rule: True,
    "none": lambda _label, _rule: False,
    "default": lambda label, rule: rule in _COVERED[label],
}


@dataclass(frozen=True, slots=True)
class NamespaceModes:
    """What counts in one namespace.

    modes: without the rules that count for nothing there. remarks: labels not understood.
    """

    modes: Modes
    remarks: tuple[str, ...] = ()
    changes_pods: bool = True


def label_of(mode: RuleMode) -> str:
    return f"mpsd.io/{mode}"


def modes_in(labels: Fields, rules: Modes) -> NamespaceModes:
    """The modes of a namespace with these labels. Where it enforces nothing, its pods are not changed either."""
    values = {mode: labels[label_of(mode)] for mode in RuleMode if label_of(mode) in labels} if labels else {}
    if not values:
        return NamespaceModes(rules)
    covers = {mode: _VALUES.get(str(values.get(mode, "default")), _VALUES["default"]) for mode in RuleMode}
    modes = {
        rule: next(mode for mode in RuleMode if covers[mode](mode, own))
        for rule, own in rules.items()
        if any(covers[mode](mode, own) for mode in RuleMode)
    }
    return NamespaceModes(modes, tuple(_not_understood(values)), values.get(RuleMode.ENFORCE) != "none")


def _not_understood(values: Mapping[RuleMode, object]) -> Iterator[str]:
    for mode, value in values.items():
        if value not in _VALUES:
            yield f"the namespace's label {label_of(mode)} is {shown(value)}: write all, none or default"


# -- the verdict ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AdmissionVerdict:
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

    found: tuple[RuleFinding, ...]
    requests: tuple[ContainerRequest, ...] = ()


def review_all(document: object, policy: Policy, facts: GpuFacts) -> tuple[AdmissionVerdict, ...]:
    """A verdict on each object of a decoded document, which may be a List of them."""
    return tuple(review(thing, policy, facts) for thing in objects_in(document))


def review(thing: object, policy: Policy, facts: GpuFacts) -> AdmissionVerdict:
    """The verdict on one decoded object, whatever JSON it is, as if an unknown person created it now.

    A pod that a node runs already keeps the place that it was given.
    """
    found = read_object(thing)
    if is_exempt(found, policy):
        return AdmissionVerdict(found.name, remark=f"namespace {found.namespace} is exempt")
    placed = found.pod is not None and found.pod.is_placed
    annotations = found.pod.annotations if found.pod and placed else {}
    judged = judge(found, policy, facts, RequestContext(annotations_before=annotations, is_placed=placed))
    problems, warnings, noted = (of_mode(mode, judged.found, policy.admission.rules) for mode in RuleMode)
    return AdmissionVerdict(
        found.name,
        problems=_problems(problems),
        warnings=_problems(warnings),
        noted=_problems(noted),
        requests=() if problems else judged.requests,
        remark="" if problems or judged.requests else found.unread or "asks for no GPU",
    )


def judge(found: KubernetesObject, policy: Policy, facts: GpuFacts, context: RequestContext) -> Judgement:
    """What the rules find in an object; exemptions are the caller's."""
    if found.pod is None:
        return Judgement(tuple(RuleFinding(RuleId.OBJECT_MALFORMED, problem) for problem in found.problems))
    case = rule_input(found.pod, found.problems, policy, facts, context)
    rules = _FOR_ASKING if case.asking else _FOR_OTHERS
    return Judgement(tuple(RuleFinding(rule.id, one) for rule in rules for one in rule.look(case)), case.share.requests)


def is_exempt(found: KubernetesObject, policy: Policy) -> bool:
    """Whether nothing is said about an object because of where it is."""
    return found.namespace in policy.admission.exempt_namespaces


def of_mode(mode: RuleMode, found: Iterable[RuleFinding], modes: Modes) -> tuple[RuleFinding, ...]:
    """The findings of rules that are taken this hard."""
    return tuple(finding for finding in found if modes.get(finding.rule) is mode)


def _problems(found: Iterable[RuleFinding]) -> tuple[Problem, ...]:
    return tuple(finding.problem for finding in found)


# -- what mpsd changes in a pod that is created, as a JSON Patch (RFC 6902) ----------------------------------------
# A change adds what is missing; a variable that somebody wrote is left to the rules, which may refuse it.

Change = dict[str, object]  # one operation of the patch

HOST_IPC: Change = {"op": "add", "path": "/spec/hostIPC", "value": True}
_VOID = {"name": VISIBLE_DEVICES, "value": "void"}


def patch_for_pod(thing: Fields, pod: Pod, policy: Policy) -> tuple[Change, ...]:
    """The changes to a pod that is created. thing: what `pod` was read from, without a fault in its shape."""
    return (*_host_ipc(pod, policy), *_void(thing, pod, policy, frozenset()))


def patch_for_debugging(thing: Fields, pod: Pod, policy: Policy, before: Pod) -> tuple[Change, ...]:
    """The changes to a pod that gets ephemeral containers: to the new ones alone, since nothing else may change."""
    return tuple(_void(thing, pod, policy, frozenset(container.name for container in before.containers)))


def _host_ipc(pod: Pod, policy: Policy) -> Iterator[Change]:
    if policy.admission.host_ipc is HostIPC.INJECT and not pod.host_ipc and asks_for_gpu(pod, policy.resources):
        yield HOST_IPC


def _void(thing: Fields, pod: Pod, policy: Policy, untouched: frozenset[str]) -> Iterator[Change]:
    """NVIDIA_VISIBLE_DEVICES=void for containers that get no GPU, whatever their image says; a pod's word beats it."""
    if not policy.admission.void_visible_devices:
        return
    for (pointer, env), container in zip(_places(thing), pod.containers, strict=True):
        if container.name not in untouched and _gets_none(container, policy):
            if env:
                yield {"op": "add", "path": f"{pointer}/env/-", "value": dict(_VOID)}
            else:  # absent, null or empty
                yield {"op": "add", "path": f"{pointer}/env", "value": [dict(_VOID)]}


def _gets_none(container: Container, policy: Policy) -> bool:
    """Whether nothing gives the container a GPU, and nothing in its own environment says so yet."""
    return not (
        asks(container, policy.resources)
        or has_device_of_another(container, policy)
        or any(variable.name == VISIBLE_DEVICES for variable in container.variables)
    )


def _places(thing: Fields) -> Iterator[tuple[str, object]]:
    """Where each container is and what it has under env, in the order in which containers are read."""
    spec = thing["spec"]
    assert isinstance(spec, dict), "a pod without a fault in its shape has one"
    for key in CONTAINER_FIELDS:
        for position, container in enumerate(spec.get(key) or ()):
            yield f"/spec/{key}/{position}", container.get("env")
