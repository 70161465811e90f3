"""The program `kubectl-inspect-cgpu`, which kubectl runs as `kubectl inspect cgpu`: gpushare's table, of mpsd's ledger.

Standard output is the table and nothing else, as gpushare's own tool has it; whatever else is to be known of
it goes to standard error.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from mpsd.model.cluster_status import ClusterNode, silence
from mpsd.operations.explain.room import ClusterCapacity, look_for_room
from mpsd.platform.console import ExitCode, Format, answers, complaints, one_line, print_json
from mpsd.platform.kube import Kube
from mpsd.platform.options import OutputFormat
from mpsd.platform.rules.kubernetes_objects import UNKNOWN_ADDRESS
from mpsd.platform.verbs import CONTEXT_SETTINGS, Version, help_of, run
from mpsd.scheduler.rules.gpushare import CgpuNode, cgpu_node, detailed, summary
from mpsd.status.cluster import policy_in_force
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, Kubeconfig, NodeNames, offer

_PROGRAM = "kubectl inspect cgpu"
_RIGHTS = (
    "an administrator gives it: kubectl create clusterrole mpsd-inspect --verb=get,list"
    " --resource=mpsnodes.mpsd.io,nodes,pods, and a clusterrolebinding to it"
)

Details = Annotated[bool, typer.Option("-d", "--details", help="The pods of each node, and what they have.")]


@dataclass(frozen=True, slots=True)
class _CgpuReport:
    unit_mib: int
    nodes: Sequence[CgpuNode]
    room: ClusterCapacity


def cgpu(
    nodes: NodeNames = None,
    details: Details = False,
    output: OutputFormat = Format.TEXT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    version: Version = False,  # noqa: ARG001 - its callback answers
) -> None:
    """Show what is allocated of each GPU's memory, in the format of gpushare's own tool: `kubectl inspect cgpu`.

    Allocated is what kubelet has given and what pods ask for that are bound to the node; PENDING what no GPU is chosen
    for yet. For states, use and threads: kubectl mps. Exits with 0 when there is such a table, 1 when not, 2 when there
    is no such node.

        kubectl inspect cgpu
        kubectl inspect cgpu -d gpu-a1            its pods too
        kubectl inspect cgpu -o json | jq '.nodes[].gpus[] | .total - .allocated'
    """
    report = ClusterAccess(_PROGRAM, kubeconfig, context, _RIGHTS).ask(lambda kube: _look(kube, nodes or ()))
    if output is Format.JSON:
        print_json(_record(report))
    else:
        _print(report, in_detail=details)
    for sentence in _doubts(report):
        complaints().print(one_line(f"{_PROGRAM}: {sentence}"))
    sys.exit(ExitCode.YES if any(node.gpus for node in report.nodes) else ExitCode.NO)


async def _look(kube: Kube, names: Sequence[str]) -> _CgpuReport:
    in_force = await policy_in_force(kube)
    room = await look_for_room(kube, names, in_force)
    unit_mib = in_force.policy.resources.memory_unit_mib
    bound = {pod.name.uid: pod.request for pod in room.pending if pod.node}
    addresses = {one.name: one.address for one in (room.machines or {}).values()}
    report = [
        cgpu_node(room.ledger[name], addresses.get(name, UNKNOWN_ADDRESS), bound, unit_mib)
        for name in sorted(room.ledger)
    ]
    return _CgpuReport(unit_mib, report, room)


def _print(report: _CgpuReport, *, in_detail: bool) -> None:
    text = detailed(report.nodes) if in_detail else summary(report.nodes, report.unit_mib)
    for line in text.splitlines():
        answers().print(one_line(line))


def _doubts(report: _CgpuReport) -> list[str]:
    """What keeps the numbers from being believed, a sentence each."""
    said = [sentence for node in report.room.told.values() if (sentence := _doubt(node, report.room.now))]
    if not report.room.told:
        said.append(
            "no node has told anything yet; see whether the pods of the DaemonSet mpsd-agent run:"
            " kubectl get pods -A -l app.kubernetes.io/name=mpsd-agent"
        )
    return [*said, *report.room.unseen]


def _doubt(node: ClusterNode, now: float) -> str | None:
    if node.told_at is not None and node.pods is None:
        return f"{node.name}: kubelet has not said who holds what, so that nothing of it is counted"
    return silence(node, now)


def _record(report: _CgpuReport) -> dict[str, object]:
    nodes = [
        {**asdict(node), "allocated": node.allocated, "total": node.total, "pending": node.pending}
        for node in report.nodes
        if node.gpus
    ]
    return {"unit_mib": report.unit_mib, "nodes": nodes, "doubts": _doubts(report)}


app = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False, context_settings=CONTEXT_SETTINGS)
app.command(help=help_of(cgpu))(cgpu)


def main() -> None:
    """The entry point of `kubectl-inspect-cgpu`."""
    run(app, "kubectl-inspect-cgpu")


def complete() -> None:
    """The entry point of `kubectl_complete-inspect-cgpu`."""
    offer(app, "kubectl-inspect-cgpu")
