"""Asks a cluster and shows it: what `mpsd status --cluster` and `kubectl mps` are.

One rule: whatever keeps a cluster from being asked is said with what to do about it, and is no traceback.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import NoReturn, TypeVar

from rich.console import RenderableType
from rich.text import Text

from mpsd.cli.frames import WIDEST, Frame, Screen, console, print_frame
from mpsd.cli.output import ExitCode, StatusFormat, complaints
from mpsd.cli.tables import CLUSTER_GPU_COLUMNS, CLUSTER_POD_COLUMNS, domain_line, node_table, suspects_line, table
from mpsd.cli.verbs import extra_needed
from mpsd.core.cluster_status import ClusterStatus, pod_rows, troubles
from mpsd.core.domain_states import State
from mpsd.core.durations import lasting
from mpsd.core.problem import printable
from mpsd.edge import logs
from mpsd.edge.kube import Away, Forbidden, Kube, KubeError
from mpsd.edge.kubeconfig import open_kube_of_user
from mpsd.roles.cluster_look import NotInstalled, Picture, look, pictures

Answer = TypeVar("Answer")

_BEAT_S = 5.0  # between two drawings on a terminal where nothing changes but the ages
_LONGEST = 2000
_RIGHTS = (
    "an administrator gives it: kubectl create clusterrole mpsd-look --verb=get,list,watch --resource=mpsnodes.mpsd.io"
    " (patch too for cordon), and a clusterrolebinding to it"
)
_REMEDIES: dict[type[KubeError], str] = {
    NotInstalled: "mpsd is not installed there: kubectl apply -k manifests; or name another cluster with --context",
    Away: "see whether `kubectl version` gets an answer, or name another cluster with --context",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Which cluster, and who asks. program: as complaints begin. rights: how an administrator gives those it needs."""

    program: str
    kubeconfig: str | None
    context: str | None
    rights: str = _RIGHTS

    def ask(self, question: Callable[[Kube], Awaitable[Answer]]) -> Answer:
        """The answer; ends the program with NO and what to do where there is none."""
        logs.be_silent()

        async def main() -> Answer:
            kube = open_kube_of_user(self.kubeconfig, self.context)
            try:
                return await question(kube)
            finally:
                kube.close()

        try:
            with extra_needed(self.program, "kubectl"):
                return asyncio.run(main())
        except KubeError as error:
            known = _REMEDIES | {Forbidden: self.rights}
            remedy = next((words for kind, words in known.items() if isinstance(error, kind)), "")
            complaints().print(f"{self.program}: {printable(str(error), _LONGEST)}{'; ' if remedy else ''}{remedy}")
            sys.exit(ExitCode.NO)


def show_cluster(cluster: Cluster, nodes: Sequence[str], output: StatusFormat, *, watch: bool) -> NoReturn:
    """Shows these nodes, all where none is named, and ends the program with what that answers."""
    if watch:
        _watch(cluster, nodes, output)
    status = cluster.ask(lambda kube: look(kube, nodes))
    if not status.nodes:
        why = "no node has told anything yet; see whether the pods of the DaemonSet mpsd-agent run:"
        complaints().print(f"{cluster.program}: {why} kubectl get pods -A -l app.kubernetes.io/name=mpsd-agent")
    print_frame(cluster_frame(status, output), output, console(WIDEST))
    sys.exit(ExitCode.YES if status.ready else ExitCode.NO)


def _watch(cluster: Cluster, nodes: Sequence[str], output: StatusFormat) -> NoReturn:
    screen = Screen(output)

    async def follow(kube: Kube) -> None:
        beat_s = _BEAT_S if screen.redraws else float("inf")
        async with aclosing(pictures(kube, nodes, beat_s)) as seen:
            async for picture in seen:
                screen.show(_picture_frame(picture, output))

    with screen.until_interrupted():
        cluster.ask(follow)
    raise AssertionError("a watch ends only by Ctrl-C or an error")


def cluster_frame(status: ClusterStatus, output: StatusFormat) -> Frame:
    return Frame(asdict(status), cluster_parts(status, wide=output is StatusFormat.WIDE))


def _picture_frame(picture: Picture, output: StatusFormat) -> Frame:
    """away: why nothing is heard at the moment, for programs too."""
    shown = cluster_frame(picture.status, output)
    lines = [f"{name} has no MPSNode any more" for name in picture.gone]
    if picture.away is not None:
        since = "" if picture.away_since is None else f" for {lasting(time.time() - picture.away_since)}"
        lines.append(f"nothing is heard from the API server{since} ({picture.away}); shown is what was heard last")
    assert isinstance(shown.record, dict)
    return Frame(shown.record | {"away": picture.away}, [*shown.parts, *map(_line, lines)])


def cluster_parts(status: ClusterStatus, *, wide: bool) -> list[RenderableType]:
    """The cluster for people: nodes, GPUs, pods, and what is to be said of them."""
    nodes = status.nodes
    pods = [row for node in nodes for row in pod_rows(node)]
    gpus = [gpu for node in nodes for gpu in node.gpus]
    parts: list[RenderableType] = []
    parts += [node_table(nodes, status.now, wide=wide)] if nodes else []
    parts += [table(CLUSTER_GPU_COLUMNS, gpus, wide=wide)] if gpus else []
    parts += [table(CLUSTER_POD_COLUMNS, pods, wide=wide)] if pods else []
    for node in nodes:
        unready = [domain for domain in node.domains if domain.state != State.READY]
        parts += [_line(domain_line(domain, status.now)) for domain in unready]
        parts += [_line(suspects_line(domain)) for domain in node.domains if domain.suspects]
        parts += [_line(sentence) for sentence in troubles(node, status.now)]
    return parts


def _line(sentence: str) -> Text:
    return Text(printable(sentence, _LONGEST))
