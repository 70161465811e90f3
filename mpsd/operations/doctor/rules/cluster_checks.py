"""Checks of `kubectl mps doctor` of what is installed and of the nodes; and all checks of a cluster, in their order.

A node counts as mpsd's by its label alone, and its MPSNode is believed while it is not stale. What a cluster does
without, such as the webhook where policies stand in for it, is no fault.
"""

from collections.abc import Iterator
from functools import cmp_to_key

from mpsd.model.cluster_status import ClusterNode, silence
from mpsd.model.domain import ALL, State, after_is, remedy
from mpsd.model.names import AGENT, CONTROL, NAME_LABEL, NAMESPACE, SCHEDULER, WEBHOOK
from mpsd.model.times import DAY_S, lasting
from mpsd.operations.doctor.rules.checks import (
    Check,
    CheckTable,
    Finding,
    NotApplicable,
    NotKnown,
    Severity,
    Unknown,
    known,
)
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, OwnPod
from mpsd.operations.doctor.rules.cluster_pods import POD_CHECKS
from mpsd.operations.doctor.rules.components import Skew, compare, skews
from mpsd.platform.rules.kubernetes_objects import LABELS

_OLDEST = (1, 20)
_MANY_RESTARTS = 3  # more of them since a pod began is a pattern
_APART_S = 30.0  # stamps of the API are whole seconds, and a write may wait
_FORGOTTEN_S = DAY_S
_APPLY = "kubectl apply -k manifests"
_DAEMON_SETS = {CONTROL: "mps-control-daemon", AGENT: AGENT}
_CORDONED = frozenset({State.DRAINING.value, State.DRAINED.value})
_LABEL = f"kubectl label node {{}} {LABELS[0]}"
_CRD, _OWN = "CustomResourceDefinition mpsnodes.mpsd.io", f"pods of {NAMESPACE}"
_NODES, _VERSIONS = "Nodes: their labels and resources", "MPSNodes: status.version, domains[].version"
_STOPS, _BREAKS, _NOTE = Severity

_CHECKS = CheckTable[ClusterFacts]()
_check = _CHECKS.check


# -- what is installed -------------------------------------------------------------------------------------------------


@_check("kubernetes-old", _STOPS, "Kubernetes is new enough", "kubernetes", how="GET /version")
def _kubernetes_old(facts: ClusterFacts) -> Iterator[Finding]:
    found = known(facts.kubernetes)
    if found < _OLDEST:
        what = f"Kubernetes {found[0]}.{found[1]} is older than 1.20, the oldest that mpsd runs on"
        yield Finding(what, "upgrade it")


@_check("not-installed", _STOPS, "mpsd's namespace is there", "namespace", how="its namespaces")
def _namespace(facts: ClusterFacts) -> Iterator[Finding]:
    if not known(facts.namespace):
        yield Finding(f"the namespace {NAMESPACE} does not exist: mpsd is not installed", _APPLY)


@_check("definition-missing", _STOPS, "the cluster knows MPSNodes", "definition", how=_CRD)
def _definition(facts: ClusterFacts) -> Iterator[Finding]:
    definition = known(facts.definition)
    if definition is None:
        yield Finding("the cluster knows no MPSNode (CRD mpsnodes.mpsd.io is missing)", _APPLY)
    elif not definition.established or not definition.served:
        what = "version v1alpha1 is not served" if definition.established else "the API server has not accepted it"
        see = f"see kubectl describe crd mpsnodes.mpsd.io, {_APPLY}"
        yield Finding(f"CRD mpsnodes.mpsd.io cannot be used: {what}", see)


@_check("definition-old", _NOTE, "MPSNode's definition is of this version", "definition", how=_CRD)
def _definition_old(facts: ClusterFacts) -> Iterator[Finding]:
    definition = known(facts.definition)
    if definition and definition.lacks:
        fields = ", ".join(definition.lacks)
        yield Finding(f"CRD mpsnodes.mpsd.io is of an older mpsd: the API server drops status.{fields}", _APPLY)


@_check("workload-missing", _STOPS, "mpsd is installed", "workloads", "namespace", how="DaemonSets")
def _absent(facts: ClusterFacts) -> Iterator[Finding]:
    there = {one.component for one in known(facts.workloads)}
    for component, name in _DAEMON_SETS.items():
        if component not in there and known(facts.namespace):
            yield Finding(f"the DaemonSet {name} is not in {NAMESPACE}: no node is served", _APPLY)


@_check("rights-missing", _STOPS, "every part has its rights", "rights", how="SubjectAccessReview")
def _rights(facts: ClusterFacts) -> Iterator[Finding]:
    missing: dict[str, list[str]] = {}
    for right in known(facts.rights):
        if not right.allowed:
            missing.setdefault(right.component, []).append(right.what)
    for component, what in missing.items():
        more = f" and {len(what) - 1} more" if len(what) > 1 else ""
        yield Finding(f"service account {component} may not {what[0]}{more}", f"give it its ClusterRole back: {_APPLY}")


@_check("pod-not-running", _STOPS, "mpsd's pods run", "pods", how=_OWN)
def _pods(facts: ClusterFacts) -> Iterator[Finding]:
    for pod in known(facts.pods):
        if pod.trouble and not pod.ending:
            where = f" on {pod.node}" if pod.node else ""
            yield Finding(f"pod {NAMESPACE}/{pod.name}{where} does not run: {pod.trouble}", _pod_remedy(pod))


def _pod_remedy(pod: OwnPod) -> str:
    if "ImagePull" in pod.trouble or "InvalidImageName" in pod.trouble:
        return f"correct the image {pod.image} in the kustomization, or give the nodes the right to pull it"
    if not pod.node:
        return f"see what the scheduler says: kubectl -n {NAMESPACE} describe pod {pod.name}"
    return f"see its log: kubectl -n {NAMESPACE} logs {pod.name} --previous"


@_check("pods-short", _STOPS, "all pods are ready", "workloads", how="DaemonSets and Deployments")
def _short(facts: ClusterFacts) -> Iterator[Finding]:
    for one in known(facts.workloads):
        if one.ready < one.wanted:
            what = f"{one} has {one.ready} of {one.wanted} pods ready"
            yield Finding(what, f"see kubectl -n {NAMESPACE} get pods -l {NAME_LABEL}={one.component} -o wide")


# -- nodes -------------------------------------------------------------------------------------------------------------


@_check("no-node-labelled", _STOPS, "nodes are labelled for mpsd", "machines", how=_NODES)
def _unlabelled(facts: ClusterFacts) -> Iterator[Finding]:
    machines = known(facts.machines)
    if not any(one.is_shared for one in machines):
        with_gpus = [one.name for one in machines if one.gpus]
        what = f"no node has the label {LABELS[0]}, so no daemon of mpsd's runs anywhere"
        yield Finding(what, _LABEL.format(with_gpus[0] if with_gpus else "NODE"))


@_check("gpus-unshared", _NOTE, "every node with GPUs is labelled", "machines", how=_NODES)
def _some_unlabelled(facts: ClusterFacts) -> Iterator[Finding]:
    machines = known(facts.machines)
    for one in machines if any(other.is_shared for other in machines) else ():
        if one.gpus and not one.is_shared:
            what = f"{one.name} has NVIDIA GPUs ({one.gpus}) and not the label {LABELS[0]}: mpsd does not share them"
            yield Finding(what, f"{_LABEL.format(one.name)}, or leave it to others")


@_check("no-gpus", _STOPS, "labelled nodes have GPUs", "machines", "mpsnodes", how=f"{_NODES}, MPSNodes")
def _no_gpus(facts: ClusterFacts) -> Iterator[Finding]:
    nodes = known(facts.mpsnodes)
    for one in known(facts.machines):
        condition = nodes[one.name].condition if one.name in nodes else None
        if one.is_shared and condition and condition.reason == "NoGPUs":
            what = f"{one.name} has the label {LABELS[0]} and no GPU: {condition.message}"
            yield Finding(what, f"kubectl label node {one.name} {LABELS[0].partition('=')[0]}-, or see its driver")


@_check("mpsnode-missing", _STOPS, "every labelled node reports", "machines", "mpsnodes", how=f"{_NODES}, MPSNodes")
def _mpsnode_missing(facts: ClusterFacts) -> Iterator[Finding]:
    nodes = known(facts.mpsnodes)
    for one in known(facts.machines):
        if one.is_shared and (one.name not in nodes or nodes[one.name].told_at is None):
            what = f"{one.name} is labelled for mpsd and has reported nothing yet (MPSNode)"
            yield Finding(what, f"see its pod of {AGENT}: {_pods_on(one.name, AGENT)}")


@_check("mpsnode-stale", _STOPS, "every node's report is recent", "mpsnodes", how="MPSNodes: status.toldAt")
def _mpsnode_stale(facts: ClusterFacts) -> Iterator[Finding]:
    for node in known(facts.mpsnodes).values():
        if node.told_at is not None and (silent := silence(node, facts.now)):
            yield Finding(silent.partition("; ")[0], f"see its pod of {AGENT}: {_pods_on(node.name, AGENT)}")


def _pods_on(node: str, component: str) -> str:
    which = f"-l {NAME_LABEL}={component} --field-selector spec.nodeName={node}"
    return f"kubectl -n {NAMESPACE} get pods {which} -o wide"


def _ask_doctor(node: str) -> str:
    return f"ask on that node: mpsd doctor in its control pod ({_pods_on(node, CONTROL)})"


def _reporting(facts: ClusterFacts) -> Iterator[ClusterNode]:
    """Nodes whose report is believed."""
    for node in known(facts.mpsnodes).values():
        if node.told_at is not None and not node.stale:
            yield node


@_check("domain-not-ready", _STOPS, "every domain takes programs", "mpsnodes", how="MPSNodes")
def _domains(facts: ClusterFacts) -> Iterator[Finding]:
    for node in _reporting(facts):
        for domain in node.domains:
            if domain.state != State.READY and domain.state not in _CORDONED:
                state = after_is(State(domain.state)) if domain.state in set(State) else domain.state
                why = f": {domain.reason}" if domain.reason else ""
                what_to_do = filter(None, [remedy(domain.state, domain.reason), _ask_doctor(node.name)])
                yield Finding(f"{node.name}: {domain.name} is {state}{why}", "; ".join(what_to_do))
        if node.unreadable:
            what = f"{node.name}: its MPSNode cannot be read: {node.unreadable[0]}"
            yield Finding(what, "see kubectl get mps -o yaml")


@_check("node-not-ready", _STOPS, "every node is MPSReady", "mpsnodes", how="MPSNodes")
def _not_ready(facts: ClusterFacts) -> Iterator[Finding]:
    """What the condition says and no domain does."""
    for node in _reporting(facts):
        condition = node.condition
        if condition is None or (condition.status != "True" and condition.reason in ("ControlAbsent", "NotSeen")):
            why = f"{condition.reason}: {condition.message}" if condition else "the condition is not reported"
            yield Finding(f"{node.name} is not MPSReady, {why}", _ask_doctor(node.name))


@_check("cordon-forgotten", _NOTE, "no GPU was left cordoned", "mpsnodes", how="MPSNodes")
def _forgotten(facts: ClusterFacts) -> Iterator[Finding]:
    for node in _reporting(facts):
        drained = {one.name: one.since for one in node.domains if one.state == State.DRAINED and one.since is not None}
        empty_s = facts.now - min(drained.values(), default=facts.now)
        if empty_s > _FORGOTTEN_S:
            gpus = "every GPU" if ALL in node.cordoned else ", ".join(sorted(drained))
            what = f"{node.name}: {gpus} is cordoned and has been empty for {lasting(empty_s)}"
            yield Finding(what, f"put it back when the work is done: kubectl mps undrain {node.name}")


# -- clocks and versions -----------------------------------------------------------------------------------------------


@_check(
    "clocks-apart",
    _BREAKS,
    "clocks agree",
    *("own_clock", "node_clocks"),
    how="Date of an answer; MPSNodes: status.toldAt against managedFields",
)
def _apart(facts: ClusterFacts) -> Iterator[Finding]:
    for clock in (known(facts.own_clock), *known(facts.node_clocks)):
        if abs(clock.behind_s) > _APART_S:
            way = "behind" if clock.behind_s > 0 else "ahead of"
            what = f"the clock of {clock.of} is {lasting(abs(clock.behind_s))} {way} the API server's"
            yield Finding(what, "let one time service keep them all, such as chrony")


def _skews(facts: ClusterFacts) -> Iterator[tuple[str, Skew]]:
    """NotKnown where an agent is too old to report its version."""
    silent = ""
    for node in _reporting(facts):
        if node.version:
            yield from skews(node.version, {one.version for one in node.domains if one.version}, facts.ours, node.name)
        else:
            silent = f"the agent of {node.name} is too old to report its version"
    if silent:
        raise NotKnown(Unknown(silent))


@_check("version-skew", _BREAKS, "agents can read what control writes", "mpsnodes", how=_VERSIONS)
def _skewed(facts: ClusterFacts) -> Iterator[Finding]:
    for what, row in _skews(facts):
        if not row.normal:
            yield Finding(f"{what}: {row.why}", row.remedy)


@_check("version-behind", _NOTE, "all parts are of one version", "mpsnodes", how=_VERSIONS)
def _behind(facts: ClusterFacts) -> Iterator[Finding]:
    shown = set()
    for what, row in _skews(facts):
        if row.normal and (row.older, row.newer) not in shown:  # of many nodes the first
            shown.add((row.older, row.newer))
            yield Finding(f"{what}: {row.why}", row.remedy)
    versions = {node.version for node in _reporting(facts) if node.version}
    if len(versions) > 1:
        first, *_others, last = sorted(versions, key=cmp_to_key(compare))
        what = f"agents are of versions {first} to {last}: a rollout is in progress, or is stuck"
        yield Finding(what, f"kubectl -n {NAMESPACE} rollout status ds/{AGENT}")


@_check("image-skew", _BREAKS, "all parts are of one image", "pods", how="images of mpsd's pods")
def _images(facts: ClusterFacts) -> Iterator[Finding]:
    """Webhook and scheduler report their version nowhere else than in their image."""
    pods = [pod for pod in known(facts.pods) if not pod.ending]
    agents = sorted({pod.image for pod in pods if pod.component == AGENT})
    if not agents:
        raise NotKnown(NotApplicable(f"there is no pod of {AGENT} to compare with"))
    for pod in pods:
        if pod.component in (WEBHOOK, SCHEDULER) and pod.image not in agents:
            what = f"pod {pod.name} is of image {pod.image} and the agents of {', '.join(agents)}"
            why = "admission and placement follow rules that the nodes may not have"
            roll = f"roll it out: kubectl -n {NAMESPACE} rollout status deploy/{pod.component}"
            yield Finding(f"{what}: {why}", roll)


@_check("pod-restarting", _BREAKS, "mpsd's pods stay up", "pods", how=_OWN)
def _restarting(facts: ClusterFacts) -> Iterator[Finding]:
    for pod in known(facts.pods):
        if pod.restarts > _MANY_RESTARTS and not pod.trouble:
            ended = f", last {pod.ended}" if pod.ended else ""
            what = f"pod {NAMESPACE}/{pod.name} has restarted {pod.restarts} times{ended}"
            yield Finding(what, f"see why: kubectl -n {NAMESPACE} logs {pod.name} --previous")


CLUSTER_CHECKS: tuple[Check[ClusterFacts], ...] = (*_CHECKS, *POD_CHECKS)
