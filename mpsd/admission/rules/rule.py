"""What a rule of admission is, and what it looks at."""

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

# the device classes that each of a pod's asks for
ClaimClasses: TypeAlias = "Mapping[ClaimName, Collection[str]]"

# values of NVIDIA_VISIBLE_DEVICES that give a container no GPU
NO_DEVICES = frozenset({"", "none", "void"})


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What is known beside the object. writer: the user's name, or empty. config_maps: the keys of
    those that were looked up. annotations_before: before this writer came. is_placed: it runs on a
    node. is_changed: what mpsd changes in a created pod has been changed, or never will be. claims:
    the device classes of those that are known or assumed. assumed: those that nobody could read."""

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
    """asking: the pod's containers that request a GPU, also by a claim. share: what those request
    that need no claim. malformed: faults of the object's shape."""

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


ASKING = RuleScope.ASKING
EVERY = RuleScope.EVERY
NOT_ASKING = RuleScope.NOT_ASKING


class Found(NamedTuple):
    """A field that breaks a rule. message, remedy: where they say more than the rule's."""

    where: str
    value: str
    message: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """A rule about amounts has finer names for its problems."""

    rule: RuleId
    problem: Problem


Look = Callable[[RuleInput], Iterable[Found | Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    id: RuleId
    reason: str
    remedy: str
    look: Look
    scope: RuleScope = ASKING

    def finding(self, one: Found | Problem) -> RuleFinding:
        if isinstance(one, Found):
            one = Problem(
                self.id, one.where, one.value, one.message or self.reason, one.remedy or self.remedy
            )
        return RuleFinding(self.id, one)


def rule(
    identity: RuleId, reason: str, remedy: str, scope: RuleScope = ASKING
) -> Callable[[Look], Rule]:
    return lambda look: Rule(identity, reason, remedy, look, scope)
