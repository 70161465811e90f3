"""`kubectl mps drain`: empties GPUs of a node, and says who is still there."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from mpsd.model.cluster_status import ClusterNode, PodStatus, silence
from mpsd.model.domain import State
from mpsd.operations.lifecycle.cordon import change_cordon, node_when, seen_node
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
from mpsd.operations.lifecycle.waiting import (
    DRAIN_RIGHTS,
    Evict,
    ask_and_say_what_stays,
    command,
    end,
    read_seconds,
    say,
)
from mpsd.platform.console import Format, answers, one_line, print_json
from mpsd.platform.kube import PODS, Conflict, Kube, KubeError, NotFound, Object, Rejected, Throttled, Unavailable
from mpsd.platform.options import OutputFormat
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, GpuOptions, Kubeconfig, NodeName
from mpsd.status.rules.cordon import CordonChange, cordon_change, effects

# Asks for the end of the pods that hold GPUs which are being drained.
#
# One rule: every eviction names the uid of the pod that holds the grant, so that no namesake of it is ended; and none
# is asked for while a pod that is made again could come back to the same GPUs.
#
# Rights of whoever does it: get pods, create pods/eviction, in the namespaces of those pods.

COUNTED_S = 10.0  # kubelet tells the API every so often how many devices there are; what comes in between would fail


@dataclass(slots=True)
class _Try:
    """refused: times in a row. due: on the clock that never goes back. said: last, of this pod."""

    refused: int = 0
    due: float = 0.0
    asked: bool = False
    said: str = ""


class Evictions:
    """Of one drain. say: gets a sentence whenever something about a pod is new."""

    def __init__(self, kube: Kube, say: Callable[[str], None]) -> None:
        self._kube = kube
        self._say = say
        self._tries: dict[tuple[str, str, str], _Try] = {}
        self._closed_at: float | None = None  # when the GPUs were first seen to be offered no more; None before

    def said(self, pod: PodStatus) -> str:
        """What became of the attempt on this pod, empty where there was none."""
        attempt = self._tries.get(_key(pod))
        return attempt.said if attempt else ""

    async def look(self, node: ClusterNode, gpus: Collection[str]) -> None:
        """Asks once for each pod that is due. Forbidden where a right is missing."""
        there = holders(node, gpus)
        if not there or not self._is_counted(node, gpus):
            return
        for holder in there:
            attempt = self._tries.setdefault(_key(holder), _Try())
            if not attempt.asked and time.monotonic() >= attempt.due:
                await self._attempt(holder, attempt)

    def _is_counted(self, node: ClusterNode, gpus: Collection[str]) -> bool:
        """Whether everybody knows by now that nothing is free on these GPUs."""
        if offers_room(node, gpus):
            self._closed_at = None
            return False
        for_s = closed_for_s(node, gpus)
        if self._closed_at is None:
            self._closed_at = time.monotonic()
            if for_s < COUNTED_S:
                why = "until kubelet has told that nothing is free there, or pods that are made again would come back"
                self._say(f"evicts in {COUNTED_S:g} s: {why}")
        return max(for_s, time.monotonic() - self._closed_at) >= COUNTED_S

    async def _attempt(self, holder: PodStatus, attempt: _Try) -> None:
        name = f"{holder.namespace}/{holder.pod}"
        try:
            found = verdict(await self._pod(holder), holder)
            match found.fate:
                case EvictionFate.EVICT:
                    await self._kube.evict(holder.pod, holder.namespace, holder.uid)
                    self._tell(attempt, f"evicted {name}" + (f" ({found.why})" if found.why else ""))
                case EvictionFate.STAYS:
                    self._tell(attempt, f"{name} is not evicted: {found.why}")
                case EvictionFate.ENDING:
                    self._tell(attempt, f"{name} is ending already")
                case EvictionFate.GONE:
                    self._tell(attempt, f"{name} is gone from the API, and its GPU is given back soon")
            attempt.asked = True
        except (NotFound, Conflict):  # it has gone in this very moment, or another has its name
            attempt.asked = True
        except Throttled as error:
            self._refused(attempt, f"{name} cannot be evicted now, and is tried again: {error}")
        except (Unavailable, Rejected) as error:
            self._refused(attempt, f"{name} could not be evicted, and is tried again: {error}")

    async def _pod(self, holder: PodStatus) -> Object | None:
        try:
            return await self._kube.get(PODS, holder.pod, holder.namespace)
        except NotFound:
            return None

    def _refused(self, attempt: _Try, sentence: str) -> None:
        attempt.refused += 1
        attempt.due = time.monotonic() + again_after_s(attempt.refused)
        self._tell(attempt, sentence)

    def _tell(self, attempt: _Try, sentence: str) -> None:
        if sentence != attempt.said:
            attempt.said = sentence
            self._say(sentence)


def _key(pod: PodStatus) -> tuple[str, str, str]:
    return pod.namespace, pod.pod, pod.uid


# Empties GPUs of a node through its MPSNode: takes them out of use, and waits until nobody is left there.
#
# One rule: nothing is changed for a node that cannot say when its GPUs are empty, and what is waited for is said once a
# change.
#
# Rights of whoever does it: get and patch of mpsnodes.mpsd.io; to evict those of `cluster_evictions`.

_HEARD_S = 15.0  # a node hears of a cordon within a second, and tells within another

Say = Callable[[str], None]


class NodeSilent(KubeError):
    """The node cannot say whether its GPUs are empty, so nothing was changed."""


class Telling:
    """Says a sentence of each subject only where it is another one than before."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._said: dict[str, str] = {}

    def __call__(self, subject: str, sentence: str | None) -> None:
        """None: there is nothing to be said of it, and what comes next is new."""
        if sentence is None:
            self._said.pop(subject, None)
        elif self._said.get(subject) != sentence:
            self._said[subject] = sentence
            self._say(sentence)

    def away(self, error: Unavailable | None) -> None:
        """None: the API server is there."""
        self("away", f"{error}; still waiting" if error else None)


async def begin_drain(kube: Kube, name: str, named: Sequence[str]) -> tuple[ClusterNode, CordonChange]:
    """Cordons. The node as it was before, and the change.

    Before anything is changed: InvalidInput where there is no such MPSNode or GPU, NodeSilent where nobody answers.
    """
    node = await seen_node(kube, name)
    cordon_change(node, named, cordon=True)  # for what it says of GPUs that are not there
    if why := no_answer(node, time.time()):
        raise NodeSilent(why)
    return await change_cordon(kube, name, named, cordon=True)


@dataclass(frozen=True, slots=True)
class Emptying:
    """evictions None: the pods are left to end by themselves."""

    node: str
    gpus: Collection[str]
    within_s: float
    evictions: Evictions | None


async def until_empty(kube: Kube, emptying: Emptying, say: Say) -> tuple[ClusterNode, bool]:
    """The node once nobody is left on these GPUs, else as it is at the deadline; and whether that is so.

    An API server that goes away meanwhile is waited for; Away where it does not come back.
    """
    telling, began = Telling(say), time.monotonic()

    def is_done(node: ClusterNode) -> bool:
        return are_empty(node, emptying.gpus)

    async def seen(node: ClusterNode, is_last: bool) -> None:
        if not is_last:  # else whoever asked says how it is
            telling("left", f"{node.name}: {what_is_left(node, emptying.gpus)}")
        _tell(telling, node, emptying, time.monotonic() - began)
        if emptying.evictions and not node.stale and not is_done(node):
            await emptying.evictions.look(node, emptying.gpus)

    return await node_when(kube, emptying.node, is_done, emptying.within_s, seen, telling.away)


def _tell(telling: Telling, node: ClusterNode, emptying: Emptying, waited_s: float) -> None:
    telling("silence", silence(node, time.time()))
    unheard = waited_s >= _HEARD_S and any(
        gpu.state == State.READY for gpu in node.gpus if gpu.uuid in emptying.gpus and not node.stale
    )
    telling("unheard", not_taken_up(node, time.time(), _HEARD_S) if unheard else None)


async def until_serving(kube: Kube, name: str, gpus: Collection[str], within_s: float, say: Say) -> ClusterNode:
    """The node once all of these GPUs serve, or one never will, else as it is at the deadline.

    A node that has told nothing of late is not waited for. Away where the API server stays away.
    """
    telling = Telling(say)

    def is_decided(node: ClusterNode) -> bool:
        return serving(node, gpus) or bool(silence(node, time.time())) or any(refusals(node, gpus))

    async def seen(node: ClusterNode, is_last: bool) -> None:
        if not is_last:
            telling("states", f"{node.name}: {states(node, gpus)}")

    node, _is_decided = await node_when(kube, name, is_decided, within_s, seen, telling.away)
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

    Who is still there, with what, is said as it changes. Pods go on until they end by themselves; --evict ends those
    that hold something there, as `kubectl drain` does: through the eviction API, within disruption budgets, and none of
    DaemonSets or static ones. Exits with 0 when the GPUs are empty, 1 when somebody is left after --timeout or the node
    cannot answer, 2 when there is no such node or GPU, 130 at Ctrl-C. `kubectl mps undrain` withdraws it.

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
        say(f"{cluster.program}: {f'somebody is left after {timeout}' if within_s else 'not waited for'}")
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
