"""`kubectl mps doctor`: why MPS does not start or limits are not enforced in a cluster, each with
the one thing to do.

Everything is asked at once, with a deadline for each question. It only reads; what cannot be read
is Unknown, with what is missing.

Rights of whoever asks, none of which is needed: get and list of what is looked at.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar

import mpsd
from mpsd.model.names import NAMESPACE, OURS, WEBHOOK
from mpsd.model.times import http_seconds
from mpsd.operations.doctor.report import VERBOSE, answer
from mpsd.operations.doctor.rules.checks import Fact, NotApplicable, Unknown, diagnose
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, Objects, inside
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
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node
from mpsd.status.cluster import mpsnodes, policy_in_force
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import CONTEXT, KUBECONFIG, NODE_NAMES

Answer = TypeVar("Answer")

_NAMESPACES = Resource("v1", "namespaces")
_HOOKS = "admissionregistration.k8s.io/v1"
# What is asked, by field of the facts: a kind, its namespace, and the name of one object or the
# selection of many.
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


_CGROUP = re.compile(rb"^kubelet_cgroup_version (\d)", re.MULTILINE)
# Where an object says which node it is of.
_NODE_OF = {
    **dict.fromkeys(("nodes", "mpsnodes"), ("metadata", "name")),
    **dict.fromkeys(("own_pods", "slices"), ("spec", "nodeName")),
}


async def look(kube: Kube, nodes: Sequence[str]) -> ClusterFacts:
    """The facts of these nodes, of all where none is named.

    Unavailable where the API server does not answer at all; InvalidInput where one of the nodes is
    neither a Node nor has an MPSNode.
    """
    version = await kube.read("/version")
    are_nodes = await asyncio.gather(*(_is_node(kube, name) for name in nodes))
    others = [name for name, is_node in zip(nodes, are_nodes, strict=True) if not is_node]
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
    machines = () if isinstance(objects["nodes"], Unknown) else objects["nodes"]
    names = [node.name for node in map(read_kubernetes_node, machines) if node.is_labelled]
    versions = await asyncio.gather(*(_cgroup(kube, name) for name in names))
    return ClusterFacts(
        now=time.time(),
        ours=mpsd.__version__,
        policy=in_force.policy,
        cgroups=dict(zip(names, versions, strict=True)),
        gpu_facts=load_limits(None).facts,
        version=version,
        own_clock=own_clock,
        **objects,
    )


async def _is_node(kube: Kube, name: str) -> bool:
    """Of a Node without an MPSNode the doctor has most to say. False also where it may not be
    read."""
    try:
        await kube.get(NODES, name)
    except KubeError:
        return False
    return True


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


async def _cgroup(kube: Kube, node: str) -> Fact[int]:
    """The version that its kubelet runs on. A right that few have: without it there is nothing to
    say."""
    try:
        found = _CGROUP.search(await kube.kubelet_metrics(node))
    except KubeError as error:
        return NotApplicable(str(error))
    if found:
        return int(found[1])
    return NotApplicable(f"the kubelet of {node} is older than 1.31 and does not report it")


async def _own_clock(kube: Kube) -> float:
    at = http_seconds(await kube.date())
    if at is None:
        raise Unknown("the API server's answers have no Date")
    return at - time.time()


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
