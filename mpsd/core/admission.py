"""Whether an object may have what it asks for: one verdict, whoever asks.

One rule: everything that is wrong with an object is said at once.
"""

from dataclasses import dataclass

from mpsd.core.admission_rules import RULES
from mpsd.core.gpu_facts import GpuFacts
from mpsd.core.kubernetes_objects import objects_in, read_object
from mpsd.core.policy import Policy
from mpsd.core.problem import Problem
from mpsd.core.share_request import ContainerRequest, asks_for_gpu, read_share


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said about one object.

    problems: what refuses it. warnings: what does not. requests: what its containers get, empty when it is refused.
    remark: one sentence for people about an object that gets nothing and need not, else empty.
    """

    object_name: str
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    requests: tuple[ContainerRequest, ...] = ()
    remark: str = ""

    @property
    def admitted(self) -> bool:
        return not self.problems


def review_all(document: object, policy: Policy, facts: GpuFacts) -> tuple[Verdict, ...]:
    """A verdict on each object of a decoded document, which may be a List of them."""
    return tuple(review(thing, policy, facts) for thing in objects_in(document))


def review(thing: object, policy: Policy, facts: GpuFacts) -> Verdict:
    """The verdict on one decoded object, whatever JSON it is."""
    found = read_object(thing)
    pod = found.pod
    if pod is None or not asks_for_gpu(pod, policy.resources):
        return Verdict(found.name, found.problems, remark="" if found.problems else "asks for no GPU")
    share = read_share(pod, policy, facts)
    refused = (problem for rule in RULES if rule.refuses for problem in rule.problems(pod, policy))
    problems = (*found.problems, *share.problems, *refused)
    return Verdict(
        found.name,
        problems,
        warnings=tuple(problem for rule in RULES if not rule.refuses for problem in rule.problems(pod, policy)),
        requests=() if problems else share.requests,
    )
