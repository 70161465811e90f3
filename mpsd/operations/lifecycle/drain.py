"""`kubectl mps drain`: empties GPUs of a node, and says who is still there."""

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from mpsd.model.cluster_status import ClusterNode
from mpsd.operations.lifecycle.cluster_drain import Emptying, begin_drain, until_empty
from mpsd.operations.lifecycle.cluster_evictions import Evictions
from mpsd.operations.lifecycle.rules.drain_progress import (
    holders,
    newly_cordoned,
    refusals,
    undrain_words,
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
from mpsd.platform.kube import Kube
from mpsd.platform.output import Format, OutputFormat, answers, one_line, print_json
from mpsd.status.cluster_answers import Cluster
from mpsd.status.cluster_options import Context, GpuOptions, Kubeconfig, NodeName
from mpsd.status.rules.cordon import CordonChange, effects

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
    cluster = Cluster("kubectl mps drain", kubeconfig, context, DRAIN_RIGHTS)
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


def _stays(cluster: Cluster, before: ClusterNode, change: CordonChange) -> str:
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
