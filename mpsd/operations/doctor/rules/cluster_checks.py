"""Checks of `kubectl mps doctor` of what is installed and of the nodes; and all checks of a cluster, in their order.

A node counts as mpsd's by its label alone, and its MPSNode is believed while it is not stale. What a cluster does
without, such as the webhook where policies stand in for it, is no fault.
"""

import re
from collections.abc import Iterator
from functools import cmp_to_key

from mpsd.model.cluster_status import ClusterNode, silence
from mpsd.model.domain import ALL, State, after_is, remedy
from mpsd.model.names import AGENT, APPLY, CONTROL, NAME_LABEL, NAMESPACE, SCHEDULER, WEBHOOK
from mpsd.model.times import DAY_S, lasting
from mpsd.operations.doctor.rules.checks import CheckTable, Fact, Finding, NotApplicable, Severity, Unknown, each, known
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, Object, inside
from mpsd.operations.doctor.rules.cluster_pods import POD_CHECKS
from mpsd.operations.doctor.rules.components import Skew, compare, skews
from mpsd.platform.rules.kubernetes_objects import LABELS

_MANY_RESTARTS = 3  # more of them since a pod began is a pattern
_APART_S = 30.0  # stamps of the API are whole seconds, and a write may wait
_LABEL = f"kubectl label node {{}} {LABELS[0]}"
_STATUS_FIELDS = ("toldAt", "driver", "version", "summary", "gpus", "domains", "grants", "conditions", "violations")
_CRD, _OWN = "CustomResourceDefinition mpsnodes.mpsd.io", f"pods of {NAMESPACE}"
_NODES, _VERSIONS = "Nodes: their labels and resources", "MPSNodes: status.version, domains[].version"
_STOPS, _BREAKS, _NOTE = Severity

_CHECKS = CheckTable[ClusterFacts]()
_check = _CHECKS.check


# -- what is installed -------------------------------------------------------------------------------------------------


@_check("kubernetes-old", _STOPS, "Kubernetes is new enough", how="GET /version")
def _kubernetes_old(facts: ClusterFacts) -> Iterator[Finding]:
    if (found := facts.kubernetes) < (1, 20):
        what = f"Kubernetes {found[0]}.{found[1]} is older than 1.20, the oldest that mpsd runs on"
        yield Finding(what, "upgrade it")


@_check("not-installed", _STOPS, "mpsd's namespace is there", how="namespaces")
def _namespace(facts: ClusterFacts) -> Iterator[Finding]:
    if not known(facts.namespace):
        yield Finding(f"the namespace {NAMESPACE} does not exist: mpsd is not installed", APPLY)


@_check("definition-missing", _STOPS, "the cluster knows MPSNodes", how=_CRD)
def _definition(facts: ClusterFacts) -> Iterator[Finding]:
    if not known(facts.definition):
        yield Finding("the cluster knows no MPSNode (CRD mpsnodes.mpsd.io is missing)", APPLY)
    for definition in known(facts.definition):
        conditions = {one["type"]: one["status"] for one in inside(definition, "status", "conditions") or ()}
        accepted = conditions.get("Established", "True") == "True"
        if not accepted or not _version(definition).get("served"):
            why = "version v1alpha1 is not served" if accepted else "the API server has not accepted it"
            see = f"see kubectl describe crd mpsnodes.mpsd.io, then {APPLY}"
            yield Finding(f"CRD mpsnodes.mpsd.io cannot be used: {why}", see)


def _version(definition: Object) -> Object:
    return next((one for one in inside(definition, "spec", "versions") or () if one["name"] == "v1alpha1"), {})


@_check("definition-old", _NOTE, "MPSNode's definition is of this version", how=_CRD)
def _definition_old(facts: ClusterFacts) -> Iterator[Finding]:
    for definition in known(facts.definition):
        schema = inside(_version(definition), "schema", "openAPIV3Schema", "properties", "status", "properties")
        if lacks := [name for name in _STATUS_FIELDS if schema and name not in schema]:
            what = f"CRD mpsnodes.mpsd.io is of an older mpsd: the API server drops status.{', '.join(lacks)}"
            yield Finding(what, APPLY)


@_check("workload-missing", _STOPS, "mpsd is installed", how="DaemonSets")
def _absent(facts: ClusterFacts) -> Iterator[Finding]:
    there, is_installed = {one.component for one in facts.workloads}, bool(known(facts.namespace))
    for component, name in ((CONTROL, "mps-control-daemon"), (AGENT, AGENT)):
        if component not in there and is_installed:
            yield Finding(f"the DaemonSet {name} is not in {NAMESPACE}: no node is served", APPLY)


@_check("rights-missing", _STOPS, "every part has its rights", how="SubjectAccessReview")
def _rights(facts: ClusterFacts) -> Iterator[Finding]:
    missing: dict[str, list[str]] = {}
    for right in known(facts.missing_rights):
        is_here = any(one.component == right.component for one in facts.workloads)
        is_here = is_here and not (right.is_for_claims and not facts.claim_agents)
        if is_here and not (right.is_for_registration and facts.is_injected):
            missing.setdefault(right.component, []).append(str(right))
    for component, what in missing.items():
        more = f" and {len(what) - 1} more" if len(what) > 1 else ""
        yield Finding(f"service account {component} may not {what[0]}{more}", f"restore its ClusterRole: {APPLY}")


@_check("pod-not-running", _STOPS, "mpsd's pods run", how=_OWN)
def _pods(facts: ClusterFacts) -> Iterator[Finding]:
    for pod in facts.components:
        if pod.trouble and not pod.ending:
            where = f" on {pod.node}" if pod.node else ""
            if "ImagePull" in pod.trouble or "InvalidImageName" in pod.trouble:
                to_do = f"correct the image {pod.image} in the kustomization, or give the nodes the right to pull it"
            elif not pod.node:
                to_do = f"see the scheduler's events: kubectl -n {NAMESPACE} describe pod {pod.name}"
            else:
                to_do = f"see its log: kubectl -n {NAMESPACE} logs {pod.name} --previous"
            yield Finding(f"pod {NAMESPACE}/{pod.name}{where} does not run: {pod.trouble}", to_do)


@_check("pods-short", _STOPS, "all pods are ready", how="DaemonSets and Deployments")
def _short(facts: ClusterFacts) -> Iterator[Finding]:
    for one in facts.workloads:
        if one.ready < one.wanted:
            what = f"{one.kind}/{one.name} has {one.ready} of {one.wanted} pods ready"
            yield Finding(what, f"see kubectl -n {NAMESPACE} get pods -l {NAME_LABEL}={one.component} -o wide")


# -- nodes -------------------------------------------------------------------------------------------------------------


@_check("no-node-labelled", _STOPS, "nodes are labelled for mpsd", how=_NODES)
def _unlabelled(facts: ClusterFacts) -> Iterator[Finding]:
    if not any(one.is_shared for one in facts.machines):
        with_gpus = [one.name for one in facts.machines if one.gpus]
        what = f"no node has the label {LABELS[0]}, so mpsd shares no GPU"
        yield Finding(what, _LABEL.format(with_gpus[0] if with_gpus else "NODE"))


@_check("gpus-unshared", _NOTE, "every node with GPUs is labelled", how=_NODES)
def _some_unlabelled(facts: ClusterFacts) -> Iterator[Finding]:
    some_are_shared = any(one.is_shared for one in facts.machines)
    for one in facts.machines:
        if some_are_shared and one.gpus and not one.is_shared:
            what = f"{one.name} has NVIDIA GPUs ({one.gpus}) but not the label {LABELS[0]}: mpsd does not share them"
            yield Finding(what, f"{_LABEL.format(one.name)}, or leave it to others")


@_check("no-gpus", _STOPS, "labelled nodes have GPUs", how=f"{_NODES}, MPSNodes")
def _no_gpus(facts: ClusterFacts) -> Iterator[Finding]:
    nodes = facts.reports
    for one in facts.machines:
        condition = nodes[one.name].condition if one.name in nodes else None
        if one.is_shared and condition and condition.reason == "NoGPUs":
            what = f"{one.name} has the label {LABELS[0]} but no GPU: {condition.message}"
            yield Finding(what, f"kubectl label node {one.name} {LABELS[0].partition('=')[0]}-, or see its driver")


@_check("mpsnode-missing", _STOPS, "every labelled node reports", how=f"{_NODES}, MPSNodes")
def _mpsnode_missing(facts: ClusterFacts) -> Iterator[Finding]:
    nodes = facts.reports
    for one in facts.machines:
        if one.is_shared and (one.name not in nodes or nodes[one.name].told_at is None):
            see = f"see its pod of {AGENT}: {_pods_on(one.name, AGENT)}"
            yield Finding(f"{one.name} is labelled for mpsd but has not reported yet (MPSNode)", see)


@_check("mpsnode-stale", _STOPS, "every node's report is recent", how="MPSNodes: status.toldAt")
def _mpsnode_stale(facts: ClusterFacts) -> Iterator[Finding]:
    for node in facts.reports.values():
        if node.told_at is not None and (silent := silence(node, facts.now)):
            yield Finding(silent.partition("; ")[0], f"see its pod of {AGENT}: {_pods_on(node.name, AGENT)}")


def _pods_on(node: str, component: str) -> str:
    which = f"-l {NAME_LABEL}={component} --field-selector spec.nodeName={node}"
    return f"kubectl -n {NAMESPACE} get pods {which} -o wide"


def _ask_doctor(node: str) -> str:
    return f"run mpsd doctor in the node's control pod ({_pods_on(node, CONTROL)})"


def _reporting(facts: ClusterFacts) -> list[ClusterNode]:
    return [node for node in facts.reports.values() if node.told_at is not None and not node.stale]


@_check("domain-not-ready", _STOPS, "every domain takes programs", how="MPSNodes")
def _domains(facts: ClusterFacts) -> Iterator[Finding]:
    for node in _reporting(facts):
        for domain in node.domains:
            if domain.state not in (State.READY, State.DRAINING, State.DRAINED):
                state = after_is(State(domain.state)) if domain.state in set(State) else domain.state
                why = f": {domain.reason}" if domain.reason else ""
                what_to_do = filter(None, [remedy(domain.state, domain.reason), _ask_doctor(node.name)])
                yield Finding(f"{node.name}: {domain.name} is {state}{why}", "; ".join(what_to_do))
        for why in node.unreadable[:1]:
            yield Finding(f"{node.name}: its MPSNode cannot be read: {why}", "see kubectl get mps -o yaml")


@_check("node-not-ready", _STOPS, "every node is MPSReady", how="MPSNodes")
def _not_ready(facts: ClusterFacts) -> Iterator[Finding]:
    for node in _reporting(facts):  # what the condition reports and no domain does
        condition = node.condition
        if condition is None or (condition.status != "True" and condition.reason in ("ControlAbsent", "NotSeen")):
            why = f"{condition.reason}: {condition.message}" if condition else "the condition is not reported"
            yield Finding(f"{node.name} is not MPSReady, {why}", _ask_doctor(node.name))


@_check("cordon-forgotten", _NOTE, "no GPU was left cordoned", how="MPSNodes")
def _forgotten(facts: ClusterFacts) -> Iterator[Finding]:
    for node in _reporting(facts):
        drained = {one.name: one.since for one in node.domains if one.state == State.DRAINED and one.since is not None}
        empty_s = facts.now - min(drained.values(), default=facts.now)
        if empty_s > DAY_S:
            gpus = "every GPU" if ALL in node.cordoned else ", ".join(sorted(drained))
            what = f"{node.name}: {gpus} is cordoned and has been empty for {lasting(empty_s)}"
            yield Finding(what, f"when the work is done, put it back into use: kubectl mps undrain {node.name}")


# The first versions that put CDI devices into a container: of a runtime, and of a kubelet that passes their names on.
_CDI = re.compile(r"(containerd|cri-o|)(?:://)?v?(\d+)\.(\d+)")
_CDI_SINCE = {"containerd": (1, 7), "cri-o": (1, 23), "": (1, 28)}


@_check("no-cdi", _STOPS, "CDI is known where the agent uses it", how="DaemonSet mpsd-agent; Nodes: status.nodeInfo")
def _no_cdi(facts: ClusterFacts) -> Iterator[Finding]:
    strategy = facts.of_agents("MPSD_DEVICE_LIST_STRATEGY")
    if not strategy.startswith("cdi-"):
        raise NotApplicable("the agent gives containers their GPU without CDI")
    for one in facts.machines:
        for part in (one.runtime, one.kubelet if strategy == "cdi-cri" else ""):
            found = _CDI.match(part) if one.is_shared else None
            if found and (int(found[2]), int(found[3])) < _CDI_SINCE[found[1]]:
                runs = part.replace("://", " ") if found[1] else f"kubelet {part}"
                what = f"{one.name} runs {runs}, which knows no CDI: containers get no GPU by {strategy}"
                yield Finding(what, "upgrade it, or leave out components/cdi (docs/install.md)")


@_check("cgroup-v1", _NOTE, "kubelets are on cgroup v2", how="nodes/NAME/proxy/metrics: kubelet_cgroup_version")
def _cgroup_v1(facts: ClusterFacts) -> Iterator[Finding]:
    for node, version in each(facts.cgroups, facts.cgroups.__getitem__):
        if version == 1:
            what = f"{node} is on cgroup v1, where kubelet 1.35 and newer does not start unless failCgroupV1 is false"
            yield Finding(what, "boot it with cgroup v2 (systemd.unified_cgroup_hierarchy=1)")


# -- clocks and versions -----------------------------------------------------------------------------------------------


@_check("clocks-apart", _BREAKS, "clocks agree", how="Date of an answer; MPSNodes: status.toldAt against managedFields")
def _apart(facts: ClusterFacts) -> Iterator[Finding]:
    nodes = ((f"node {name}", behind_s) for name, behind_s in facts.node_clocks.items())
    for clock, behind_s in (("this machine", known(facts.own_clock)), *nodes):
        if abs(behind_s) > _APART_S:
            way = "behind" if behind_s > 0 else "ahead of"
            what = f"the clock of {clock} is {lasting(abs(behind_s))} {way} the API server's"
            yield Finding(what, "synchronize all clocks with one time service, such as chrony")


def _skews(facts: ClusterFacts) -> Iterator[tuple[Skew, Finding]]:
    def version_of(node: ClusterNode) -> Fact[str]:
        return node.version or Unknown(f"the agent of {node.name} is too old to report its version")

    for node, version in each(_reporting(facts), version_of):
        yield from skews(version, [one.version for one in node.domains], facts.ours, node.name)


@_check("version-skew", _BREAKS, "agents can read what control writes", how=_VERSIONS)
def _skewed(facts: ClusterFacts) -> Iterator[Finding]:
    yield from (finding for row, finding in _skews(facts) if not row.normal)


@_check("version-behind", _NOTE, "all parts are of one version", how=_VERSIONS)
def _behind(facts: ClusterFacts) -> Iterator[Finding]:
    shown = set()
    for row, finding in _skews(facts):
        if row.normal and row not in shown:  # of many nodes the first
            shown.add(row)
            yield finding
    versions = {node.version for node in _reporting(facts) if node.version}
    if len(versions) > 1:
        first, *_others, last = sorted(versions, key=cmp_to_key(compare))
        what = f"agents are of versions {first} to {last}: a rollout is in progress, or is stuck"
        yield Finding(what, f"kubectl -n {NAMESPACE} rollout status ds/{AGENT}")


@_check("image-skew", _BREAKS, "all parts are of one image", how="images of mpsd's pods")
def _images(facts: ClusterFacts) -> Iterator[Finding]:
    pods = [pod for pod in facts.components if not pod.ending]  # webhook and scheduler report no version but an image
    agents = sorted({pod.image for pod in pods if pod.component == AGENT})
    if not agents:
        raise NotApplicable(f"there is no pod of {AGENT} to compare with")
    for pod in pods:
        if pod.component in (WEBHOOK, SCHEDULER) and pod.image not in agents:
            what = f"pod {pod.name} runs image {pod.image}, and the agents run {', '.join(agents)}"
            why = "admission and placement follow rules that the nodes may not have"
            roll = f"roll it out: kubectl -n {NAMESPACE} rollout status deploy/{pod.component}"
            yield Finding(f"{what}: {why}", roll)


@_check("pod-restarting", _BREAKS, "mpsd's pods stay up", how=_OWN)
def _restarting(facts: ClusterFacts) -> Iterator[Finding]:
    for pod in facts.components:
        if pod.restarts > _MANY_RESTARTS and not pod.trouble:
            ended = f", last {pod.ended}" if pod.ended else ""
            see = f"see why: kubectl -n {NAMESPACE} logs {pod.name} --previous"
            yield Finding(f"pod {NAMESPACE}/{pod.name} has restarted {pod.restarts} times{ended}", see)


CLUSTER_CHECKS = (*_CHECKS, *POD_CHECKS)
