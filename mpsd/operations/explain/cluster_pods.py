"""Says of pods of a cluster why they wait for a GPU, and looks at no more for it than that takes.

One rule: a right that is missing leaves out what it is for, which is said; only about room there is no answer without
MPSNodes.

Rights of whoever asks: get and list of pods in their namespace, list of its events; for pods that have no node those of
`cluster_room`; get of configmap mpsd-limits in mpsd-system.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from mpsd.model.mpsnode_reading import read_mpsnode
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.operations.explain.room import allowed, both, look_for_room
from mpsd.platform.kube import PODS, Forbidden, Kube, NotFound, Object, Resource
from mpsd.platform.kube_time import seconds
from mpsd.status.cluster_policy import PolicyInForce, policy_in_force
from mpsd.status.report_node import MPS_NODES
from mpsd.status.rules.explanation import Needs, needs, story, wants_warning
from mpsd.status.rules.pod_scene import Scene, Story
from mpsd.status.rules.pod_seen import Owner, PodSeen, last_warning, named, owned_by, read_pod_seen

_EVENTS = Resource("v1", "events")
_PENDING = {"fieldSelector": "status.phase=Pending"}
_MOST_ASKED = 8  # pods whose events are asked for, and nodes that are, each with a request of its own
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Answers:
    """owner: what was asked about instead of a pod; None where a pod was. unseen: what may not be looked at, a sentence
    each.
    """

    stories: Sequence[tuple[PodSeen, Story]]
    owner: Owner | None
    in_force: PolicyInForce
    unseen: Sequence[str]


async def explain_one(kube: Kube, words: str, namespace: str) -> Answers:
    """words: a pod's name, or KIND/NAME of it or of what made it. InvalidInput where there is none."""
    kind, name = named(words)
    in_force, thing = await both(policy_in_force(kube), _pod(kube, kind, name, namespace))
    look = _Look(kube, in_force)
    if thing is not None:
        return await look.answers([read_pod_seen(thing, in_force.policy)], None)
    pods = [read_pod_seen(one, in_force.policy) for one in await kube.list(PODS, namespace)]
    owned, owner = owned_by(pods, kind, name)
    if owner is None:
        raise _unknown(words, namespace, pods, await _elsewhere(kube, kind, name))
    return await look.answers(owned, owner)


async def explain_all(kube: Kube, namespace: str) -> Answers:
    """Every pod that asks for a GPU and has not started. namespace: empty for all."""
    in_force, things = await both(policy_in_force(kube), kube.list(PODS, namespace, _PENDING))
    pods = [read_pod_seen(one, in_force.policy) for one in things]
    asking = sorted((pod for pod in pods if pod.shared), key=lambda pod: (pod.name.namespace, pod.name.name))
    return await _Look(kube, in_force).answers(asking, None)


async def _pod(kube: Kube, kind: str, name: str, namespace: str) -> Object | None:
    """None where another kind is meant, and where there is no such pod."""
    if kind not in ("", "Pod"):
        return None
    try:
        return await kube.get(PODS, name, namespace)
    except NotFound:
        return None


class _Look:
    """One look. Its `unseen` grows by what may not be looked at."""

    def __init__(self, kube: Kube, in_force: PolicyInForce) -> None:
        self._kube = kube
        self._in_force = in_force
        self._unseen: list[str] = []

    async def answers(self, pods: Sequence[PodSeen], owner: Owner | None) -> Answers:
        scene, warnings = await both(self._scene(pods), self._warnings(pods))
        stories = [(pod, story(pod, scene, warnings.get(pod.name.uid, ""))) for pod in pods]
        return Answers(stories, owner, self._in_force, tuple(self._unseen))

    async def _scene(self, pods: Sequence[PodSeen]) -> Scene:
        wanted = {needs(pod) for pod in pods}
        nodes = sorted({pod.node for pod in pods if needs(pod) is Needs.ITS_NODE})
        if Needs.CLUSTER in wanted or len(nodes) > _MOST_ASKED:
            return await self._cluster()
        things = [thing for thing in await asyncio.gather(*map(self._mpsnode, nodes)) if thing]
        now = time.time()
        told = {node.name: node for node in (read_mpsnode(thing, now, seconds) for thing in things)}
        return Scene(self._in_force.policy, now, told, {}, None)

    async def _cluster(self) -> Scene:
        room = await look_for_room(self._kube, (), self._in_force)
        self._unseen += room.unseen
        return Scene(self._in_force.policy, room.now, room.told, room.books, room.machines)

    async def _mpsnode(self, name: str) -> Object | None:
        try:
            return await allowed(self._kube.get(MPS_NODES, name), "where exactly it is was not looked at", self._unseen)
        except NotFound:
            return None

    async def _warnings(self, pods: Sequence[PodSeen]) -> Mapping[str, str]:
        """By uid, of the first pods of which a warning would say more."""
        asked = [pod for pod in pods if wants_warning(pod)][:_MOST_ASKED]
        found = await asyncio.gather(*map(self._warning, asked))
        return {pod.name.uid: warning for pod, warning in zip(asked, found, strict=True)}

    async def _warning(self, pod: PodSeen) -> str:
        query = {"fieldSelector": f"involvedObject.uid={pod.name.uid},type=Warning"}
        listing = self._kube.list(_EVENTS, pod.name.namespace, query)
        return last_warning(await allowed(listing, "its events were not looked at", self._unseen) or ())


# -- no such pod ---------------------------------------------------------------------------------------------------


async def _elsewhere(kube: Kube, kind: str, name: str) -> Sequence[str]:
    """The other namespaces that have a pod of this name, as far as one may know."""
    if kind not in ("", "Pod"):
        return ()
    try:
        found = await kube.list(PODS, query={"fieldSelector": f"metadata.name={name}"})
    except Forbidden:
        return ()
    return sorted(str(thing["metadata"]["namespace"]) for thing in found)


def _unknown(words: str, namespace: str, pods: Sequence[PodSeen], elsewhere: Sequence[str]) -> InvalidInput:
    """pods: those of the namespace."""
    asking = sorted({pod.name.name for pod in pods if pod.shared})
    owners = {owner.name for pod in pods if pod.shared for owner in pod.owners}
    near = get_close_matches(named(words)[1], [*asking, *sorted(owners)], _MOST_NAMED, 0.6)
    listed = list(dict.fromkeys([*near, *asking]))[:_MOST_NAMED]
    if elsewhere:
        remedy = f"there is one in {', '.join(elsewhere[:_MOST_NAMED])}: name the namespace with -n"
    elif listed:
        more = len(set(asking) - set(listed))
        remedy = f"name one of {', '.join(listed)}{f' and {more} more' if more else ''}"
    else:
        remedy = "no pod there asks for a GPU; name another namespace with -n"
    where = f"{shown(words, 300)} in namespace {namespace}"
    message = "is no pod, and no Job, Deployment or other owner of pods"
    return InvalidInput("the cluster", [Problem("pod-unknown", where, "", message, remedy)])
