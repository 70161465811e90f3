"""`kubectl mps bundle`: a support archive of a cluster.

No Secret is read, and of pods none but mpsd's own; what may not be read is named with the right
that is missing.

Rights of whoever asks, none of which is needed: those of `kubectl mps doctor`, list of events, get
of configmap mpsd-limits and of pods/log in mpsd-system.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from mpsd.model.names import NAMESPACE
from mpsd.operations.bundle.archive import BUNDLE_OUTPUT, Put, bundle_to
from mpsd.operations.bundle.rules import contents
from mpsd.operations.bundle.rules.contents import BundlePart, json_text, missing_part
from mpsd.operations.doctor.cluster import fact, look
from mpsd.operations.doctor.report import record
from mpsd.operations.doctor.rules.checks import Unknown, diagnose, known, known_or
from mpsd.operations.doctor.rules.cluster_checks import CLUSTER_CHECKS
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, inside
from mpsd.platform.command_line import takes
from mpsd.platform.kube import Kube
from mpsd.status.cluster import policy_in_force
from mpsd.status.cluster_answers import ClusterAccess
from mpsd.status.cluster_options import CONTEXT, KUBECONFIG, NODE_NAMES


async def parts(kube: Kube, nodes: Sequence[str]) -> AsyncIterator[BundlePart]:
    """Of these nodes, of all where none is named. Raises as the doctor's `look` does."""
    facts = await look(kube, nodes)
    for file, (about, read) in _SEEN.items():
        try:
            yield BundlePart(file, about, json_text(read(facts)))
        except Unknown as missing:
            yield missing_part(file, about, missing.why)
    in_force = await policy_in_force(kube)
    policy = {"source": in_force.source, "policy": in_force.policy}
    yield BundlePart("policy.json", "the policy, and whose it is", json_text(policy))
    for pod in known_or(facts.own_pods, ()):
        name = pod["metadata"]["name"]
        for container in inside(pod, "spec", "containers") or ():
            yield await _log(kube, name, container["name"])
        for one in inside(pod, "status", "containerStatuses") or ():
            if one.get("restartCount"):
                yield await _log(kube, name, one["name"], previous=True)


async def _log(kube: Kube, pod: str, container: str, *, previous: bool = False) -> BundlePart:
    file = f"logs/{pod}/{container}.log"
    about = "the end of its log"
    if previous:
        file = f"logs/{pod}/{container}.previous.log"
        about = f"{about} before it restarted"
    most = contents.MOST_BYTES
    found = await fact(kube.log(pod, NAMESPACE, container, previous=previous, most_bytes=most))
    if isinstance(found, Unknown):
        return missing_part(file, about, found.why)
    return BundlePart(file, about, contents.log_kept(found))


# -- of what the doctor has read; each raises Unknown


def _reported(facts: ClusterFacts) -> object:
    """spec and status have a schema, and are mpsd's own."""
    return [
        {"name": one["metadata"]["name"], "spec": one.get("spec"), "status": one.get("status")}
        for one in known(facts.mpsnodes)
    ]


def _machines(facts: ClusterFacts) -> object:
    return [
        {
            "name": one.node.name,
            "labels": contents.labels_kept(one.node.labels),
            "taints": one.node.taints,
            "kubelet": one.kubelet,
            "runtime": one.runtime,
            "whole_gpus": one.whole_gpus,
        }
        for one in facts.machines
        if one.node.is_labelled
    ]


def _settings(facts: ClusterFacts) -> object:
    found = {}
    for pod in known(facts.own_pods):
        for container in inside(pod, "spec", "containers") or ():
            settings = contents.settings_kept(container.get("env") or ())
            found[f"{pod['metadata']['name']}/{container['name']}"] = settings
    return found


_SEEN: Mapping[str, tuple[str, Callable[[ClusterFacts], object]]] = {
    "doctor.json": (
        "`kubectl mps doctor -o json`",
        lambda facts: record(diagnose(facts, CLUSTER_CHECKS)),
    ),
    "versions.json": (
        "versions of mpsd and Kubernetes",
        lambda facts: {"mpsd": facts.ours, "kubernetes": facts.version.get("gitVersion")},
    ),
    "mpsnodes.json": ("what each node reports", _reported),
    "nodes.json": ("labels, taints and versions of mpsd's nodes", _machines),
    "pods.json": ("mpsd's pods", lambda facts: facts.components),
    "settings.json": ("variables of mpsd's pods", _settings),
    "workloads.json": ("mpsd's DaemonSets and Deployments", lambda facts: facts.workloads),
    "events.json": (
        "warnings of mpsd and on its pods",
        lambda facts: contents.events_kept(known(facts.warnings)),
    ),
}


@takes(NODE_NAMES, BUNDLE_OUTPUT, KUBECONFIG, CONTEXT)
def bundle(
    *,
    nodes: list[str] | None = None,
    output: str | None = None,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> None:
    """Create a support bundle of mpsd in a cluster: one file that only you may read.

    In it: `kubectl mps doctor -o json`, MPSNodes, mpsd's pods with their settings and logs (also
    from before a restart), events of mpsd, labels and versions of its nodes, the policy. If nodes
    are named, the parts of single nodes are of these alone. INDEX.txt describes each part, what was
    cut (2 MiB a part, its end; 64 MiB in all), and what is not available and why.

    Not in it: Secrets (never requested), pods of others, tokens, keys, your kubeconfig: only what
    mpsd lists by name. Review it before you send it. What only a node knows is collected by `mpsd
    bundle` there.

    Exits with 0 when the file is written, 1 when the cluster cannot be reached, 2 when there is no
    such node; 130 after Ctrl-C, with nothing left.

        kubectl mps bundle
        kubectl mps bundle gpu-a1 -o for-support.tar.gz
    """
    cluster = ClusterAccess("kubectl mps bundle", kubeconfig, context)
    with bundle_to(output, cluster.program, "a cluster") as put:
        cluster.ask(lambda kube: _gather(kube, nodes or (), put))


async def _gather(kube: Kube, nodes: Sequence[str], put: Put) -> None:
    async for part in parts(kube, nodes):
        put(part)
