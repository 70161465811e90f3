"""`kubectl mps undrain`: puts drained GPUs back into use, and waits until they serve."""

import time
from typing import Annotated, Any

import typer

from mpsd.model.cluster_status import ClusterNode, silence
from mpsd.operations.lifecycle.cordon import change_cordon
from mpsd.operations.lifecycle.drain import until_serving
from mpsd.operations.lifecycle.rules.drain import refusals, serving, states
from mpsd.operations.lifecycle.waiting import DRAIN_RIGHTS, ask_and_say_what_stays, command, end, read_seconds, say
from mpsd.platform.console import Format, answers, one_line, print_json
from mpsd.platform.kube import Kube
from mpsd.platform.options import OutputFormat
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, GpuOptions, Kubeconfig, NodeName
from mpsd.status.rules.cordon import CordonChange, effects

Timeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long to wait until they serve; 0: not at all.")
]


def undrain(
    node: NodeName,
    gpus: GpuOptions = None,
    timeout: Timeout = "2m",
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
        return f"{node}: it is asked for, and goes on by itself; to see how it is: {look}" if begun else ""

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
        print_json(_record(after, change, well=well))
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


def _record(after: ClusterNode, change: CordonChange, *, well: bool) -> dict[str, Any]:
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
