"""`kubectl mps`, `kubectl mps status` and `mpsd status --cluster`: the GPUs of a cluster."""

from collections.abc import Sequence
from typing import NoReturn

from mpsd.platform.console import StatusFormat
from mpsd.platform.imports import lasting
from mpsd.status.cluster_options import Context, Kubeconfig, NodeNames, StatusOutput, Watch
from mpsd.status.glance import Glance


def status(
    nodes: NodeNames = None,
    output: StatusOutput = StatusFormat.TEXT,
    watch: Watch = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show the GPUs of a cluster, as each node's MPSNode reports them: granted and used, by which pods, domain states.

    Exits with 0 when every GPU's domain is ready and its node has reported so of late, 1 when one is not or the cluster
    cannot be asked, 2 when there is no such node.

        kubectl mps
        kubectl mps gpu-a1 gpu-a2 -o wide
        kubectl mps -o json | jq '.nodes[].gpus[] | [.node, .label, .granted_mib]'
    """
    show("kubectl mps", nodes or (), output, watch=watch, kubeconfig=kubeconfig, context=context)


def show(
    program: str,
    nodes: Sequence[str],
    output: StatusFormat,
    *,
    watch: bool,
    kubeconfig: str | None,
    context: str | None,
) -> NoReturn:
    """Shows these nodes, all where none is named, and ends the program."""
    glance = None if watch else Glance(nodes, kubeconfig, context)
    with lasting():  # while kubectl asks
        from mpsd.status.cluster_answers import ClusterAccess, show_cluster

    show_cluster(ClusterAccess(program, kubeconfig, context), nodes, output, watch=watch, glance=glance)
