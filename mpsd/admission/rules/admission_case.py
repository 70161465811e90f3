"""What the rules of admission look at: a pod, what it asks for, and what the caller knows about it.

One rule: everything is read once, before the first rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mpsd.model.container import Container
from mpsd.model.fields import Fields
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.pod import Pod
from mpsd.model.policy import Policy
from mpsd.model.problem import Problem
from mpsd.model.share_request import Share, asks, read_share

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES = frozenset({"", "none", "void"})  # values of it that give a container no GPU


@dataclass(frozen=True, slots=True)
class Circumstances:
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
class Case:
    """A pod under judgement. asking: its containers that ask for a GPU; `share` is empty where none does."""

    pod: Pod
    policy: Policy
    circumstances: Circumstances
    asking: tuple[Container, ...]
    share: Share
    malformed: tuple[Problem, ...]


def case_of(
    pod: Pod, malformed: tuple[Problem, ...], policy: Policy, facts: GpuFacts, circumstances: Circumstances
) -> Case:
    """malformed: what was found wrong with the object's shape on the way to the pod."""
    asking = tuple(container for container in pod.containers if asks(container, policy.resources))
    share = read_share(pod, policy, facts) if asking else Share((), ())
    return Case(pod, policy, circumstances, asking, share, malformed)
