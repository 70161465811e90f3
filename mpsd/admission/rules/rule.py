"""What a rule of admission is, and what it looks at: a pod, what it requests, and what the caller knows about it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mpsd.model.fields import Fields
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.pod import Container, Pod
from mpsd.model.policy import Policy, RuleId
from mpsd.model.problem import Problem
from mpsd.model.request import PodRequest, asks, read_share

NO_DEVICES = frozenset({"", "none", "void"})  # values of NVIDIA_VISIBLE_DEVICES that give a container no GPU


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
    """A pod to be judged, read once before the first rule.

    asking: its containers that request a GPU; `share` is empty where none does. malformed: what was found wrong with
    the object's shape on the way to the pod.
    """

    pod: Pod
    malformed: tuple[Problem, ...]
    policy: Policy
    context: RequestContext
    asking: tuple[Container, ...]
    share: PodRequest


def rule_input(
    pod: Pod, malformed: tuple[Problem, ...], policy: Policy, facts: GpuFacts, context: RequestContext
) -> RuleInput:
    asking = tuple(container for container in pod.containers if asks(container, policy.resources))
    share = read_share(pod, policy, facts) if asking else PodRequest((), ())
    return RuleInput(pod, malformed, policy, context, asking, share)


class RuleScope(StrEnum):
    """Which pods a rule is for."""

    ASKING = "requests a GPU"
    EVERY = "any"
    NOT_ASKING = "requests none"


Look = Callable[[RuleInput], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. reason, remedy: for people who read about it; each problem that it finds has its own."""

    id: RuleId
    scope: RuleScope
    reason: str
    remedy: str
    look: Look


def rule(identity: RuleId, scope: RuleScope, reason: str, remedy: str) -> Callable[[Look], Rule]:
    """Makes a rule of the function below it."""
    return lambda look: Rule(identity, scope, reason, remedy, look)


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """A problem and the rule that found it. A rule about amounts has finer names for its problems."""

    rule: RuleId
    problem: Problem
