"""The options of verbs that ask a cluster, in kubectl's words.

One rule: nothing here is imported that only a question needs; shell completion asks it with a short deadline.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from mpsd.platform.output import StatusFormat

Kubeconfig = Annotated[
    str | None,
    typer.Option("--kubeconfig", metavar="FILE", help="As kubectl finds it, where not given.", show_default=False),
]
Context = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="Which cluster of the kubeconfig.", show_default=False),
]
StatusOutput = Annotated[
    StatusFormat,
    typer.Option("-o", "--output", metavar="FORMAT", help="text or wide for people, json or yaml for machines."),
]
Watch = Annotated[
    bool, typer.Option("-w", "--watch", help="Show it again at every change, until Ctrl-C (exit code 130).")
]


def _completed(kind: str) -> Callable[..., list[str]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        return [name for name in _known(kind, ctx.params) if name.startswith(incomplete)]

    return complete


def _known(kind: str, given: dict[str, Any]) -> Iterator[str]:
    """Nothing where the cluster cannot be asked: completion has no way to complain."""
    from mpsd.status import cluster_names

    try:
        found = {"nodes": cluster_names.nodes, "gpus": cluster_names.gpus, "pods": cluster_names.pods}[kind](given)
    except Exception:  # whatever it is, a person who presses Tab is not to see a traceback
        return
    yield from found


NodeNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NODE]...", help="Of these nodes.", show_default=False, autocompletion=_completed("nodes")),
]
NodeName = Annotated[
    str, typer.Argument(metavar="NODE", help="The node.", show_default=False, autocompletion=_completed("nodes"))
]
PodName = Annotated[
    str | None,
    typer.Argument(
        metavar="POD", help="The pod, or what made it.", show_default=False, autocompletion=_completed("pods")
    ),
]
GpuNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[GPU]...",
        help="Such as gpu0, or a UUID; all where none is named.",
        show_default=False,
        autocompletion=_completed("gpus"),
    ),
]
GpuOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="Such as gpu0, or a UUID; again for each; all where none is named.",
        show_default=False,
        autocompletion=_completed("gpus"),
    ),
]
