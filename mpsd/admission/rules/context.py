"""What the rules of admission look at: a pod, what it asks for, and what the caller knows about it.

One rule: everything is read once, before the first rule.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from mpsd.model.fields import Fields
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.pod import Container, Pod
from mpsd.model.policy import Policy, RuleId, RuleMode
from mpsd.model.problem import Problem, shown
from mpsd.model.request import PodRequest, asks, read_share

NO_DEVICES = frozenset({"", "none", "void"})  # values of it that give a container no GPU


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What is known beside the object.

    writer: the user's name, empty where nobody is named. config_maps: the keys of those that were looked up, by name.
    annotations_before: the pod's, before this writer came. is_placed: it runs on a node already.
    is_changed: what mpsd changes in a pod that is created has been changed, or never will be.
    """

    writer: str = ""
    config_maps: Mapping[str, frozenset[str]] = field(default_factory=dict)
    annotations_before: Fields = field(default_factory=dict)
    is_placed: bool = False
    is_changed: bool = False


@dataclass(frozen=True, slots=True)
class RuleInput:
    """A pod under judgement. asking: its containers that ask for a GPU; `share` is empty where none does."""

    pod: Pod
    policy: Policy
    circumstances: RequestContext
    asking: tuple[Container, ...]
    share: PodRequest
    malformed: tuple[Problem, ...]


def case_of(
    pod: Pod, malformed: tuple[Problem, ...], policy: Policy, facts: GpuFacts, circumstances: RequestContext
) -> RuleInput:
    """malformed: what was found wrong with the object's shape on the way to the pod."""
    asking = tuple(container for container in pod.containers if asks(container, policy.resources))
    share = read_share(pod, policy, facts) if asking else PodRequest((), ())
    return RuleInput(pod, policy, circumstances, asking, share, malformed)


# How hard each rule is taken: the policy's mode, and what a namespace's labels make of it.
#
# One rule: the three labels work as those of Pod Security Admission do, each for itself; the strongest that names a
# rule counts. A namespace that says nothing gets the policy.

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
