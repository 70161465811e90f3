"""`kubectl inspect cgpu`: gpushare's table, of mpsd's ledger.

Standard output is the table and nothing else, as with gpushare's own tool.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from mpsd.model.cluster_status import silence
from mpsd.operations.explain.pod import look_for_room
from mpsd.platform.command_line import OUTPUT, VERSION, flag, run_command, takes
from mpsd.platform.completion import after, lines
from mpsd.platform.console import ExitCode, Format, answers, complaints, one_line, print_json
from mpsd.platform.kube import Kube
from mpsd.platform.rules.kubernetes_objects import UNKNOWN_ADDRESS
from mpsd.scheduler.rules.inspect_formats import CgpuNode, cgpu_node, detailed, summary
from mpsd.status.cluster import policy_in_force
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import CONTEXT, KUBECONFIG, NODE_NAMES
from mpsd.status.rules.pods import ExplanationContext

_PROGRAM = "kubectl inspect cgpu"
_RIGHTS = (
    "an administrator gives it: kubectl create clusterrole mpsd-inspect --verb=get,list"
    " --resource=mpsnodes.mpsd.io,nodes,pods, and a clusterrolebinding to it"
)


@takes(
    NODE_NAMES,
    flag("-d", "--details", help="The pods of each node, and what they have."),
    OUTPUT,
    KUBECONFIG,
    CONTEXT,
    VERSION,
)
def cgpu(
    *,
    nodes: list[str] | None = None,
    details: bool = False,
    output: Format = Format.TEXT,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Show what is allocated of each GPU's memory, in the format of gpushare's own tool: `kubectl
    inspect cgpu`.

    Allocated is what kubelet has given and what pods ask for that are bound to the node; PENDING
    what no GPU is chosen for yet. For states, use and threads: kubectl mps. Exits with 0 when there
    is such a table, 1 when not, 2 when there is no such node.

        kubectl inspect cgpu
        kubectl inspect cgpu -d gpu-a1            its pods too
        kubectl inspect cgpu -o json | jq '.nodes[].gpus[] | .total - .allocated'
    """
    unit_mib, found, doubts = ClusterAccess(_PROGRAM, kubeconfig, context, _RIGHTS).ask(
        lambda kube: _look(kube, nodes or ())
    )
    if output is Format.JSON:
        sums = ("allocated", "total", "pending")
        with_gpus = [
            asdict(one) | {name: getattr(one, name) for name in sums} for one in found if one.gpus
        ]
        print_json({"unit_mib": unit_mib, "nodes": with_gpus, "doubts": doubts})
    else:
        text = summary(found, unit_mib)
        if details:
            text = detailed(found)
        for line in text.splitlines():
            answers().print(one_line(line))
    for sentence in doubts:
        complaints().print(one_line(f"{_PROGRAM}: {sentence}"))
    sys.exit(ExitCode.of(any(node.gpus for node in found)))


async def _look(kube: Kube, names: Sequence[str]) -> tuple[int, Sequence[CgpuNode], Sequence[str]]:
    """The unit in MiB, the nodes, and what casts doubt on the numbers, a sentence each."""
    in_force = await policy_in_force(kube)
    unseen: list[str] = []
    context, pending = await look_for_room(kube, names, in_force, unseen)
    unit_mib = in_force.policy.resources.memory_unit_mib
    bound = {pod.name.uid: pod.request for pod in pending if pod.node}
    addresses = {one.name: one.address for one in (context.machines or {}).values()}
    found = [
        cgpu_node(context.ledger[name], addresses.get(name, UNKNOWN_ADDRESS), bound, unit_mib)
        for name in sorted(context.ledger)
    ]
    return unit_mib, found, [*_doubts(context), *unseen]


def _doubts(context: ExplanationContext) -> Iterator[str]:
    for node in context.reported.values():
        if node.reported_at is not None and node.pods is None:
            why = "kubelet has not reported its allocations, so nothing of it is counted"
            yield f"{node.name}: {why}"
        elif silent := silence(node, context.now):
            yield silent
    if not context.reported:
        why = "no node has reported anything yet; see whether the pods of the DaemonSet mpsd-agent"
        yield f"{why} run: kubectl get pods -A -l app.kubernetes.io/name=mpsd-agent"


def main() -> None:
    """The entry point of `kubectl-inspect-cgpu`."""
    run_command(_PROGRAM, cgpu, sys.argv[1:])


def complete() -> None:
    """The entry point of `kubectl_complete-inspect-cgpu`."""
    *before, begun = sys.argv[1:] or [""]
    print(*lines(after(cgpu, before, begun), begun), ":4", sep="\n")
