"""`mpsd top`: the GPUs of this machine and who uses them, live."""

from typing import Annotated

import typer

from mpsd.model.node_status import NodeStatus
from mpsd.platform import local_api
from mpsd.platform.console import Format
from mpsd.platform.options import OutputFormat, RunDirectory
from mpsd.platform.settings import Settings, settings
from mpsd.status.grant_options import named
from mpsd.status.rules.top import Sort, Top, node_top
from mpsd.status.rules.use import UseStatus
from mpsd.status.top_show import NoLook, TopOptions, show_top

# The options of `mpsd top` and `kubectl mps top`.

SortBy = Annotated[Sort, typer.Option("--sort", help="What the rows are sorted by; who is over its limit comes first.")]
Once = Annotated[bool, typer.Option("--once", help="One look, without control codes, for a pipe or a file.")]
Iterations = Annotated[
    int | None,
    typer.Option("--iterations", metavar="NUMBER", help="So many looks, then end.", min=1, show_default=False),
]


_OK = 200


def top(
    sort: SortBy = Sort.MEMORY,
    interval: Annotated[float, typer.Option("--interval", metavar="SECONDS", help="Between two looks.", min=0.2)] = 1.0,
    iterations: Annotated[
        int | None,
        typer.Option(
            "-n", "--iterations", metavar="NUMBER", help="So many looks, then end.", min=1, show_default=False
        ),
    ] = None,
    once: Once = False,
    output: OutputFormat = Format.TEXT,
    run_dir: RunDirectory = None,
) -> None:
    """Show the GPUs of this machine and who uses them now, live: a row a GPU, then a row a pod, container or program.

    Who uses more than was granted, or a GPU without a grant, comes first. SM is how much of the time kernels run, by
    NVML's samples of the last two seconds; ? where that cannot be told, as of one of several programs on one GPU, which
    MPS counts as one. Keys: m memory, s SM use, n name, arrows and PageUp and PageDown to scroll, q quits. An mpsd that
    is being restarted is waited for.

    In a pipe each look stands below the one before; with -o json it is one object a line. Exits with 0, 1 where mpsd
    does not run here, 130 at Ctrl-C.

        mpsd top
        mpsd top --sort sm --interval 0.5
        mpsd top --once
        mpsd top -n 60 -o json > minute.jsonl
    """
    chosen = settings(run_directory=run_dir)
    asked = TopOptions("mpsd top", sort, interval, 1 if once else iterations, output is Format.JSON, once)
    show_top(asked, lambda: _look(chosen))


def _look(chosen: Settings) -> Top:
    """Away where nobody answers, in time and in a form that is known."""
    try:
        _code, body = local_api.ask(chosen.socket_to_ask, "GET", "/v1/node")
        node = local_api.read(body, NodeStatus)
        code, body = local_api.ask(chosen.socket_to_ask, "GET", "/v1/use")
        use = local_api.read(body, UseStatus) if code == _OK else None  # an agent that is older does not know it
    except (local_api.NotRunning, TimeoutError) as error:
        raise NoLook(str(error)) from None
    return node_top(node, UseStatus(use.now, named(use.grants, chosen), use.gpus, use.unknown) if use else None)
