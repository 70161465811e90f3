"""Takes mpsd off a cluster: finds what carries its label, and deletes it in the order of `operations.lifecycle.rules.uninstall`.

One rule: nothing is deleted but what was found and shown, by uid; and the pods of a stage are gone before the next.

Rights of whoever does it: list of every kind, and delete of what mpsd is made of; an administrator of the cluster.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from mpsd.model.cluster_status import ClusterStatus
from mpsd.model.installed import AGENT, CONTROL, LABEL, NAME_LABEL, OURS, PRODUCT
from mpsd.operations.lifecycle.cluster_cordon import PAUSE_S
from mpsd.operations.lifecycle.cluster_drain import Say, Telling
from mpsd.operations.lifecycle.rules.uninstall import Stage, Thing, in_order, in_use, is_deleted, is_strange, stage_of
from mpsd.platform.kube import (
    PODS,
    Away,
    Conflict,
    Forbidden,
    Kind,
    Kube,
    KubeError,
    NotFound,
    Object,
    Resource,
    deletable_kinds,
)
from mpsd.status.cluster_look import NotInstalled, look

_DAEMON_SETS = Resource("apps/v1", "daemonsets")
_MUST_BE_LISTED = frozenset(
    {"", "apps", "admissionregistration.k8s.io", "rbac.authorization.k8s.io", "apiextensions.k8s.io"}
)


class StillThere(KubeError):
    """Pods or objects did not go in time; what comes after them is as it was."""


@dataclass(frozen=True, slots=True)
class Found:
    """things: in the order of their deletion. users: who would lose something. unseen: what could not be looked for."""

    things: Sequence[Thing]
    users: Sequence[str]
    unseen: Sequence[str]
    kinds: Sequence[Kind]


async def find(kube: Kube) -> Found:
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
    return Found(in_order(things.values()), await users(kube), unseen, kinds)


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


async def _listed(kube: Kube, kind: Kind) -> Sequence[Object] | str:
    """Why not, where it cannot be listed."""
    try:
        return await kube.list(kind.resource, query=OURS)
    except Forbidden as error:
        if kind.group in _MUST_BE_LISTED:
            raise
        return str(error)
    except KubeError as error:
        return str(error)


def _thing(kind: Kind, thing: Object) -> Thing:
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

    def __init__(self, kube: Kube, found: Found, timeout_s: float, say: Say, did: Say) -> None:
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
            self._did(f"kept {thing}: somebody has made it anew meanwhile")
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
        telling, began = Telling(self._say), time.monotonic()
        while True:
            try:
                left = await look()
            except Away as error:
                telling.away(error)
                left = ["what the API server does not say"]
            if not left:
                return
            sentence = f"waits until they are gone: {', '.join(left)}"
            telling("left", sentence)
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
