"""`kubectl mps`, `kubectl mps status`, `mpsd status --cluster` and `kubectl mps top`: the GPUs of a
cluster."""

from collections.abc import Sequence
from typing import NoReturn

from mpsd.platform.command_line import OUTPUT, Between, flag, option, takes
from mpsd.platform.console import Format, StatusFormat
from mpsd.platform.imports import lasting
from mpsd.status.cluster_options import CONTEXT, KUBECONFIG, NODE_NAMES, STATUS_OUTPUT, WATCH
from mpsd.status.glance import Glance

# The options of `mpsd top` too.
SORT = option(
    "--sort",
    choices=("memory", "sm", "name"),
    metavar="BY",
    help="What the rows are sorted by, memory, sm or name; who is over its limit comes first.",
)
ONCE = flag("--once", help="One look, without control codes, for a pipe or a file.")
ITERATIONS = option(
    "--iterations",
    type=Between(1, kind=int),
    metavar="NUMBER",
    help="Exit after this many snapshots.",
)


@takes(NODE_NAMES, STATUS_OUTPUT, WATCH, KUBECONFIG, CONTEXT)
def status(
    *,
    nodes: list[str] | None = None,
    output: StatusFormat = StatusFormat.TEXT,
    watch: bool = False,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Show the GPUs of a cluster, as each node's MPSNode reports them: granted and used, by which
    pods, domain states.

    Exits with 0 when every GPU's domain is ready and its node has reported so of late, 1 when one
    is not or the cluster cannot be asked, 2 when there is no such node.

        kubectl mps
        kubectl mps gpu-a1 gpu-a2 -o wide
        kubectl mps -o json | jq '.nodes[].gpus[] | [.node, .label, .grantedMiB]'
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
    glance = None if watch else Glance(nodes, kubeconfig, context)
    with lasting():  # while kubectl asks
        from mpsd.status.cluster_answers import ClusterAccess, show_cluster

    show_cluster(
        ClusterAccess(program, kubeconfig, context), nodes, output, watch=watch, glance=glance
    )


@takes(
    NODE_NAMES,
    option("-n", "--namespace", metavar="NAME", help="Only its pods; all without."),
    SORT,
    option("--interval", type=Between(1), metavar="SECONDS", help="Between two looks."),
    ITERATIONS,
    ONCE,
    OUTPUT,
    KUBECONFIG,
    CONTEXT,
)
def top(
    *,
    nodes: list[str] | None = None,
    namespace: str | None = None,
    sort: str = "memory",
    interval: float = 2.0,
    iterations: int | None = None,
    once: bool = False,
    output: Format = Format.TEXT,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Show the GPUs of a cluster and the pods that use them, live, as each node's MPSNode reports
    them.

    Nodes report what is granted at once and what is used at most twice a minute; they do not report
    how busy the SMs are: on a node, `mpsd top` shows it. A pod that uses more than was granted
    comes first. Keys: m memory, n name, arrows and PageUp and PageDown to scroll, q quits. If the
    API server does not answer, top waits for it.

    In a pipe each look stands below the one before; with -o json it is one object a line. Exits
    with 0, 1 where the cluster cannot be asked, 2 where there is no such node, 130 at Ctrl-C.

        kubectl mps top
        kubectl mps top gpu-a1 gpu-a2 -n training
        kubectl mps top --once --sort name
        kubectl mps top --once -o json | jq '.users[] | select(.over)'
    """
    glance = Glance(nodes or (), kubeconfig, context)
    with lasting():  # while kubectl asks
        from mpsd.status.cluster_answers import ClusterAccess, cluster_tops
        from mpsd.status.rules.top import Sort
        from mpsd.status.top_show import TopOptions, show_top

    asked = TopOptions(
        "kubectl mps top",
        Sort(sort),
        interval,
        iterations,
        output is Format.JSON,
        once,
    )
    show_top(
        asked,
        cluster_tops(
            ClusterAccess(asked.program, kubeconfig, context), nodes or (), namespace, glance
        ),
    )
