"""`kubectl mps top`: the GPUs of a cluster and the pods that use them, live."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from mpsd.model.cluster_status import ClusterStatus
from mpsd.model.problem import InvalidInput
from mpsd.platform.console import Format
from mpsd.platform.imports import lasting
from mpsd.platform.options import OutputFormat
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, Kubeconfig, NodeNames
from mpsd.status.glance import Glance
from mpsd.status.rules.top import Sort, Top, cluster_top
from mpsd.status.top import Iterations, Once, SortBy


def top(
    nodes: NodeNames = None,
    namespace: Annotated[
        str | None,
        typer.Option("-n", "--namespace", metavar="NAME", help="Only its pods; all without.", show_default=False),
    ] = None,
    sort: SortBy = Sort.MEMORY,
    interval: Annotated[float, typer.Option("--interval", metavar="SECONDS", help="Between two looks.", min=1.0)] = 2.0,
    iterations: Iterations = None,
    once: Once = False,
    output: OutputFormat = Format.TEXT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show the GPUs of a cluster and the pods that use them, live, as each node's MPSNode tells of them.

    Nodes tell what is granted at once and what is used at most twice a minute; how busy the SMs are they do not tell:
    on a node, `mpsd top` shows it. A pod that uses more than was granted comes first. Keys: m memory, n name, arrows
    and PageUp and PageDown to scroll, q quits. An API server that goes away is waited for.

    In a pipe each look stands below the one before; with -o json it is one object a line. Exits with 0, 1 where the
    cluster cannot be asked, 2 where there is no such node, 130 at Ctrl-C.

        kubectl mps top
        kubectl mps top gpu-a1 gpu-a2 -n training
        kubectl mps top --once --sort name
        kubectl mps top --once -o json | jq '.users[] | select(.over)'
    """
    glance = Glance(nodes or (), kubeconfig, context)
    with lasting():  # while kubectl asks
        from mpsd.status.top_show import TopOptions, show_top

    asked = TopOptions("kubectl mps top", sort, interval, 1 if once else iterations, output is Format.JSON, once)
    show_top(asked, look_at(nodes or (), namespace, kubeconfig, context, glance))


# Looks at a cluster for `kubectl mps top`.
#
# One rule: the first look may end the program with what is wrong; a later one says why nothing is heard.


def look_at(
    nodes: Sequence[str],
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    begun: Glance | None = None,
) -> Callable[[], Top]:
    """begun: the first look, where it is under way already."""
    cluster = ClusterAccess("kubectl mps top", kubeconfig, context)
    looks = 0

    def look() -> Top:
        nonlocal looks
        looks += 1
        first = looks == 1
        glance = begun if begun and first else cluster.glance(nodes)
        status = glance.status() or (cluster.looked(nodes) if first else _heard(cluster, nodes))
        return cluster_top(status, namespace)

    return look


def _heard(cluster: ClusterAccess, nodes: Sequence[str]) -> ClusterStatus:
    from mpsd.platform.kube import KubeError
    from mpsd.status.cluster import look
    from mpsd.status.top_show import NoLook

    try:
        return cluster.answer(lambda kube: look(kube, nodes))
    except KubeError as error:
        raise NoLook(str(error)) from None
    except InvalidInput as error:
        raise NoLook("; ".join(problem.fault for problem in error.problems)) from None
