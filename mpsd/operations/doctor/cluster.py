"""`kubectl mps doctor`. Everything is asked at once, and only read; what cannot be read is Unknown.

Rights of whoever asks, none of which is needed: get and list of what is looked at.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar

import mpsd
from mpsd.model.names import NAMESPACE, OURS, WEBHOOK
from mpsd.model.times import http_seconds
from mpsd.operations.doctor.report import VERBOSE, answer
from mpsd.operations.doctor.rules.checks import Fact, Unknown, diagnose
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, Objects, inside
from mpsd.platform import clock
from mpsd.platform.command_line import OUTPUT, takes
from mpsd.platform.console import Format
from mpsd.platform.kube import (
    MPS_NODES,
    NODES,
    PODS,
    RESOURCE_SLICES,
    Kube,
    KubeError,
    NotFound,
    Resource,
)
from mpsd.platform.limits_files import load_limits
from mpsd.status.cluster import mpsnodes, policy_in_force
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import CONTEXT, KUBECONFIG, NODE_NAMES

Answer = TypeVar("Answer")

_NAMESPACES = Resource("v1", "namespaces")
_HOOKS = "admissionregistration.k8s.io/v1"
# By field of the facts: a kind, its namespace, and the name of one object or the selection of many.
_QUESTIONS: Mapping[str, tuple[Resource, str, str | Mapping[str, str]]] = {
    "namespace": (_NAMESPACES, "", NAMESPACE),
    "definition": (
        Resource("apiextensions.k8s.io/v1", "customresourcedefinitions"),
        "",
        "mpsnodes.mpsd.io",
    ),
    "own_pods": (PODS, NAMESPACE, OURS),
    "daemon_sets": (Resource("apps/v1", "daemonsets"), NAMESPACE, OURS),
    "deployments": (Resource("apps/v1", "deployments"), NAMESPACE, OURS),
    "nodes": (NODES, "", {}),
    "mpsnodes": (MPS_NODES, "", {}),
    "validating": (Resource(_HOOKS, "validatingwebhookconfigurations"), "", WEBHOOK),
    "mutating": (Resource(_HOOKS, "mutatingwebhookconfigurations"), "", WEBHOOK),
    "policies": (Resource(_HOOKS, "validatingadmissionpolicies"), "", OURS),
    "endpoints": (Resource("v1", "endpoints"), NAMESPACE, WEBHOOK),
    "slices": (RESOURCE_SLICES, "", {}),
    "warnings": (Resource("v1", "events"), "", {"fieldSelector": "type=Warning"}),
    "namespaces": (_NAMESPACES, "", {}),
    "pods": (PODS, "", {}),
}
# Where an object says which node it is of.
_NODE_OF = {
    **dict.fromkeys(("nodes", "mpsnodes"), ("metadata", "name")),
    **dict.fromkeys(("own_pods", "slices"), ("spec", "nodeName")),
}


async def look(kube: Kube, nodes: Sequence[str]) -> ClusterFacts:
    """Of these nodes, of all where none is named. Unavailable; InvalidInput where one of them is
    neither a Node nor has an MPSNode."""
    version = await kube.read("/version")
    there = await asyncio.gather(*(fact(kube.get(NODES, name)) for name in nodes))
    # of a Node without an MPSNode there is most to say
    others = [name for name, one in zip(nodes, there, strict=True) if isinstance(one, Unknown)]
    if others:
        await mpsnodes(kube, others)  # says which exist instead
    in_force = await policy_in_force(kube)
    own_clock, answers = await asyncio.gather(
        fact(_own_clock(kube)),
        asyncio.gather(*(_objects(kube, *one) for one in _QUESTIONS.values())),
    )
    objects = dict(zip(_QUESTIONS, answers, strict=True))
    if nodes:
        objects |= {name: _of_nodes(nodes, objects[name], keys) for name, keys in _NODE_OF.items()}
    return ClusterFacts(
        now=kube.now,
        ours=mpsd.__version__,
        policy=in_force.policy,
        gpu_facts=load_limits(None).facts,
        version=version,
        own_clock=own_clock,
        **objects,
    )


async def _objects(
    kube: Kube, kind: Resource, namespace: str, which: str | Mapping[str, str]
) -> Objects:
    if not isinstance(which, str):
        return await fact(kube.list(kind, namespace, which))
    try:
        return [await kube.get(kind, which, namespace)]
    except NotFound:
        return []
    except KubeError as error:
        return Unknown(str(error))


def _of_nodes(nodes: Sequence[str], objects: Objects, keys: Sequence[str]) -> Objects:
    """Those of these nodes, and those that have no node yet."""
    if isinstance(objects, Unknown):
        return objects
    return [thing for thing in objects if inside(thing, *keys) in (None, "", *nodes)]


async def _own_clock(kube: Kube) -> float:
    at = http_seconds(await kube.date())
    if at is None:
        raise Unknown("the API server's answers have no Date")
    return at - clock.wall_s()


async def fact(question: Awaitable[Answer]) -> Fact[Answer]:
    """The answer; Unknown with the reason where the API server does not give it."""
    try:
        return await question
    except KubeError as error:
        return Unknown(str(error))
    except Unknown as error:
        return error


@takes(NODE_NAMES, VERBOSE, OUTPUT, KUBECONFIG, CONTEXT)
def doctor(
    *,
    nodes: list[str] | None = None,
    verbose: bool = False,
    output: Format = Format.TEXT,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Say why MPS does not start or limits are not enforced in a cluster, the worst first, and the
    one thing to do.

    It only reads, with the rights that you have: what you may not see is reported as unknown, with
    the right that is missing. With names of nodes, only these nodes are checked.

    Exits with 0 when nothing was found but notes ("worth knowing"), 1 when something was found or
    could not be determined, 2 when there is no such node.

        kubectl mps doctor
        kubectl mps doctor gpu-a1 -v
        kubectl mps doctor -o json | jq '.checks[] | select(.verdict == "found")'

    What can be seen only on a node, `mpsd doctor` checks there.
    """
    facts = ClusterAccess("kubectl mps doctor", kubeconfig, context).ask(
        lambda kube: look(kube, nodes or ())
    )
    answer(diagnose(facts, CLUSTER_CHECKS), output, verbose=verbose)
