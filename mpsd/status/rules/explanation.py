"""One sentence about a pod that asks for a GPU: it runs there, it has ended so, or it waits for
that; `kubectl mps explain`.

What is known for certain is stated, and what others say is quoted; nothing is guessed.
"""

from dataclasses import replace
from enum import Enum

from mpsd.grants.rules.placement import wanted
from mpsd.kubelet.rules.gpu_choice import chosen_gpus
from mpsd.model.client_limits import BELOW_NORMAL, client_priority, priority_reason
from mpsd.model.cluster_status import ClusterNode, ServedGpu, silence
from mpsd.model.domain import State, after_is
from mpsd.model.events import Reason
from mpsd.model.node_report import GrantReport
from mpsd.model.problem import shown_name
from mpsd.model.quantity import gib
from mpsd.model.times import epoch, lasting
from mpsd.scheduler.rules.capacity import gpu_name
from mpsd.status.rules.pods import (
    ContainerState,
    Explanation,
    ExplanationContext,
    PodSeen,
    Why,
    listed,
    quoted,
)
from mpsd.status.rules.waiting import waiting_explanation

# kubelet's reasons: it had nothing of what was asked for
_UNEXPECTED = "UnexpectedAdmissionError"
_OUT_OF = "OutOf"
_WAITS = "docs/operations/on-call.md#why-a-pod-waits"


class ExplanationNeeds(Enum):
    """What an explanation is made of beside the pod."""

    NOTHING = "nothing"
    ITS_NODE = "its node"
    CLUSTER = "the cluster"


def needs(pod: PodSeen) -> ExplanationNeeds:
    """What is to be looked at to explain this pod, and no more than that."""
    if pod.shared is None or _never_placed(pod) or pod.phase in ("Succeeded", "Failed"):
        return ExplanationNeeds.NOTHING
    return ExplanationNeeds.ITS_NODE if pod.node else ExplanationNeeds.CLUSTER


def wants_warning(pod: PodSeen) -> bool:
    """Whether the last Warning event about it would say more."""
    if pod.shared and pod.phase == "Failed":
        return bool(pod.node)
    return needs(pod) is ExplanationNeeds.ITS_NODE and (pod.is_pending or bool(pod.waiting))


def explanation_of(pod: PodSeen, context: ExplanationContext, warning: str = "") -> Explanation:
    """warning: the last Warning event about the pod, reason and message; empty where there is none
    or nobody looked."""
    if _never_placed(pod) or (pod.shared is None and pod.unreadable):
        on = f"is on {shown_name(pod.node)}, which cannot give it what it asks for"
        words = (
            f"{on if pod.node else 'waits, and no node takes it'}: {pod.unreadable}; recreate it"
            " with that"
        )
        return Explanation(Why.ASKS_UNREADABLY, f"{_pod(pod)} {words}", node=pod.node)
    if pod.shared is None:
        resource = context.policy.resources.memory
        words = (
            f"{_pod(pod)} asks for no GPU: none of its containers has {resource} under"
            " resources.limits"
        )
        said = (
            f'; its scheduler says "{quoted(pod.unscheduled)}"'
            if pod.is_pending and pod.unscheduled
            else ""
        )
        is_well = pod.phase in ("Running", "Succeeded")
        return Explanation(Why.ASKS_FOR_NO_GPU, words + said, is_well, node=pod.node)
    if pod.phase == "Succeeded":
        return Explanation(
            Why.SUCCEEDED, f"{_pod(pod)} has finished well, and holds no GPU any more", is_well=True
        )
    if pod.phase == "Failed":
        return _failed(pod, warning)
    found = (
        _on_node(pod, context, warning)
        if pod.node
        else waiting_explanation(pod, pod.shared.request, context)
    )
    return replace(found, warnings=pod.warnings)


def _pod(pod: PodSeen) -> str:
    return f"pod {shown_name(str(pod.name))}"


def _kubectl(verb: str, pod: PodSeen) -> str:
    return f"kubectl {verb} {shown_name(pod.name.name)} -n {shown_name(pod.name.namespace)}"


def _never_placed(pod: PodSeen) -> bool:
    return bool(pod.unreadable) and pod.is_pending and not pod.node


# -- ended badly ---------------------------------------------------------------------------------


def _failed(pod: PodSeen, warning: str) -> Explanation:
    owner = pod.owners[0] if pod.owners else None
    is_job = owner is not None and owner.kind == "Job"
    counts = f", which {owner} counts as one of its retries (spec.backoffLimit)" if is_job else ""
    said = f": {quoted(pod.message)}" if pod.message else ""
    if pod.reason == _UNEXPECTED or pod.reason.startswith(_OUT_OF):
        then = f", and {pod.owners[-1]} makes another" if owner else ", and must be recreated"
        where = (
            f"kubelet{f' of {shown_name(pod.node)}' if pod.node else ''} refused it with"
            f" {quoted(pod.reason)}{said}"
        )
        remedy = "with the scheduler of mpsd such a pod waits for room instead"
        words = f"{where}; it is never started again{counts or then}; {remedy} ({_WAITS})"
        return Explanation(Why.REFUSED_BY_KUBELET, f"{_pod(pod)} failed: {words}", node=pod.node)
    if pod.reason:
        words = f": {quoted(pod.reason)}{said}{counts}"
    elif pod.ended:
        last = pod.ended[0]
        why = f", {quoted(last.reason)}" if last.reason not in ("", "Error") else ""
        killed = " (SIGKILL)" if last.exit_code == 128 + 9 else ""
        ended = (
            f"container {shown_name(last.name)} ended with exit code {last.exit_code}{killed}{why}"
        )
        words = f": {ended}{counts}; {_kubectl('logs', pod)}"
    else:
        words = f"{counts}; {_kubectl('describe pod', pod)}"
    if warning.startswith(Reason.FAULT.value):
        words += f"; {quoted(warning)}"
    return Explanation(Why.FAILED, f"{_pod(pod)} failed{words}", node=pod.node)


# -- on a node -----------------------------------------------------------------------------------


def _on_node(pod: PodSeen, context: ExplanationContext, warning: str) -> Explanation:
    node = context.reported.get(pod.node)
    grant = _grant_of(pod.name.uid, node)
    gpus = _gpus(pod, node, grant)
    labels = tuple(gpu.label for gpu in gpus)
    where = f"{listed(labels, 8)} of {shown_name(pod.node)}" if gpus else shown_name(pod.node)
    trouble = _trouble(gpus, node, context.now)
    stopped = next((one for one in pod.waiting if not one.is_plain), None)
    if pod.is_pending:
        why = Why.NOT_STARTED
        words = f"waits on {where}: {_not_started(pod, stopped, trouble, warning)}"
    elif stopped:
        why = Why.RESTARTS
        words = f"is on {where}, and {_waiting(stopped, warning)}; {_remedy(stopped, pod)}"
    else:
        held = _held(pod, grant, context) if gpus else "; mpsd has not reported which GPU it has"
        why = Why.RUNS
        words = f"runs on {where}{held}{f'; but {trouble}' if trouble else ''}"
    return Explanation(why, f"{_pod(pod)} {words}", why is Why.RUNS, pod.node, labels)


def _grant_of(uid: str, node: ClusterNode | None) -> GrantReport | None:
    """The grant of the pod, which may be the second or third of its claim."""
    for held in (node.pods if node else None) or ():
        if any(one.uid == uid for one in held.pods):
            return held
    return None


def _gpus(
    pod: PodSeen, node: ClusterNode | None, grant: GrantReport | None
) -> tuple[ServedGpu, ...]:
    """Those that kubelet gave, else those that are written on the pod."""
    if node is None or pod.shared is None:
        return ()
    uuids = (
        grant.gpus
        if grant
        else chosen_gpus(pod.shared.choice, [gpu_name(gpu) for gpu in node.gpus])
    )
    return tuple(gpu for gpu in node.gpus if gpu.uuid in uuids)


def _held(pod: PodSeen, grant: GrantReport | None, context: ExplanationContext) -> str:
    if grant is None or grant.memory_mib is None:
        return f" with {wanted(pod.shared.request)}" if pod.shared else ""
    threads = (
        "" if grant.thread_percent is None else f" and {grant.thread_percent} % of its threads"
    )
    used = "" if grant.used_mib is None else f", of which it uses {gib(grant.used_mib)} GiB"
    below = f", below normal there: {_why_below(pod, grant, context)}" if grant.priority else ""
    return f" with {gib(grant.memory_mib)} GiB{threads}{used}{below}"


def _why_below(pod: PodSeen, grant: GrantReport, context: ExplanationContext) -> str:
    policy = context.policy.gpu_priority
    if client_priority(pod.priority, policy) == BELOW_NORMAL:
        return priority_reason(pod.priority, policy)
    what = "its claim or the policy" if grant.claim else "the policy"
    return f"{what} said so when it was given its GPU"


def _trouble(gpus: tuple[ServedGpu, ...], node: ClusterNode | None, now: float) -> str:
    if node is None:
        return ""
    if silent := silence(node, now):
        return quoted(silent)
    for gpu in gpus:
        if gpu.state is None:
            return f"{gpu.label} has no control daemon"
        domain = next((one for one in node.domains if one.name == gpu.domain), None)
        if gpu.state not in (State.READY, State.DRAINING):
            began = epoch(domain.since) if domain else None
            since = "" if began is None else f" for {lasting(now - began)}"
            why = f" ({quoted(domain.reason)})" if domain and domain.reason else ""
            return f"{gpu.label} is {after_is(quoted(gpu.state))}{since}{why}"
    return ""


def _not_started(pod: PodSeen, stopped: ContainerState | None, trouble: str, warning: str) -> str:
    if trouble:
        said = f"; {_waiting(stopped, '')}" if stopped else ""
        return f"{trouble}; its containers start as soon as that is over{said}"
    if stopped:
        return f"{_waiting(stopped, warning)}; {_remedy(stopped, pod)}"
    if pod.running:
        first = shown_name(pod.running[0])
        return (
            f"its container {first} runs, and others start after it; see {_kubectl('logs', pod)} -c"
            f" {first}"
        )
    if warning:
        return f"its last warning is {quoted(warning)}; more in {_kubectl('describe pod', pod)}"
    return f"kubelet has not started it yet; see {_kubectl('describe pod', pod)}"


def _waiting(container: ContainerState, warning: str) -> str:
    message = quoted(container.message)
    last = quoted(warning)
    reason = f"{quoted(container.reason)}{f': {message}' if message else ''}"
    more = f"; last warning: {last}" if warning and not (message and message in last) else ""
    return f"container {shown_name(container.name)} waits: {reason}{more}"


def _remedy(container: ContainerState, pod: PodSeen) -> str:
    if container.reason in {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
    }:
        return "correct its image, or the secret that it is pulled with"
    if container.reason == "CrashLoopBackOff":
        return f"why it ended is in {_kubectl('logs', pod)} --previous"
    return f"more in {_kubectl('describe pod', pod)}"
