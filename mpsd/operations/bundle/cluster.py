"""`kubectl mps bundle`: a support archive of a cluster, with nothing secret in it.

No Secret is read, and of pods none but mpsd's own; what may not be read is named with the right that is missing.

Rights of whoever asks, none of which is needed: get and list of what is gathered, get of pods/log in mpsd-system.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

import msgspec

from mpsd.model.events import COMPONENT
from mpsd.model.names import LIMITS, NAMESPACE
from mpsd.model.problem import InvalidInput
from mpsd.operations.bundle.archive import Output, Put, bundle_to
from mpsd.operations.bundle.rules import contents
from mpsd.operations.bundle.rules.contents import BundlePart, json_text, missing_part, object_kept
from mpsd.operations.doctor.cluster import fact, look
from mpsd.operations.doctor.report import record
from mpsd.operations.doctor.rules.checks import Fact, Unknown, diagnose
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, Object, Objects, inside
from mpsd.platform.kube import EVENTS, Kube, Resource
from mpsd.platform.limits_files import GPU_FACTS_FILE, POLICY_FILE, read_gpu_facts, read_policy
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node
from mpsd.platform.yaml_files import parse_yaml
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, Kubeconfig, NodeNames

_READ: Mapping[str, Callable[[object, str], object]] = {POLICY_FILE: read_policy, GPU_FACTS_FILE: read_gpu_facts}


async def parts(kube: Kube, nodes: Sequence[str]) -> AsyncIterator[BundlePart]:
    """nodes: those whose own parts are gathered; all where none is named. InvalidInput where a node does not exist;
    Unavailable where the API server does not answer at all.
    """
    facts = await look(kube, nodes)
    diagnosis = diagnose(facts, CLUSTER_CHECKS)
    yield BundlePart("doctor.txt", "the worst that `kubectl mps doctor` found", f"{diagnosis.headline}\n")
    yield BundlePart("doctor.json", "`kubectl mps doctor -o json`", json_text(record(diagnosis)))
    for file, about, found in _seen(facts):
        yield _part(file, about, found)
    for file, about, question in _asked(kube, () if isinstance(facts.own_pods, Unknown) else facts.own_pods):
        yield _part(file, about, await fact(question))


def _part(file: str, about: str, found: Fact[object]) -> BundlePart:
    if isinstance(found, Unknown):
        return missing_part(file, about, found.why)
    return BundlePart(file, about, found if isinstance(found, str) else json_text(found))


def _seen(facts: ClusterFacts) -> Iterator[tuple[str, str, Fact[object]]]:
    """What the doctor has read: the file, what it is, and what is in it."""
    yield "versions.json", "versions of mpsd and Kubernetes", {"mpsd": facts.ours, "kubernetes": facts.version}
    yield "mpsnodes.json", "what each node reports", _each(facts.mpsnodes, contents.mpsnode_kept)
    yield "nodes.json", "labels, conditions and resources of mpsd's nodes", _each(facts.nodes, _machine)
    yield "workloads/daemonsets.json", "mpsd's DaemonSets", _each(facts.daemon_sets, object_kept)
    yield "workloads/deployments.json", "mpsd's Deployments", _each(facts.deployments, object_kept)
    yield "webhook/validating.json", "webhook configurations of mpsd", _each(facts.validating, object_kept)
    yield "webhook/mutating.json", "webhook configurations of mpsd", _each(facts.mutating, object_kept)
    yield "pods.json", "mpsd's pods", _each(facts.own_pods, object_kept)


def _each(objects: Objects, kept: Callable[[Object], object]) -> Fact[object]:
    """What is kept of each; those of which nothing is are left out."""
    return objects if isinstance(objects, Unknown) else list(filter(None, map(kept, objects)))


def _machine(thing: Object) -> object:
    """A node of mpsd, without annotations, addresses and images, which are private; None for another node."""
    if not read_kubernetes_node(thing).is_labelled:
        return None
    metadata, status = thing["metadata"], object_kept(thing.get("status") or {})
    own = {"name": metadata["name"], "labels": contents.labels_kept(metadata.get("labels"))}
    own["taints"] = object_kept((thing.get("spec") or {}).get("taints"))
    return own | {key: status.get(key) for key in ("conditions", "capacity", "allocatable", "nodeInfo")}


def _asked(kube: Kube, pods: Sequence[Object]) -> Iterator[tuple[str, str, Awaitable[object]]]:
    """What is asked of the API server beyond that. pods: whose logs are gathered."""
    yield "workloads/endpoints.json", "addresses behind Services", _kept(kube, Resource("v1", "endpoints"), NAMESPACE)
    yield "events.json", f"events of {NAMESPACE}", _kept(kube, EVENTS, NAMESPACE)
    reported = {"fieldSelector": f"source={COMPONENT}"}
    yield "events-told.json", "events of agents", _kept(kube, EVENTS, "", reported)
    yield "policy.json", f"ConfigMap {LIMITS}", _limits(kube)
    for pod in pods:
        for container in inside(pod, "spec", "containers") or ():
            yield from _logs(kube, pod, str(container["name"]))


async def _kept(kube: Kube, kind: Resource, namespace: str, query: Mapping[str, str] | None = None) -> object:
    return object_kept(await kube.list(kind, namespace, query))


def _logs(kube: Kube, pod: Object, container: str) -> Iterator[tuple[str, str, Awaitable[str]]]:
    name = str(pod["metadata"]["name"])
    statuses = inside(pod, "status", "containerStatuses") or ()
    about = f"the end of the log of {name}, {container}"
    yield f"logs/{name}/{container}.log", about, _log(kube, name, container, previous=False)
    if any(one.get("name") == container and one.get("restartCount") for one in statuses):
        before = _log(kube, name, container, previous=True)
        yield f"logs/{name}/{container}.previous.log", f"{about}, before it restarted", before


async def _log(kube: Kube, pod: str, container: str, *, previous: bool) -> str:
    most = contents.MOST_BYTES
    return contents.log_kept(await kube.log(pod, NAMESPACE, container, previous=previous, most_bytes=most))


async def _limits(kube: Kube) -> object:
    """The values of the limits in it, without comments; what is wrong where they are none."""
    data = (await kube.get(Resource("v1", "configmaps"), LIMITS, NAMESPACE)).get("data") or {}
    return {name: _limits_in(str(data.get(name, "")), name, read) for name, read in _READ.items()}


def _limits_in(text: str, name: str, read: Callable[[object, str], object]) -> object:
    try:
        documents = parse_yaml(text.encode(), name)
        return msgspec.to_builtins(read(documents[0].value if len(documents) == 1 else None, name))
    except InvalidInput as error:
        return {"wrong": contents.faults_kept(error)}


def bundle(
    nodes: NodeNames = None, output: Output = None, kubeconfig: Kubeconfig = None, context: Context = None
) -> None:
    """Create a support bundle of mpsd in a cluster: one file that only you may read.

    In it: the output of `kubectl mps doctor`, MPSNodes, mpsd's DaemonSets, Deployments and pods with their logs (also
    from before a restart), events of mpsd, webhook configurations, labels, conditions and resources of mpsd's nodes,
    the ConfigMap with the policy. If nodes are named, the parts of single nodes are of these alone. INDEX.txt describes
    each part, what was cut (2 MiB a part, its end; 64 MiB in all), and what is not available and why.

    Not in it: Secrets (never requested), pods of others, tokens, keys, your kubeconfig. Of objects and logs it contains
    the fields that are known to be harmless; [left out] replaces other values. Review it before you send it. What only
    a node knows is collected by `mpsd bundle` there.

    Exits with 0 when the file is written, 1 when the cluster cannot be reached, 2 when there is no such node; 130 after
    Ctrl-C, with nothing left.

        kubectl mps bundle
        kubectl mps bundle gpu-a1 -o for-support.tar.gz
    """
    cluster = ClusterAccess("kubectl mps bundle", kubeconfig, context)
    with bundle_to(output, cluster.program, "a cluster") as put:
        cluster.ask(lambda kube: _gather(kube, nodes or (), put))


async def _gather(kube: Kube, nodes: Sequence[str], put: Put) -> None:
    async for part in parts(kube, nodes):
        put(part)
