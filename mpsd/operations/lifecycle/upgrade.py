"""`kubectl mps upgrade`: replaces the control pods node by node, so that no program loses its GPU.

Each step is decided by what the cluster reports now (`lifecycle.rules.upgrade`); the first node
where one fails or takes too long ends it.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mpsd.model.mpsnode import read_mpsnode
from mpsd.model.times import lasting
from mpsd.operations.lifecycle import drain
from mpsd.operations.lifecycle.drain import (
    EVICT,
    Evictions,
    NotDone,
    ProgressReporter,
    answer,
    pause,
    say,
)
from mpsd.operations.lifecycle.rules import upgrade as rules
from mpsd.operations.lifecycle.rules.emptying import no_answer
from mpsd.operations.lifecycle.rules.upgrade import (
    ControlSet,
    Decision,
    Object,
    Standing,
    UpgradeStep,
    read_annotation,
)
from mpsd.platform.command_line import OUTPUT, flag, option, takes
from mpsd.platform.console import ExitCode, Format, print_json
from mpsd.platform.kube import (
    MPS_NODES,
    NODES,
    PODS,
    Conflict,
    Kube,
    NotFound,
    PatchKind,
    Resource,
    Unavailable,
)
from mpsd.status.cluster import NotInstalled, mpsnodes
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import CONTEXT, KUBECONFIG, NODE_NAMES

_DAEMON_SETS = Resource("apps/v1", "daemonsets")
_REVISIONS = Resource("apps/v1", "controllerrevisions")
_OBSERVED_S = 30.0  # until the API's controller has seen a change of the DaemonSet


@dataclass(frozen=True, slots=True)
class UpgradeStop:
    node: str
    step: UpgradeStep
    reason: str


@dataclass(slots=True)
class Upgrade:
    kube: Kube
    #: Of each step of a node.
    timeout_s: float
    evict: bool
    #: Of commands that continue.
    options: str
    #: What is so on the node where the walk is, a sentence each; none between nodes.
    stays: list[str]
    control: ControlSet = field(init=False)
    #: As last looked at; those that were begun first.
    standings: dict[str, Standing] = field(default_factory=dict)

    async def look(self, named: Sequence[str], selector: str) -> None:
        """The nodes of these names and labels, all where there are none. InvalidInput, NotDone,
        NotInstalled."""
        await self._read_control()
        names = list(named)
        if not names:
            nodes = await mpsnodes(self.kube, [])
            begun = [_name(one) for one in nodes if read_annotation(one) is not None]
            names = sorted({*rules.control_pods(await self._pods(), self.control.uid), *begun})
        if selector:
            selected = await self.kube.list(NODES, query={"labelSelector": selector})
            labelled = set(map(_name, selected))
            names = [name for name in names if name in labelled]
            if not names:
                raise NotDone(f"no node that {selector} selects has a pod of {self.control}")
        if names:  # of none it would give all
            things = await mpsnodes(self.kube, names)
            for thing in sorted(things, key=lambda one: (read_annotation(one) is None, _name(one))):
                await self._look_at(thing)

    def due(self) -> list[str]:
        seen = self.standings.items()
        return [name for name, one in seen if rules.is_due(one, self.control)]

    def check(self) -> None:
        """NotDone where a node that is due could not be drained, or the pods would not wait to be
        replaced."""
        if self.control.strategy != rules.ON_DELETE:
            why = f"updateStrategy is {self.control.strategy or 'missing'}"
            then = "so its pods are replaced while programs run on them"
            remedy = f"set it to {rules.ON_DELETE}, as the chart has it"
            raise NotDone(f"{self.control}: {why}, {then}; {remedy}")
        silent = (no_answer(self.standings[name].node, self.kube.now) for name in self.due())
        if reasons := list(filter(None, silent)):
            raise NotDone("; ".join([*reasons, "or name only the other nodes"]))

    async def run(self) -> UpgradeStop | None:
        """None where every node was upgraded."""
        await self._wait_for_revision()
        for name in self.due():
            if stopped := await self._node(name):
                return stopped
        return None

    async def _node(self, name: str) -> UpgradeStop | None:
        report = ProgressReporter()
        evictions = Evictions(self.kube, report)
        step = None
        since = time.monotonic()
        has_cordoned = False
        while True:
            try:
                seen = await self._look_again(name)
                if seen is None:
                    say(f"{name}: its MPSNode is gone, so there is nothing to upgrade")
                    self.stays.clear()
                    return None
                decided = rules.next_step(seen)
                if decided.step is not step:
                    step = decided.step
                    since = time.monotonic()
                report("step", rules.progress(seen, decided))
                self.stays[:] = rules.how_it_stands(self.control, seen, decided, self.options)
                if step is UpgradeStep.DONE:
                    self.stays.clear()
                    return None
                if reason := self._obstacle(decided, since, has_cordoned=has_cordoned):
                    return UpgradeStop(name, decided.step, reason)
                await self._do(seen, decided, evictions)
                has_cordoned = has_cordoned or decided.cordons
                report.away(None)
            except (Conflict, Unavailable) as error:
                if isinstance(error, Unavailable):  # a conflict: what is so now is looked at first
                    report.away(error)
                if self._is_late(since):
                    raise
            await pause()

    def _obstacle(self, decided: Decision, since: float, *, has_cordoned: bool) -> str:
        """Why the upgrade goes no further; empty where it does."""
        if decided.refusal:
            return decided.refusal
        if decided.cordons and has_cordoned:
            return "another client has put GPUs back into use meanwhile"
        if decided.why and self._is_late(since):
            return f"it took longer than {lasting(self.timeout_s)}: {decided.why}"
        return ""

    def _is_late(self, since: float) -> bool:
        return time.monotonic() - since >= self.timeout_s

    async def _do(self, seen: Standing, decided: Decision, evictions: Evictions) -> None:
        if decided.patch:
            await self.kube.patch(MPS_NODES, seen.node.name, decided.patch, PatchKind.MERGE)
        elif decided.step is UpgradeStep.DRAIN and self.evict:
            await evictions.look(seen.node, seen.gpus)
        elif decided.step is UpgradeStep.REPLACE and seen.pod:
            pod = seen.pod
            with suppress(NotFound):
                await self.kube.delete(PODS, pod.name, self.control.namespace, uid=pod.uid)

    # -- looking

    async def _read_control(self) -> ControlSet:
        found = await self.kube.list(_DAEMON_SETS, query={"labelSelector": rules.SELECTOR})
        if not found:
            raise NotInstalled(f"no DaemonSet has the labels {rules.SELECTOR}")
        if len(found) > 1:
            each = ", ".join(f"{one['metadata']['namespace']}/{_name(one)}" for one in found)
            several = f"several DaemonSets have the labels {rules.SELECTOR}: {each}"
            raise NotDone(f"{several}; remove them from all but one")
        query = {"labelSelector": rules.pod_selector(found[0])}
        revisions = await self.kube.list(_REVISIONS, found[0]["metadata"]["namespace"], query)
        self.control = rules.read_control_set(found[0], revisions)
        return self.control

    async def _pods(self, **fields: str) -> Sequence[Object]:
        return await self.kube.list(
            PODS, self.control.namespace, {"labelSelector": self.control.selector, **fields}
        )

    async def _look_again(self, name: str) -> Standing | None:
        """None where its MPSNode is gone: an upgrade goes on without that node."""
        await self._read_control()
        try:
            thing = await self.kube.get(MPS_NODES, name)
        except NotFound:
            self.standings.pop(name, None)
            return None
        return await self._look_at(thing)

    async def _look_at(self, thing: Object) -> Standing:
        name = _name(thing)
        pods = await self._pods(fieldSelector=f"spec.nodeName={name}")
        standing = self.standings[name] = Standing(
            node=read_mpsnode(thing, self.kube.now),
            pod=rules.control_pods(pods, self.control.uid).get(name),
            revision=self.control.revision,
            annotation=read_annotation(thing),
            version=str(thing["metadata"]["resourceVersion"]),
        )
        return standing

    async def _wait_for_revision(self) -> None:
        report = ProgressReporter()
        async for control, _last in drain.looks(self._read_control, _OBSERVED_S, report):
            if control.revision:
                break
        else:
            why = f"the cluster's controller has not processed its change within {_OBSERVED_S:g} s"
            raise NotDone(f"{self.control}: {why}; check that kube-controller-manager runs")
        for name in [*self.standings]:
            await self._look_again(name)


def _name(thing: Object) -> str:
    return str(thing["metadata"]["name"])


_RIGHTS = "docs/operations/upgrade-and-drain.md (Upgrade the control daemon) lists what it requires"


@takes(
    NODE_NAMES,
    option("-l", "--selector", metavar="LABELS", help="Only Nodes with these labels."),
    option("--timeout", metavar="TIME", help="Time limit for each step on a node."),
    EVICT,
    flag("--dry-run", help="Print what would be done, and change nothing."),
    OUTPUT,
    KUBECONFIG,
    CONTEXT,
)
def upgrade(
    *,
    nodes: list[str] | None = None,
    selector: str = "",
    timeout: str = "30m",
    evict: bool = False,
    dry_run: bool = False,
    output: Format = Format.TEXT,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Replace control pods that do not run the DaemonSet's newest revision; no program loses its
    GPU.

    One node after the other: drain it, delete the old pod, wait for the new pod and its domains,
    uncordon the GPUs that the upgrade has cordoned (not those that others have), wait until they
    serve. It stops at the first node that fails and prints how to continue or go back; the same
    command continues there. Exits with 0 when every node has the newest revision, 1 when not, 2
    after a usage error, 130 after Ctrl-C.

        kubectl mps upgrade --dry-run                 print what would be done
        kubectl mps upgrade gpu-a1 --timeout 2h       programs may take two hours
        kubectl mps upgrade -l pool=a --evict         evict their pods
    """
    cluster = ClusterAccess("kubectl mps upgrade", kubeconfig, context, _RIGHTS)
    timeout_s = drain.read_seconds(cluster.program, "--timeout", timeout)
    stays: list[str] = []

    async def upgrade_them(kube: Kube) -> tuple[Upgrade, UpgradeStop | None]:
        walk = Upgrade(kube, timeout_s, evict, drain.options(cluster), stays)
        await walk.look(nodes or (), selector)
        if (dry_run or not walk.due()) and output is Format.TEXT:
            answer(*rules.plan(walk.control, list(walk.standings.values())))
        if walk.due():
            walk.check()
        if dry_run:
            return walk, None
        return walk, await walk.run()

    walk, stopped = drain.ask(cluster, upgrade_them, stays)
    if output is Format.JSON:
        print_json(_record(walk, stopped))
    if stopped:
        where = f"{stopped.node}: stopped at: {stopped.step}"
        say(f"{cluster.program}: {where}: {stopped.reason}", *stays)
    elif not dry_run and output is Format.TEXT:
        answer(*_outcome(walk))
    sys.exit(ExitCode.of(stopped is None and not walk.due()))


def _outcome(walk: Upgrade) -> Iterator[str]:
    if walk.due():
        yield f"another client has changed {walk.control} meanwhile; run the same command again"
        yield from rules.plan(walk.control, list(walk.standings.values()))
        return
    number = len(walk.standings)
    nodes = "1 node" if number == 1 else f"{number} nodes"
    yield f"{walk.control}: revision {walk.control.revision} on {nodes}"


def _record(walk: Upgrade, stopped: UpgradeStop | None) -> dict[str, Any]:
    due = walk.due()
    nodes = [
        {"due": name in due, "step": rules.next_step(one).step, "standing": one}
        for name, one in walk.standings.items()
    ]
    return {"control": walk.control, "nodes": nodes, "stopped": stopped}
