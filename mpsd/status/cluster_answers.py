"""Asks a cluster and shows it: what `mpsd status --cluster` and `kubectl mps` are.

The client of the Kubernetes API loads when it is needed: it takes half a second, and a look by
kubectl does without.
"""

import sys
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
from mpsd.platform.clock import wall_s
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
    """program: as complaints begin. rights: how an administrator gives those it needs."""

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

                remedies = (
                    (NotInstalled, _NOT_INSTALLED),
                    (Unavailable, _AWAY),
                    (Forbidden, self.rights),
                )
                words = [one_line(str(error))]
                words += [remedy for kind, remedy in remedies if isinstance(error, kind)]
                complaints().print(f"{self.program}: {'; '.join(words)}")
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
    """Shows these nodes, all where none is named, and ends the program. glance: the look that is
    under way; None to watch."""
    if watch:
        _watch(cluster, nodes, output)
    with unswept():
        status = (glance and glance.status()) or _looked(cluster, nodes)
        if not status.nodes:
            complaints().print(
                f"{cluster.program}: no node has reported anything yet; see whether the pods of the"
                " DaemonSet mpsd-agent run: kubectl get pods -A -l"
                " app.kubernetes.io/name=mpsd-agent"
            )
        print_frame(cluster_frame(status, output), output, console())
    sys.exit(ExitCode.YES if status.ready else ExitCode.NO)


def _watch(cluster: ClusterAccess, nodes: Sequence[str], output: StatusFormat) -> NoReturn:
    with extra_needed(cluster.program, "kubectl"), lasting_imports():
        from mpsd.status.cluster import pictures

    screen = Screen(output)
    beat_s = _BEAT_S if screen.redraws else float("inf")

    async def follow(kube: "Kube") -> None:
        async with aclosing(pictures(kube, nodes, beat_s)) as seen:
            async for picture in seen:
                screen.show(_picture_frame(picture, output))

    with screen.until_interrupted():
        cluster.ask(follow)
    raise AssertionError("a watch ends only by Ctrl-C or an error")


def cluster_tops(
    cluster: ClusterAccess, nodes: Sequence[str], namespace: str | None, begun: Glance
) -> "Callable[[], Top]":
    """Looks at the cluster each time it is called. begun: the first look, which may end the program
    with what is wrong; a later one raises NoLook."""
    from mpsd.status.rules.top import cluster_top

    first = [begun]

    def look() -> "Top":
        if first:
            status = first.pop().status() or _looked(cluster, nodes)
        else:
            glance = Glance(nodes, cluster.kubeconfig, cluster.context)
            status = glance.status() or _looked_again(cluster, nodes)
        return cluster_top(status, namespace)

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
    record = None
    if output in {StatusFormat.JSON, StatusFormat.YAML}:  # it takes half a second for 500 nodes
        record = msgspec.to_builtins(status)
    return Frame(record, cluster_parts(status, wide=output is StatusFormat.WIDE))


def _picture_frame(picture: "Picture", output: StatusFormat) -> Frame:
    shown = cluster_frame(picture.status, output)
    lines = [f"{name} has no MPSNode any more" for name in picture.gone]
    if picture.away is not None:
        words = "the API server has not answered"
        if picture.away_since is not None:
            words += f" for {lasting(wall_s() - picture.away_since)}"
        lines.append(f"{words} ({picture.away}); its last answer is shown")
    record = shown.record
    if isinstance(record, dict):
        record = record | {"away": picture.away}
    return Frame(record, [*shown.parts, *map(one_line, lines)])


def cluster_parts(status: ClusterStatus, *, wide: bool) -> Iterator[RenderableType]:
    """Each part is made when it is asked for: the first is on the screen while the others are."""
    nodes = status.nodes
    if nodes:
        yield node_table(nodes, status.now, wide=wide)
    gpus = [gpu for node in nodes for gpu in node.gpus]
    if gpus:
        yield table(CLUSTER_GPU_COLUMNS, gpus, wide=wide)
    rows = [row for node in nodes for row in placed(node.pods or (), node, node.name)]
    if rows:
        yield table(CLUSTER_POD_COLUMNS, rows, wide=wide)
    for node in nodes:
        for domain in node.domains:
            for line in chain(domain_lines(domain, status.now), causes_lines(domain, status.now)):
                yield one_line(f"{node.name}: {line}")
        yield from map(one_line, troubles(node, status.now))
