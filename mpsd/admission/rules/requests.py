"""The rules for what a pod requests, and for who decides where it runs: only somebody who asks mpsd for room may."""

from collections.abc import Iterator

from mpsd.admission.rules.rule import Rule, RuleInput, RuleScope, rule
from mpsd.model.fields import Fields, at
from mpsd.model.names import matches
from mpsd.model.pod import Container
from mpsd.model.policy import Policy, RuleId
from mpsd.model.problem import Problem, shown
from mpsd.model.quantity import is_zero

# The annotations with the GPU of a pod: mpsd's, gpushare's first and its second form.
PLACEMENT_ANNOTATIONS = (
    "mpsd.io/gpu",
    "ALIYUN_COM_GPU_MEM_*",
    "scheduler.framework.gpushare.*",
    "gpushare.alibabacloud.com/*",
)


@rule(
    RuleId.OBJECT_MALFORMED,
    RuleScope.EVERY,
    "a field of the wrong type is ignored or misread",
    "write the type that the Kubernetes API defines",
)
def _malformed(case: RuleInput) -> tuple[Problem, ...]:
    return case.malformed


@rule(
    RuleId.REQUEST_IMPOSSIBLE,
    RuleScope.ASKING,
    "a request that no GPU can serve waits for ever or fails on the node",
    "request whole GiB, no more than a card has and enough for a CUDA context, and 5 to 100 percent in steps of 5",
)
def _impossible(case: RuleInput) -> tuple[Problem, ...]:
    return case.share.problems


@rule(
    RuleId.OTHER_GPU_TOO,
    RuleScope.ASKING,
    "another device plugin tracks whole GPUs and MIG devices, and both would set NVIDIA_VISIBLE_DEVICES",
    "request one of the two",
)
def _other_gpu(case: RuleInput) -> Iterator[Problem]:
    for container in case.pod.containers:
        for key, amounts in (("limits", container.limits), ("requests", container.requests)):
            for name, amount in named(amounts, case.policy.admission.other_gpus):
                if name not in ours(case.policy):
                    where = at(container.path, "resources", key, name)
                    remedy = f"request {name} or {case.policy.resources.memory}, not both"
                    message = "a pod may have GPUs from one device plugin only"
                    yield Problem(RuleId.OTHER_GPU_TOO, where, shown(amount), message, remedy)


@rule(
    RuleId.GPUS_NOT_TOGETHER,
    RuleScope.ASKING,
    "several GPUs of one container need one control daemon for all of them",
    "list GPUs that belong together under domains in the policy",
)
def _gpus_apart(case: RuleInput) -> Iterator[Problem]:
    name = case.policy.resources.count
    gpus = max((request.gpus for request in case.share.requests), default=1)
    if gpus > max([1, *map(len, case.policy.domains)]):
        where = at(case.pod.path, "metadata", "labels", name)
        message = f"no {gpus} GPUs share a control daemon, so the pod would wait"
        remedy = "list GPUs that belong together under domains in the policy"
        yield Problem(RuleId.GPUS_NOT_TOGETHER, where, shown(case.pod.labels.get(name)), message, remedy)


@rule(
    RuleId.SCHEDULER_NAME,
    RuleScope.ASKING,
    "another scheduler does not know the free capacity of each GPU",
    "remove schedulerName",
)
def _scheduler_name(case: RuleInput) -> Iterator[Problem]:
    message = "this scheduler does not ask mpsd which GPU has room"
    allowed = case.policy.admission.schedulers
    yield from _not_allowed(case, RuleId.SCHEDULER_NAME, "schedulerName", case.pod.scheduler, allowed, message)


@rule(
    RuleId.NODE_NAME,
    RuleScope.ASKING,
    "a pod with nodeName bypasses the scheduler",
    "select nodes by nodeSelector or affinity",
)
def _node_name(case: RuleInput) -> Iterator[Problem]:
    if case.pod.node and not case.context.is_placed:
        where, message = (
            at(case.pod.path, "spec", "nodeName"),
            "bypasses the scheduler, which knows where there is room",
        )
        remedy = "remove it; select nodes by nodeSelector or affinity"
        yield Problem(RuleId.NODE_NAME, where, shown(case.pod.node), message, remedy)


@rule(
    RuleId.RUNTIME_CLASS,
    RuleScope.ASKING,
    "another runtime may set up GPUs differently",
    "remove runtimeClassName, or allow the class in the policy",
)
def _runtime_class(case: RuleInput) -> Iterator[Problem]:
    message = "this runtime may set up GPUs differently"
    allowed = case.policy.admission.runtime_classes
    yield from _not_allowed(case, RuleId.RUNTIME_CLASS, "runtimeClassName", case.pod.runtime_class, allowed, message)


@rule(
    RuleId.PLACEMENT_ANNOTATION,
    RuleScope.ASKING,
    "the ledger is restored from these annotations, so only schedulers may write them",
    "do not set or change them",
)
def _placement_annotations(case: RuleInput) -> Iterator[Problem]:
    """Those that this writer has added, changed or removed."""
    now, before = case.pod.annotations, case.context.annotations_before
    if (not now and not before) or case.context.writer in case.policy.admission.placement_accounts:
        return
    for name in sorted({*now, *before}):
        if now.get(name) != before.get(name) and matches(name, PLACEMENT_ANNOTATIONS):
            where = at(case.pod.path, "metadata", "annotations", name)
            value = shown(now[name]) if name in now else "gone"
            remedy = "restore its value" if name in before else "remove it"
            message = "only a scheduler may write which GPU the pod has"
            yield Problem(RuleId.PLACEMENT_ANNOTATION, where, value, message, remedy)


REQUEST_RULES: tuple[Rule, ...] = (
    *(_malformed, _impossible, _other_gpu, _gpus_apart),
    *(_scheduler_name, _node_name, _runtime_class, _placement_annotations),
)


def has_device_of_another(container: Container, policy: Policy) -> bool:
    """Whether another device plugin, or a resource claim, may give the container a GPU."""
    kept = policy.admission.visible_devices_kept_for
    return container.has_claims or any(
        any(named(amounts, kept)) for amounts in (container.limits, container.requests) if amounts
    )


def named(amounts: Fields, patterns: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """The resources that match, where more than nothing is requested of them."""
    return ((name, amount) for name, amount in amounts.items() if matches(name, patterns) and not is_zero(amount))


def ours(policy: Policy) -> tuple[str, str, str]:
    """The names of mpsd's resources."""
    return policy.resources.memory, policy.resources.percent, policy.resources.count


def _not_allowed(
    case: RuleInput, rule_id: RuleId, key: str, value: str, allowed: tuple[str, ...], message: str
) -> Iterator[Problem]:
    if value and value not in allowed:
        remedy = f"remove it, or write {' or '.join(allowed)}" if allowed else "remove it"
        yield Problem(rule_id, at(case.pod.path, "spec", key), shown(value), message, remedy)
