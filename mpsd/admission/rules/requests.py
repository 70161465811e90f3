"""The rules that keep the scheduler's ledger true: what is asked for, and who says where it runs.

One rule: whatever decides where a pod runs must have asked mpsd whether there is room.
"""

from collections.abc import Iterator, Mapping

from mpsd.admission.rules.context import NO_DEVICES, RuleInput
from mpsd.model.client_limits import VISIBLE_DEVICES
from mpsd.model.fields import Fields, at
from mpsd.model.names import matches, matching, within_reach
from mpsd.model.pod import Container, Pod, Variable, VariableSource
from mpsd.model.policy import Policy, RuleId
from mpsd.model.problem import Problem, shown
from mpsd.model.quantity import is_zero
from mpsd.model.request import asks

# The annotations that say which GPU a pod has: mpsd's, gpushare's first and its second form.
PLACEMENT_ANNOTATIONS = (
    "mpsd.io/gpu",
    "ALIYUN_COM_GPU_MEM_*",
    "scheduler.framework.gpushare.*",
    "gpushare.alibabacloud.com/*",
)


def malformed(case: RuleInput) -> tuple[Problem, ...]:
    return case.malformed


def impossible_requests(case: RuleInput) -> tuple[Problem, ...]:
    return case.share.problems


def other_gpus(case: RuleInput) -> Iterator[Problem]:
    for container in case.pod.containers:
        for key, amounts in (("limits", container.limits), ("requests", container.requests)):
            for name, amount in named(amounts, case.policy.admission.other_gpus):
                if name not in ours(case.policy):
                    where = at(container.path, "resources", key, name)
                    message = f"is another way to a GPU than {case.policy.resources.memory}, and a pod may have one"
                    yield Problem(RuleId.OTHER_GPU_TOO, where, shown(amount), message, "remove one of the two")


def gpus_apart(case: RuleInput) -> Iterator[Problem]:
    name = case.policy.resources.count
    gpus = max((request.gpus for request in case.share.requests), default=1)
    if gpus > max([1, *map(len, case.policy.domains)]):
        where = at(case.pod.path, "metadata", "labels", name)
        message = f"no {gpus} GPUs share a control daemon, so the pod would wait"
        remedy = "list GPUs that belong together under domains in the policy"
        yield Problem(RuleId.GPUS_NOT_TOGETHER, where, shown(case.pod.labels.get(name)), message, remedy)


def scheduler_name(case: RuleInput) -> Iterator[Problem]:
    scheduler, allowed = case.pod.scheduler, case.policy.admission.schedulers
    if scheduler and scheduler not in allowed:
        message = "this scheduler does not ask mpsd which GPU has room"
        yield Problem(
            RuleId.SCHEDULER_NAME, _in_spec(case.pod, "schedulerName"), shown(scheduler), message, _one_of(allowed)
        )


def node_name(case: RuleInput) -> Iterator[Problem]:
    if case.pod.node and not case.circumstances.is_placed:
        message = "goes past the scheduler, which knows what each GPU has left"
        remedy = "remove it; choose nodes by nodeSelector or affinity"
        yield Problem(RuleId.NODE_NAME, _in_spec(case.pod, "nodeName"), shown(case.pod.node), message, remedy)


def runtime_class(case: RuleInput) -> Iterator[Problem]:
    runtime, allowed = case.pod.runtime_class, case.policy.admission.runtime_classes
    if runtime and runtime not in allowed:
        message = "this runtime may set up GPUs in a way of its own"
        yield Problem(
            RuleId.RUNTIME_CLASS, _in_spec(case.pod, "runtimeClassName"), shown(runtime), message, _one_of(allowed)
        )


def placement_annotations(case: RuleInput) -> Iterator[Problem]:
    """Those that this writer has added, changed or taken away."""
    now, before = case.pod.annotations, case.circumstances.annotations_before
    if (not now and not before) or case.circumstances.writer in case.policy.admission.placement_accounts:
        return
    for name in sorted({*now, *before}):
        if now.get(name) != before.get(name) and matches(name, PLACEMENT_ANNOTATIONS):
            where = at(case.pod.path, "metadata", "annotations", name)
            value = shown(now[name]) if name in now else "gone"
            message = "says which GPU the pod has, which is for the scheduler to write"
            remedy = "leave it as it was" if name in before else "remove it"
            yield Problem(RuleId.PLACEMENT_ANNOTATION, where, value, message, remedy)


def has_device_of_another(container: Container, policy: Policy) -> bool:
    """Whether another device plugin, or a resource claim, may give the container a GPU."""
    kept = policy.admission.visible_devices_kept_for
    return container.has_claims or any(
        any(named(amounts, kept)) for amounts in (container.limits, container.requests) if amounts
    )


def named(amounts: Fields, patterns: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """The resources that match, where there is more than nothing of them."""
    return ((name, amount) for name, amount in amounts.items() if matches(name, patterns) and not is_zero(amount))


def ours(policy: Policy) -> Mapping[str, None]:
    names = policy.resources
    return dict.fromkeys((names.memory, names.percent, names.count))


def _in_spec(pod: Pod, key: str) -> str:
    return at(pod.path, "spec", key)


def _one_of(allowed: tuple[str, ...]) -> str:
    return f"remove it, or write {' or '.join(allowed)}" if allowed else "remove it"


# The rules for variables: what would lift a container's limits, or give it a GPU that nobody counts.
#
# One rule: names count exactly as they are written, as programs read them; a Secret is never read.

_REMOVE = "remove it; the node sets what the container needs"


def blocked_variables(case: RuleInput) -> Iterator[Problem]:
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


def visible_devices_unasked(case: RuleInput) -> Iterator[Problem]:
    for container in case.pod.containers:
        for variable in container.variables:
            if variable.name == VISIBLE_DEVICES and not _gives_nothing(variable):
                message = "takes a GPU that the pod does not ask for, so that nobody counts it"
                remedy = f"remove it, and ask for {case.policy.resources.memory} under resources.limits"
                yield Problem(RuleId.UNASKED_VISIBLE_DEVICES, variable.path, _value(variable), message, remedy)


def secrets(case: RuleInput) -> Iterator[Problem]:
    yield from _unseen(case, RuleId.ENVIRONMENT_SECRET, "Secret")


def unseen_config_maps(case: RuleInput) -> Iterator[Problem]:
    yield from _unseen(case, RuleId.ENVIRONMENT_UNSEEN, "ConfigMap")


def _unseen(case: RuleInput, rule: RuleId, kind: str) -> Iterator[Problem]:
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


def _keys(source: VariableSource, case: RuleInput) -> frozenset[str]:
    known = case.circumstances.config_maps if source.kind == "ConfigMap" else {}
    return known.get(source.name, frozenset())


def _is_harmless(variable: Variable, container: Container, case: RuleInput) -> bool:
    return _gives_nothing(variable) and not asks(container, case.policy.resources)


def _gives_nothing(variable: Variable) -> bool:
    return variable.name == VISIBLE_DEVICES and variable.value in NO_DEVICES


def _value(variable: Variable) -> str:
    return "taken from elsewhere" if variable.value is None else shown(variable.value)
