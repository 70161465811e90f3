"""`kubectl mps uninstall`: removes mpsd from a cluster in which no GPU is in use.

An object is mpsd's by its label and by nothing else. Nothing is deleted but what was found by it and shown, by uid, in
the order of `Stage`, by which nothing that remains depends on what is gone; a stage's pods are gone before the next.

Rights of whoever does it: list of every kind, and delete of what mpsd is made of; an administrator of the cluster.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NoReturn

import typer

from mpsd.model.cluster_status import ClusterStatus
from mpsd.model.names import AGENT, CONTROL, LABEL, NAME_LABEL, OURS, PRODUCT
from mpsd.model.problem import InvalidInput, Problem
from mpsd.operations.lifecycle.drain import NotDone, ProgressReporter, answer, ask, end, looks, read_seconds, say
from mpsd.operations.lifecycle.rules.emptying import Stage, Thing, in_order, in_use, is_deleted, is_strange, stage_of
from mpsd.platform import kube as api
from mpsd.platform.console import complaints
from mpsd.platform.kube import (
    NODES,
    PODS,
    Conflict,
    Forbidden,
    Kube,
    KubeError,
    NotFound,
    PatchKind,
    Resource,
    ResourceKind,
)
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node
from mpsd.status.cluster import NotInstalled, look
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, Kubeconfig
from mpsd.status.rules.mpsnode import labels_patch

_MUST_BE_LISTED = {"", "apps", "admissionregistration.k8s.io", "rbac.authorization.k8s.io", "apiextensions.k8s.io"}


@dataclass(frozen=True, slots=True)
class Installation:
    """things: in the order of their deletion. users: who would lose something. unseen: what could not be looked for."""

    things: Sequence[Thing]
    users: Sequence[str]
    unseen: Sequence[str]
    kinds: Sequence[ResourceKind]


async def find(kube: Kube) -> Installation:
    """Forbidden where so much cannot be listed that the order would not be safe."""
    kinds, missing = await api.deletable_kinds(kube)
    unseen, labelled = [*missing], list[tuple[ResourceKind, api.Object]]()
    answers = await asyncio.gather(*(kube.list(kind.resource, query=OURS) for kind in kinds), return_exceptions=True)
    for kind, found in zip(kinds, answers, strict=True):
        if not isinstance(found, BaseException):
            labelled += [(kind, thing) for thing in found]
        elif not isinstance(found, KubeError) or (isinstance(found, Forbidden) and kind.group in _MUST_BE_LISTED):
            raise found
        else:
            unseen.append(str(found))
    own_groups = {thing["spec"]["group"] for kind, thing in labelled if kind.name == "CustomResourceDefinition"}
    things = {}
    for kind, thing in labelled:
        if is_deleted(of := thing["metadata"], kind.group, own_groups):
            at, uid, labels = kind.resource, of["uid"], of.get("labels") or {}
            things[uid] = Thing(at.api, at.plural, kind.name, of.get("namespace", ""), of["name"], uid, labels)
    return Installation(in_order(things.values()), await users(kube), unseen, kinds)


async def users(kube: Kube) -> list[str]:
    pods = await kube.list(PODS, query={"labelSelector": f"{LABEL}={PRODUCT},{NAME_LABEL}={CONTROL}"})
    daemons = {str(pod["spec"]["nodeName"]) for pod in pods if pod["spec"].get("nodeName")}
    try:
        status = await look(kube, ())
    except NotInstalled:
        status = ClusterStatus(time.time(), ())
    selector = {"labelSelector": f"{LABEL}={PRODUCT},{NAME_LABEL}={AGENT}"}
    agents = await kube.list(Resource("apps/v1", "daemonsets"), query=selector)
    return list(in_use(status, daemons, agents=bool(agents)))


@dataclass(frozen=True, slots=True)
class Uninstall:
    """timeout_s: of each wait for what was deleted to be gone."""

    kube: Kube
    found: Installation
    timeout_s: float

    async def run(self) -> None:
        """Prints each object that was deleted. NotDone where something does not go; what comes after it stays."""
        for stage in Stage:
            for thing in self.found.things:
                if stage_of(thing) is stage:
                    answer(await self._deleted(thing))
            if stage in (Stage.SERVERS, Stage.DAEMONS):
                await self._until_gone(partial(self._pods, control=stage is Stage.DAEMONS))
            if stage is Stage.SERVERS:
                await self._unlabel()  # there is no agent left to write them again
        await self._until_gone(self._ends)

    async def _deleted(self, thing: Thing) -> str:
        if stage_of(thing) is Stage.PLACES and (strange := await self._strange_in(thing.name)):
            return f"kept {thing}: {strange}"
        try:
            await self.kube.delete(Resource(thing.api, thing.plural), thing.name, thing.namespace, uid=thing.uid)
        except NotFound:
            return f"already gone: {thing}"
        except Conflict:
            return f"kept {thing}: it was recreated meanwhile"
        return f"deleted {thing}"

    async def _strange_in(self, namespace: str) -> str:
        """Why a namespace of ours is kept: what of others is in it, or what may not be listed. Empty: nothing."""
        kinds = [kind for kind in self.found.kinds if kind.namespaced]
        try:
            listed = await asyncio.gather(*(self.kube.list(kind.resource, namespace) for kind in kinds))
        except KubeError as error:
            return f"what else is in it is not known: {error}"
        strange = {
            f"{kind.name} {thing['metadata']['name']}"
            for kind, things in zip(kinds, listed, strict=True)
            for thing in things
            if is_strange(kind.name, thing)
        }
        return f"it contains objects of others: {', '.join(sorted(strange))}" if strange else ""

    async def _unlabel(self) -> None:
        """Removes the labels that agents have written on Nodes."""
        try:
            for node in map(read_kubernetes_node, await self.kube.list(NODES)):
                if patch := labels_patch(node.labels, {}):
                    with suppress(NotFound):
                        await self.kube.patch(NODES, node.name, patch, PatchKind.MERGE)
                        answer(f"removed {', '.join(patch['metadata']['labels'])} from Node {node.name}")
        except Forbidden as error:
            say(f"labels of Nodes remain (mpsd.io/gpu.*, mpsd.io/sharing, mpsd.io/driver-upgrade): {error}")

    # -- waiting -------------------------------------------------------------------------------------------------

    async def _until_gone(self, left_of: Callable[[], Awaitable[list[str]]]) -> None:
        report = ProgressReporter()
        async for left, is_last in looks(left_of, self.timeout_s, report):
            if not left:
                return
            report("left", f"waits until they are gone: {', '.join(left)}")
            if is_last:
                raise NotDone(f"still there after {self.timeout_s:g} s: {', '.join(left)}")

    async def _pods(self, *, control: bool) -> list[str]:
        left = []
        for pod in await self.kube.list(PODS, query=OURS):
            metadata, node = pod["metadata"], pod["spec"].get("nodeName")
            if metadata.get("ownerReferences") and (metadata["labels"].get(NAME_LABEL) == CONTROL) is control:
                left.append(f"pod {metadata['namespace']}/{metadata['name']}" + (f" on {node}" if node else ""))
        return left

    async def _ends(self) -> list[str]:
        """Namespaces and definitions, which go once everything in them has."""
        left = []
        for thing in [one for one in self.found.things if stage_of(one) in (Stage.PLACES, Stage.KINDS)]:
            with suppress(NotFound):
                found = await self.kube.get(Resource(thing.api, thing.plural), thing.name, thing.namespace)
                if found["metadata"]["uid"] == thing.uid and found["metadata"].get("deletionTimestamp"):
                    left.append(str(thing))
        return left


_RIGHTS = "this requires an administrator of the cluster, who may list every kind of object"
_REMAINS = (
    "what remains: labels of nodes (ack.node.gpu.schedule), MPSReady and numbers of devices in their status, images on"
    " them, namespaces that others made or use; to remove it: docs/operations/upgrade-and-drain.md (Uninstall)"
)

Force = Annotated[bool, typer.Option("--force", help="Proceed even if pods hold GPUs: their programs lose them.")]
Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="Time limit for each wait for pods to end.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def uninstall(
    force: Force = False,
    timeout: Timeout = "10m",
    dry_run: DryRun = False,
    yes: Yes = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Remove mpsd from the cluster. Refused while a GPU that it shares is in use, or may be.

    Everything with the label app.kubernetes.io/part-of=mpsd is deleted, in an order that leaves nothing waiting:
    webhooks, agents (and the labels that they wrote on Nodes), control daemons (which restore the compute modes), the
    rest, rights, its namespace unless it contains objects of others, and last the definition of MPSNode. It asks for
    confirmation; if it stops, the same command continues. Exits with 0 when all is gone, 1 when not, 2 where it would
    have to ask and there is no terminal, 130 after Ctrl-C.

        kubectl mps uninstall --dry-run
        kubectl mps drain gpu-a1 && kubectl mps uninstall
        kubectl mps uninstall --yes --timeout 20m
    """
    cluster = ClusterAccess("kubectl mps uninstall", kubeconfig, context, _RIGHTS)
    timeout_s = read_seconds(cluster.program, "--timeout", timeout)
    found = cluster.ask(find)
    say(*(f"not searched: {why}" for why in found.unseen))
    if not found.things:
        answer("nothing with the label app.kubernetes.io/part-of=mpsd is in this cluster", _REMAINS)
        end(well=True)
    if dry_run:
        answer(*map(str, found.things))
    if found.users and not force:
        _refuse(cluster, found.users)
    say(*(f"loses its GPU: {user}" for user in found.users))
    if dry_run:
        end(well=True)
    if not yes:
        answer(*map(str, found.things))
        _confirm(cluster, len(found.things))
    stays: list[str] = []

    async def uninstall_it(kube: Kube) -> Sequence[str]:
        if not force and (there := await users(kube)):  # who has come since it was asked
            return there
        stays.append("to continue: run the same command again; what is listed above as deleted is gone")
        await Uninstall(kube, found, timeout_s).run()
        return ()

    if there := ask(cluster, uninstall_it, stays):
        _refuse(cluster, there)
    answer(_REMAINS)
    end(well=True)


def _refuse(cluster: ClusterAccess, there: Sequence[str]) -> NoReturn:
    say(f"{cluster.program}: refused, because GPUs are in use, or may be:", *(f"  {user}" for user in there))
    say("empty the nodes first (kubectl mps drain NODE), or use --force: these programs then lose their GPU")
    end(well=False)


def _confirm(cluster: ClusterAccess, number: int) -> None:
    if not sys.stdin.isatty():
        remedy = "add --yes, or run it on a terminal"
        raise InvalidInput(cluster.program, [Problem("setting", "--yes", "", "is required without a terminal", remedy)])
    complaints().print(f"Delete these {number} objects? [y/N] ", end="")
    try:
        typed = input()
    except (EOFError, KeyboardInterrupt):
        typed = ""
        complaints().print()
    if typed.strip().lower() not in {"y", "yes"}:
        say(f"{cluster.program}: nothing was deleted")
        end(well=False)
