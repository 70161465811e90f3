"""The rules for what a pod requests, how it ends, and who decides where it runs."""

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
from mpsd.model.pod import CLAIM, PRIORITY, ClaimName, Pod
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
    "request whole GiB, no more than a card has and enough for a CUDA context, and 5 to 100 percent"
    " in steps of 5",
)
def _impossible(case: RuleInput) -> Iterator[Problem]:
    yield from case.share.problems
    if case.share.requests and _gets_claim(case.pod, case.policy):
        yield from _unclaimable(case.pod, case.share, case.policy)
    if case.policy.gpu_priority.by == "annotation" and case.pod.priority.written is not None:
        yield from priority_problem(
            case.pod.priority.written, at(case.pod.path, "metadata", "annotations", PRIORITY)
        )
    yield from _of_several(case.pod, case.policy, case.context.known_claims)


@rule(
    RuleId.OTHER_GPU_TOO,
    "another device plugin tracks whole GPUs and MIG devices, and both would set"
    " NVIDIA_VISIBLE_DEVICES",
    "request one of the two",
)
def _other_gpu(case: RuleInput) -> Iterator[Found]:
    message = "a pod may have GPUs from one device plugin only"
    for container in case.pod.containers:
        for key, amounts in (("limits", container.limits), ("requests", container.requests)):
            for name, amount in named(amounts, case.policy.admission.other_gpus):
                if name not in ours(case.policy):
                    remedy = f"request {name} or {case.policy.resources.memory}, not both"
                    yield Found(
                        at(container.path, "resources", key, name), shown(amount), message, remedy
                    )


@rule(
    RuleId.GPUS_NOT_TOGETHER,
    "several GPUs of one container need one control daemon, and those that the policy lists are"
    " joined with no others",
    "list so many together under domains in the policy, or leave enough out of it, which are joined"
    " on demand",
)
def _gpus_apart(case: RuleInput) -> Iterator[Found]:
    name = case.policy.resources.count
    gpus = max((request.gpus for request in case.share.requests), default=1)
    if case.policy.domains and gpus > largest_domain(case.policy):
        where = at(case.pod.path, "metadata", "labels", name)
        message = f"domains in the policy lists no {gpus} GPUs, so the pod waits for GPUs that it"
        yield Found(where, shown(case.pod.labels.get(name)), f"{message} leaves out")


@rule(
    RuleId.SCHEDULER_NAME,
    "another scheduler does not know the free capacity of each GPU",
    "remove schedulerName",
)
def _scheduler_name(case: RuleInput) -> Iterator[Found]:
    # what claims leave free is in the API, for every scheduler
    if asks_for_gpu(case.pod, case.policy.resources):
        name = case.pod.spec.scheduler
        yield from _not_allowed(case, "schedulerName", name, case.policy.admission.schedulers)


@rule(
    RuleId.NODE_NAME,
    "a pod with nodeName bypasses the scheduler",
    "remove it; select nodes by nodeSelector or affinity",
    EVERY,
)
def _node_name(case: RuleInput) -> Iterator[Found]:
    if not case.asking and not _asks_another(case):
        return
    # kubelet runs no pod with that annotation: it is the copy of one that the node has from a file
    if case.pod.spec.node and not case.context.is_placed and MIRROR not in case.pod.annotations:
        yield Found(at(case.pod.path, "spec", "nodeName"), shown(case.pod.spec.node))


def _asks_another(case: RuleInput) -> bool:
    """Whether another device plugin or DRA driver is asked for a GPU."""
    admission = case.policy.admission
    patterns = (*admission.visible_devices_kept_for, *admission.other_gpus)
    classes = {one for each in case.context.known_claims.values() for one in each}
    if any(matches(f"{BY_CLASS}{name}", patterns) for name in classes):
        return True
    amounts = [each for one in case.pod.containers for each in (one.limits, one.requests)]
    return any(any(named(each, patterns)) for each in amounts)


@rule(
    RuleId.RUNTIME_CLASS,
    "another runtime may set up GPUs differently",
    "remove runtimeClassName, or allow the class in the policy",
)
def _runtime_class(case: RuleInput) -> Iterator[Found]:
    return _not_allowed(
        case, "runtimeClassName", case.pod.spec.runtime_class, case.policy.admission.runtime_classes
    )


@rule(
    RuleId.PLACEMENT_ANNOTATION,
    "the ledger is restored from these annotations, so only schedulers may write them",
    "do not set or change them",
)
def _placement_annotations(case: RuleInput) -> Iterator[Found]:
    now = case.pod.annotations
    before = case.context.annotations_before
    if (not now and not before) or case.context.writer in case.policy.admission.placement_accounts:
        return
    for name in sorted({*now, *before}):
        if now.get(name) != before.get(name) and matches(name, PLACEMENT_ANNOTATIONS):
            value = shown(now[name]) if name in now else "gone"
            remedy = "restore its value" if name in before else "remove it"
            yield Found(at(case.pod.path, "metadata", "annotations", name), value, remedy=remedy)


@rule(
    RuleId.GRACE_ZERO,
    "kubelet kills the program at once, which in the middle of a kernel ends its neighbours'"
    " programs too",
    "remove it, which means 30, or write the seconds that the program needs to end; a pod that is"
    " there already can be deleted with kubectl delete --grace-period=30",
)
def _grace_zero(case: RuleInput) -> Iterator[Found]:
    return _short_grace(case.pod)


def _short_grace(pod: Pod) -> Iterator[Found]:
    if (grace_s := pod.spec.grace_s) is not None and grace_s <= 0:
        message = ""
        if grace_s < 0:
            message = "Kubernetes takes that for 1, to which mpsd adds no time for queued kernels"
        yield Found(at(pod.path, "spec", "terminationGracePeriodSeconds"), str(grace_s), message)


def grace_problems(pod: Pod) -> tuple[Problem, ...]:
    """Of a pod that gets a GPU."""
    return tuple(_grace_zero.finding(one).problem for one in _short_grace(pod))


REQUEST_RULES: tuple[Rule, ...] = (
    *(_malformed, _impossible, _other_gpu, _gpus_apart),
    *(_scheduler_name, _node_name, _runtime_class, _placement_annotations, _grace_zero),
)


def has_device_of_another(container: Container, policy: Policy) -> bool:
    """Whether another device plugin may give it a GPU. A resource claim does not count: what it
    gives comes by CDI, whatever the variable says."""
    kept = policy.admission.visible_devices_kept_for
    return any(any(named(amounts, kept)) for amounts in (container.limits, container.requests))


def named(amounts: Fields, patterns: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """Where more than nothing is requested of them."""
    for name, amount in amounts.items():
        if matches(name, patterns) and not is_zero(amount):
            yield name, amount


def ours(policy: Policy) -> tuple[str, str, str]:
    return policy.resources.memory, policy.resources.percent, policy.resources.count


def _not_allowed(
    case: RuleInput, key: str, value: str, allowed: tuple[str, ...]
) -> Iterator[Found]:
    if value and value not in allowed:
        remedy = "remove it"
        if allowed:
            remedy += f", or write {' or '.join(allowed)}"
        yield Found(at(case.pod.path, "spec", key), shown(value), remedy=remedy)


# -- resource claims
# What a claim asks for stands in another object, which somebody must have looked up
# (`rules.claims`). For a container that asks for a device class as if it were a resource,
# Kubernetes makes the claim.

# of the resource's name, before that of the class (KEP-5004)
BY_CLASS = "deviceclass.resource.kubernetes.io/"


def _entries(pod: Pod, policy: Policy, claims: ClaimClasses) -> dict[str, ClaimName]:
    classes = set(policy.admission.device_classes)
    known = pod.claims.items()
    return {entry: name for entry, name in known if not classes.isdisjoint(claims.get(name, ()))}


def _by_class(policy: Policy) -> list[str]:
    """mpsd's classes, as they are requested like resources."""
    return [f"{BY_CLASS}{name}" for name in policy.admission.device_classes]


def claiming(pod: Pod, policy: Policy, claims: ClaimClasses) -> tuple[Container, ...]:
    """The containers that get a GPU of mpsd by a claim. claims: those that are known."""
    entries = _entries(pod, policy, claims).keys()
    named = {*_by_class(policy)}
    return tuple(
        one
        for one in pod.containers
        if entries & {*one.claims} or named & {*one.limits, *one.requests}
    )


def _of_several(pod: Pod, policy: Policy, claims: ClaimClasses) -> Iterator[Problem]:
    """Why no node can start the pod: kubelet prepares all of its claims, whoever uses them, and a
    pod has one grant."""
    found: dict[object, str] = {}
    for entry, name in _entries(pod, policy, claims).items():
        # entries of one claim are one, and those of one template are two
        found[name if name.kind == CLAIM else entry] = shown_name(entry)
    names = [*found.values()]
    requested = {name for one in pod.containers for name in (*one.limits, *one.requests)}
    names += [name for name in _by_class(policy) if name in requested][:1]
    if asks_for_gpu(pod, policy.resources):
        names.append(policy.resources.memory)
    if len(names) > 1:
        yield Problem(
            "claim-of-several",
            at(pod.path, "spec"),
            " and ".join(names),
            "each get GPUs of mpsd, and a pod has one claim or request of them, with one limit",
            "ask for all of it in one claim, which several containers may use, or use a pod for"
            " each",
        )


def largest_domain(policy: Policy) -> int:
    return max([1, *map(len, policy.domains)])


# -- a claim in place of a request
# Where the GPUs are served by claims, a pod that requests memory of a GPU gets a claim for as much.
# Kubernetes makes it of a template that the webhook keeps in the pod's namespace, and removes it
# with the pod.

ENTRY = "mpsd-gpu"  # what the pod calls its claim


@dataclass(frozen=True, slots=True)
class TemplateWanted:
    """Of the claim that a pod gets in place of what `container` requests. name: by its contents.
    spec: of the claim, with the API server's defaults, so that it reads as it was written."""

    container: str
    name: str
    spec: Mapping[str, object]


def _gets_claim(pod: Pod, policy: Policy) -> bool:
    """Where only some nodes serve claims, it must ask for these."""
    return policy.admission.claims_for_requests and (
        policy.claim_nodes == "all" or pod.on_claim_nodes
    )


def template_wanted(
    pod: Pod, policy: Policy, facts: GpuFacts, claims: ClaimClasses
) -> TemplateWanted | None:
    """None where the pod gets no claim: it requests nothing, or what `request-impossible`
    refuses."""
    if not _gets_claim(pod, policy) or pod.path or not asks_for_gpu(pod, policy.resources):
        return None
    # kubelet runs the pod from its file, and the API takes no copy with a claim
    if MIRROR in pod.annotations:
        return None
    share = read_share(pod, policy, facts)
    if share.problems or not share.requests:
        return None
    if any(_unclaimable(pod, share, policy)) or any(_of_several(pod, policy, claims)):
        return None
    (request,) = share.requests
    gibs, rest = divmod(request.memory_mib, 1024)
    amounts = {MEMORY: f"{gibs}Gi"}
    if rest:
        amounts[MEMORY] = f"{request.memory_mib}Mi"
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
        devices["constraints"] = [
            {"requests": ["gpu"], "matchAttribute": f"{CLAIM_DRIVER}/domain"},
            {"requests": ["gpu"], "distinctAttribute": f"{CLAIM_DRIVER}/uuid"},
        ]
    spec = {"devices": devices}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    return TemplateWanted(request.container, f"mpsd-{digest[:16]}", spec)


def _unclaimable(pod: Pod, share: PodRequest, policy: Policy) -> Iterator[Problem]:
    asking = [request.container for request in share.requests]
    if len(asking) > 1:
        yield Problem(
            "claim-of-several",
            at(pod.path, "spec"),
            f"containers {', '.join(asking)}",
            "request a GPU each, and a pod has one claim of mpsd, with one limit for all its"
            " containers",
            "request it in one container, or use a pod for each",
        )
    if (gpus := max(request.gpus for request in share.requests)) > largest_domain(policy):
        yield Problem(
            "claim-without-domain",
            at(pod.path, "metadata", "labels", policy.resources.count),
            str(gpus),
            "is more GPUs than a domain of the policy has, and a claim for several needs one"
            " domain",
            "request one GPU, or list as many together under domains in the policy",
        )
    if ENTRY in pod.claims or any(ENTRY in one.claims for one in pod.containers):
        where = at(pod.path, "spec", "resourceClaims")
        message = "is what mpsd calls the claim that it adds"
        remedy = "rename it, or leave the request out"
        yield Problem("claim-name-taken", where, ENTRY, message, remedy)
