"""The rules for variables: what would lift a container's limits, or give it a GPU that nobody counts.

One rule: names count exactly as they are written, as programs read them; a Secret is never read.
"""

from collections.abc import Iterator

from mpsd.admission.rules.admission_case import NO_DEVICES, VISIBLE_DEVICES, Case
from mpsd.model.container import Container, Variable, VariableSource
from mpsd.model.names import matching, within_reach
from mpsd.model.pod import Pod
from mpsd.model.policy import Policy, RuleId
from mpsd.model.problem import Problem, shown
from mpsd.model.share_request import asks

_REMOVE = "remove it; the node sets what the container needs"


def blocked_variables(case: Case) -> Iterator[Problem]:
    """Those of the containers of a pod that asks for a GPU, named one by one or as keys of a known ConfigMap."""
    is_blocked = matching(case.policy.admission.blocked_environment)
    for container in case.pod.containers:
        for variable in container.variables:
            if is_blocked(variable.name) and not _is_harmless(variable, container, case):
                message = (
                    "hides from the container the GPU it asks for"
                    if _gives_nothing(variable)
                    else "a pod may not set this itself: it would lift limits or take a GPU that nobody counts"
                )
                yield Problem(RuleId.ENVIRONMENT_BLOCKED, variable.path, _value(variable), message, _REMOVE)
        for source in container.sources:
            for key in sorted(_keys(source, case)):
                if is_blocked(source.prefix + key):
                    value = f"{source.kind} {shown(source.name)} with the key {shown(key)}"
                    message = f"sets {shown(source.prefix + key)}, which a pod may not set itself"
                    remedy = "remove the key, or name those you need under env, each with valueFrom"
                    yield Problem(RuleId.ENVIRONMENT_BLOCKED, source.path, value, message, remedy)


def visible_devices_unasked(case: Case) -> Iterator[Problem]:
    for container in case.pod.containers:
        for variable in container.variables:
            if variable.name == VISIBLE_DEVICES and not _gives_nothing(variable):
                message = "takes a GPU that the pod does not ask for, so that nobody counts it"
                remedy = f"remove it, and ask for {case.policy.resources.memory} under resources.limits"
                yield Problem(RuleId.UNASKED_VISIBLE_DEVICES, variable.path, _value(variable), message, remedy)


def secrets(case: Case) -> Iterator[Problem]:
    yield from _unseen(case, RuleId.ENVIRONMENT_SECRET, "Secret")


def unseen_config_maps(case: Case) -> Iterator[Problem]:
    yield from _unseen(case, RuleId.ENVIRONMENT_UNSEEN, "ConfigMap")


def _unseen(case: Case, rule: RuleId, kind: str) -> Iterator[Problem]:
    for container in case.asking:
        for source in container.sources:
            reach = within_reach(source.prefix, case.policy.admission.blocked_environment)
            if reach and source.kind == kind and source.name not in case.circumstances.config_maps:
                behind = f" behind the prefix {shown(source.prefix)}" if source.prefix else ""
                named = ", ".join(reach)
                message = f"its keys become variables{behind} and are not looked at here; none may be {named}"
                remedy = "name the keys you need under env, each with valueFrom"
                yield Problem(rule, source.path, f"{source.kind} {shown(source.name)}", message, remedy)


def config_maps_within_reach(pod: Pod, policy: Policy) -> Iterator[str]:
    """The names of the ConfigMaps that could set a blocked variable."""
    blocked = policy.admission.blocked_environment
    for container in pod.containers:
        for source in container.sources:
            if source.kind == "ConfigMap" and within_reach(source.prefix, blocked):
                yield source.name


def _keys(source: VariableSource, case: Case) -> frozenset[str]:
    known = case.circumstances.config_maps if source.kind == "ConfigMap" else {}
    return known.get(source.name, frozenset())


def _is_harmless(variable: Variable, container: Container, case: Case) -> bool:
    return _gives_nothing(variable) and not asks(container, case.policy.resources)


def _gives_nothing(variable: Variable) -> bool:
    return variable.name == VISIBLE_DEVICES and variable.value in NO_DEVICES


def _value(variable: Variable) -> str:
    return "taken from elsewhere" if variable.value is None else shown(variable.value)
