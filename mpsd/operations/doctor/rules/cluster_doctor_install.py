"""The checks of `kubectl mps doctor` of what is installed: the definition, rights and pods.

One rule: what a cluster does without, such as the webhook where policies stand in for it, is no fault.
"""

from collections.abc import Iterator

from mpsd.model.installed import AGENT, CONTROL, NAMESPACE
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, OwnPod
from mpsd.operations.doctor.rules.doctor import Check, Severity, Wrong
from mpsd.operations.doctor.rules.doctor_facts import known

_OLDEST = (1, 20)
_MANY_RESTARTS = 3  # more of them since a pod began is a pattern
_APPLY = "kubectl apply -k manifests"
_WORDS = {CONTROL: "mps-control-daemon", AGENT: AGENT}


def _kubernetes_old(facts: ClusterFacts) -> Iterator[Wrong]:
    found = known(facts.kubernetes)
    if found < _OLDEST:
        yield Wrong(f"Kubernetes {found[0]}.{found[1]} is older than 1.20, the oldest that mpsd runs on", "upgrade it")


def _definition(facts: ClusterFacts) -> Iterator[Wrong]:
    definition = known(facts.definition)
    if definition is None:
        yield Wrong("the cluster knows no MPSNode (CRD mpsnodes.mpsd.io is missing)", _APPLY)
    elif not definition.established or not definition.served:
        what = "version v1alpha1 is not served" if definition.established else "the API server has not accepted it"
        yield Wrong(
            f"CRD mpsnodes.mpsd.io is of no use: {what}", f"see kubectl describe crd mpsnodes.mpsd.io, {_APPLY}"
        )


def _definition_old(facts: ClusterFacts) -> Iterator[Wrong]:
    definition = known(facts.definition)
    if definition and definition.lacks:
        fields = ", ".join(definition.lacks)
        yield Wrong(f"CRD mpsnodes.mpsd.io is of an older mpsd: the API server drops status.{fields}", _APPLY)


def _namespace(facts: ClusterFacts) -> Iterator[Wrong]:
    if not known(facts.namespace):
        yield Wrong(f"the namespace {NAMESPACE} is not there: mpsd is not installed", _APPLY)


def _absent(facts: ClusterFacts) -> Iterator[Wrong]:
    there = {one.component for one in known(facts.workloads)}
    for component, name in _WORDS.items():
        if component not in there and known(facts.namespace):
            yield Wrong(f"the DaemonSet {name} is not in {NAMESPACE}: no node is served", _APPLY)


def _rights(facts: ClusterFacts) -> Iterator[Wrong]:
    missing: dict[str, list[str]] = {}
    for right in known(facts.rights):
        if not right.allowed:
            missing.setdefault(right.component, []).append(right.what)
    for component, what in missing.items():
        more = f" and {len(what) - 1} more" if len(what) > 1 else ""
        yield Wrong(f"service account {component} may not {what[0]}{more}", f"give it its ClusterRole back: {_APPLY}")


def _pods(facts: ClusterFacts) -> Iterator[Wrong]:
    for pod in known(facts.pods):
        if pod.trouble and not pod.ending:
            where = f" on {pod.node}" if pod.node else ""
            yield Wrong(f"pod {NAMESPACE}/{pod.name}{where} does not run: {pod.trouble}", _remedy(pod))


def _remedy(pod: OwnPod) -> str:
    if "ImagePull" in pod.trouble or "InvalidImageName" in pod.trouble:
        return f"correct the image {pod.image} in the kustomization, or give the nodes the right to pull it"
    if not pod.node:
        return f"see what the scheduler says: kubectl -n {NAMESPACE} describe pod {pod.name}"
    return f"see its log: kubectl -n {NAMESPACE} logs {pod.name} --previous"


def _restarting(facts: ClusterFacts) -> Iterator[Wrong]:
    for pod in known(facts.pods):
        if pod.restarts > _MANY_RESTARTS and not pod.trouble:
            ended = f", last {pod.ended}" if pod.ended else ""
            what = f"pod {NAMESPACE}/{pod.name} has restarted {pod.restarts} times{ended}"
            yield Wrong(what, f"see why: kubectl -n {NAMESPACE} logs {pod.name} --previous")


def _short(facts: ClusterFacts) -> Iterator[Wrong]:
    for one in known(facts.workloads):
        if one.ready < one.wanted:
            what = f"{one} has {one.ready} of {one.wanted} pods ready"
            yield Wrong(what, f"see kubectl -n {NAMESPACE} get pods -l app.kubernetes.io/name={one.component} -o wide")


_STOPS, _BREAKS, _NOTE = Severity.STOPS, Severity.BREAKS, Severity.NOTE
_CRD = "CustomResourceDefinition mpsnodes.mpsd.io"
_OWN = f"pods of {NAMESPACE}"

INSTALL_CHECKS: tuple[Check[ClusterFacts], ...] = (
    Check("kubernetes-old", _STOPS, "Kubernetes is new enough", ("kubernetes",), "GET /version", _kubernetes_old),
    Check("not-installed", _STOPS, "mpsd's namespace is there", ("namespace",), "its namespaces", _namespace),
    Check("definition-missing", _STOPS, "the cluster knows MPSNodes", ("definition",), _CRD, _definition),
    Check("workload-missing", _STOPS, "mpsd is installed", ("workloads", "namespace"), "DaemonSets", _absent),
    Check("rights-missing", _STOPS, "every part has its rights", ("rights",), "SubjectAccessReview", _rights),
    Check("pod-not-running", _STOPS, "mpsd's pods run", ("pods",), _OWN, _pods),
    Check("pods-short", _STOPS, "all pods are ready", ("workloads",), "DaemonSets and Deployments", _short),
)
RESTART_CHECK: Check[ClusterFacts] = Check(
    "pod-restarting", _BREAKS, "mpsd's pods stay up", ("pods",), _OWN, _restarting
)
DEFINITION_CHECK: Check[ClusterFacts] = Check(
    "definition-old", _NOTE, "MPSNode's definition is of this version", ("definition",), _CRD, _definition_old
)
