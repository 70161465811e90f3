"""One sentence about a pod that asks for a GPU: it runs there, it has ended so, or it waits for that; `kubectl mps
explain`.

What is known for certain is stated, and what others say is quoted; nothing is guessed.
"""

from enum import Enum

from mpsd.kubelet.rules.gpu_choice import chosen_gpus
from mpsd.model.cluster_status import ClusterNode, GpuRow, PodStatus, silence
from mpsd.model.domain import State, after_is
from mpsd.model.grants import GpuName
from mpsd.model.problem import shown_name
from mpsd.model.quantity import gib
from mpsd.model.times import lasting
from mpsd.status.rules.pods import ContainerState, Explanation, ExplanationContext, PodSeen, Why, listed, quoted, wanted
from mpsd.status.rules.waiting import waiting_story

_UNEXPECTED, _OUT_OF = "UnexpectedAdmissionError", "OutOf"  # kubelet's reasons: it had nothing of what was asked for
_KILLED = 137  # 128 and SIGKILL
_PULLS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_CRASHES = "CrashLoopBackOff"


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
    return needs(pod) is ExplanationNeeds.ITS_NODE and (pod.is_pending or bool(pod.waiting))


def story(pod: PodSeen, scene: ExplanationContext, warning: str = "") -> Explanation:
    """warning: the last Warning event about the pod, reason and message; empty where there is none or nobody looked."""
    if _never_placed(pod) or (pod.shared is None and pod.unreadable):
        on = (
            f"is on {shown_name(pod.node)}, which cannot give it what it asks for"
            if pod.node
            else "waits, and no node takes it"
        )
        words = f"pod {_name(pod)} {on}: {pod.unreadable}; make it anew with that"
        return Explanation(Why.ASKS_UNREADABLY, words, node=pod.node)
    if pod.shared is None:
        return _no_gpu(pod, scene)
    if pod.phase == "Succeeded":
        return Explanation(
            Why.SUCCEEDED, f"pod {_name(pod)} has finished well, and holds no GPU any more", is_well=True
        )
    if pod.phase == "Failed":
        return _failed(pod)
    if not pod.node:
        return waiting_story(pod, pod.shared.request, scene)
    return _on_node(pod, scene, warning)


def _name(pod: PodSeen) -> str:
    return shown_name(str(pod.name))


def _kubectl(verb: str, pod: PodSeen) -> str:
    return f"kubectl {verb} {shown_name(pod.name.name)} -n {shown_name(pod.name.namespace)}"


def _never_placed(pod: PodSeen) -> bool:
    return bool(pod.unreadable) and pod.is_pending and not pod.node


def _no_gpu(pod: PodSeen, scene: ExplanationContext) -> Explanation:
    resource = scene.policy.resources.memory
    words = f"pod {_name(pod)} asks for no GPU: none of its containers has {resource} under resources.limits"
    said = f'; its scheduler says "{quoted(pod.unscheduled)}"' if pod.is_pending and pod.unscheduled else ""
    return Explanation(Why.ASKS_FOR_NO_GPU, words + said, is_well=pod.phase in ("Running", "Succeeded"), node=pod.node)


# -- ended badly ---------------------------------------------------------------------------------------------------


def _failed(pod: PodSeen) -> Explanation:
    if pod.reason == _UNEXPECTED or pod.reason.startswith(_OUT_OF):
        return _refused(pod)
    if pod.reason:
        said = f": {quoted(pod.message)}" if pod.message else ""
        words = f"pod {_name(pod)} failed: {quoted(pod.reason)}{said}{_counts(pod)}"
    elif pod.ended:
        words = f"pod {_name(pod)} failed: {_ended(pod.ended[0])}{_counts(pod)}; {_kubectl('logs', pod)}"
    else:
        words = f"pod {_name(pod)} failed{_counts(pod)}; {_kubectl('describe pod', pod)}"
    return Explanation(Why.FAILED, words, node=pod.node)


def _ended(container: ContainerState) -> str:
    why = f", {quoted(container.reason)}" if container.reason not in ("", "Error") else ""
    killed = " (SIGKILL)" if container.exit_code == _KILLED else ""
    return f"container {shown_name(container.name)} ended with exit code {container.exit_code}{killed}{why}"


def _counts(pod: PodSeen) -> str:
    owner = pod.owners[0] if pod.owners else None
    return f", which {owner} counts as one of its retries (spec.backoffLimit)" if owner and owner.kind == "Job" else ""


def _refused(pod: PodSeen) -> Explanation:
    """A Pod that kubelet has refused is never started again, by whomever."""
    where = f" of {shown_name(pod.node)}" if pod.node else ""
    said = f": {quoted(pod.message)}" if pod.message else ""
    owner = pod.owners[-1] if pod.owners else None
    if _counts(pod):
        then = f"it is never started again{_counts(pod)}"
    elif owner:
        then = f"it is never started again, and {owner} makes another"
    else:
        then = "it is never started again, and must be recreated"
    remedy = "with the scheduler of mpsd such a pod waits for room instead (docs/operations/on-call.md#why-a-pod-waits)"
    words = f"pod {_name(pod)} failed: kubelet{where} refused it with {quoted(pod.reason)}{said}; {then}; {remedy}"
    return Explanation(Why.REFUSED_BY_KUBELET, words, node=pod.node)


# -- on a node -----------------------------------------------------------------------------------------------------


def _on_node(pod: PodSeen, scene: ExplanationContext, warning: str) -> Explanation:
    node = scene.told.get(pod.node)
    grant = next((one for one in (node.pods if node else None) or () if one.uid == pod.name.uid), None)
    gpus = _gpus(pod, node, grant)
    where = f"{listed([gpu.label for gpu in gpus], 8)} of {shown_name(pod.node)}" if gpus else shown_name(pod.node)
    labels = tuple(gpu.label for gpu in gpus)
    trouble = _trouble(gpus, node, scene.now)
    if pod.is_pending:
        words = f"pod {_name(pod)} waits on {where}: {_not_started(pod, trouble, warning)}"
        return Explanation(Why.NOT_STARTED, words, node=pod.node, gpus=labels)
    if stopped := [one for one in pod.waiting if not one.is_plain]:
        words = f"pod {_name(pod)} is on {where}, and {_waiting(stopped[0], warning)}; {_remedy(stopped[0], pod)}"
        return Explanation(Why.RESTARTS, words, node=pod.node, gpus=labels)
    held = _held(pod, grant) if gpus else "; mpsd has not told which GPU it has"
    after = f"; but {trouble}" if trouble else ""
    return Explanation(
        Why.RUNS, f"pod {_name(pod)} runs on {where}{held}{after}", is_well=True, node=pod.node, gpus=labels
    )


def _gpus(pod: PodSeen, node: ClusterNode | None, grant: PodStatus | None) -> tuple[GpuRow, ...]:
    """Those that kubelet gave, else those that are written on the pod."""
    if node is None or pod.shared is None:
        return ()
    names = [GpuName(gpu.uuid, int(label) if (label := gpu.label[3:]).isdecimal() else -1) for gpu in node.gpus]
    uuids = grant.gpus if grant else chosen_gpus(pod.shared.choice, names)
    return tuple(gpu for gpu in node.gpus if gpu.uuid in uuids)


def _held(pod: PodSeen, grant: PodStatus | None) -> str:
    if grant is None or grant.memory_mib is None:
        return f" with {wanted(pod.shared.request)}" if pod.shared else ""
    threads = "" if grant.thread_percent is None else f" and {grant.thread_percent} % of its threads"
    used = "" if grant.used_mib is None else f", of which it uses {gib(grant.used_mib)} GiB"
    return f" with {gib(grant.memory_mib)} GiB{threads}{used}"


def _trouble(gpus: tuple[GpuRow, ...], node: ClusterNode | None, now: float) -> str:
    """What is wrong with where it is; empty for nothing."""
    if node is None:
        return ""
    said = silence(node, now)
    if said:
        return quoted(said)
    for gpu in gpus:
        if gpu.state is None:
            return f"{gpu.label} has no control daemon"
        domain = next((one for one in node.domains if one.name == gpu.domain), None)
        if gpu.state not in (State.READY, State.DRAINING):
            since = f" for {lasting(now - domain.since)}" if domain and domain.since is not None else ""
            why = f" ({quoted(domain.reason)})" if domain and domain.reason else ""
            return f"{gpu.label} is {after_is(quoted(gpu.state))}{since}{why}"
    return ""


def _not_started(pod: PodSeen, trouble: str, warning: str) -> str:
    stopped = [one for one in pod.waiting if not one.is_plain]
    if trouble:
        said = f"; {_waiting(stopped[0], '')}" if stopped else ""
        return f"{trouble}; its containers start as soon as that is over{said}"
    if stopped:
        return f"{_waiting(stopped[0], warning)}; {_remedy(stopped[0], pod)}"
    if pod.running:
        logs = f"{_kubectl('logs', pod)} -c {shown_name(pod.running[0])}"
        return f"its container {shown_name(pod.running[0])} runs, and others start after it; what it does is in {logs}"
    if warning:
        return f"its last warning is {quoted(warning)}; more in {_kubectl('describe pod', pod)}"
    return f"kubelet has not started it yet; what it does is in {_kubectl('describe pod', pod)}"


def _waiting(container: ContainerState, warning: str) -> str:
    message = quoted(container.message)
    words = (
        f"container {shown_name(container.name)} waits: {quoted(container.reason)}{f': {message}' if message else ''}"
    )
    known = not warning or (message and message in quoted(warning))
    return words if known else f"{words}; last warning: {quoted(warning)}"


def _remedy(container: ContainerState, pod: PodSeen) -> str:
    if container.reason in _PULLS:
        return "correct its image, or the secret that it is pulled with"
    if container.reason == _CRASHES:
        return f"why it ended is in {_kubectl('logs', pod)} --previous"
    return f"more in {_kubectl('describe pod', pod)}"
