"""`kubectl mps uninstall`: removes mpsd from a cluster in which no GPU is in use.

Nothing is deleted but what was found by its label and shown, by uid, in the order of `lifecycle.rules.uninstall`; the
pods of a stage are gone before the next begins.

Rights of whoever does it: list of every kind, and delete of what mpsd is made of; an administrator of the cluster.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NoReturn

import typer

from mpsd.model.cluster_status import ClusterStatus
from mpsd.model.names import AGENT, CONTROL, LABEL, NAME_LABEL, OURS, PRODUCT
from mpsd.model.problem import InvalidInput, Problem
from mpsd.operations.lifecycle.cordon import PAUSE_S, ask_and_say_what_stays, end, read_seconds, say
from mpsd.operations.lifecycle.drain import ProgressReporter, Say
from mpsd.operations.lifecycle.rules.uninstall import Stage, Thing, in_order, in_use, is_deleted, is_strange, stage_of
from mpsd.platform.console import answers, complaints, one_line
from mpsd.platform.kube import (
    PODS,
    Conflict,
    Forbidden,
    Kube,
    KubeError,
    NotFound,
    Object,
    Resource,
    ResourceKind,
    Unavailable,
    deletable_kinds,
)
from mpsd.status.cluster import NotInstalled, look
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, Kubeconfig

_DAEMON_SETS = Resource("apps/v1", "daemonsets")
_MUST_BE_LISTED = frozenset(
    {"", "apps", "admissionregistration.k8s.io", "rbac.authorization.k8s.io", "apiextensions.k8s.io"}
)


class StillThere(KubeError):
    """Pods or objects did not go in time; what comes after them is as it was."""


@dataclass(frozen=True, slots=True)
class Installation:
    """things: in the order of their deletion. users: who would lose something. unseen: what could not be looked for."""

    things: Sequence[Thing]
    users: Sequence[str]
    unseen: Sequence[str]
    kinds: Sequence[ResourceKind]


async def find(kube: Kube) -> Installation:
    """Forbidden where so much cannot be listed that the order would not be safe."""
    kinds, unseen = await deletable_kinds(kube)
    answers = await asyncio.gather(*(_listed(kube, kind) for kind in kinds))
    unseen = [*unseen, *(answer for answer in answers if isinstance(answer, str))]
    labelled = [
        (kind, thing)
        for kind, answer in zip(kinds, answers, strict=True)
        if not isinstance(answer, str)
        for thing in answer
    ]
    own_groups = {thing["spec"]["group"] for kind, thing in labelled if kind.name == "CustomResourceDefinition"}
    things = {
        thing["metadata"]["uid"]: _thing(kind, thing)
        for kind, thing in labelled
        if is_deleted(thing["metadata"], kind.group, own_groups)
    }
    return Installation(in_order(things.values()), await users(kube), unseen, kinds)


async def users(kube: Kube) -> list[str]:
    """Who would lose something if mpsd went now."""
    pods = await kube.list(PODS, query={"labelSelector": f"{LABEL}={PRODUCT},{NAME_LABEL}={CONTROL}"})
    daemons = {str(pod["spec"]["nodeName"]) for pod in pods if pod["spec"].get("nodeName")}
    try:
        status = await look(kube, ())
    except NotInstalled:
        status = ClusterStatus(time.time(), ())
    agents = await kube.list(_DAEMON_SETS, query={"labelSelector": f"{LABEL}={PRODUCT},{NAME_LABEL}={AGENT}"})
    return list(in_use(status, daemons, agents=bool(agents)))


async def _listed(kube: Kube, kind: ResourceKind) -> Sequence[Object] | str:
    """Why not, where it cannot be listed."""
    try:
        return await kube.list(kind.resource, query=OURS)
    except Forbidden as error:
        if kind.group in _MUST_BE_LISTED:
            raise
        return str(error)
    except KubeError as error:
        return str(error)


def _thing(kind: ResourceKind, thing: Object) -> Thing:
    metadata = thing["metadata"]
    return Thing(
        api=kind.resource.api,
        plural=kind.resource.plural,
        kind=kind.name,
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata["uid"],
        labels=metadata.get("labels") or {},
    )


class Uninstall:
    """timeout_s: of each wait for what was deleted to be gone."""

    def __init__(self, kube: Kube, found: Installation, timeout_s: float, say: Say, did: Say) -> None:
        self._kube = kube
        self._found = found
        self._timeout_s = timeout_s
        self._say = say
        self._did = did

    async def run(self) -> None:
        """did: hears of each object that was deleted. StillThere where something does not go."""
        for stage in Stage:
            for thing in self._found.things:
                if stage_of(thing) is stage:
                    await self._delete(thing)
            if stage in (Stage.SERVERS, Stage.DAEMONS):
                await self._until_gone(partial(self._pods, control=stage is Stage.DAEMONS))
        ends = [thing for thing in self._found.things if stage_of(thing) in (Stage.PLACES, Stage.KINDS)]
        await self._until_gone(partial(self._objects, ends))

    async def _delete(self, thing: Thing) -> None:
        if stage_of(thing) is Stage.PLACES and (strange := await self._strange_in(thing.name)):
            self._did(f"kept {thing}: {strange}")
            return
        try:
            await self._kube.delete(Resource(thing.api, thing.plural), thing.name, thing.namespace, uid=thing.uid)
        except NotFound:
            self._did(f"gone already: {thing}")
        except Conflict:
            self._did(f"kept {thing}: it was recreated meanwhile")
        else:
            self._did(f"deleted {thing}")

    async def _strange_in(self, namespace: str) -> str:
        """Why a namespace of ours is kept: what of others is in it, or what nobody may list. Empty: nothing."""
        kinds = [kind for kind in self._found.kinds if kind.namespaced]
        try:
            listed = await asyncio.gather(*(self._kube.list(kind.resource, namespace) for kind in kinds))
        except KubeError as error:
            return f"what else is in it is not known: {error}"
        strange = [
            f"{kind.name} {thing['metadata']['name']}"
            for kind, things in zip(kinds, listed, strict=True)
            for thing in things
            if is_strange(kind.name, thing)
        ]
        return f"others have put there: {', '.join(sorted(set(strange)))}" if strange else ""

    # -- waiting -------------------------------------------------------------------------------------------------

    async def _until_gone(self, look: Callable[[], Awaitable[list[str]]]) -> None:
        report, began = ProgressReporter(self._say), time.monotonic()
        while True:
            try:
                left = await look()
            except Unavailable as error:
                report.away(error)
                left = ["what the API server does not say"]
            if not left:
                return
            sentence = f"waits until they are gone: {', '.join(left)}"
            report("left", sentence)
            if time.monotonic() - began >= self._timeout_s:
                raise StillThere(f"still there after {self._timeout_s:g} s: {', '.join(left)}")
            await asyncio.sleep(PAUSE_S)

    async def _pods(self, *, control: bool) -> list[str]:
        pods = await self._kube.list(PODS, query=OURS)
        here = [pod for pod in pods if ((pod["metadata"].get("labels") or {}).get(NAME_LABEL) == CONTROL) is control]
        owned = [pod for pod in here if pod["metadata"].get("ownerReferences")]
        return [_called(pod) for pod in owned]

    async def _objects(self, things: Iterable[Thing]) -> list[str]:
        left = []
        for thing in things:
            with suppress(NotFound):
                found = await self._kube.get(Resource(thing.api, thing.plural), thing.name, thing.namespace)
                if found["metadata"]["uid"] == thing.uid and found["metadata"].get("deletionTimestamp"):
                    left.append(str(thing))
        return left


def _called(pod: Object) -> str:
    where = pod["spec"].get("nodeName")
    return f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}" + (f" on {where}" if where else "")


_RIGHTS = "this requires an administrator of the cluster, who may list every kind of object"
_REMAINS = (
    "what remains: labels of nodes (ack.node.gpu.schedule), MPSReady and numbers of devices in their status, images on"
    " them, namespaces that others made or use; docs/operations/upgrade-and-drain.md (Uninstall) says how to remove it"
)

Force = Annotated[bool, typer.Option("--force", help="Proceed even if pods hold GPUs: their programs lose them.")]
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
    cluster = ClusterAccess("kubectl mps uninstall", kubeconfig, context, _RIGHTS)
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


def _show(found: Installation) -> None:
    for thing in found.things:
        answers().print(one_line(str(thing)))


def _refuse(cluster: ClusterAccess, there: Sequence[str]) -> NoReturn:
    say(f"{cluster.program}: refused, GPUs are in use or it is not known whether they are:")
    for user in there:
        say(f"  {user}")
    say("empty the nodes first (kubectl mps drain NODE); or --force, and these programs lose their GPU")
    end(well=False)


def _confirm(cluster: ClusterAccess, found: Installation) -> None:
    """Ends the program where nobody agrees."""
    if not sys.stdin.isatty():
        remedy = "add --yes, or run it on a terminal"
        raise InvalidInput(cluster.program, [Problem("setting", "--yes", "", "is required without a terminal", remedy)])
    complaints().print(f"Delete these {len(found.things)} objects? [y/N] ", end="")
    try:
        answer = input()
    except (EOFError, KeyboardInterrupt):
        answer = ""
        complaints().print()
    if answer.strip().lower() not in {"y", "yes"}:
        say(f"{cluster.program}: nothing was deleted")
        end(well=False)
