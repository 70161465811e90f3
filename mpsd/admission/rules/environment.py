"""The rules for variables that would lift a container's limits, or give it a GPU that mpsd does not
account for. A Secret is never read."""

from collections.abc import Iterator
from functools import partial

from mpsd.admission.rules.rule import NO_DEVICES, NOT_ASKING, Found, Rule, RuleInput, rule
from mpsd.model.client_limits import (
    CUDA_CAPABILITIES,
    NVIDIA_DRIVER_CAPABILITIES,
    NVIDIA_VISIBLE_DEVICES,
)
from mpsd.model.container import Variable
from mpsd.model.names import matching, within_reach
from mpsd.model.pod import Pod
from mpsd.model.policy import Policy, RuleId
from mpsd.model.problem import shown
from mpsd.model.request import asks

_UNCOUNTED = (
    "other libraries than those for CUDA and NVML take GPU memory that MPS does not limit",
    f"remove it, or write {','.join(CUDA_CAPABILITIES)}",
)
_LIST_KEYS = "list the keys you need under env, each with valueFrom"


@rule(
    RuleId.ENVIRONMENT_BLOCKED,
    "a pod may not set it, because it could lift limits or select another GPU",
    "remove it; the node sets what the container needs",
)
def _blocked(case: RuleInput) -> Iterator[Found]:
    """Named one by one, or as keys of a known ConfigMap, which whoever writes the pod may not be
    allowed to read: the message names none that the policy does not name itself."""
    is_blocked = matching(case.policy.admission.blocked_environment)
    for container in case.pod.containers:
        for variable in container.env:
            if not is_blocked(variable.name):
                continue
            if variable.name == NVIDIA_DRIVER_CAPABILITIES:
                if not _is_counted(variable):
                    yield Found(container.path_of(variable), _value(variable), *_UNCOUNTED)
            elif not _gives_nothing(variable):
                yield Found(container.path_of(variable), _value(variable))
            elif asks(container, case.policy.resources):
                message = "hides the GPU that the container requests"
                yield Found(container.path_of(variable), _value(variable), message)
        for source in container.sources:
            if source.kind != "ConfigMap":
                continue
            keys = case.context.config_maps.get(source.name, ())
            if any(is_blocked(source.prefix + key) for key in keys):
                names = ", ".join(case.policy.admission.blocked_environment)
                message = f"a key of it sets a variable that a pod may not set: one of {names}"
                value = f"{source.kind} {shown(source.name)}"
                yield Found(source.path, value, message, f"remove the key, or {_LIST_KEYS}")


def _unseen(case: RuleInput, kind: str) -> Iterator[Found]:
    for container in case.asking:
        for source in container.sources:
            reach = within_reach(source.prefix, case.policy.admission.blocked_environment)
            if reach and source.kind == kind and source.name not in case.context.config_maps:
                what = "its keys become variables"
                if source.prefix:
                    what += f" with the prefix {shown(source.prefix)}"
                message = f"{what} and were not checked; none may be {', '.join(reach)}"
                yield Found(source.path, f"{source.kind} {shown(source.name)}", message)


_secrets = Rule(
    RuleId.ENVIRONMENT_SECRET,
    "a Secret can contain such a variable, and mpsd does not read Secrets",
    _LIST_KEYS,
    partial(_unseen, kind="Secret"),
)
_unseen_config_maps = Rule(
    RuleId.ENVIRONMENT_UNSEEN,
    "a ConfigMap that does not exist yet or cannot be read can contain such a variable",
    f"create it first, or {_LIST_KEYS}",
    partial(_unseen, kind="ConfigMap"),
)


@rule(
    RuleId.UNASKED_VISIBLE_DEVICES,
    "NVIDIA's runtime gives access to the GPUs in this variable, and mpsd does not account for"
    " them",
    "request GPU memory under resources.limits",
    NOT_ASKING,
)
def _visible_devices(case: RuleInput) -> Iterator[Found]:
    remedy = f"remove it, and request {case.policy.resources.memory} under resources.limits"
    for container in case.pod.containers:
        for variable in container.env:
            if variable.name == NVIDIA_VISIBLE_DEVICES and not _gives_nothing(variable):
                yield Found(container.path_of(variable), _value(variable), remedy=remedy)


ENVIRONMENT_RULES: tuple[Rule, ...] = (_blocked, _secrets, _unseen_config_maps, _visible_devices)


def config_maps_within_reach(pod: Pod, policy: Policy) -> Iterator[str]:
    """Those that could set a blocked variable."""
    blocked = policy.admission.blocked_environment
    for container in pod.containers:
        for source in container.sources:
            if source.kind == "ConfigMap" and within_reach(source.prefix, blocked):
                yield source.name


def _gives_nothing(variable: Variable) -> bool:
    return variable.name == NVIDIA_VISIBLE_DEVICES and variable.text in NO_DEVICES


def _is_counted(variable: Variable) -> bool:
    """Whether it names no library that a container with a GPU does not get anyway."""
    return variable.text is not None and {*variable.text.split(",")} <= {"", *CUDA_CAPABILITIES}


def _value(variable: Variable) -> str:
    return "taken from elsewhere" if variable.text is None else shown(variable.text)
