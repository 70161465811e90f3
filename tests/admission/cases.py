"""Objects under judgement, for tests of the rules of admission."""

from mpsd.admission.rules.rule import RequestContext, RuleFinding
from mpsd.admission.rules.verdict import judge
from mpsd.model.policy import Policy
from mpsd.platform.rules.kubernetes_objects import read_object
from tests.model.manifests import FACTS, MEMORY, POLICY, Fields, container, pod

KINDS = ["containers", "initContainers", "ephemeralContainers"]
NOBODY = RequestContext()
PLACED = {"mpsd.io/gpu": "GPU-1", "scheduler.framework.gpushare.allocation": "{}"}


def found(
    thing: object, policy: Policy = POLICY, known: RequestContext = NOBODY
) -> tuple[RuleFinding, ...]:
    return judge(read_object(thing), policy, FACTS, known)


def broken(
    thing: object, policy: Policy = POLICY, known: RequestContext = NOBODY
) -> list[tuple[str, str, str]]:
    """What is found, as rule, place and value."""
    return [
        (str(one.rule), one.problem.where, one.problem.value) for one in found(thing, policy, known)
    ]


def asking(**spec: object) -> Fields:
    """A pod whose one container asks for a GPU."""
    return pod(container(limits={MEMORY: 7}), **spec)


def in_kind(kind: str, asks: bool = True, **fields: object) -> Fields:
    """A pod, asking or not, with these fields on a container `x` of one kind."""
    first, other = container(limits={MEMORY: 7} if asks else None), container("x", **fields)
    return pod(first, other) if kind == "containers" else pod(first, **{kind: [other]})


def with_volume(path: object, asks: bool = True) -> Fields:
    volumes = [{"name": "data", "hostPath": {"path": path}}]
    return pod(container(limits={MEMORY: 7} if asks else None), volumes=volumes)
