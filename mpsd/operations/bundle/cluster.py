"""`kubectl mps bundle`: a support archive of a cluster, with nothing secret in it.

No Secret is read, and of pods none but mpsd's own; what may not be read is named with the right that is missing.

Rights of whoever asks, none of which is needed: get and list of what is gathered, get of pods/log in mpsd-system.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

import mpsd
from mpsd.model.events import COMPONENT
from mpsd.model.names import LIMITS, NAMESPACE, OURS
from mpsd.model.problem import InvalidInput
from mpsd.operations.bundle.archive import Output, Put, bundle_to
from mpsd.operations.bundle.rules.contents import (
    MOST_BYTES,
    BundlePart,
    faults_kept,
    json_part,
    labels_kept,
    log_part,
    missing_part,
    mpsnode_kept,
    object_kept,
    text_part,
)
from mpsd.operations.doctor.cluster import look
from mpsd.operations.doctor.report import record
from mpsd.operations.doctor.rules.checks import diagnose
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.platform.kube import MPS_NODES, NODES, PODS, Kube, KubeError, Object, Resource
from mpsd.platform.limits_files import GPU_FACTS_FILE, POLICY_FILE
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node
from mpsd.platform.rules.limits_reading import read_gpu_facts, read_policy
from mpsd.platform.yaml_files import parse_yaml
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import Context, Kubeconfig, NodeNames

_KINDS: tuple[tuple[str, str, Resource, str, Mapping[str, str] | None], ...] = (
    ("workloads/daemonsets.json", "mpsd's DaemonSets", Resource("apps/v1", "daemonsets"), NAMESPACE, OURS),
    ("workloads/deployments.json", "mpsd's Deployments", Resource("apps/v1", "deployments"), NAMESPACE, OURS),
    ("workloads/endpoints.json", "addresses behind Services", Resource("v1", "endpoints"), NAMESPACE, None),
    ("events.json", f"events of {NAMESPACE}", Resource("v1", "events"), NAMESPACE, None),
    (
        "webhook/validating.json",
        "webhook configurations of mpsd",
        Resource("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"),
        "",
        OURS,
    ),
    (
        "webhook/mutating.json",
        "webhook configurations of mpsd",
        Resource("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"),
        "",
        OURS,
    ),
)
_READ: Mapping[str, Callable[[object, str], object]] = {POLICY_FILE: read_policy, GPU_FACTS_FILE: read_gpu_facts}
_CONFIG_MAPS, _EVENTS = Resource("v1", "configmaps"), Resource("v1", "events")


class ClusterBundle:
    """Gathers the parts. nodes: those whose own parts are gathered; all where none is named."""

    def __init__(self, kube: Kube, nodes: Sequence[str]) -> None:
        self._kube = kube
        self._nodes = tuple(nodes)

    async def parts(self) -> AsyncIterator[BundlePart]:
        """InvalidInput where a node does not exist; Unavailable where the API server does not answer at all."""
        facts = await look(self._kube, self._nodes)
        diagnosis = diagnose(facts, CLUSTER_CHECKS)
        yield text_part("doctor.txt", "the worst that `kubectl mps doctor` found", f"{diagnosis.headline}\n")
        yield json_part("doctor.json", "`kubectl mps doctor -o json`", record(diagnosis))
        yield await self._tried("versions.json", "versions of mpsd and Kubernetes", self._versions())
        yield await self._tried("mpsnodes.json", "what each node reports", self._mps_nodes())
        yield await self._tried("nodes.json", "labels, conditions and resources of mpsd's nodes", self._machines())
        for file, about, kind, namespace, query in _KINDS:
            yield await self._tried(file, about, self._kept(kind, namespace, query))
        yield await self._tried("policy.json", f"ConfigMap {LIMITS}", self._limits())
        query = {"fieldSelector": f"source={COMPONENT}"}
        yield await self._tried("events-told.json", "events of agents", self._kept(_EVENTS, "", query))
        async for part in self._pods():
            yield part

    async def _pods(self) -> AsyncIterator[BundlePart]:
        try:
            pods = [pod for pod in await self._kube.list(PODS, NAMESPACE, OURS) if self._wants(_node_of(pod))]
        except KubeError as error:
            yield missing_part("pods.json", "mpsd's pods, and their logs", str(error))
            return
        yield json_part("pods.json", "mpsd's pods", object_kept(pods))
        for pod in pods:
            for container in (pod.get("spec") or {}).get("containers") or ():
                async for part in self._logs(pod, str(container["name"])):
                    yield part

    async def _logs(self, pod: Object, container: str) -> AsyncIterator[BundlePart]:
        name = str(pod["metadata"]["name"])
        statuses = (pod.get("status") or {}).get("containerStatuses") or ()
        restarted = any(one.get("name") == container and one.get("restartCount") for one in statuses)
        for previous in (False, True) if restarted else (False,):
            file = f"logs/{name}/{container}{'.previous' if previous else ''}.log"
            about = f"the end of the log of {name}, {container}{', before it restarted' if previous else ''}"
            try:
                text = await self._kube.log(name, NAMESPACE, container, previous=previous, most_bytes=MOST_BYTES)
                yield log_part(file, about, text)
            except KubeError as error:
                yield missing_part(file, about, str(error))

    async def _versions(self) -> Object:
        return {"mpsd": mpsd.__version__, "kubernetes": await self._kube.read("/version")}

    async def _kept(self, kind: Resource, namespace: str, query: Mapping[str, str] | None) -> Any:
        return object_kept(await self._kube.list(kind, namespace, query))

    async def _mps_nodes(self) -> list[Object]:
        return [mpsnode_kept(thing) for thing in await self._of_nodes(MPS_NODES)]

    async def _limits(self) -> Object:
        """The values of the limits in it, without comments; what is wrong where they are none."""
        data = (await self._kube.get(_CONFIG_MAPS, LIMITS, NAMESPACE)).get("data") or {}
        return {name: _limits_in(str(data.get(name, "")), name, read) for name, read in _READ.items()}

    async def _of_nodes(self, kind: Resource) -> Sequence[Object]:
        return [thing for thing in await self._kube.list(kind) if self._wants(thing["metadata"]["name"])]

    async def _machines(self) -> list[dict[str, Any]]:
        """The nodes of mpsd, without annotations, addresses and images, which are private."""
        things = [thing for thing in await self._of_nodes(NODES) if read_kubernetes_node(thing).is_labelled]
        return [
            {
                "name": thing["metadata"]["name"],
                "labels": labels_kept(thing["metadata"].get("labels")),
                "taints": object_kept((thing.get("spec") or {}).get("taints")),
                **{
                    key: object_kept({key: (thing.get("status") or {}).get(key)}).get(key)
                    for key in ("conditions", "capacity", "allocatable", "nodeInfo")
                },
            }
            for thing in things
        ]

    def _wants(self, node: str) -> bool:
        return not self._nodes or not node or node in self._nodes

    async def _tried(self, file: str, about: str, question: Awaitable[Any]) -> BundlePart:
        try:
            return json_part(file, about, await question)
        except KubeError as error:
            return missing_part(file, about, str(error))


def _limits_in(text: str, name: str, read: Callable[[object, str], object]) -> object:
    try:
        documents = parse_yaml(text.encode(), name)
        return msgspec.to_builtins(read(documents[0].value if len(documents) == 1 else None, name))
    except InvalidInput as error:
        return {"wrong": faults_kept(error)}


def _node_of(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName", ""))


def bundle(
    nodes: NodeNames = None,
    output: Output = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Create a support bundle of mpsd in a cluster: one file that only you may read.

    In it: what `kubectl mps doctor` says, MPSNodes, mpsd's DaemonSets, Deployments and pods with their logs (those from
    before a restart too), events of mpsd, webhook configurations, labels, conditions and resources of mpsd's nodes, the
    ConfigMap with the policy. With names of nodes, what is of one node is of these alone. INDEX.txt says what each part
    is, what was cut (2 MiB a part, its end; 64 MiB in all), and what was not available and why.

    Not in it: Secrets, which are not asked for, pods of others, tokens, keys, your kubeconfig. Of objects and logs it
    takes the fields that are known to be harmless; [left out] is in the place of other values. Look through it before
    you send it. What only a node knows, `mpsd bundle` gathers there.

    Exits with 0 when the file is written, 1 when the cluster cannot be asked, 2 when there is no such node; 130 after
    Ctrl-C, with nothing left.

        kubectl mps bundle
        kubectl mps bundle gpu-a1 -o for-support.tar.gz
    """
    cluster = ClusterAccess("kubectl mps bundle", kubeconfig, context)
    with bundle_to(output, "kubectl mps bundle", "a cluster") as put:
        cluster.ask(lambda kube: _gather(kube, nodes or [], put))


async def _gather(kube: Kube, nodes: list[str], put: Put) -> None:
    async for part in ClusterBundle(kube, nodes).parts():
        put(part)
