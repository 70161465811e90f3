"""The rules that keep the scheduler's books true: what is asked for, and who says where it runs.

One rule: whatever decides where a pod runs must have asked mpsd whether there is room.
"""

from collections.abc import Iterator, Mapping

from mpsd.admission.rules.admission_case import Case
from mpsd.model.container import Container
from mpsd.model.fields import Fields, at
from mpsd.model.names import matches
from mpsd.model.pod import Pod
from mpsd.model.policy import Policy, RuleId
from mpsd.model.problem import Problem, shown
from mpsd.model.quantity import is_zero

# The annotations that say which GPU a pod has: mpsd's, gpushare's first and its second form.
PLACEMENT_ANNOTATIONS = (
    "mpsd.io/gpu",
    "ALIYUN_COM_GPU_MEM_*",
    "scheduler.framework.gpushare.*",
    "gpushare.alibabacloud.com/*",
)


def malformed(case: Case) -> tuple[Problem, ...]:
    return case.malformed


def impossible_requests(case: Case) -> tuple[Problem, ...]:
    return case.share.problems


def other_gpus(case: Case) -> Iterator[Problem]:
    for container in case.pod.containers:
        for key, amounts in (("limits", container.limits), ("requests", container.requests)):
            for name, amount in named(amounts, case.policy.admission.other_gpus):
                if name not in ours(case.policy):
                    where = at(container.path, "resources", key, name)
                    message = f"is another way to a GPU than {case.policy.resources.memory}, and a pod may have one"
                    yield Problem(RuleId.OTHER_GPU_TOO, where, shown(amount), message, "remove one of the two")


def gpus_apart(case: Case) -> Iterator[Problem]:
    name = case.policy.resources.count
    gpus = max((request.gpus for request in case.share.requests), default=1)
    if gpus > max([1, *map(len, case.policy.domains)]):
        where = at(case.pod.path, "metadata", "labels", name)
        message = f"no {gpus} GPUs share a control daemon, so the pod would wait"
        remedy = "list GPUs that belong together under domains in the policy"
        yield Problem(RuleId.GPUS_NOT_TOGETHER, where, shown(case.pod.labels.get(name)), message, remedy)


def scheduler_name(case: Case) -> Iterator[Problem]:
    scheduler, allowed = case.pod.scheduler, case.policy.admission.schedulers
    if scheduler and scheduler not in allowed:
        message = "this scheduler does not ask mpsd which GPU has room"
        yield Problem(
            RuleId.SCHEDULER_NAME, _in_spec(case.pod, "schedulerName"), shown(scheduler), message, _one_of(allowed)
        )


def node_name(case: Case) -> Iterator[Problem]:
    if case.pod.node and not case.circumstances.is_placed:
        message = "goes past the scheduler, which knows what each GPU has left"
        remedy = "remove it; choose nodes by nodeSelector or affinity"
        yield Problem(RuleId.NODE_NAME, _in_spec(case.pod, "nodeName"), shown(case.pod.node), message, remedy)


def runtime_class(case: Case) -> Iterator[Problem]:
    runtime, allowed = case.pod.runtime_class, case.policy.admission.runtime_classes
    if runtime and runtime not in allowed:
        message = "this runtime may set up GPUs in a way of its own"
        yield Problem(
            RuleId.RUNTIME_CLASS, _in_spec(case.pod, "runtimeClassName"), shown(runtime), message, _one_of(allowed)
        )


def placement_annotations(case: Case) -> Iterator[Problem]:
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
