"""`kubectl mps upgrade`: replaces the control pods node by node, each only when nobody is left there."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from mpsd.operations.lifecycle.cluster_upgrade import Failure, Upgrade, Wanted
from mpsd.operations.lifecycle.rules.drain_progress import holders
from mpsd.operations.lifecycle.rules.upgrade_step import Standing, next_step
from mpsd.operations.lifecycle.rules.upgrade_words import how_it_stands, plan
from mpsd.operations.lifecycle.waiting import Evict, ask_and_say_what_stays, end, options, read_seconds, say
from mpsd.platform.kube import Kube
from mpsd.platform.output import Format, OutputFormat, answers, one_line, print_json
from mpsd.status.cluster_answers import Cluster
from mpsd.status.cluster_options import Context, Kubeconfig, NodeNames

_RIGHTS = "docs/operations/upgrade-and-drain.md (Upgrade the control daemon) lists the rights that this requires"

Selector = Annotated[
    str, typer.Option("-l", "--selector", metavar="LABELS", help="Only Nodes with these labels.", show_default=False)
]
Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="Of each step of a node.")]
Image = Annotated[
    str | None,
    typer.Option("--image", metavar="IMAGE", help="Give the DaemonSet this image first.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]


def upgrade(
    nodes: NodeNames = None,
    selector: Selector = "",
    timeout: Timeout = "30m",
    evict: Evict = False,
    image: Image = None,
    dry_run: DryRun = False,
    output: OutputFormat = Format.TEXT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Replace the control pods that are not of the DaemonSet's newest revision, and no program loses its GPU by it.

    One node after the other: drain, end the old pod, wait for the new one and for its domains to come up, put back what
    it had cordoned itself (what somebody else had cordoned stays so), wait until it serves. It stops at the first node
    that fails and says how to go on or back; the same command again goes on there. Exits with 0 when every node is of
    the newest revision, 1 when not, 2 for a wrong question, 130 at Ctrl-C.

        kubectl mps upgrade --dry-run                 what would be done
        kubectl mps upgrade gpu-a1 --timeout 2h       programs may take two hours
        kubectl mps upgrade -l pool=a --evict         their pods are evicted
        kubectl mps upgrade --image REGISTRY/mpsd:0.2.0
    """
    cluster = Cluster("kubectl mps upgrade", kubeconfig, context, _RIGHTS)
    timeout_s = read_seconds(cluster.program, "--timeout", timeout)
    walks: list[Upgrade] = []

    def stays() -> str:
        walk = walks[0] if walks else None
        if walk is None or walk.step is None or walk.control is None:
            return ""
        name, step = walk.step
        return "\n".join(how_it_stands(walk.control, walk.standings[name], step, options(cluster)))

    async def upgrade_them(kube: Kube) -> Failure | None:
        walk = Upgrade(kube, Wanted(nodes or (), selector, timeout_s, evict, image), say)
        await walk.look()
        assert walk.control
        walks.append(walk)
        if dry_run or not walk.due():
            for line in plan(walk.control, list(walk.standings.values()), image) if output is Format.TEXT else ():
                answers().print(one_line(line))
        if walk.due():
            walk.check()
        return None if dry_run else await walk.run()

    failure = ask_and_say_what_stays(cluster, upgrade_them, stays)
    (walk,) = walks
    if output is Format.JSON:
        print_json(_record(walk, failure))
    if failure:
        say(f"{cluster.program}: {failure.standing.node.name}: stopped at: {failure.step}: {failure.why}")
        for line in stays().splitlines():
            say(line)
    elif not dry_run and output is Format.TEXT and walk.control:
        number = len(walk.standings)
        answers().print(
            f"{walk.control}: revision {walk.control.revision} on {number} node{'' if number == 1 else 's'}"
        )
    end(well=failure is None and (not dry_run or not walk.due()))


def _record(walk: Upgrade, failure: Failure | None) -> dict[str, Any]:
    stopped = (
        {"node": failure.standing.node.name, "step": failure.step.value, "reason": failure.why} if failure else None
    )
    return {
        "control": asdict(walk.control) if walk.control else None,
        "nodes": [_node(one, due=one.node.name in walk.due()) for one in walk.standings.values()],
        "stopped": stopped,
    }


def _node(one: Standing, *, due: bool) -> dict[str, Any]:
    """step: the next one."""
    return {
        "node": one.node.name,
        "current": one.current,
        "due": due,
        "step": next_step(one).step.value,
        "pod": asdict(one.pod) if one.pod else None,
        "cordoned": list(one.node.cordoned),
        "cordoned_by_upgrade": sorted(one.ours),
        "holders": None
        if one.node.pods is None
        else [f"{pod.namespace}/{pod.pod}" for pod in holders(one.node, one.gpus)],
    }
