"""`kubectl mps explain`: why a pod waits for a GPU, in one sentence.

No more is read than the answer takes. A missing right leaves out what it is for, and that is reported; only about free
capacity there is no answer without MPSNodes.

Rights of whoever asks: get and list of pods in their namespace, list of its events; for pods that have no node those of
`explain.room`; get of configmap mpsd-limits in mpsd-system.
"""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated

import typer

from mpsd.model.mpsnode_reading import read_mpsnode
from mpsd.model.problem import InvalidInput, Problem, printable, shown
from mpsd.operations.explain.room import allowed, both, look_for_room
from mpsd.platform.console import ExitCode, Format, answers, complaints, print_json
from mpsd.platform.kube import MPS_NODES, PODS, Forbidden, Kube, NotFound, Object, Resource
from mpsd.platform.kube_access import namespace_of_user
from mpsd.platform.options import OutputFormat
from mpsd.status.cluster import PolicyInForce, policy_in_force
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, Kubeconfig, PodName
from mpsd.status.rules.explanation import ExplanationNeeds, needs, story, wants_warning
from mpsd.status.rules.pods import (
    Explanation,
    ExplanationContext,
    Owner,
    PodSeen,
    last_warning,
    named,
    owned_by,
    read_pod_seen,
)

_EVENTS = Resource("v1", "events")
_PENDING = {"fieldSelector": "status.phase=Pending"}
_MOST_ASKED = 8  # pods whose events are asked for, and nodes that are, each with a request of its own
_MOST_NAMED = 8
_PROGRAM = "kubectl mps explain"
_LONGEST = 4000
_RIGHTS = (
    "an administrator gives it: kubectl create clusterrole mpsd-explain --verb=get,list"
    " --resource=mpsnodes.mpsd.io,nodes,pods,events, and a clusterrolebinding to it"
)


@dataclass(frozen=True, slots=True)
class Answers:
    """An explanation of each pod. owner: what was named instead of a pod; None where a pod was. unseen: what could not
    be read, a sentence each.
    """

    stories: Sequence[tuple[PodSeen, Explanation]]
    owner: Owner | None
    in_force: PolicyInForce
    unseen: Sequence[str]


async def explain_one(kube: Kube, words: str, namespace: str) -> Answers:
    """words: a pod's name, or KIND/NAME of it or of what made it. InvalidInput where there is none."""
    kind, name = named(words)
    in_force, thing = await both(policy_in_force(kube), _pod(kube, kind, name, namespace))
    look = _PodLook(kube, in_force)
    if thing is not None:
        return await look.answers([read_pod_seen(thing, in_force.policy)], None)
    pods = [read_pod_seen(one, in_force.policy) for one in await kube.list(PODS, namespace)]
    owned, owner = owned_by(pods, kind, name)
    if owner is None:
        raise _unknown(words, namespace, pods, await _elsewhere(kube, kind, name))
    return await look.answers(owned, owner)


async def explain_all(kube: Kube, namespace: str) -> Answers:
    """Every pod that requests a GPU and has not started. namespace: empty for all."""
    in_force, things = await both(policy_in_force(kube), kube.list(PODS, namespace, _PENDING))
    pods = [read_pod_seen(one, in_force.policy) for one in things]
    asking = sorted((pod for pod in pods if pod.shared), key=lambda pod: (pod.name.namespace, pod.name.name))
    return await _PodLook(kube, in_force).answers(asking, None)


async def _pod(kube: Kube, kind: str, name: str, namespace: str) -> Object | None:
    """None where another kind is meant, and where there is no such pod."""
    if kind not in ("", "Pod"):
        return None
    try:
        return await kube.get(PODS, name, namespace)
    except NotFound:
        return None


class _PodLook:
    """One look. Its `unseen` grows by what may not be read."""

    def __init__(self, kube: Kube, in_force: PolicyInForce) -> None:
        self._kube = kube
        self._in_force = in_force
        self._unseen: list[str] = []

    async def answers(self, pods: Sequence[PodSeen], owner: Owner | None) -> Answers:
        context, warnings = await both(self._context(pods), self._warnings(pods))
        stories = [(pod, story(pod, context, warnings.get(pod.name.uid, ""))) for pod in pods]
        return Answers(stories, owner, self._in_force, tuple(self._unseen))

    async def _context(self, pods: Sequence[PodSeen]) -> ExplanationContext:
        wanted = {needs(pod) for pod in pods}
        nodes = sorted({pod.node for pod in pods if needs(pod) is ExplanationNeeds.ITS_NODE})
        if ExplanationNeeds.CLUSTER in wanted or len(nodes) > _MOST_ASKED:
            return await self._cluster()
        things = [thing for thing in await asyncio.gather(*map(self._mpsnode, nodes)) if thing]
        now = time.time()
        told = {node.name: node for node in (read_mpsnode(thing, now) for thing in things)}
        return ExplanationContext(self._in_force.policy, now, told, {}, None)

    async def _cluster(self) -> ExplanationContext:
        room = await look_for_room(self._kube, (), self._in_force)
        self._unseen += room.unseen
        return ExplanationContext(self._in_force.policy, room.now, room.told, room.ledger, room.machines)

    async def _mpsnode(self, name: str) -> Object | None:
        try:
            return await allowed(self._kube.get(MPS_NODES, name), "where exactly it is was not read", self._unseen)
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
        return last_warning(await allowed(listing, "its events were not read", self._unseen) or ())


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


Namespace = Annotated[
    str | None,
    typer.Option("-n", "--namespace", metavar="NAME", help="Of the pod; else the context's.", show_default=False),
]
Everywhere = Annotated[bool, typer.Option("-A", "--all-namespaces", help="Without POD: of all namespaces.")]


def explain(
    pod: PodName = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    output: OutputFormat = Format.TEXT,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Say in one sentence why a pod waits for a GPU, or where it has one. Without POD, of every pod that waits.

    POD is its name, or that of its Job, Deployment or other owner, also as kubectl writes it: job/train. Exits with 0
    when it runs or has finished well, 1 when it waits or has failed, 2 when there is no such pod.

        kubectl mps explain train-0-x7k2p
        kubectl mps explain job/train -n research
        kubectl mps explain -A                    every pod that waits
        kubectl mps explain train-0-x7k2p -o json | jq -r .why

    For a manifest that is not in a cluster yet: mpsd explain -f job.yaml.
    """
    if pod is not None and everywhere:
        remedy = f"name a namespace for {shown(pod)} with -n"
        raise InvalidInput(_PROGRAM, [Problem("options", "-A", "", "is for all pods that wait", remedy)])
    where = "" if everywhere else namespace or namespace_of_user(kubeconfig, context)
    cluster = ClusterAccess(_PROGRAM, kubeconfig, context, _RIGHTS)
    found = cluster.ask(lambda kube: explain_all(kube, where) if pod is None else explain_one(kube, pod, where))
    if output is Format.JSON:
        _print_json(found, one=pod is not None and found.owner is None)
    else:
        _print(found, "any namespace" if everywhere else f"namespace {where}", every=pod is None)
    for sentence in dict.fromkeys(found.unseen):
        complaints().print(printable(f"{_PROGRAM}: {sentence}", _LONGEST))
    sys.exit(ExitCode.YES if all(story.is_well for _pod, story in found.stories) else ExitCode.NO)


def _print(found: Answers, where: str, *, every: bool) -> None:
    out = answers()
    if every and not found.stories:
        out.print(f"no pod of {where} waits for a GPU")
    if found.owner:
        names = ", ".join(pod.name.name for pod, _story in found.stories)
        pods = f"{len(found.stories)} pod{'' if len(found.stories) == 1 else 's'}"
        out.print(printable(f"{found.owner} has {pods}: {names}", _LONGEST))
    for _pod, one in found.stories:
        out.print(printable(one.sentence, _LONGEST))


def _print_json(found: Answers, *, one: bool) -> None:
    policy = {"from": found.in_force.source, "why": found.in_force.why}
    around = {"policy": policy, "not_looked_at": list(dict.fromkeys(found.unseen))}
    pods = [_record(pod, story) for pod, story in found.stories]
    if one:
        print_json(pods[0] | around)
    else:
        owner = {"kind": found.owner.kind, "name": found.owner.name} if found.owner else None
        print_json({"owner": owner, "pods": pods} | around)


def _record(pod: PodSeen, story: Explanation) -> dict[str, object]:
    request = pod.shared.request if pod.shared else None
    return {
        "namespace": pod.name.namespace,
        "pod": pod.name.name,
        "uid": pod.name.uid,
        "phase": pod.phase,
        "well": story.is_well,
        "why": story.why.value,
        "sentence": story.sentence,
        "node": story.node,
        "gpus": list(story.gpus),
        "room": list(story.room),
        "request": request
        and {"memory_mib": request.memory_mib, "thread_percent": request.thread_percent, "gpus": request.gpus},
    }
