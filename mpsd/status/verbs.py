"""`mpsd status`: GPUs, domains, grants and clients of this machine, or of a cluster."""

from typing import Annotated

import typer

from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform.console import StatusFormat
from mpsd.platform.imports import lasting
from mpsd.platform.options import RunDirectory
from mpsd.platform.verbs import extra_needed
from mpsd.status.cluster_options import Context, Kubeconfig, NodeNames, StatusOutput, Watch
from mpsd.status.machine import show as show
from mpsd.status.machine import show_machine


def status(
    nodes: NodeNames = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Every node of the cluster that kubectl asks.")] = False,
    output: StatusOutput = StatusFormat.TEXT,
    watch: Watch = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    run_dir: RunDirectory = None,
) -> None:
    """Show who has what of the GPUs here: granted and used memory, threads, domain states, and who waits.

    Exits with 0 when every GPU's domain is ready, 1 when one is not or mpsd does not run here. With --cluster, or with
    the names of nodes, it asks a cluster instead, as `kubectl mps` does; 2 when there is no such node.

        mpsd status
        mpsd status -o json | jq .grants
        mpsd status --cluster
        mpsd status gpu-a1 --kubeconfig ~/.kube/config
    """
    if cluster or nodes or kubeconfig or context:
        if run_dir:
            remedy = "leave it out to ask a cluster, or leave --cluster and nodes out to ask this machine"
            raise InvalidInput("mpsd status", [Problem("setting", "--run-dir", "", "is of this machine", remedy)])
        with extra_needed("mpsd status --cluster", "kubectl"):
            from mpsd.status.glance import Glance

            glance = None if watch else Glance(nodes or (), kubeconfig, context)
            with lasting():  # while kubectl asks
                from mpsd.status.cluster_answers import ClusterAccess, show_cluster

            show_cluster(
                ClusterAccess("mpsd status", kubeconfig, context), nodes or (), output, watch=watch, glance=glance
            )
    show_machine(run_dir, output, watch=watch)
