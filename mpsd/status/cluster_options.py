"""The options of verbs that ask a cluster, in kubectl's words.

One rule: nothing here is imported that only a question needs; shell completion asks it with a short deadline.
"""

import io
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from typing import Annotated, Any

import typer

from mpsd.platform.console import StatusFormat

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


# What kubectl asks its plugins at Tab, for the programs that are such plugins.
#
# One rule: a line a word, then what cobra calls a directive.
# https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/ and kubectl's own pkg/cmd/plugin.

_NO_FILES = 4  # cobra's ShellCompDirectiveNoFileComp


def offer(app: typer.Typer, program: str) -> None:
    """Says what may follow the words of the command line, the last of which is begun."""
    *words, incomplete = sys.argv[1:] or [""]
    line = shlex.join([program, *words]) + " " + (shlex.quote(incomplete) if incomplete else "")
    # typer's way to ask for completions is the environment; fish's form is a line a word, its help after a tab.
    asked = {
        f"_{program.replace('-', '_').upper()}_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    os.environ |= asked
    try:
        with redirect_stdout(io.StringIO()) as offered, suppress(SystemExit):
            app(prog_name=program)
    finally:
        for name in asked:
            del os.environ[name]
    lines = [line for line in offered.getvalue().splitlines() if line]  # an empty one would be offered too
    print(*lines, f":{_NO_FILES}", sep="\n")
