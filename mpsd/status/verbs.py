"""`mpsd status` and `mpsd top`: the GPUs of this machine, or of a cluster, and who uses them."""

from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform.command_line import OUTPUT, RUN_DIR, Between, flag, option, takes
from mpsd.platform.console import Format, StatusFormat, extra_needed
from mpsd.platform.imports import lasting
from mpsd.status.cluster_options import CONTEXT, KUBECONFIG, NODE_NAMES, STATUS_OUTPUT, WATCH
from mpsd.status.cluster_verbs import ITERATIONS, ONCE, SORT, show


@takes(
    NODE_NAMES,
    flag("--cluster", help="Every node of the cluster that kubectl asks."),
    STATUS_OUTPUT,
    WATCH,
    KUBECONFIG,
    CONTEXT,
    RUN_DIR,
)
def status(
    *,
    nodes: list[str] | None = None,
    cluster: bool = False,
    output: StatusFormat = StatusFormat.TEXT,
    watch: bool = False,
    kubeconfig: str | None = None,
    context: str | None = None,
    run_dir: str | None = None,
) -> None:
    """Show who has what of the GPUs here: granted and used memory, threads, domain states, and who
    waits.

    Exits with 0 when every GPU's domain is ready, 1 when one is not or mpsd does not run here. With
    --cluster, or with the names of nodes, it asks a cluster instead, as `kubectl mps` does; 2 when
    there is no such node.

        mpsd status
        mpsd status -o json | jq .grants
        mpsd status --cluster
        mpsd status gpu-a1 --kubeconfig ~/.kube/config
    """
    if cluster or nodes or kubeconfig or context:
        if run_dir:
            remedy = (
                "leave it out to ask a cluster, or leave --cluster and nodes out to ask this"
                " machine"
            )
            raise InvalidInput(
                "mpsd status", [Problem("setting", "--run-dir", "", "is of this machine", remedy)]
            )
        with extra_needed("mpsd status --cluster", "kubectl"):
            show(
                "mpsd status",
                nodes or (),
                output,
                watch=watch,
                kubeconfig=kubeconfig,
                context=context,
            )
    with lasting():
        from mpsd.status.machine import show_machine
    show_machine(run_dir, output, watch=watch)


@takes(
    SORT,
    option("--interval", type=Between(0.2), metavar="SECONDS", help="Between two looks."),
    ITERATIONS._replace(names=("-n", "--iterations")),
    ONCE,
    OUTPUT,
    RUN_DIR,
)
def top(
    *,
    sort: str = "memory",
    interval: float = 1.0,
    iterations: int | None = None,
    once: bool = False,
    output: Format = Format.TEXT,
    run_dir: str | None = None,
) -> None:
    """Show the GPUs of this machine and who uses them now, live: a row a GPU, then a row a pod,
    container or program.

    Who uses more than was granted, or a GPU without a grant, comes first. SM is how much of the
    time kernels run, by NVML's samples of the last two seconds; ? where that is not known, as of
    one of several programs on one GPU, which MPS counts as one. Keys: m memory, s SM use, n name,
    arrows and PageUp and PageDown to scroll, q quits. If mpsd is being restarted, top waits for it.

    In a pipe each look stands below the one before; with -o json it is one object a line. Exits
    with 0, 1 where mpsd does not run here, 130 at Ctrl-C.

        mpsd top
        mpsd top --sort sm --interval 0.5
        mpsd top --once
        mpsd top -n 60 -o json > minute.jsonl
    """
    with lasting():
        from mpsd.platform.settings import settings
        from mpsd.status.machine import machine_top
        from mpsd.status.rules.top import Sort
        from mpsd.status.top_show import TopOptions, show_top

    chosen = settings(run_directory=run_dir)
    asked = TopOptions("mpsd top", Sort(sort), interval, iterations, output is Format.JSON, once)
    show_top(asked, lambda: machine_top(chosen))
