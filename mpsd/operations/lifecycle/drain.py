"""`kubectl mps cordon`, `uncordon`, `drain` and `undrain`: take GPUs of a node out of use, empty
them, put them back.

`spec.cordoned` of the node's MPSNode is changed as it was read, and read again after a conflict, so
that no change of somebody else's is lost. Nothing is drained of a node that cannot report when its
GPUs are empty. An eviction names the uid of the pod that holds the grant, so that no namesake is
evicted, and none is requested while a pod that is recreated could come back to the same GPUs.
"""

import asyncio
import math
import shlex
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from mpsd.model.cluster_status import ClusterNode, silence
from mpsd.model.mpsnode import read_mpsnode
from mpsd.model.node_report import PodReport
from mpsd.model.problem import InvalidInput, shown
from mpsd.operations.lifecycle.rules import emptying as rules
from mpsd.operations.lifecycle.rules.upgrade import ANNOTATION, left_to_others, read_annotation
from mpsd.platform.command_line import OUTPUT, flag, option, takes
from mpsd.platform.console import ExitCode, Format, answers, complaints, one_line, print_json
from mpsd.platform.imports import INTERRUPTED
from mpsd.platform.kube import (
    MPS_NODES,
    PODS,
    Conflict,
    Kube,
    KubeError,
    NotFound,
    PatchKind,
    Rejected,
    Unavailable,
)
from mpsd.platform.settings import seconds
from mpsd.status.cluster import mpsnodes
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import CONTEXT, GPU_NAMES, GPU_OPTIONS, KUBECONFIG, NODE_NAME
from mpsd.status.rules.cordon import CordonChange, cordon_change, effects, holders, merge_patch

PAUSE_S = 0.5  # between two looks at the cluster
# kubelet reports its devices to the API every so often; a pod placed in between would fail
COUNTED_S = 10.0
_TRIES = 10  # an agent writes its node's status once a second at most
_AGAIN_S = 5.0  # until an eviction that was refused is requested again, as `kubectl drain` does
_RIGHTS = "docs/operations/upgrade-and-drain.md (Drain a node) lists the rights that this requires"
Answer = TypeVar("Answer")

EVICT = flag("--evict", help="Evict the pods that hold these GPUs, within disruption budgets.")


# -- what the verbs that change a cluster share
# Progress goes to standard error, the answer to standard output.


class NotDone(KubeError):
    """It cannot begin, and nothing was changed; or it did not end in time."""


def read_seconds(command: str, option: str, text: str, *, zero: bool = False) -> float:
    """The seconds of an option; InvalidInput for what is no time. zero: whether 0 is allowed, for
    no wait."""
    remedy = "write a time over 0, such as 10m"
    try:
        if (found := seconds(text)) or zero:
            return found
    except ValueError as error:
        remedy = str(error)
    raise InvalidInput.of(command, "setting", option, shown(text), "cannot be used", remedy)


def say(*sentences: str) -> None:
    for sentence in sentences:
        complaints().print(one_line(sentence))


def answer(*sentences: str) -> None:
    for sentence in sentences:
        answers().print(one_line(sentence))


def options(cluster: ClusterAccess) -> str:
    """The options that name the cluster, with a leading blank; empty where there are none."""
    given = {"--kubeconfig": cluster.kubeconfig, "--context": cluster.context}
    return "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value)


def ask(
    cluster: ClusterAccess, question: Callable[[Kube], Awaitable[Answer]], stays: Sequence[str]
) -> Answer:
    """As `cluster.ask`; after an interruption or failure half way it prints `stays`: what is so
    from now on."""
    try:
        return cluster.ask(question)
    except (SystemExit, InvalidInput):
        say(*stays)
        raise
    except KeyboardInterrupt:
        say(f"{cluster.program}: interrupted", *stays)
        sys.exit(INTERRUPTED)


@dataclass(slots=True)
class ProgressReporter:
    """Says a sentence about each subject only where it differs from the last one."""

    last: dict[str, str] = field(default_factory=dict)

    def __call__(self, subject: str, sentence: str | None) -> None:
        """None: nothing to report, and the next sentence is new."""
        if sentence is None:
            self.last.pop(subject, None)
        elif self.last.get(subject) != sentence:
            self.last[subject] = sentence
            say(sentence)

    def away(self, error: Unavailable | None) -> None:
        """None: the API server answers."""
        sentence = None
        if error:
            sentence = f"{error}; still waiting"
        self("away", sentence)


async def pause() -> None:
    await asyncio.sleep(PAUSE_S)


async def looks(
    look: Callable[[], Awaitable[Answer]], within_s: float, report: ProgressReporter
) -> AsyncIterator[tuple[Answer, bool]]:
    """What is seen, again and again for `within_s`, and whether that is the last time. Unavailable:
    also then the API server does not answer."""
    deadline = time.monotonic() + within_s
    is_last = False
    while not is_last:
        is_last = time.monotonic() >= deadline
        try:
            seen = await look()
        except Unavailable as error:
            if is_last:
                raise
            report.away(error)
        else:
            report.away(None)
            yield seen, is_last
        if not is_last:
            await pause()


# -- cordons


async def seen_node(kube: Kube, name: str) -> ClusterNode:
    (thing,) = await mpsnodes(kube, [name])
    return read_mpsnode(thing, kube.now)


async def change_cordon(
    kube: Kube, node: str, named: Sequence[str], *, cordon: bool
) -> tuple[ClusterNode, CordonChange]:
    """The node as it was before, and what was changed. InvalidInput where there is no such node or
    GPU."""
    for _attempt in range(_TRIES):
        (thing,) = await mpsnodes(kube, [node])
        before = read_mpsnode(thing, kube.now)
        annotation = read_annotation(thing)
        change = cordon_change(before, named, cordon=cordon)
        patch = merge_patch(change, str(thing["metadata"]["resourceVersion"]))
        # an upgrade in progress leaves these to others from now on
        if annotation and not annotation.isdisjoint(change.gpus):
            patch["metadata"]["annotations"] = {ANNOTATION: left_to_others(annotation, change.gpus)}
        elif not change.changes:
            return before, change
        with suppress(Conflict):
            await kube.patch(MPS_NODES, node, patch, PatchKind.MERGE)
            return before, change
    raise Conflict(f"patch mpsnodes {node}: another client changed it first, {_TRIES} times")


@takes(NODE_NAME, GPU_NAMES, KUBECONFIG, CONTEXT)
def cordon(
    *,
    node: str,
    gpus: list[str] | None = None,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Take GPUs of a node out of use: no new pods are placed on them; running programs continue
    until they end.

    A domain of several GPUs drains as a whole. Exits with 0 when it is requested, 1 when it cannot
    be, 2 when there is no such node or GPU. To wait for the programs there: `kubectl mps drain`.

        kubectl mps cordon gpu-a1 gpu0
        kubectl mps cordon gpu-a1                 every GPU
    """
    _change(ClusterAccess("kubectl mps cordon", kubeconfig, context), node, gpus or (), cordon=True)


@takes(NODE_NAME, GPU_NAMES, KUBECONFIG, CONTEXT)
def uncordon(
    *,
    node: str,
    gpus: list[str] | None = None,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Put GPUs of a node back into use.

        kubectl mps uncordon gpu-a1 gpu0
        kubectl mps uncordon gpu-a1               every GPU

    The exit codes are those of cordon.
    """
    cluster = ClusterAccess("kubectl mps uncordon", kubeconfig, context)
    _change(cluster, node, gpus or (), cordon=False)


def _change(cluster: ClusterAccess, node: str, gpus: Sequence[str], *, cordon: bool) -> None:
    async def change_it(kube: Kube) -> tuple[Sequence[str], str | None]:
        before, change = await change_cordon(kube, node, gpus, cordon=cordon)
        return [*effects(before, change)], silence(before, kube.now)

    done, silent = cluster.ask(change_it)
    answer(*done)
    if silent:
        answer(silent)


# -- drains


@dataclass(slots=True)
class Evictions:
    kube: Kube
    report: ProgressReporter
    _due: dict[str, float] = field(default_factory=dict)  # by pod, on the monotonic clock
    _closed_at: float | None = None  # when the GPUs were first seen to be offered no more

    async def look(self, node: ClusterNode, gpus: Collection[str]) -> None:
        """Requests the eviction of each pod that is due. Forbidden where a right is missing."""
        there = [pod for held in holders(node, gpus) for pod in held.pods]
        now = time.monotonic()
        if not there or rules.offers_room(node, gpus):
            self._closed_at = None
            return
        if self._closed_at is None:
            self._closed_at = now
            why = "kubelet must first report that these GPUs are full"
            then = "or recreated pods would return to them"
            say(f"evictions begin in {COUNTED_S:g} s: {why}, {then}")
        if now - self._closed_at < COUNTED_S:
            return
        for holder in there:
            key = f"{holder.pod}/{holder.uid}"
            if now >= self._due.get(key, 0.0):
                await self._attempt(holder, key)

    async def _attempt(self, holder: PodReport, key: str) -> None:
        pod = None
        self._due[key] = math.inf
        try:
            with suppress(NotFound):
                pod = await self.kube.get(PODS, holder.name, holder.namespace)
            goes, sentence = rules.eviction_of(pod, holder)
            if goes:
                await self.kube.evict(holder.name, holder.namespace, holder.uid)
            self.report(key, sentence)
        except (Unavailable, Rejected) as error:
            self._due[key] = time.monotonic() + _AGAIN_S
            self.report(key, f"{holder.pod} cannot be evicted now and will be retried: {error}")
        except (NotFound, Conflict):  # it has just gone, or another pod has its name
            pass


_TIMEOUT = option("--timeout", metavar="TIME", help="How long to wait, such as 90s; 0: do not.")


@takes(NODE_NAME, GPU_OPTIONS, EVICT, _TIMEOUT, OUTPUT, KUBECONFIG, CONTEXT)
def drain(
    *,
    node: str,
    gpus: list[str] | None = None,
    evict: bool = False,
    timeout: str = "10m",
    output: Format = Format.TEXT,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Empty GPUs of a node: cordon them, and wait until no pod is left. The GPUs stay cordoned
    afterwards.

    The pods that are left, with what they hold, are listed as they change. Pods run until they end
    by themselves; --evict evicts those that hold something there, as `kubectl drain` does: within
    disruption budgets, and no static pods and none of DaemonSets. Exits with 0 when the GPUs are
    empty, 1 when they are still in use after --timeout or the node does not report, 2 when there is
    no such node or GPU, 130 after Ctrl-C. `kubectl mps undrain` undoes it.

        kubectl mps drain gpu-a1                      every GPU of the node
        kubectl mps drain gpu-a1 --gpu gpu0 --timeout 2h
        kubectl mps drain gpu-a1 --evict
        kubectl mps drain gpu-a1 --timeout 0 -o json  request it, and list who is there
    """
    cluster = ClusterAccess("kubectl mps drain", kubeconfig, context, _RIGHTS)
    within_s = read_seconds(cluster.program, "--timeout", timeout, zero=True)
    stays: list[str] = []

    async def drain_it(kube: Kube) -> tuple[dict[str, Any], list[str]]:
        before = await seen_node(kube, node)
        cordon_change(before, gpus or (), cordon=True)  # raises for GPUs that do not exist
        if why := rules.no_answer(before, kube.now):
            raise NotDone(why)
        before, change = await change_cordon(kube, node, gpus or (), cordon=True)
        stays.append(rules.what_stays(before, change, options(cluster)))
        say(*effects(before, change, with_pods=False))
        report = ProgressReporter()
        evictions = Evictions(kube, ProgressReporter())
        named = change.touched
        async for after, is_last in looks(partial(seen_node, kube, node), within_s, report):
            done = rules.are_empty(after, named)
            left = rules.what_is_left(after, named)
            if not done and not is_last:
                report("left", f"{node}: {left}")
            report("silence", silence(after, kube.now))
            if done:
                break
            if evict and not after.stale:
                await evictions.look(after, named)
        record = {
            "drained": done,
            "newly_cordoned": rules.newly_cordoned(before, change),
            "left": after.pods and holders(after, named),
            "evictions": evictions.report.last,
            "node": after,
        }
        if not done:
            left = f"not drained: {left}"
        return record, [f"{node}: {line}" for line in (left, *rules.refusals(after, named))]

    record, lines = ask(cluster, drain_it, stays)
    if output is Format.JSON:
        print_json(record)
    else:
        answer(*lines)
    if not record["drained"]:
        why = f"GPUs are still in use after {timeout}" if within_s else "not waited for"
        say(f"{cluster.program}: {why}", *stays)
    sys.exit(ExitCode.of(record["drained"]))


# -- and back


@takes(NODE_NAME, GPU_OPTIONS, _TIMEOUT, OUTPUT, KUBECONFIG, CONTEXT)
def undrain(
    *,
    node: str,
    gpus: list[str] | None = None,
    timeout: str = "2m",
    output: Format = Format.TEXT,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Put GPUs of a node back into use, and wait until they serve.

    A GPU that shares its control daemon with one that stays cordoned stays out of use; this is
    reported. Exits with 0 when all that were named serve, 1 when one does not (with the reason), 2
    when there is no such node or GPU, 130 after Ctrl-C.

        kubectl mps undrain gpu-a1                    every GPU of the node
        kubectl mps undrain gpu-a1 --gpu gpu0 --gpu gpu1
    """
    cluster = ClusterAccess("kubectl mps undrain", kubeconfig, context, _RIGHTS)
    within_s = read_seconds(cluster.program, "--timeout", timeout, zero=True)
    stays: list[str] = []

    async def undrain_it(kube: Kube) -> tuple[CordonChange, ClusterNode, str | None]:
        before, change = await change_cordon(kube, node, gpus or (), cordon=False)
        look = f"kubectl mps status {shlex.quote(node)}{options(cluster)}"
        stays.append(f"{node}: the request continues by itself; to see its state: {look}")
        say(*effects(before, change))
        report = ProgressReporter()
        named = change.touched
        async for after, is_last in looks(partial(seen_node, kube, node), within_s, report):
            fails = silence(after, kube.now) or any(rules.refusals(after, named))
            if fails or rules.serving(after, named):
                break
            if not is_last:
                report("states", f"{node}: {rules.states(after, named)}")
        return change, after, silence(after, kube.now)

    change, after, silent = ask(cluster, undrain_it, stays)
    well = rules.serving(after, change.touched) and not change.kept
    named = change.touched.union(change.kept)
    if output is Format.JSON:
        print_json({"serving": well, "node": after})
    else:
        answer(f"{node}: {rules.states(after, named)}")
    say(*(f"{node}: {refusal}" for refusal in rules.refusals(after, change.touched)))
    if silent:
        say(silent)
    if not well:
        waited = f" after {timeout}" if within_s else "; not waited for"
        say(f"{cluster.program}: not all of them serve{waited}")
    sys.exit(ExitCode.of(well))
