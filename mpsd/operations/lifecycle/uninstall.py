"""`kubectl mps uninstall`: takes mpsd off a cluster, when nobody uses it."""

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from mpsd.model.problem import InvalidInput, Problem
from mpsd.operations.lifecycle.cluster_uninstall import Found, Uninstall, find, users
from mpsd.operations.lifecycle.waiting import ask_and_say_what_stays, end, read_seconds, say
from mpsd.platform.kube import Kube
from mpsd.platform.output import answers, complaints, one_line
from mpsd.status.cluster_answers import Cluster
from mpsd.status.cluster_options import Context, Kubeconfig

_RIGHTS = "it takes an administrator of the cluster: somebody who may list every kind of objects"
_REMAINS = (
    "what remains: labels of nodes (ack.node.gpu.schedule), MPSReady and numbers of devices in their status, images on"
    " them, namespaces that others made or use; docs/operations/upgrade-and-drain.md (Uninstall) says how to remove it"
)

Force = Annotated[bool, typer.Option("--force", help="Although pods hold GPUs: their programs lose them.")]
Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="Of each wait until pods are gone.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def uninstall(
    force: Force = False,
    timeout: Timeout = "10m",
    dry_run: DryRun = False,
    yes: Yes = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Take mpsd off the cluster. Refused while anybody uses a GPU that it shares, or that is not known.

    Everything with the label app.kubernetes.io/part-of=mpsd is deleted, in an order in which nothing is left waiting:
    webhooks, agents, control daemons (which put the compute modes back), the rest, rights, its namespace unless
    something of others is in it, and at last the definition of MPSNode. It asks before it deletes; the same command
    again goes on where it stopped. Exits with 0 when all is gone, 1 when not, 2 where it would have to ask and there is
    no terminal, 130 at Ctrl-C.

        kubectl mps uninstall --dry-run
        kubectl mps drain gpu-a1 && kubectl mps uninstall
        kubectl mps uninstall --yes --timeout 20m
    """
    cluster = Cluster("kubectl mps uninstall", kubeconfig, context, _RIGHTS)
    timeout_s = read_seconds(cluster.program, "--timeout", timeout)
    found = cluster.ask(find)
    for why in found.unseen:
        say(f"not looked for: {why}")
    if not found.things:
        answers().print("nothing with the label app.kubernetes.io/part-of=mpsd is in this cluster")
        answers().print(_REMAINS)
        end(well=True)
    if dry_run:
        _show(found)
    if found.users and not force:
        _refuse(cluster, found.users)
    for user in found.users:
        say(f"loses its GPU: {user}")
    if dry_run:
        end(well=True)
    if not yes:
        _show(found)
        _confirm(cluster, found)
    begun: list[bool] = []

    async def uninstall_it(kube: Kube) -> list[str]:
        """Who has come since it was asked."""
        if not force and (there := await users(kube)):
            return there
        begun.append(True)
        await Uninstall(kube, found, timeout_s, say, lambda sentence: answers().print(one_line(sentence))).run()
        return []

    def stays() -> str:
        return "to go on: the same command again; what is listed above as deleted is gone" if begun else ""

    if there := ask_and_say_what_stays(cluster, uninstall_it, stays):
        _refuse(cluster, there)
    answers().print(_REMAINS)
    end(well=True)


def _show(found: Found) -> None:
    for thing in found.things:
        answers().print(one_line(str(thing)))


def _refuse(cluster: Cluster, there: Sequence[str]) -> NoReturn:
    say(f"{cluster.program}: refused, GPUs are in use or it is not known whether they are:")
    for user in there:
        say(f"  {user}")
    say("empty the nodes first (kubectl mps drain NODE); or --force, and these programs lose their GPU")
    end(well=False)


def _confirm(cluster: Cluster, found: Found) -> None:
    """Ends the program where nobody agrees."""
    if not sys.stdin.isatty():
        remedy = "add --yes, or run it on a terminal"
        raise InvalidInput(
            cluster.program, [Problem("setting", "--yes", "", "is needed where nobody can be asked", remedy)]
        )
    complaints().print(f"Delete these {len(found.things)} objects? [y/N] ", end="")
    try:
        answer = input()
    except (EOFError, KeyboardInterrupt):
        answer = ""
        complaints().print()
    if answer.strip().lower() not in {"y", "yes"}:
        say(f"{cluster.program}: nothing was deleted")
        end(well=False)
