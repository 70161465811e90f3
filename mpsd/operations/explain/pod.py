"""`kubectl mps explain`: why a pod waits for a GPU, in one sentence.

No more is read than the answer takes. A missing right leaves out what it is for, and that is
reported.

Rights of whoever asks: get and list of pods in their namespace, list of its events, resourceclaims
and resourceclaimtemplates; get of configmap mpsd-limits in mpsd-system; for free capacity get and
list of mpsnodes.mpsd.io, list of nodes and of pods in all namespaces; for claims list of
deviceclasses and resourceslices.
"""

import asyncio
import sys
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TypeVar

import msgspec

from mpsd.kubelet.rules.gpu_choice import SharedPod, read_shared_pod
from mpsd.model.mpsnode import cluster_status, read_mpsnode
from mpsd.model.names import CLAIM_DRIVER
from mpsd.model.pod import CLAIM, CLAIM_TEMPLATE, ClaimName, Pod
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput, shortened, shown
from mpsd.platform.command_line import OUTPUT, flag, option, takes
from mpsd.platform.console import ExitCode, Format, answers, complaints, one_line, print_json
from mpsd.platform.kube import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    EVENTS,
    MPS_NODES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Forbidden,
    Kube,
    NotFound,
    Object,
    Resource,
)
from mpsd.platform.kube_access import namespace_of_user
from mpsd.platform.rules.kubernetes_objects import KubernetesNode, read_kubernetes_node
from mpsd.scheduler.rules.capacity import PLACEMENT_LABEL, node_capacity
from mpsd.scheduler.rules.reservations import KEY, Reservation, read_reservations
from mpsd.status.cluster import PolicyInForce, mpsnodes, policy_in_force
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import CONTEXT, KUBECONFIG, POD_NAME
from mpsd.status.rules import pods as rules
from mpsd.status.rules.claims import read_served, with_claim
from mpsd.status.rules.explanation import ExplanationNeeds, explanation_of, needs, wants_warning
from mpsd.status.rules.pods import Explanation, ExplanationContext, Owner, PodSeen, last_warning

Found = TypeVar("Found")
Other = TypeVar("Other")

_PENDING = {"fieldSelector": "status.phase=Pending"}
# pods whose events are asked for, and nodes that are, each with a request of its own
_MOST_ASKED = 8
_MOST_NAMED = 8
_PROGRAM = "kubectl mps explain"
_RIGHTS = (
    "an administrator gives it: kubectl create clusterrole mpsd-explain --verb=get,list"
    " --resource=mpsnodes.mpsd.io,nodes,pods,events, and a clusterrolebinding to it"
)


@dataclass(frozen=True, slots=True)
class Answers:
    explained: Sequence[tuple[PodSeen, Explanation]]
    #: What was named instead of a pod; None where a pod was.
    owner: Owner | None
    in_force: PolicyInForce
    #: What could not be read, a sentence each.
    unseen: Sequence[str]

    @property
    def is_well(self) -> bool:
        return all(explanation.is_well for _pod, explanation in self.explained)


async def explain_one(kube: Kube, words: str, namespace: str) -> Answers:
    """words: a pod's name, or KIND/NAME of it or of what made it. InvalidInput where there is
    none."""
    kind, name = rules.named(words)
    in_force, thing = await both(policy_in_force(kube), _pod(kube, kind, name, namespace))
    if thing is not None:
        return await _answers(kube, in_force, [rules.read_pod_seen(thing, in_force.policy)], None)
    pods = await _pods_seen(kube, in_force, namespace)
    owned, owner = rules.owned_by(pods, kind, name)
    if owner is None:
        raise _unknown(words, namespace, pods, await _elsewhere(kube, kind, name))
    return await _answers(kube, in_force, owned, owner)


async def explain_all(kube: Kube, namespace: str) -> Answers:
    """Every pod that requests a GPU and has not started. namespace: empty for all."""
    in_force = await policy_in_force(kube)
    pods = await _pods_seen(kube, in_force, namespace, _PENDING)
    pods.sort(key=lambda pod: (pod.name.namespace, pod.name.name))
    asking = [pod for pod in pods if pod.shared or pod.claims]
    found = await _answers(kube, in_force, asking, None)
    return replace(found, explained=[(pod, one) for pod, one in found.explained if pod.shared])


async def _pods_seen(
    kube: Kube, in_force: PolicyInForce, namespace: str, query: Mapping[str, str] | None = None
) -> list[PodSeen]:
    each = kube.each(PODS, namespace, query, Pod)
    return [rules.read_pod_seen(one, in_force.policy) async for one in each]


async def _pod(kube: Kube, kind: str, name: str, namespace: str) -> Object | None:
    """None where another kind is meant, and where there is no such pod."""
    with suppress(NotFound):
        if kind in ("", "Pod"):
            return await kube.get(PODS, name, namespace)
    return None


async def _answers(
    kube: Kube, in_force: PolicyInForce, pods: Sequence[PodSeen], owner: Owner | None
) -> Answers:
    unseen: list[str] = []
    pods = await _with_claims(kube, pods, in_force.policy, unseen)
    looking = _context(kube, in_force, pods, unseen)
    context, warnings = await both(looking, _warnings(kube, pods, unseen))
    explained = [
        (pod, explanation_of(pod, context, warnings.get(pod.name.uid, ""))) for pod in pods
    ]
    return Answers(explained, owner, in_force, tuple(dict.fromkeys(unseen)))


async def _context(
    kube: Kube, in_force: PolicyInForce, pods: Sequence[PodSeen], unseen: list[str]
) -> ExplanationContext:
    nodes = {pod.node for pod in pods if needs(pod) is ExplanationNeeds.ITS_NODE}
    if ExplanationNeeds.CLUSTER in map(needs, pods) or len(nodes) > _MOST_ASKED:
        return (await look_for_room(kube, (), in_force, unseen))[0]

    async def reported(name: str) -> Object | None:
        asked = kube.get(MPS_NODES, name)
        with suppress(NotFound):
            return await allowed(asked, "where exactly it is was not read", unseen)
        return None

    found = filter(None, await asyncio.gather(*map(reported, nodes)))
    status = cluster_status(found, kube.now)
    nodes_seen = {node.name: node for node in status.nodes}
    return ExplanationContext(in_force.policy, status.now, nodes_seen, {}, None)


async def _warnings(kube: Kube, pods: Sequence[PodSeen], unseen: list[str]) -> Mapping[str, str]:
    """By uid, of the first pods of which a warning would say more."""

    async def warning(pod: PodSeen) -> str:
        query = {"fieldSelector": f"involvedObject.uid={pod.name.uid},type=Warning"}
        listing = kube.list(EVENTS, pod.name.namespace, query)
        return last_warning(await allowed(listing, "its events were not read", unseen) or ())

    asked = [pod for pod in pods if wants_warning(pod)][:_MOST_ASKED]
    found = await asyncio.gather(*map(warning, asked))
    return {pod.name.uid: one for pod, one in zip(asked, found, strict=True)}


# -- resource claims

_OF_KIND = {CLAIM: RESOURCE_CLAIMS, CLAIM_TEMPLATE: CLAIM_TEMPLATES}
_DRIVER = {"fieldSelector": f"spec.driver={CLAIM_DRIVER}"}


async def _with_claims(
    kube: Kube, pods: Sequence[PodSeen], policy: Policy, unseen: list[str]
) -> list[PodSeen]:
    """The pods, with `shared` and `claim` for those with a claim of mpsd."""
    if not (claiming := [pod for pod in pods if pod.claims]):
        return [*pods]
    things: dict[tuple[str, ClaimName], Object] = {}
    unread: set[str] = set()  # namespaces whose claims may not be read
    for namespace in dict.fromkeys(pod.name.namespace for pod in claiming):
        for kind, resource in _OF_KIND.items():
            listed = await _list(kube, resource, unseen, namespace)
            if listed is None:
                unread.add(namespace)
            for thing in listed or ():
                things[namespace, ClaimName(kind, str(thing["metadata"]["name"]))] = thing
    classes = await _list(kube, DEVICE_CLASSES, unseen)
    slices = await _list(kube, RESOURCE_SLICES, unseen, query=_DRIVER)
    served = read_served(classes, slices)
    named = {(pod.name.namespace, name) for pod in claiming for name in pod.claims}
    missing = {one for one in named - things.keys() if one[0] not in unread}
    return [with_claim(pod, things, missing, served, policy) for pod in pods]


async def _list(
    kube: Kube,
    resource: Resource,
    unseen: list[str],
    namespace: str = "",
    query: Mapping[str, str] | None = None,
) -> Sequence[Object] | None:
    """None where one may not."""
    asked = kube.list(resource, namespace, query)
    try:
        return await allowed(asked, f"{resource.plural} were not read", unseen)
    except NotFound:  # a cluster without that API
        return ()


# -- free capacity


async def look_for_room(
    kube: Kube, names: Sequence[str], in_force: PolicyInForce, unseen: list[str]
) -> tuple[ExplanationContext, Sequence[SharedPod]]:
    """The free capacity of these nodes, of all where none is named, and the pods that request GPUs
    and have not started. Raises as `mpsnodes` does. unseen: grows by what may not be read, a
    sentence each."""
    uncounted = "pods that kubelet has given nothing yet are not counted"
    pods = allowed(_pods(kube, in_force), uncounted, unseen)
    others = both(allowed(_machines(kube), "nodes are not read", unseen), pods)
    things, (machines, pending) = await both(mpsnodes(kube, names), others)
    now = kube.now
    bound: dict[str, list[SharedPod]] = {}
    for pod in pending or ():
        bound.setdefault(pod.node, []).append(pod)
    reported = {}
    ledger = {}
    for thing in things:
        node = read_mpsnode(thing, now)
        placement = ""
        if machine := (machines or {}).get(node.name):
            placement = machine.labels.get(PLACEMENT_LABEL, "")
        reserved = _reservations(thing, node.name, pending)
        here = bound.get(node.name, ())
        reported[node.name] = node
        ledger[node.name] = node_capacity(node, placement, here, reserved, in_force.policy)
    return ExplanationContext(in_force.policy, now, reported, ledger, machines), pending or ()


async def both(first: Awaitable[Found], second: Awaitable[Other]) -> tuple[Found, Other]:
    """Both answers, asked at once. An error is raised when both have ended, so that the connection
    can be closed."""
    one, other = await asyncio.gather(first, second, return_exceptions=True)
    if isinstance(one, BaseException):
        raise one
    if isinstance(other, BaseException):
        raise other
    return one, other


async def allowed(asked: Awaitable[Found], without: str, unseen: list[str]) -> Found | None:
    """The answer; None where a right is missing, which `unseen` then reports."""
    try:
        return await asked
    except Forbidden as error:
        unseen.append(f"{without}: {error}")
        return None


async def _machines(kube: Kube) -> dict[str, KubernetesNode]:
    nodes = [read_kubernetes_node(one) async for one in kube.each(NODES)]
    return {node.name: node for node in nodes}


async def _pods(kube: Kube, in_force: PolicyInForce) -> list[SharedPod]:
    """What kubelet gave stands in the MPSNodes within a second or two of the pod's start: only the
    others are read."""
    each = kube.each(PODS, query=_PENDING, fields=Pod)
    read = [read_shared_pod(one, in_force.policy) async for one in each]
    return [pod for pod in read if pod]


def _reservations(
    thing: Object, node: str, pending: Sequence[SharedPod] | None
) -> tuple[Reservation, ...]:
    """Of pods that wait, for any node or for this one's kubelet; the others are only not removed
    yet. All of them where pods may not be read."""
    written = (thing["metadata"].get("annotations") or {}).get(KEY)
    reserved = read_reservations(str(written or ""))
    if pending is None:
        return reserved
    waiting = {pod.name.uid for pod in pending if pod.node in ("", node)}
    return tuple(one for one in reserved if one.pod.uid in waiting)


# -- no such pod


async def _elsewhere(kube: Kube, kind: str, name: str) -> Sequence[str]:
    """The other namespaces that have a pod of this name, as far as one may know."""
    with suppress(Forbidden):
        if kind in ("", "Pod"):
            query = {"fieldSelector": f"metadata.name={name}"}
            each = kube.each(PODS, query=query, fields=Pod)
            return sorted([one.metadata.namespace async for one in each])
    return ()


def _unknown(
    words: str, namespace: str, pods: Sequence[PodSeen], elsewhere: Sequence[str]
) -> InvalidInput:
    asking = sorted({pod.name.name for pod in pods if pod.shared})
    owners = sorted({owner.name for pod in pods if pod.shared for owner in pod.owners})
    near = get_close_matches(rules.named(words)[1], [*asking, *owners], _MOST_NAMED, 0.6)
    if elsewhere:
        remedy = f"there is one in {', '.join(elsewhere[:_MOST_NAMED])}: name the namespace with -n"
    elif asking:
        remedy = f"name one of {shortened(list(dict.fromkeys([*near, *asking])), _MOST_NAMED)}"
    else:
        remedy = "no pod there asks for a GPU; name another namespace with -n"
    where = f"{shown(words, 300)} in namespace {namespace}"
    message = "is no pod, and no Job, Deployment or other owner"
    return InvalidInput.of("the cluster", "pod-unknown", where, "", f"{message} of pods", remedy)


@takes(
    POD_NAME,
    option("-n", "--namespace", metavar="NAME", help="Of the pod; else the context's."),
    flag("-A", "--all-namespaces", dest="everywhere", help="Without POD: of all namespaces."),
    OUTPUT,
    KUBECONFIG,
    CONTEXT,
)
def explain(
    *,
    pod: str | None = None,
    namespace: str | None = None,
    everywhere: bool = False,
    output: Format = Format.TEXT,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Say in one sentence why a pod waits for a GPU, or where it has one. Without POD, of every pod
    that waits.

    POD is its name, or that of its Job, Deployment or other owner, also as kubectl writes it:
    job/train. Exits with 0 when it runs or has finished well, 1 when it waits or has failed, 2 when
    there is no such pod.

        kubectl mps explain train-0-x7k2p
        kubectl mps explain job/train -n research
        kubectl mps explain -A                    every pod that waits
        kubectl mps explain train-0-x7k2p -o json | jq -r .why

    For a manifest that is not in a cluster yet: mpsd explain -f job.yaml.
    """
    if pod is not None and everywhere:
        remedy = f"name a namespace for {shown(pod)} with -n"
        message = "is for all pods that wait"
        raise InvalidInput.of(_PROGRAM, "options", "-A", "", message, remedy)
    where = "" if everywhere else namespace or namespace_of_user(kubeconfig, context)
    cluster = ClusterAccess(_PROGRAM, kubeconfig, context, _RIGHTS)
    if pod is None:
        found = cluster.ask(lambda kube: explain_all(kube, where))
    else:
        found = cluster.ask(lambda kube: explain_one(kube, pod, where))
    if output is Format.JSON:
        policy = {"from": found.in_force.source, "why": found.in_force.why}
        pods = [_record(*one) for one in found.explained]
        record: dict[str, object] = {"owner": found.owner, "pods": pods}
        if pod is not None and found.owner is None:
            (record,) = pods
        print_json(record | {"policy": policy, "not_looked_at": list(found.unseen)})
    elif pod is None and not found.explained:
        place = f"namespace {where}" if where else "any namespace"
        answers().print(f"no pod of {place} waits for a GPU")
    else:
        for line in _lines(found):
            answers().print(one_line(line))
    for sentence in found.unseen:
        complaints().print(one_line(f"{_PROGRAM}: {sentence}"))
    sys.exit(ExitCode.of(found.is_well))


def _lines(found: Answers) -> Iterator[str]:
    if found.owner:
        names = [pod.name.name for pod, _explanation in found.explained]
        pods = "1 pod" if len(names) == 1 else f"{len(names)} pods"
        yield f"{found.owner} has {pods}: {', '.join(names)}"
    for _pod, one in found.explained:
        yield one.sentence
        for problem in one.warnings:
            yield f"  warning {problem}"


def _record(pod: PodSeen, explanation: Explanation) -> dict[str, object]:
    request = pod.shared and pod.shared.request
    explained: dict[str, object] = msgspec.to_builtins(explanation)
    return {"pod": pod.name, "phase": pod.phase, "request": request, **explained}
