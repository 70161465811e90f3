"""One sentence about a pod that asks for a GPU, as of `kubectl mps explain`: what is known is
stated, and what others say is quoted; nothing is guessed."""

from dataclasses import replace
from enum import Enum

from mpsd.grants.rules.placement import wanted
from mpsd.kubelet.rules.gpu_choice import chosen_gpus
from mpsd.model.client_limits import BELOW_NORMAL, client_priority, priority_reason
from mpsd.model.cluster_status import ClusterNode, ServedGpu, silence
from mpsd.model.domain import State, after_is
from mpsd.model.events import Reason
from mpsd.model.node_report import DomainReport, GrantReport
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
    NOTHING = "nothing"
    ITS_NODE = "its node"
    CLUSTER = "the cluster"


def needs(pod: PodSeen) -> ExplanationNeeds:
    if pod.shared is None or _never_placed(pod) or pod.phase in ("Succeeded", "Failed"):
        return ExplanationNeeds.NOTHING
    return ExplanationNeeds.ITS_NODE if pod.node else ExplanationNeeds.CLUSTER


def wants_warning(pod: PodSeen) -> bool:
    if pod.shared and pod.phase == "Failed":
        return bool(pod.node)
    return needs(pod) is ExplanationNeeds.ITS_NODE and (pod.is_pending or bool(pod.waiting))


def explanation_of(pod: PodSeen, context: ExplanationContext, warning: str = "") -> Explanation:
    """warning: reason and message of the last Warning event about the pod."""
    who = f"pod {shown_name(str(pod.name))}"
    if _never_placed(pod) or (pod.shared is None and pod.unreadable):
        words = "waits, and no node takes it"
        if pod.node:
            words = f"is on {shown_name(pod.node)}, which cannot give it what it asks for"
        words = f"{who} {words}: {pod.unreadable}; recreate it with that"
        return Explanation(Why.ASKS_UNREADABLY, words, node=pod.node)
    if pod.shared is None:
        resource = context.policy.resources.memory
        words = f"{who} asks for no GPU: none of its containers has {resource} under"
        words += " resources.limits"
        if pod.is_pending and pod.unscheduled:
            words += f'; its scheduler says "{quoted(pod.unscheduled)}"'
        is_well = pod.phase in ("Running", "Succeeded")
        return Explanation(Why.ASKS_FOR_NO_GPU, words, is_well, node=pod.node)
    if pod.phase == "Succeeded":
        words = f"{who} has finished well, and holds no GPU any more"
        return Explanation(Why.SUCCEEDED, words, is_well=True)
    if pod.phase == "Failed":
        why, words = _failed(pod, warning)
        return Explanation(why, f"{who} failed{words}", node=pod.node)
    if pod.node:
        found = _on_node(pod, context, warning)
    else:
        found = waiting_explanation(pod, pod.shared.request, context)
    return replace(found, sentence=f"{who} {found.sentence}", warnings=pod.warnings)


def _kubectl(verb: str, pod: PodSeen) -> str:
    return f"kubectl {verb} {shown_name(pod.name.name)} -n {shown_name(pod.name.namespace)}"


def _never_placed(pod: PodSeen) -> bool:
    return bool(pod.unreadable) and pod.is_pending and not pod.node


# -- ended badly


def _failed(pod: PodSeen, warning: str) -> tuple[Why, str]:
    counts = ""
    if pod.owners and pod.owners[0].kind == "Job":
        counts = f", which {pod.owners[0]} counts as one of its retries (spec.backoffLimit)"
    said = f"{quoted(pod.reason)}: {quoted(pod.message)}".removesuffix(": ")
    if pod.reason == _UNEXPECTED or pod.reason.startswith(_OUT_OF):
        then = ", and must be recreated"
        if pod.owners:
            then = f", and {pod.owners[-1]} makes another"
        kubelet = f"kubelet of {shown_name(pod.node)}" if pod.node else "kubelet"
        words = f": {kubelet} refused it with {said}; it is never started again{counts or then}"
        remedy = "with the scheduler of mpsd such a pod waits for room instead"
        return Why.REFUSED_BY_KUBELET, f"{words}; {remedy} ({_WAITS})"
    if pod.reason:
        words = f": {said}{counts}"
    elif pod.ended:
        last = pod.ended[0]
        words = f": container {shown_name(last.name)} ended with exit code {last.exit_code}"
        if last.exit_code == 128 + 9:
            words += " (SIGKILL)"
        if last.reason not in ("", "Error"):
            words += f", {quoted(last.reason)}"
        words += f"{counts}; {_kubectl('logs', pod)}"
    else:
        words = f"{counts}; {_kubectl('describe pod', pod)}"
    if warning.startswith(Reason.FAULT.value):
        words += f"; {quoted(warning)}"
    return Why.FAILED, words


# -- on a node


def _on_node(pod: PodSeen, context: ExplanationContext, warning: str) -> Explanation:
    """The sentence is without the pod."""
    node = context.reported.get(pod.node)
    grant = _grant_of(pod.name.uid, node)
    gpus = _gpus(pod, node, grant)
    labels = tuple([gpu.label for gpu in gpus])
    where = shown_name(pod.node)
    if gpus:
        where = f"{listed(labels, 8)} of {where}"
    trouble = _trouble(gpus, node, context.now)
    stopped = next((one for one in pod.waiting if not one.is_plain), None)
    if pod.is_pending:
        words = f"waits on {where}: {_not_started(pod, stopped, trouble, warning)}"
        return Explanation(Why.NOT_STARTED, words, node=pod.node, gpus=labels)
    if stopped:
        words = f"is on {where}, and {_waiting(stopped, warning)}; {_remedy(stopped, pod)}"
        return Explanation(Why.RESTARTS, words, node=pod.node, gpus=labels)
    words = f"runs on {where}{_held(pod, grant, context)}"
    if not gpus:
        words = f"runs on {where}; mpsd has not reported which GPU it has"
    if trouble:
        words += f"; but {trouble}"
    return Explanation(Why.RUNS, words, is_well=True, node=pod.node, gpus=labels)


def _grant_of(uid: str, node: ClusterNode | None) -> GrantReport | None:
    if node:
        for held in node.pods or ():
            if uid in [one.uid for one in held.pods]:
                return held
    return None


def _gpus(
    pod: PodSeen, node: ClusterNode | None, grant: GrantReport | None
) -> tuple[ServedGpu, ...]:
    """Those that kubelet gave, else those that are written on the pod."""
    if node is None or pod.shared is None:
        return ()
    if grant:
        uuids = grant.gpus
    else:
        uuids = chosen_gpus(pod.shared.choice, [gpu_name(gpu) for gpu in node.gpus])
    return tuple([gpu for gpu in node.gpus if gpu.uuid in uuids])


def _held(pod: PodSeen, grant: GrantReport | None, context: ExplanationContext) -> str:
    if grant is None or grant.memory_mib is None:
        return f" with {wanted(pod.shared.request)}" if pod.shared else ""
    words = f" with {gib(grant.memory_mib)} GiB"
    if grant.thread_percent is not None:
        words += f" and {grant.thread_percent} % of its threads"
    if grant.used_mib is not None:
        words += f", of which it uses {gib(grant.used_mib)} GiB"
    if grant.priority:
        words += f", below normal there: {_why_below(pod, grant, context)}"
    return words


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
    domains = {one.name: one for one in node.domains}
    for gpu in gpus:
        if gpu.state is None:
            return f"{gpu.label} has no control daemon"
        if gpu.state not in (State.READY, State.DRAINING):
            words = f"{gpu.label} is {after_is(quoted(gpu.state))}"
            domain = domains.get(gpu.domain, DomainReport())
            if (began := epoch(domain.since)) is not None:
                words += f" for {lasting(now - began)}"
            if domain.reason:
                words += f" ({quoted(domain.reason)})"
            return words
    return ""


def _not_started(pod: PodSeen, stopped: ContainerState | None, trouble: str, warning: str) -> str:
    if trouble:
        words = f"{trouble}; its containers start as soon as that is over"
        return f"{words}; {_waiting(stopped, '')}" if stopped else words
    if stopped:
        return f"{_waiting(stopped, warning)}; {_remedy(stopped, pod)}"
    if pod.running:
        first = shown_name(pod.running[0])
        see = f"see {_kubectl('logs', pod)} -c {first}"
        return f"its container {first} runs, and others start after it; {see}"
    describe = _kubectl("describe pod", pod)
    if warning:
        return f"its last warning is {quoted(warning)}; more in {describe}"
    return f"kubelet has not started it yet; see {describe}"


def _waiting(container: ContainerState, warning: str) -> str:
    message = quoted(container.message)
    last = quoted(warning)
    said = f"{quoted(container.reason)}: {message}".removesuffix(": ")
    words = f"container {shown_name(container.name)} waits: {said}"
    if warning and not (message and message in last):
        words += f"; last warning: {last}"
    return words


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
