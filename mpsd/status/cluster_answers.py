"""Asks a cluster and shows it: what `mpsd status --cluster` and `kubectl mps` are.

Whatever keeps a cluster from being asked is reported with what to do about it, and is no traceback.
The client of the Kubernetes API loads when it is needed: it takes half a second, and a look by
kubectl does without.
"""

import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NoReturn, TypeVar

import msgspec
from rich.console import RenderableType

from mpsd.model.cluster_status import ClusterStatus, placed, troubles
from mpsd.model.problem import InvalidInput
from mpsd.model.times import lasting
from mpsd.platform.console import ExitCode, StatusFormat, complaints, extra_needed, one_line
from mpsd.platform.imports import lasting as lasting_imports
from mpsd.platform.imports import unswept
from mpsd.platform.terminal import Frame, Screen, console, print_frame
from mpsd.status.glance import Glance
from mpsd.status.tables import (
    CLUSTER_GPU_COLUMNS,
    CLUSTER_POD_COLUMNS,
    causes_lines,
    domain_lines,
    node_table,
    table,
)

if TYPE_CHECKING:
    from mpsd.platform.kube import Kube
    from mpsd.status.cluster import Picture
    from mpsd.status.rules.top import Top

Answer = TypeVar("Answer")

_BEAT_S = 5.0  # between two drawings on a terminal where nothing changes but the ages
_RIGHTS = (
    "an administrator gives it: kubectl create clusterrole mpsd-look --verb=get,list,watch"
    " --resource=mpsnodes.mpsd.io (patch too for cordon), and a clusterrolebinding to it"
)
_NOT_INSTALLED = (
    "mpsd is not installed there: docs/install.md; or name another cluster with --context"
)
_AWAY = "see whether `kubectl version` gets an answer, or name another cluster with --context"


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Which cluster, and who asks. program: as complaints begin. rights: how an administrator gives
    those it needs."""

    program: str
    kubeconfig: str | None
    context: str | None
    rights: str = _RIGHTS

    def ask(self, question: "Callable[[Kube], Awaitable[Answer]]") -> Answer:
        """The answer; ends the program with NO and what to do where there is none."""
        with extra_needed(self.program, "kubectl"):
            from mpsd.platform.kube import Forbidden, KubeError, Unavailable

            try:
                return self.answer(question)
            except KubeError as error:
                from mpsd.status.cluster import NotInstalled

                known: dict[type, str] = {
                    NotInstalled: _NOT_INSTALLED,
                    Unavailable: _AWAY,
                    Forbidden: self.rights,
                }
                remedy = next(
                    (f"; {words}" for kind, words in known.items() if isinstance(error, kind)), ""
                )
                complaints().print(f"{self.program}: {one_line(str(error))}{remedy}")
                sys.exit(ExitCode.NO)

    def answer(
        self, question: "Callable[[Kube], Awaitable[Answer]]", deadline_s: float | None = None
    ) -> Answer:
        """KubeError where there is none; TimeoutError after `deadline_s`."""
        with lasting_imports():
            import asyncio

            from mpsd.platform import logs
            from mpsd.platform.kube_access import open_kube_of_user
        logs.be_silent()

        async def main() -> Answer:
            kube = open_kube_of_user(self.kubeconfig, self.context)
            try:
                async with asyncio.timeout(deadline_s):
                    return await question(kube)
            finally:
                kube.close()

        return asyncio.run(main())


def _looked(cluster: ClusterAccess, nodes: Sequence[str]) -> ClusterStatus:
    with extra_needed(cluster.program, "kubectl"):
        from mpsd.status.cluster import look

    return cluster.ask(lambda kube: look(kube, nodes))


def show_cluster(
    cluster: ClusterAccess,
    nodes: Sequence[str],
    output: StatusFormat,
    *,
    watch: bool,
    glance: Glance | None,
) -> NoReturn:
    """Shows these nodes, all where none is named, and ends the program with what that answers.
    glance: the look that is under way; None to watch, and where kubectl is not to be asked."""
    if watch:
        _watch(cluster, nodes, output)
    with unswept():
        status = (glance.status() if glance else None) or _looked(cluster, nodes)
        if not status.nodes:
            why = (
                "no node has reported anything yet; see whether the pods of the DaemonSet"
                " mpsd-agent run:"
            )
            complaints().print(
                f"{cluster.program}: {why} kubectl get pods -A -l app.kubernetes.io/name=mpsd-agent"
            )
        print_frame(cluster_frame(status, output), output, console())
    sys.exit(ExitCode.YES if status.ready else ExitCode.NO)


def _watch(cluster: ClusterAccess, nodes: Sequence[str], output: StatusFormat) -> NoReturn:
    with extra_needed(cluster.program, "kubectl"), lasting_imports():
        from mpsd.status.cluster import pictures

    screen = Screen(output)

    async def follow(kube: "Kube") -> None:
        async with aclosing(
            pictures(kube, nodes, _BEAT_S if screen.redraws else float("inf"))
        ) as seen:
            async for picture in seen:
                screen.show(_picture_frame(picture, output))

    with screen.until_interrupted():
        cluster.ask(follow)
    raise AssertionError("a watch ends only by Ctrl-C or an error")


def cluster_tops(
    cluster: ClusterAccess, nodes: Sequence[str], namespace: str | None, begun: Glance
) -> "Callable[[], Top]":
    """Looks at the cluster each time it is called. begun: the first look, which is under way.

    The first look may end the program with what is wrong; a later one raises NoLook.
    """
    from mpsd.status.rules.top import cluster_top

    is_first = True

    def look() -> "Top":
        nonlocal is_first
        glance = begun if is_first else Glance(nodes, cluster.kubeconfig, cluster.context)
        otherwise = _looked if is_first else _looked_again
        is_first = False
        return cluster_top(glance.status() or otherwise(cluster, nodes), namespace)

    return look


def _looked_again(cluster: ClusterAccess, nodes: Sequence[str]) -> ClusterStatus:
    from mpsd.platform.kube import KubeError
    from mpsd.status.cluster import look
    from mpsd.status.rules.top import NoLook

    try:
        return cluster.answer(lambda kube: look(kube, nodes))
    except KubeError as error:
        raise NoLook(str(error)) from None
    except InvalidInput as error:
        raise NoLook("; ".join(problem.fault for problem in error.problems)) from None


def cluster_frame(status: ClusterStatus, output: StatusFormat) -> Frame:
    """The record for programs only where they are who reads: for 500 nodes it takes half a
    second."""
    is_record = output in {StatusFormat.JSON, StatusFormat.YAML}
    record = msgspec.to_builtins(status) if is_record else None
    return Frame(record, cluster_parts(status, wide=output is StatusFormat.WIDE))


def _picture_frame(picture: "Picture", output: StatusFormat) -> Frame:
    """away: why nothing is heard at the moment, for programs too."""
    shown = cluster_frame(picture.status, output)
    lines = [f"{name} has no MPSNode any more" for name in picture.gone]
    if picture.away is not None:
        since = (
            ""
            if picture.away_since is None
            else f" for {lasting(time.time() - picture.away_since)}"
        )
        lines.append(
            f"the API server has not answered{since} ({picture.away}); its last answer is shown"
        )
    record = shown.record | {"away": picture.away} if isinstance(shown.record, dict) else None
    return Frame(record, [*shown.parts, *map(one_line, lines)])


def cluster_parts(status: ClusterStatus, *, wide: bool) -> Iterator[RenderableType]:
    """The cluster for people: nodes, GPUs, pods, and what is to be said of them. Each is made when
    it is asked for, so that the first is on the screen while the others are made."""
    nodes = status.nodes
    if nodes:
        yield node_table(nodes, status.now, wide=wide)
    if any(node.gpus for node in nodes):
        yield table(CLUSTER_GPU_COLUMNS, (gpu for node in nodes for gpu in node.gpus), wide=wide)
    if any(node.pods for node in nodes):
        rows = chain.from_iterable(placed(node.pods or (), node, node.name) for node in nodes)
        yield table(CLUSTER_POD_COLUMNS, rows, wide=wide)
    for node in nodes:
        for domain in node.domains:
            for line in chain(domain_lines(domain, status.now), causes_lines(domain, status.now)):
                yield one_line(f"{node.name}: {line}")
        yield from map(one_line, troubles(node, status.now))
