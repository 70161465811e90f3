"""The rules for variables that would lift a container's limits, or give it a GPU that mpsd does not account for.

Names count exactly as they are written, as programs read them. A Secret is never read.
"""

from collections.abc import Iterator

from mpsd.admission.rules.rule import NO_DEVICES, Rule, RuleInput, RuleScope, rule
from mpsd.model.client_limits import VISIBLE_DEVICES
from mpsd.model.names import matching, within_reach
from mpsd.model.pod import Container, Pod, Variable, VariableSource
from mpsd.model.policy import Policy, RuleId
from mpsd.model.problem import Problem, shown
from mpsd.model.request import asks

_REMOVE = "remove it; the node sets what the container needs"
_LIST_KEYS = "list the keys you need under env, each with valueFrom"


@rule(
    RuleId.ENVIRONMENT_BLOCKED,
    RuleScope.ASKING,
    "a variable that the pod sets can lift its limits or select another GPU",
    _REMOVE,
)
def _blocked(case: RuleInput) -> Iterator[Problem]:
    """Those of the containers of a pod that requests a GPU, named one by one or as keys of a known ConfigMap."""
    is_blocked = matching(case.policy.admission.blocked_environment)
    for container in case.pod.containers:
        for variable in container.variables:
            if is_blocked(variable.name) and not _is_harmless(variable, container, case):
                message = (
                    "hides the GPU that the container requests"
                    if _gives_nothing(variable)
                    else "a pod may not set it, because it could lift limits or select another GPU"
                )
                yield Problem(RuleId.ENVIRONMENT_BLOCKED, variable.path, _value(variable), message, _REMOVE)
        for source in container.sources:
            for key in sorted(_keys(source, case)):
                if is_blocked(source.prefix + key):
                    value = f"{source.kind} {shown(source.name)} with the key {shown(key)}"
                    message = f"sets {shown(source.prefix + key)}, which a pod may not set"
                    remedy = f"remove the key, or {_LIST_KEYS}"
                    yield Problem(RuleId.ENVIRONMENT_BLOCKED, source.path, value, message, remedy)


@rule(
    RuleId.ENVIRONMENT_SECRET,
    RuleScope.ASKING,
    "a Secret can contain such a variable, and mpsd does not read Secrets",
    "list the keys under env, each with valueFrom",
)
def _secrets(case: RuleInput) -> Iterator[Problem]:
    yield from _unseen(case, RuleId.ENVIRONMENT_SECRET, "Secret")


@rule(
    RuleId.ENVIRONMENT_UNSEEN,
    RuleScope.ASKING,
    "a ConfigMap that does not exist yet or cannot be read can contain such a variable",
    "create it first, or list the keys under env, each with valueFrom",
)
def _unseen_config_maps(case: RuleInput) -> Iterator[Problem]:
    yield from _unseen(case, RuleId.ENVIRONMENT_UNSEEN, "ConfigMap")


@rule(
    RuleId.UNASKED_VISIBLE_DEVICES,
    RuleScope.NOT_ASKING,
    "NVIDIA's runtime gives access to the GPUs in this variable, and mpsd does not account for them",
    "request GPU memory under resources.limits",
)
def _visible_devices(case: RuleInput) -> Iterator[Problem]:
    for container in case.pod.containers:
        for variable in container.variables:
            if variable.name == VISIBLE_DEVICES and not _gives_nothing(variable):
                message = "gives access to a GPU that the pod does not request"
                remedy = f"remove it, and request {case.policy.resources.memory} under resources.limits"
                yield Problem(RuleId.UNASKED_VISIBLE_DEVICES, variable.path, _value(variable), message, remedy)


ENVIRONMENT_RULES: tuple[Rule, ...] = (_blocked, _secrets, _unseen_config_maps, _visible_devices)


def config_maps_within_reach(pod: Pod, policy: Policy) -> Iterator[str]:
    """The names of the ConfigMaps that could set a blocked variable."""
    blocked = policy.admission.blocked_environment
    for container in pod.containers:
        for source in container.sources:
            if source.kind == "ConfigMap" and within_reach(source.prefix, blocked):
                yield source.name


def _unseen(case: RuleInput, rule_id: RuleId, kind: str) -> Iterator[Problem]:
    for container in case.asking:
        for source in container.sources:
            reach = within_reach(source.prefix, case.policy.admission.blocked_environment)
            if reach and source.kind == kind and source.name not in case.context.config_maps:
                prefix = f" with the prefix {shown(source.prefix)}" if source.prefix else ""
                message = f"its keys become variables{prefix} and were not checked; none may be {', '.join(reach)}"
                yield Problem(rule_id, source.path, f"{source.kind} {shown(source.name)}", message, _LIST_KEYS)


def _keys(source: VariableSource, case: RuleInput) -> frozenset[str]:
    known = case.context.config_maps if source.kind == "ConfigMap" else {}
    return known.get(source.name, frozenset())


def _is_harmless(variable: Variable, container: Container, case: RuleInput) -> bool:
    return _gives_nothing(variable) and not asks(container, case.policy.resources)


def _gives_nothing(variable: Variable) -> bool:
    return variable.name == VISIBLE_DEVICES and variable.value in NO_DEVICES


def _value(variable: Variable) -> str:
    return "taken from elsewhere" if variable.value is None else shown(variable.value)
