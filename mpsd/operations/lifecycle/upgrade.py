"""`kubectl mps upgrade`: replaces the control pods node by node, so that no program loses its GPU.

Each step is decided by what the cluster reports now (`lifecycle.rules.upgrade`), done once, and looked at again; the
first node where a step fails or takes too long ends the upgrade.

Rights of whoever does it: get, list and patch of mpsnodes.mpsd.io; list of daemonsets in all namespaces; in that of the
DaemonSet list of controllerrevisions, list and delete of pods, and with an image patch of daemonsets; with a selector
list of nodes; to evict those of `kubectl mps drain`.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from mpsd.model.mpsnode_reading import read_mpsnode
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.operations.lifecycle.cordon import PAUSE_S, Evict, ask_and_say_what_stays, end, options, read_seconds, say
from mpsd.operations.lifecycle.drain import Evictions, ProgressReporter, Say
from mpsd.operations.lifecycle.rules.drain import holders, no_answer
from mpsd.operations.lifecycle.rules.upgrade import (
    ON_DELETE,
    SELECTOR,
    ControlSet,
    Decision,
    Standing,
    UpgradeStep,
    control_pods,
    how_it_stands,
    is_due,
    next_step,
    patch_of,
    plan,
    pod_selector,
    progress,
    read_control_set,
    read_mark,
    too_slow,
)
from mpsd.platform.console import Format, answers, one_line, print_json
from mpsd.platform.kube import (
    MPS_NODES,
    NODES,
    PODS,
    Conflict,
    Kube,
    KubeError,
    NotFound,
    Object,
    PatchKind,
    Resource,
    Unavailable,
)
from mpsd.platform.options import OutputFormat
from mpsd.status.cluster import NotInstalled, mpsnodes
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, Kubeconfig, NodeNames

_DAEMON_SETS, _REVISIONS = Resource("apps/v1", "daemonsets"), Resource("apps/v1", "controllerrevisions")
_WAITS = frozenset(
    {UpgradeStep.DRAIN, UpgradeStep.REPLACE, UpgradeStep.START, UpgradeStep.SERVE}
)  # the others are done, and what follows is seen
_OBSERVED_S = 30.0  # until the API's controller has seen a change of the DaemonSet


class NotUpgradable(KubeError):
    """The upgrade cannot begin, and nothing was changed."""


@dataclass(frozen=True, slots=True)
class UpgradeSelection:
    """nodes: of these names, all where none is named. selector: of the Nodes' labels, empty for any. timeout_s: of each
    step of a node. image None: the one that the DaemonSet has.
    """

    nodes: Sequence[str]
    selector: str
    timeout_s: float
    evict: bool
    image: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a walk stopped, and why."""

    standing: Standing
    step: UpgradeStep
    why: str


class Upgrade:
    """One walk. control and standings: as last looked at, of the nodes that were asked for, in their order."""

    def __init__(self, kube: Kube, wanted: UpgradeSelection, say: Say) -> None:
        self._kube = kube
        self._wanted = wanted
        self._say = say
        self._versions: dict[str, str] = {}
        self._selector = ""
        self.control: ControlSet | None = None
        self.standings: dict[str, Standing] = {}
        self.step: tuple[str, UpgradeStep] | None = None  # where the walk is; None between nodes

    async def look(self) -> None:
        """InvalidInput for nodes that are not there, NotUpgradable or NotInstalled where nothing can be upgraded."""
        names = await self._names()
        for thing in await mpsnodes(self._kube, names) if names else ():  # of no names it would give all
            await self._look_at(thing)
        self._begun_first()

    def due(self) -> list[str]:
        assert self.control
        return [name for name, one in self.standings.items() if is_due(one, self.control, self._wanted.image)]

    def check(self) -> None:
        """NotUpgradable where a node that is due could not be drained, or the pods would not wait to be replaced."""
        assert self.control
        if self.control.strategy != ON_DELETE:
            strategy = self.control.strategy or "missing"
            why = f"updateStrategy is {strategy}, so its pods are replaced with programs on them"
            raise NotUpgradable(f"{self.control}: {why}; set it to {ON_DELETE}, as manifests/base has it")
        silent = [no_answer(self.standings[name].node, time.time()) for name in self.due()]
        if reasons := [reason for reason in silent if reason]:
            raise NotUpgradable("; ".join([*reasons, "or name the other nodes alone"]))

    async def run(self) -> Failure | None:
        """Walks. None where every node was upgraded."""
        await self._set_image()
        for name in self.due():
            if failure := await self._node(name):
                return failure
        return None

    # -- one node ------------------------------------------------------------------------------------------------

    async def _node(self, name: str) -> Failure | None:
        report, evictions = ProgressReporter(self._say), Evictions(self._kube, self._say)
        step, since, cordoned = None, time.monotonic(), False
        while True:
            try:
                await self._look_again(name)
                seen = self.standings[name]
                decided = next_step(seen)
                if decided.step is not step:
                    step, since = decided.step, time.monotonic()
                    self.step = (name, step)
                report("step", progress(seen, step, decided.why))
                if step is UpgradeStep.DONE:
                    self.step = None
                    return None
                too_long = time.monotonic() - since >= self._wanted.timeout_s
                if why := self._given_up(seen, decided, too_long=too_long, cordoned=cordoned):
                    return Failure(seen, step, why)
                await self._do(seen, step, evictions)
                cordoned = cordoned or step is UpgradeStep.CORDON
                report.away(None)
            except Conflict:  # somebody was faster: what is so now is looked at first
                await asyncio.sleep(PAUSE_S)
                continue
            except Unavailable as error:
                report.away(error)
                if time.monotonic() - since >= self._wanted.timeout_s:
                    raise
                await asyncio.sleep(PAUSE_S)
            if step in _WAITS:
                await asyncio.sleep(PAUSE_S)

    def _given_up(self, seen: Standing, decided: Decision, *, too_long: bool, cordoned: bool) -> str:
        """Why it goes no further on this node; empty where it does."""
        if decided.step is UpgradeStep.STUCK:
            return decided.why
        if decided.step is UpgradeStep.CORDON and cordoned:
            return "another client has put GPUs back into use meanwhile"
        return too_slow(seen, decided.step, decided.why, self._wanted.timeout_s) if too_long else ""

    async def _do(self, seen: Standing, step: UpgradeStep, evictions: Evictions) -> None:
        name = seen.node.name
        match step:
            case UpgradeStep.CORDON | UpgradeStep.PUT_BACK | UpgradeStep.FINISH:
                await self._kube.patch(MPS_NODES, name, patch_of(step, seen, self._versions[name]), PatchKind.MERGE)
            case UpgradeStep.DRAIN if self._wanted.evict:
                await evictions.look(seen.node, seen.gpus)
            case UpgradeStep.END if seen.pod and self.control:
                with suppress(NotFound):
                    await self._kube.delete(PODS, seen.pod.name, self.control.namespace, uid=seen.pod.uid)
            case _:
                pass  # somebody else is at work

    # -- looking -------------------------------------------------------------------------------------------------

    async def _names(self) -> list[str]:
        """The nodes to look at: those with a control pod, of those that were asked for."""
        daemon_set = await self._read_control()
        placed = await self._pods(daemon_set)
        if not self._wanted.nodes and not self._wanted.selector:
            with_mark = [str(one["metadata"]["name"]) for one in await mpsnodes(self._kube, []) if _is_marked(one)]
            return sorted({*placed, *with_mark})
        names = list(dict.fromkeys(self._wanted.nodes)) or sorted(placed)
        if self._wanted.selector:
            query = {"labelSelector": self._wanted.selector}
            selected = {one["metadata"]["name"] for one in await self._kube.list(NODES, query=query)}
            names = [name for name in names if name in selected]
        if not names:
            raise NotUpgradable(f"no node that {self._wanted.selector} selects has a pod of {self.control}")
        strange = [name for name in names if name not in placed]
        known = {str(one["metadata"]["name"]) for one in await mpsnodes(self._kube, [])} if strange else set()
        if away := [name for name in strange if name not in known]:
            nobody = f"no node has one: see the events of {self.control}"
            remedy = f"name one of {', '.join(sorted(placed))}" if placed else nobody
            what = f"has no pod of {self.control}"
            problems = [Problem("node-unknown", f"node {shown(name)}", "", what, remedy) for name in away]
            raise InvalidInput("the cluster", problems)
        return names

    async def _read_control(self) -> Object:
        found = await self._kube.list(_DAEMON_SETS, query={"labelSelector": SELECTOR})
        if not found:
            raise NotInstalled(f"no DaemonSet has the labels {SELECTOR}")
        if len(found) > 1:
            each = ", ".join(f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in found)
            raise NotUpgradable(f"several DaemonSets have the labels {SELECTOR}: {each}; leave them to one")
        (daemon_set,) = found
        self._selector = pod_selector(daemon_set)
        query = {"labelSelector": self._selector}
        revisions = await self._kube.list(_REVISIONS, daemon_set["metadata"]["namespace"], query)
        self.control = read_control_set(daemon_set, revisions)
        return daemon_set

    async def _pods(self, daemon_set: Object) -> Iterable[str]:
        query = {"labelSelector": self._selector}
        pods = await self._kube.list(PODS, daemon_set["metadata"]["namespace"], query)
        return control_pods(pods, daemon_set["metadata"]["uid"]).keys()

    async def _look_again(self, name: str) -> None:
        await self._read_control()
        (thing,) = await mpsnodes(self._kube, [name])
        await self._look_at(thing)

    async def _look_at(self, thing: Object) -> None:
        assert self.control
        name = thing["metadata"]["name"]
        query = {"labelSelector": self._selector, "fieldSelector": f"spec.nodeName={name}"}
        pods = await self._kube.list(PODS, self.control.namespace, query)
        pod = control_pods(pods, self.control.uid).get(name)
        node = read_mpsnode(thing, time.time())
        self._versions[name] = str(thing["metadata"]["resourceVersion"])
        self.standings[name] = Standing(node, pod, self.control.revision, read_mark(thing))

    def _begun_first(self) -> None:
        """Nodes where an upgrade was given up come first."""
        order = sorted(self.standings, key=lambda name: (self.standings[name].mark is None, name))
        self.standings = {name: self.standings[name] for name in order}

    # -- the image -----------------------------------------------------------------------------------------------

    async def _set_image(self) -> None:
        """Returns once the DaemonSet's newest revision is known."""
        assert self.control
        if self._wanted.image and self._wanted.image != self.control.image:
            container = {"name": self.control.container, "image": self._wanted.image}
            patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
            self._say(f"{self.control}: the image becomes {self._wanted.image}, instead of {self.control.image}")
            namespace = self.control.namespace
            await self._kube.patch(_DAEMON_SETS, self.control.name, patch, PatchKind.STRATEGIC, namespace)
            await self._read_control()
        deadline = time.monotonic() + _OBSERVED_S
        while not self.control.revision:
            if time.monotonic() >= deadline:
                why = f"the cluster's controller has not taken its change up in {_OBSERVED_S:g} s"
                raise NotUpgradable(f"{self.control}: {why}; see whether kube-controller-manager runs")
            await asyncio.sleep(PAUSE_S)
            await self._read_control()
        for name in [*self.standings]:
            await self._look_again(name)


def _is_marked(thing: Object) -> bool:
    return read_mark(thing) is not None


_RIGHTS = "docs/operations/upgrade-and-drain.md (Upgrade the control daemon) lists the rights that this requires"

Selector = Annotated[
    str, typer.Option("-l", "--selector", metavar="LABELS", help="Only Nodes with these labels.", show_default=False)
]
Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="Time limit for each step on a node.")]
Image = Annotated[
    str | None,
    typer.Option("--image", metavar="IMAGE", help="Give the DaemonSet this image first.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]


def upgrade(
    nodes: NodeNames = None,
    selector: Selector = "",
    timeout: Timeout = "30m",
    evict: Evict = False,
    image: Image = None,
    dry_run: DryRun = False,
    output: OutputFormat = Format.TEXT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Replace the control pods that are not of the DaemonSet's newest revision, and no program loses its GPU by it.

    One node after the other: drain, end the old pod, wait for the new one and for its domains to come up, put back what
    it had cordoned itself (what somebody else had cordoned stays so), wait until it serves. It stops at the first node
    that fails and says how to go on or back; the same command again goes on there. Exits with 0 when every node is of
    the newest revision, 1 when not, 2 after a usage error, 130 after Ctrl-C.

        kubectl mps upgrade --dry-run                 what would be done
        kubectl mps upgrade gpu-a1 --timeout 2h       programs may take two hours
        kubectl mps upgrade -l pool=a --evict         their pods are evicted
        kubectl mps upgrade --image REGISTRY/mpsd:0.2.0
    """
    cluster = ClusterAccess("kubectl mps upgrade", kubeconfig, context, _RIGHTS)
    timeout_s = read_seconds(cluster.program, "--timeout", timeout)
    walks: list[Upgrade] = []

    def stays() -> str:
        walk = walks[0] if walks else None
        if walk is None or walk.step is None or walk.control is None:
            return ""
        name, step = walk.step
        return "\n".join(how_it_stands(walk.control, walk.standings[name], step, options(cluster)))

    async def upgrade_them(kube: Kube) -> Failure | None:
        walk = Upgrade(kube, UpgradeSelection(nodes or (), selector, timeout_s, evict, image), say)
        await walk.look()
        assert walk.control
        walks.append(walk)
        if dry_run or not walk.due():
            for line in plan(walk.control, list(walk.standings.values()), image) if output is Format.TEXT else ():
                answers().print(one_line(line))
        if walk.due():
            walk.check()
        return None if dry_run else await walk.run()

    failure = ask_and_say_what_stays(cluster, upgrade_them, stays)
    (walk,) = walks
    if output is Format.JSON:
        print_json(_record(walk, failure))
    if failure:
        say(f"{cluster.program}: {failure.standing.node.name}: stopped at: {failure.step}: {failure.why}")
        for line in stays().splitlines():
            say(line)
    elif not dry_run and output is Format.TEXT and walk.control:
        number = len(walk.standings)
        answers().print(
            f"{walk.control}: revision {walk.control.revision} on {number} node{'' if number == 1 else 's'}"
        )
    end(well=failure is None and (not dry_run or not walk.due()))


def _record(walk: Upgrade, failure: Failure | None) -> dict[str, Any]:
    stopped = (
        {"node": failure.standing.node.name, "step": failure.step.value, "reason": failure.why} if failure else None
    )
    return {
        "control": asdict(walk.control) if walk.control else None,
        "nodes": [_node(one, due=one.node.name in walk.due()) for one in walk.standings.values()],
        "stopped": stopped,
    }


def _node(one: Standing, *, due: bool) -> dict[str, Any]:
    """step: the next one."""
    return {
        "node": one.node.name,
        "current": one.current,
        "due": due,
        "step": next_step(one).step.value,
        "pod": asdict(one.pod) if one.pod else None,
        "cordoned": list(one.node.cordoned),
        "cordoned_by_upgrade": sorted(one.ours),
        "holders": None
        if one.node.pods is None
        else [f"{pod.namespace}/{pod.pod}" for pod in holders(one.node, one.gpus)],
    }
