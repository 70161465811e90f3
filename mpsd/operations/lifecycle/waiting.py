"""What the verbs that change a cluster and wait share: times, progress, and what stays after an interruption.

Progress goes to standard error, the answer to standard output.
"""

import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, NoReturn, TypeVar

import typer

from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.platform.console import ExitCode, complaints, one_line
from mpsd.platform.imports import INTERRUPTED
from mpsd.platform.kube import Kube
from mpsd.platform.settings import seconds
from mpsd.status.cluster_answers import ClusterAccess

Answer = TypeVar("Answer")

DRAIN_RIGHTS = "docs/operations/upgrade-and-drain.md (Drain a node) lists the rights that this requires"

Evict = Annotated[
    bool, typer.Option("--evict", help="Evict the pods that hold something there; disruption budgets are kept.")
]


def read_seconds(command: str, option: str, text: str, *, zero: bool = False) -> float:
    """The seconds of an option; InvalidInput for what is no time. zero: whether 0 is allowed, for no wait."""
    try:
        found = seconds(text)
        if not found and not zero:
            raise ValueError("write a time over 0, such as 10m")
    except ValueError as error:
        raise InvalidInput(command, [Problem("setting", option, shown(text), "cannot be used", str(error))]) from None
    return found


def say(sentence: str) -> None:
    """Prints a line of progress."""
    complaints().print(one_line(sentence))


def command(cluster: ClusterAccess, words: Sequence[str]) -> str:
    """A command of this program about the same cluster, to be copied into a shell."""
    return shlex.join(["kubectl", "mps", *words]) + options(cluster)


def options(cluster: ClusterAccess) -> str:
    """The options that name the cluster, with a leading blank; empty where there are none."""
    words = ["--kubeconfig", cluster.kubeconfig] if cluster.kubeconfig else []
    words += ["--context", cluster.context] if cluster.context else []
    return f" {shlex.join(words)}" if words else ""


def ask_and_say_what_stays(
    cluster: ClusterAccess, question: Callable[[Kube], Awaitable[Answer]], stays: Callable[[], str]
) -> Answer:
    """As `cluster.ask`; after an interruption or failure half way, what stays is printed, a line each."""

    def tell() -> None:
        for sentence in stays().splitlines():
            say(sentence)

    try:
        return cluster.ask(question)
    except (SystemExit, InvalidInput):
        tell()
        raise
    except KeyboardInterrupt:
        complaints().print(f"{cluster.program}: interrupted")
        tell()
        sys.exit(INTERRUPTED)


def end(*, well: bool) -> NoReturn:
    sys.exit(ExitCode.YES if well else ExitCode.NO)
