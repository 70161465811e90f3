"""The rules for what a pod requests, how it ends, and who decides where it runs: only who asks mpsd for room may."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mpsd.admission.rules.rule import EVERY, ClaimClasses, Found, Rule, RuleInput, rule
from mpsd.kubelet.dra.rules.slices import MEMORY, THREADS
from mpsd.model.client_limits import priority_problem
from mpsd.model.container import Container
from mpsd.model.fields import Fields, at
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.names import CLAIM_DRIVER, MIRROR, matches
from mpsd.model.pod import CLAIM, PRIORITY, Pod
from mpsd.model.policy import Policy, RuleId
from mpsd.model.problem import Problem, shown, shown_name
from mpsd.model.quantity import is_zero
from mpsd.model.request import PodRequest, asks_for_gpu, read_share

# The annotations with the GPU of a pod: mpsd's, gpushare's first and its second form.
PLACEMENT_ANNOTATIONS = (
    "mpsd.io/gpu",
    "ALIYUN_COM_GPU_MEM_*",
    "scheduler.framework.gpushare.*",
    "gpushare.alibabacloud.com/*",
)


@rule(
    RuleId.OBJECT_MALFORMED,
    "a field of the wrong type is ignored or misread",
    "write the type that the Kubernetes API defines",
    EVERY,
)
def _malformed(case: RuleInput) -> tuple[Problem, ...]:
    return case.malformed


@rule(
    RuleId.REQUEST_IMPOSSIBLE,
    "a request that no GPU can serve waits for ever or fails on the node",
    "request whole GiB, no more than a card has and enough for a CUDA context, and 5 to 100 percent in steps of 5",
)
def _impossible(case: RuleInput) -> Iterator[Problem]:
    yield from case.share.problems
    if case.share.requests and _gets_claim(case.pod, case.policy):
        yield from _unclaimable(case.pod, case.share, case.policy)
    if case.policy.gpu_priority.by == "annotation" and case.pod.priority.written is not None:
        yield from priority_problem(case.pod.priority.written, at(case.pod.path, "metadata", "annotations", PRIORITY))
    yield from _of_several(case.pod, case.policy, case.context.known_claims)


@rule(
    RuleId.OTHER_GPU_TOO,
    "another device plugin tracks whole GPUs and MIG devices, and both would set NVIDIA_VISIBLE_DEVICES",
    "request one of the two",
)
def _other_gpu(case: RuleInput) -> Iterator[Found]:
    message = "a pod may have GPUs from one device plugin only"
    for container in case.pod.containers:
        for key, amounts in (("limits", container.limits), ("requests", container.requests)):
            for name, amount in named(amounts, case.policy.admission.other_gpus):
                if name not in ours(case.policy):
                    remedy = f"request {name} or {case.policy.resources.memory}, not both"
                    yield Found(at(container.path, "resources", key, name), shown(amount), message, remedy)


@rule(
    RuleId.GPUS_NOT_TOGETHER,
    "several GPUs of one container need one control daemon, and those that the policy lists are joined with no others",
    "list so many together under domains in the policy, or leave enough out of it, which are joined on demand",
)
def _gpus_apart(case: RuleInput) -> Iterator[Found]:
    name = case.policy.resources.count
    gpus = max((request.gpus for request in case.share.requests), default=1)
    if case.policy.domains and gpus > max([1, *map(len, case.policy.domains)]):
        where, message = at(case.pod.path, "metadata", "labels", name), f"domains in the policy lists no {gpus} GPUs"
        yield Found(where, shown(case.pod.labels.get(name)), f"{message}, so the pod waits for GPUs that it leaves out")


@rule(RuleId.SCHEDULER_NAME, "another scheduler does not know the free capacity of each GPU", "remove schedulerName")
def _scheduler_name(case: RuleInput) -> Iterator[Found]:
    if not asks_for_gpu(case.pod, case.policy.resources):
        return iter(())  # what claims leave free is in the API, for every scheduler
    return _not_allowed(case, "schedulerName", case.pod.spec.scheduler, case.policy.admission.schedulers)


@rule(
    RuleId.NODE_NAME,
    "a pod with nodeName bypasses the scheduler",
    "remove it; select nodes by nodeSelector or affinity",
)
def _node_name(case: RuleInput) -> Iterator[Found]:
    # kubelet runs no pod with that annotation: it is the copy of one that the node has from a file
    if case.pod.spec.node and not case.context.is_placed and MIRROR not in case.pod.annotations:
        yield Found(at(case.pod.path, "spec", "nodeName"), shown(case.pod.spec.node))


@rule(
    RuleId.RUNTIME_CLASS,
    "another runtime may set up GPUs differently",
    "remove runtimeClassName, or allow the class in the policy",
)
def _runtime_class(case: RuleInput) -> Iterator[Found]:
    return _not_allowed(case, "runtimeClassName", case.pod.spec.runtime_class, case.policy.admission.runtime_classes)


@rule(
    RuleId.PLACEMENT_ANNOTATION,
    "the ledger is restored from these annotations, so only schedulers may write them",
    "do not set or change them",
)
def _placement_annotations(case: RuleInput) -> Iterator[Found]:
    """Those that this writer has added, changed or removed."""
    now, before = case.pod.annotations, case.context.annotations_before
    if (not now and not before) or case.context.writer in case.policy.admission.placement_accounts:
        return
    for name in sorted({*now, *before}):
        if now.get(name) != before.get(name) and matches(name, PLACEMENT_ANNOTATIONS):
            value = shown(now[name]) if name in now else "gone"
            remedy = "restore its value" if name in before else "remove it"
            yield Found(at(case.pod.path, "metadata", "annotations", name), value, remedy=remedy)


@rule(
    RuleId.GRACE_ZERO,
    "kubelet kills the program at once, which in the middle of a kernel ends its neighbours' programs too",
    "remove it, which means 30, or write the seconds that the program needs to end",
)
def _grace_zero(case: RuleInput) -> Iterator[Found]:
    if case.pod.spec.grace_s == 0:
        yield Found(at(case.pod.path, "spec", "terminationGracePeriodSeconds"), "0")


REQUEST_RULES: tuple[Rule, ...] = (
    *(_malformed, _impossible, _other_gpu, _gpus_apart),
    *(_scheduler_name, _node_name, _runtime_class, _placement_annotations, _grace_zero),
)


def has_device_of_another(container: Container, policy: Policy) -> bool:
    """Whether another device plugin may give the container a GPU. A resource claim does not count: what it gives comes
    by CDI, whatever the variable says, and a claim may be for anything or for nothing."""
    kept = policy.admission.visible_devices_kept_for
    return any(any(named(amounts, kept)) for amounts in (container.limits, container.requests) if amounts)


def named(amounts: Fields, patterns: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """The resources that match, where more than nothing is requested of them."""
    return ((name, amount) for name, amount in amounts.items() if matches(name, patterns) and not is_zero(amount))


def ours(policy: Policy) -> tuple[str, str, str]:
    return policy.resources.memory, policy.resources.percent, policy.resources.count


def _not_allowed(case: RuleInput, key: str, value: str, allowed: tuple[str, ...]) -> Iterator[Found]:
    if value and value not in allowed:
        remedy = f"remove it, or write {' or '.join(allowed)}" if allowed else "remove it"
        yield Found(at(case.pod.path, "spec", key), shown(value), remedy=remedy)


# -- resource claims -------------------------------------------------------------------------------------------------
# What a claim asks for stands in another object, which somebody must have looked up (`rules.claims`). For a container
# that asks for a device class as if it were a resource, Kubernetes makes the claim.

BY_CLASS = "deviceclass.resource.kubernetes.io/"  # of the resource's name, before that of the class (KEP-5004)


def claiming(pod: Pod, policy: Policy, claims: ClaimClasses) -> tuple[Container, ...]:
    """The containers that get a GPU of mpsd by a claim. claims: the classes that each asks for, where that is known."""
    classes = policy.admission.device_classes
    ours = {entry for entry, name in pod.claims.items() if not set(classes).isdisjoint(claims.get(name, ()))}
    named = {f"{BY_CLASS}{one}" for one in classes}
    return tuple(
        one
        for one in pod.containers
        if not (ours.isdisjoint(one.claims) and named.isdisjoint(one.limits) and named.isdisjoint(one.requests))
    )


def _of_several(pod: Pod, policy: Policy, claims: ClaimClasses) -> Iterator[Problem]:
    """Why no node can start the pod: kubelet prepares all of its claims, whoever uses them, and a pod has one grant.
    claims: the classes of those that are known."""
    classes = policy.admission.device_classes
    ours = {entry: name for entry, name in pod.claims.items() if not set(classes).isdisjoint(claims.get(name, ()))}
    # entries of one claim are one, and those of one template are two
    found = [*{name if name.kind == CLAIM else entry: shown_name(entry) for entry, name in ours.items()}.values()]
    requested = {name for one in pod.containers for name in (*one.limits, *one.requests)}
    found += [name for name in (f"{BY_CLASS}{one}" for one in classes) if name in requested][:1]
    found += [policy.resources.memory] if asks_for_gpu(pod, policy.resources) else []
    if len(found) > 1:
        message = "each get GPUs of mpsd, and a pod has one claim or request of them, with one limit"
        remedy = "ask for all of it in one claim, which several containers may use, or use a pod for each"
        yield Problem("claim-of-several", at(pod.path, "spec"), " and ".join(found), message, remedy)


# -- a claim in place of a request -------------------------------------------------------------------------------------
# Where the GPUs are served by claims, a pod that requests memory of a GPU gets a claim for as much. Kubernetes makes
# it of a template that the webhook keeps in the pod's namespace, and removes it with the pod.

ENTRY = "mpsd-gpu"  # what the pod calls its claim


@dataclass(frozen=True, slots=True)
class TemplateWanted:
    """The template of the claim that a pod gets in place of what `container` requests. name: by its contents. spec: of
    the claim, with what the API server would fill in, so that it reads as it was written."""

    container: str
    name: str
    spec: Mapping[str, object]


def _gets_claim(pod: Pod, policy: Policy) -> bool:
    """Whether a claim takes the place of its request. Where only some nodes serve claims, it must ask for these."""
    return policy.admission.claims_for_requests and (policy.claim_nodes == "all" or pod.on_claim_nodes)


def template_wanted(pod: Pod, policy: Policy, facts: GpuFacts, claims: ClaimClasses) -> TemplateWanted | None:
    """None where the pod gets no claim: it requests nothing, or what `request-impossible` refuses. claims: the classes
    of its own that are known."""
    if not _gets_claim(pod, policy) or pod.path or not asks_for_gpu(pod, policy.resources):
        return None
    if MIRROR in pod.annotations:  # kubelet runs the pod from its file, and the API takes no copy with a claim
        return None
    share = read_share(pod, policy, facts)
    if share.problems or not share.requests:
        return None
    if any(_unclaimable(pod, share, policy)) or any(_of_several(pod, policy, claims)):
        return None
    (request,) = share.requests
    gibs, rest = divmod(request.memory_mib, 1024)
    amounts = {MEMORY: f"{request.memory_mib}Mi" if rest else f"{gibs}Gi"}
    if request.thread_percent is not None:
        amounts[THREADS] = str(request.thread_percent)
    exactly = {
        "deviceClassName": policy.admission.device_classes[0],
        "allocationMode": "ExactCount",
        "count": request.gpus,
        "capacity": {"requests": amounts},
    }
    devices: dict[str, object] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if request.gpus > 1:
        kinds = {"matchAttribute": f"{CLAIM_DRIVER}/domain", "distinctAttribute": f"{CLAIM_DRIVER}/uuid"}
        devices["constraints"] = [{"requests": ["gpu"], kind: name} for kind, name in kinds.items()]
    spec = {"devices": devices}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    return TemplateWanted(request.container, f"mpsd-{digest[:16]}", spec)


def _unclaimable(pod: Pod, share: PodRequest, policy: Policy) -> Iterator[Problem]:
    """Why no claim can hold what the pod requests."""
    asking, most = [request.container for request in share.requests], max([1, *map(len, policy.domains)])
    if len(asking) > 1:
        message = "request a GPU each, and a pod has one claim of mpsd, with one limit for all its containers"
        remedy = "request it in one container, or use a pod for each"
        yield Problem("claim-of-several", at(pod.path, "spec"), f"containers {', '.join(asking)}", message, remedy)
    if (gpus := max(request.gpus for request in share.requests)) > most:
        where = at(pod.path, "metadata", "labels", policy.resources.count)
        message = "is more GPUs than a domain of the policy has, and a claim for several needs one domain"
        remedy = "request one GPU, or list as many together under domains in the policy"
        yield Problem("claim-without-domain", where, str(gpus), message, remedy)
    if ENTRY in pod.claims or any(ENTRY in one.claims for one in pod.containers):
        where, message = at(pod.path, "spec", "resourceClaims"), "is what mpsd calls the claim that it adds"
        yield Problem("claim-name-taken", where, ENTRY, message, "rename it, or leave the request out")
