"""`kubectl mps drain` and `kubectl mps undrain`: empty GPUs of a node and say which pods are left, and put them back.

GPUs are cordoned through the node's MPSNode. Nothing is changed for a node that cannot say when its GPUs are empty.
Every eviction names the uid of the pod that holds the grant, so that no namesake is evicted; and none is requested
while a pod that is recreated could come back to the same GPUs.

Rights of whoever does it: get and patch of mpsnodes.mpsd.io; to evict, get pods and create pods/eviction in the
namespaces of those pods.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from mpsd.model.cluster_status import ClusterNode, PodStatus, silence
from mpsd.model.domain import State
from mpsd.operations.lifecycle.cordon import (
    DRAIN_RIGHTS,
    Evict,
    ask_and_say_what_stays,
    change_cordon,
    command,
    end,
    node_when,
    read_seconds,
    say,
    seen_node,
)
from mpsd.operations.lifecycle.rules.drain import (
    EvictionFate,
    again_after_s,
    are_empty,
    closed_for_s,
    holders,
    newly_cordoned,
    no_answer,
    not_taken_up,
    offers_room,
    refusals,
    serving,
    states,
    undrain_words,
    verdict,
    what_is_left,
)
from mpsd.platform.console import Format, answers, one_line, print_json
from mpsd.platform.kube import PODS, Conflict, Kube, KubeError, NotFound, Object, Rejected, Throttled, Unavailable
from mpsd.platform.options import OutputFormat
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, GpuOptions, Kubeconfig, NodeName
from mpsd.status.rules.cordon import CordonChange, cordon_change, effects

COUNTED_S = 10.0  # kubelet reports its devices to the API every so often; a pod placed in between would fail
_HEARD_S = 15.0  # a node sees a cordon within a second, and reports within another

Say = Callable[[str], None]


@dataclass(slots=True)
class _Try:
    """The attempts on one pod. refused: times in a row. due: on the monotonic clock. said: the last sentence."""

    refused: int = 0
    due: float = 0.0
    asked: bool = False
    said: str = ""


class Evictions:
    """The evictions of one drain. say: gets a sentence whenever something about a pod is new."""

    def __init__(self, kube: Kube, say: Callable[[str], None]) -> None:
        self._kube = kube
        self._say = say
        self._tries: dict[tuple[str, str, str], _Try] = {}
        self._closed_at: float | None = None  # when the GPUs were first seen to be offered no more; None before

    def said(self, pod: PodStatus) -> str:
        """The result of the attempt on this pod; empty where there was none."""
        attempt = self._tries.get(_key(pod))
        return attempt.said if attempt else ""

    async def look(self, node: ClusterNode, gpus: Collection[str]) -> None:
        """Requests the eviction of each pod that is due. Forbidden where a right is missing."""
        there = holders(node, gpus)
        if not there or not self._is_counted(node, gpus):
            return
        for holder in there:
            attempt = self._tries.setdefault(_key(holder), _Try())
            if not attempt.asked and time.monotonic() >= attempt.due:
                await self._attempt(holder, attempt)

    def _is_counted(self, node: ClusterNode, gpus: Collection[str]) -> bool:
        """Whether the scheduler knows by now that nothing is free on these GPUs."""
        if offers_room(node, gpus):
            self._closed_at = None
            return False
        for_s = closed_for_s(node, gpus)
        if self._closed_at is None:
            self._closed_at = time.monotonic()
            if for_s < COUNTED_S:
                why = "kubelet first reports that nothing is free there, or recreated pods would come back"
                self._say(f"evicts in {COUNTED_S:g} s: {why}")
        return max(for_s, time.monotonic() - self._closed_at) >= COUNTED_S

    async def _attempt(self, holder: PodStatus, attempt: _Try) -> None:
        name = f"{holder.namespace}/{holder.pod}"
        try:
            found = verdict(await self._pod(holder), holder)
            match found.fate:
                case EvictionFate.EVICT:
                    await self._kube.evict(holder.pod, holder.namespace, holder.uid)
                    self._report(attempt, f"evicted {name}" + (f" ({found.why})" if found.why else ""))
                case EvictionFate.STAYS:
                    self._report(attempt, f"{name} is not evicted: {found.why}")
                case EvictionFate.ENDING:
                    self._report(attempt, f"{name} is already terminating")
                case EvictionFate.GONE:
                    self._report(attempt, f"{name} is gone from the API; its GPU will be free soon")
            attempt.asked = True
        except (NotFound, Conflict):  # it has just gone, or another pod has its name
            attempt.asked = True
        except Throttled as error:
            self._refused(attempt, f"{name} cannot be evicted now and will be retried: {error}")
        except (Unavailable, Rejected) as error:
            self._refused(attempt, f"{name} could not be evicted and will be retried: {error}")

    async def _pod(self, holder: PodStatus) -> Object | None:
        try:
            return await self._kube.get(PODS, holder.pod, holder.namespace)
        except NotFound:
            return None

    def _refused(self, attempt: _Try, sentence: str) -> None:
        attempt.refused += 1
        attempt.due = time.monotonic() + again_after_s(attempt.refused)
        self._report(attempt, sentence)

    def _report(self, attempt: _Try, sentence: str) -> None:
        if sentence != attempt.said:
            attempt.said = sentence
            self._say(sentence)


def _key(pod: PodStatus) -> tuple[str, str, str]:
    return pod.namespace, pod.pod, pod.uid


class NodeSilent(KubeError):
    """The node cannot report whether its GPUs are empty, so nothing was changed."""


class ProgressReporter:
    """Prints a sentence about each subject only where it differs from the last one."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._said: dict[str, str] = {}

    def __call__(self, subject: str, sentence: str | None) -> None:
        """None: nothing to report, and the next sentence is new."""
        if sentence is None:
            self._said.pop(subject, None)
        elif self._said.get(subject) != sentence:
            self._said[subject] = sentence
            self._say(sentence)

    def away(self, error: Unavailable | None) -> None:
        """None: the API server answers."""
        self("away", f"{error}; still waiting" if error else None)


async def begin_drain(kube: Kube, name: str, named: Sequence[str]) -> tuple[ClusterNode, CordonChange]:
    """Cordons the GPUs. The node as it was before, and the change.

    Before anything is changed: InvalidInput where there is no such MPSNode or GPU, NodeSilent where nobody answers.
    """
    node = await seen_node(kube, name)
    cordon_change(node, named, cordon=True)  # raises for GPUs that do not exist
    if why := no_answer(node, time.time()):
        raise NodeSilent(why)
    return await change_cordon(kube, name, named, cordon=True)


@dataclass(frozen=True, slots=True)
class Emptying:
    """What is to be emptied. evictions None: the pods end by themselves."""

    node: str
    gpus: Collection[str]
    within_s: float
    evictions: Evictions | None


async def until_empty(kube: Kube, emptying: Emptying, say: Say) -> tuple[ClusterNode, bool]:
    """The node once nobody is left on these GPUs, else as it is at the deadline; and whether that is so.

    An API server that goes away meanwhile is waited for; Unavailable where it does not come back.
    """
    report, began = ProgressReporter(say), time.monotonic()

    def is_done(node: ClusterNode) -> bool:
        return are_empty(node, emptying.gpus)

    async def seen(node: ClusterNode, is_last: bool) -> None:
        if not is_last:  # else whoever asked says how it is
            report("left", f"{node.name}: {what_is_left(node, emptying.gpus)}")
        _report_delay(report, node, emptying, time.monotonic() - began)
        if emptying.evictions and not node.stale and not is_done(node):
            await emptying.evictions.look(node, emptying.gpus)

    return await node_when(kube, emptying.node, is_done, emptying.within_s, seen, report.away)


def _report_delay(report: ProgressReporter, node: ClusterNode, emptying: Emptying, waited_s: float) -> None:
    report("silence", silence(node, time.time()))
    unheard = waited_s >= _HEARD_S and any(
        gpu.state == State.READY for gpu in node.gpus if gpu.uuid in emptying.gpus and not node.stale
    )
    report("unheard", not_taken_up(node, time.time(), _HEARD_S) if unheard else None)


async def until_serving(kube: Kube, name: str, gpus: Collection[str], within_s: float, say: Say) -> ClusterNode:
    """The node once all of these GPUs serve, or one never will, else as it is at the deadline.

    A node without a recent report is not waited for. Unavailable where the API server stays away.
    """
    report = ProgressReporter(say)

    def is_decided(node: ClusterNode) -> bool:
        return serving(node, gpus) or bool(silence(node, time.time())) or any(refusals(node, gpus))

    async def seen(node: ClusterNode, is_last: bool) -> None:
        if not is_last:
            report("states", f"{node.name}: {states(node, gpus)}")

    node, _is_decided = await node_when(kube, name, is_decided, within_s, seen, report.away)
    return node


Timeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long to wait, such as 90s or 2h; 0: not at all.")
]


def drain(
    node: NodeName,
    gpus: GpuOptions = None,
    evict: Evict = False,
    timeout: Timeout = "10m",
    output: OutputFormat = Format.TEXT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Empty GPUs of a node: no new pods, and wait until nobody is left there. The GPUs stay out of use afterwards.

    The pods that are left, with what they hold, are listed as they change. Pods go on until they end by themselves;
    --evict evicts those that hold something there, as `kubectl drain` does: within disruption budgets, and none of
    DaemonSets or static ones. Exits with 0 when the GPUs are empty, 1 when they are still in use after --timeout or the
    node does not report, 2 when there is no such node or GPU, 130 at Ctrl-C. `kubectl mps undrain` withdraws it.

        kubectl mps drain gpu-a1                      every GPU of the node
        kubectl mps drain gpu-a1 --gpu gpu0 --timeout 2h
        kubectl mps drain gpu-a1 --evict
        kubectl mps drain gpu-a1 --timeout 0 -o json  ask for it; who is there?
    """
    cluster = ClusterAccess("kubectl mps drain", kubeconfig, context, DRAIN_RIGHTS)
    within_s = read_seconds(cluster.program, "--timeout", timeout, zero=True)
    begun: list[tuple[ClusterNode, CordonChange]] = []

    def stays() -> str:
        return _stays(cluster, *begun[0]) if begun else ""

    async def drain_it(kube: Kube) -> tuple[ClusterNode, bool, Mapping[str, str]]:
        before, change = await begin_drain(kube, node, gpus or ())
        begun.append((before, change))
        for sentence in effects(before, change, with_pods=False):
            say(sentence)
        evictions = Evictions(kube, say) if evict else None
        after, done = await until_empty(kube, Emptying(node, change.touched, within_s, evictions), say)
        said = {pod.uid: evictions.said(pod) for pod in holders(after, change.touched)} if evictions else {}
        return after, done, said

    after, done, said = ask_and_say_what_stays(cluster, drain_it, stays)
    before, change = begun[0]
    if output is Format.JSON:
        print_json(_record(before, change, after, said, done=done))
    else:
        left = what_is_left(after, change.touched)
        answers().print(one_line(f"{node}: {'' if done else 'not drained: '}{left}"))
        for refusal in refusals(after, change.touched):
            answers().print(one_line(f"{node}: {refusal}"))
    if not done:
        say(f"{cluster.program}: {f'GPUs are still in use after {timeout}' if within_s else 'not waited for'}")
        say(_stays(cluster, before, change))
    end(well=done)


def _stays(cluster: ClusterAccess, before: ClusterNode, change: CordonChange) -> str:
    """What is so from now on, and how to withdraw it."""
    words = undrain_words(before, change)
    labels = ", ".join(before.labels.get(uuid, uuid) for uuid in newly_cordoned(before, change))
    if not words:
        return f"{before.name}: what was cordoned before stays so"
    return f"{before.name}: still cordoned: {labels}; to put them back into use: {command(cluster, words)}"


def _record(
    before: ClusterNode, change: CordonChange, after: ClusterNode, said: Mapping[str, str], *, done: bool
) -> dict[str, Any]:
    gpus = [gpu for gpu in after.gpus if gpu.uuid in change.touched]
    return {
        "node": after.name,
        "now": time.time(),
        "told_at": after.told_at,
        "drained": done,
        "cordoned": list(after.cordoned),
        "newly_cordoned": list(newly_cordoned(before, change)),
        "gpus": [
            {"uuid": gpu.uuid, "label": gpu.label, "domain": gpu.domain, "state": gpu.state, "clients": gpu.clients}
            for gpu in gpus
        ],
        "left": None
        if after.pods is None
        else [
            {
                "namespace": pod.namespace,
                "pod": pod.pod,
                "uid": pod.uid,
                "gpus": list(pod.gpus),
                "memory_mib": pod.memory_mib,
                "clients": pod.clients,
                "eviction": said.get(pod.uid, ""),
            }
            for pod in holders(after, change.touched)
        ],
    }


# -- and back ----------------------------------------------------------------------------------------------------------

UndrainTimeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long to wait until they serve; 0: not at all.")
]


def undrain(
    node: NodeName,
    gpus: GpuOptions = None,
    timeout: UndrainTimeout = "2m",
    output: OutputFormat = Format.TEXT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Put GPUs of a node back into use, and wait until they serve.

    A GPU that shares its control daemon with one that stays cordoned stays out of use, which is said. Exits with 0 when
    all that were named serve, 1 when one does not (and says why), 2 when there is no such node or GPU, 130 at Ctrl-C.

        kubectl mps undrain gpu-a1                    every GPU of the node
        kubectl mps undrain gpu-a1 --gpu gpu0 --gpu gpu1
    """
    cluster = ClusterAccess("kubectl mps undrain", kubeconfig, context, DRAIN_RIGHTS)
    within_s = read_seconds(cluster.program, "--timeout", timeout, zero=True)
    begun: list[CordonChange] = []

    def stays() -> str:
        look = command(cluster, ("status", node))
        return f"{node}: the request is saved and continues by itself; to see its state: {look}" if begun else ""

    async def undrain_it(kube: Kube) -> ClusterNode:
        before, change = await change_cordon(kube, node, gpus or (), cordon=False)
        begun.append(change)
        for sentence in effects(before, change):
            say(sentence)
        return await until_serving(kube, node, change.touched, within_s, say)

    after = ask_and_say_what_stays(cluster, undrain_it, stays)
    change = begun[0]
    well = serving(after, change.touched) and not change.kept
    if output is Format.JSON:
        print_json(_undrain_record(after, change, well=well))
    else:
        answers().print(one_line(f"{node}: {states(after, change.touched.union(change.kept))}"))
    for refusal in refusals(after, change.touched):
        say(f"{node}: {refusal}")
    if silent := silence(after, time.time()):
        say(silent)
    if not well:
        how_long = f" after {timeout}" if within_s else ", and they were not waited for"
        say(f"{cluster.program}: not all of them serve{how_long}")
    end(well=well)


def _undrain_record(after: ClusterNode, change: CordonChange, *, well: bool) -> dict[str, Any]:
    shown = change.touched.union(change.kept)
    return {
        "node": after.name,
        "told_at": after.told_at,
        "serving": well,
        "cordoned": list(after.cordoned),
        "gpus": [
            {"uuid": gpu.uuid, "label": gpu.label, "domain": gpu.domain, "state": gpu.state}
            for gpu in after.gpus
            if gpu.uuid in shown
        ],
        "domains": [
            {"name": domain.name, "state": domain.state, "reason": domain.reason}
            for domain in after.domains
            if not shown.isdisjoint(domain.gpus)
        ],
    }
