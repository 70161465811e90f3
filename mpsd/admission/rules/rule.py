"""What a rule of admission is, and what it looks at: a pod, what it requests, and what the caller knows about it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from mpsd.model.container import Container
from mpsd.model.fields import Fields
from mpsd.model.pod import ClaimName, Pod
from mpsd.model.policy import Policy, RuleId
from mpsd.model.problem import Problem
from mpsd.model.request import PodRequest

ClaimClasses: TypeAlias = "Mapping[ClaimName, Collection[str]]"  # the device classes that each of a pod's asks for

NO_DEVICES = frozenset({"", "none", "void"})  # values of NVIDIA_VISIBLE_DEVICES that give a container no GPU


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What is known beside the object. writer: the user's name, empty where nobody is named. config_maps: the keys of
    those that were looked up, by name. annotations_before: the pod's, before this writer came. is_placed: it runs on a
    node already. is_changed: what mpsd changes in a pod that is created has been changed, or never will be. claims: the
    device classes that each of its resource claims asks for, where that is known or assumed. assumed: those of the
    claims that nobody could read."""

    writer: str = ""
    config_maps: Mapping[str, Collection[str]] = field(default_factory=dict)
    annotations_before: Fields = field(default_factory=dict)
    is_placed: bool = False
    is_changed: bool = False
    claims: ClaimClasses = field(default_factory=dict)
    assumed: Collection[ClaimName] = ()

    @property
    def known_claims(self) -> ClaimClasses:
        return {name: classes for name, classes in self.claims.items() if name not in self.assumed}


@dataclass(frozen=True, slots=True)
class RuleInput:
    """A pod to be judged, read once before the first rule. asking: its containers that request a GPU, also by a claim.
    share: what those request that need no claim. malformed: what was found wrong with the object's shape on the way to
    the pod."""

    pod: Pod
    malformed: tuple[Problem, ...]
    policy: Policy
    context: RequestContext
    asking: tuple[Container, ...]
    share: PodRequest


class RuleScope(StrEnum):
    ASKING = "requests a GPU"
    EVERY = "any"
    NOT_ASKING = "requests none"


ASKING, EVERY, NOT_ASKING = RuleScope.ASKING, RuleScope.EVERY, RuleScope.NOT_ASKING


class Found(NamedTuple):
    """A field that breaks a rule, by its path, and its value. message, remedy: where they say more than the rule's."""

    where: str
    value: str
    message: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """A problem and the rule that found it. A rule about amounts has finer names for its problems."""

    rule: RuleId
    problem: Problem


Look = Callable[[RuleInput], Iterable[Found | Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: which pods it is for, why there is such a rule, and what to do."""

    id: RuleId
    reason: str
    remedy: str
    look: Look
    scope: RuleScope = ASKING

    def finding(self, one: Found | Problem) -> RuleFinding:
        if isinstance(one, Found):
            one = Problem(self.id, one.where, one.value, one.message or self.reason, one.remedy or self.remedy)
        return RuleFinding(self.id, one)


def rule(identity: RuleId, reason: str, remedy: str, scope: RuleScope = ASKING) -> Callable[[Look], Rule]:
    return lambda look: Rule(identity, reason, remedy, look, scope)
