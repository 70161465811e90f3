"""Checks of `kubectl mps doctor`: what is installed, nodes, versions, what others use of the GPUs.

They are about what no condition, alert or `kubectl describe` says; what nodes report themselves is
printed as it is. A cause stands before its consequences.
"""

import re
from collections.abc import Iterator, Mapping

from mpsd.model.cluster_status import ClusterNode, silence
from mpsd.model.conditions import Truth
from mpsd.model.names import AGENT, APPLY, CLAIM_DRIVER, CONTROL, NAME_LABEL, NAMESPACE, SCHEDULER, WEBHOOK
from mpsd.model.times import lasting
from mpsd.operations.doctor.rules.checks import (
    CheckTable,
    Fact,
    Finding,
    NotApplicable,
    Severity,
    Unknown,
    at_most,
    each,
    known,
)
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, Object, inside
from mpsd.operations.doctor.rules.components import skews
from mpsd.operations.doctor.rules.webhook_checks import WEBHOOK_CHECKS
from mpsd.platform.rules.kubernetes_objects import LABELS

_SHOWN = 5  # pods that are named
_APART_S = 30.0  # stamps of the API are whole seconds, and a write may wait
_STATUS_FIELDS = ("toldAt", "driver", "version", "summary", "gpus", "domains", "grants", "conditions", "violations")
_CRD = "CustomResourceDefinition mpsnodes.mpsd.io"
_LABELS, _TAINT = "Nodes: their labels", "mpsd.io/not-ready"
_STOPS, _BREAKS, _NOTE = Severity

_CHECKS = CheckTable[ClusterFacts]()
_check = _CHECKS.check


# -- what is installed ---------------------------------------------------------------------------


@_check("kubernetes-old", _STOPS, "Kubernetes is new enough", how="GET /version")
def _kubernetes_old(facts: ClusterFacts) -> Iterator[Finding]:
    if (found := facts.kubernetes) < (1, 20):
        what = f"Kubernetes {found[0]}.{found[1]} is older than 1.20, the oldest that mpsd runs on"
        yield Finding(what, "upgrade it")


@_check("not-installed", _STOPS, "mpsd is installed", how=f"namespaces, {_CRD}, DaemonSets")
def _not_installed(facts: ClusterFacts) -> Iterator[Finding]:
    definitions, there = known(facts.definition), {one.component for one in facts.workloads}
    if not known(facts.namespace):
        yield Finding(f"the namespace {NAMESPACE} does not exist: mpsd is not installed", APPLY)
        return
    if not definitions:
        yield Finding("the cluster knows no MPSNode (CRD mpsnodes.mpsd.io is missing)", APPLY)
    for definition in definitions:
        if not _version(definition).get("served"):
            yield Finding("CRD mpsnodes.mpsd.io cannot be used: v1alpha1 is not served", APPLY)
    for component, name in ((CONTROL, "mps-control-daemon"), (AGENT, AGENT)):
        if component not in there:
            yield Finding(f"the DaemonSet {name} is not in {NAMESPACE}: no node is served", APPLY)


def _version(definition: Object) -> Object:
    versions = inside(definition, "spec", "versions") or ()
    return next((one for one in versions if one["name"] == "v1alpha1"), {})


@_check("definition-old", _NOTE, "MPSNode's definition is of this version", how=_CRD)
def _definition_old(facts: ClusterFacts) -> Iterator[Finding]:
    for definition in known(facts.definition):
        schema = inside(_version(definition), "schema", "openAPIV3Schema", "properties", "status", "properties")
        if lacks := [name for name in _STATUS_FIELDS if schema and name not in schema]:
            dropped = f"the API server drops status.{', '.join(lacks)}"
            yield Finding(f"CRD mpsnodes.mpsd.io is of an older mpsd: {dropped}", APPLY)


@_check("rights-missing", _STOPS, "every part has its rights", how="SubjectAccessReview")
def _rights(facts: ClusterFacts) -> Iterator[Finding]:
    missing: dict[str, list[str]] = {}
    for right in known(facts.missing_rights):
        is_here = any(one.component == right.component for one in facts.workloads)
        is_here = is_here and not (right.is_for_claims and not facts.serves_claims)
        if is_here and not (right.is_for_registration and facts.is_injected):
            missing.setdefault(right.component, []).append(str(right))
    for component, what in missing.items():
        more = f" and {len(what) - 1} more" if len(what) > 1 else ""
        yield Finding(f"service account {component} may not {what[0]}{more}", f"restore its ClusterRole: {APPLY}")


@_check("pods-not-ready", _STOPS, "mpsd's pods are ready", how=f"DaemonSets, Deployments, pods of {NAMESPACE}")
def _pods(facts: ClusterFacts) -> Iterator[Finding]:
    for pod in facts.components:
        if pod.trouble and not pod.ending:
            where = f" on {pod.node}" if pod.node else ""
            see = f"see kubectl -n {NAMESPACE} describe pod {pod.name}"
            yield Finding(f"pod {NAMESPACE}/{pod.name}{where} does not run: {pod.trouble}", see)
    for one in facts.workloads:
        if one.ready < one.wanted:
            what = f"{one.kind}/{one.name} has {one.ready} of {one.wanted} pods ready"
            yield Finding(what, f"see kubectl -n {NAMESPACE} describe {one.kind} {one.name}, and its pods")


# -- nodes ---------------------------------------------------------------------------------------


@_check("no-node-labelled", _STOPS, "nodes are labelled for mpsd", how=_LABELS)
def _unlabelled(facts: ClusterFacts) -> Iterator[Finding]:
    if not any(one.is_shared for one in facts.machines):
        what = f"no node has the label {LABELS[0]}, so mpsd shares no GPU"
        yield Finding(what, f"kubectl label node NODE {LABELS[0]}")


@_check("node-not-ready", _STOPS, "every node reports, and that it is ready", how="MPSNodes: status.conditions")
def _not_ready(facts: ClusterFacts) -> Iterator[Finding]:
    """The conditions of each report as they are, but for what somebody has cordoned."""
    nodes = facts.reports
    for one in facts.machines:
        if one.is_shared and (one.name not in nodes or nodes[one.name].told_at is None):
            what = f"{one.name} is labelled for mpsd but has not reported yet (MPSNode)"
            yield Finding(what, f"see its pod: {_pods_on(one.name, AGENT)}")
    for node in nodes.values():
        if node.told_at is not None and (silent := silence(node, facts.now)):
            yield Finding(silent.partition("; ")[0], f"see its pod: {_pods_on(node.name, AGENT)}")
    for node in _reporting(facts):
        for told in node.conditions:
            if told.status != Truth.TRUE and told.reason != "Cordoned":
                what = f"{node.name}: {told.type} is {told.status}, {told.reason}: {told.message}"
                yield Finding(what, f"run mpsd doctor in its control pod ({_pods_on(node.name, CONTROL)})")
        for why in node.unreadable[:1]:
            yield Finding(f"{node.name}: its MPSNode cannot be read: {why}", "see kubectl get mps -o yaml")


def _pods_on(node: str, component: str) -> str:
    which = f"-l {NAME_LABEL}={component} --field-selector spec.nodeName={node}"
    return f"kubectl -n {NAMESPACE} get pods {which} -o wide"


def _reporting(facts: ClusterFacts) -> list[ClusterNode]:
    return [node for node in facts.reports.values() if node.told_at is not None and not node.stale]


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
                yield Finding(what, "upgrade it, or set agent.deviceListStrategy to envvar (docs/install.md)")


@_check("cgroup-v1", _NOTE, "kubelets are on cgroup v2", how="nodes/NAME/proxy/metrics: kubelet_cgroup_version")
def _cgroup_v1(facts: ClusterFacts) -> Iterator[Finding]:
    for node, version in each(facts.cgroups, facts.cgroups.__getitem__):
        if version == 1:
            what = f"{node} is on cgroup v1, where kubelet 1.35 and newer does not start unless failCgroupV1 is false"
            yield Finding(what, "boot it with cgroup v2 (systemd.unified_cgroup_hierarchy=1)")


@_check("startup-taint", _STOPS, "no node keeps its startup taint", how="Nodes: their taints; DaemonSets")
def _startup_taint(facts: ClusterFacts) -> Iterator[Finding]:
    for one in facts.machines:
        if all(taint.key != _TAINT for taint in one.taints):
            continue
        what = f"{one.name} has the taint {_TAINT}, so that no pod comes there,"
        take = f"kubectl taint node {one.name} {_TAINT}-"
        if not one.is_shared:
            yield Finding(f"{what} and no agent that could remove it", f"label it {LABELS[0]}, or {take}")
        elif facts.of_agents("MPSD_STARTUP_TAINT") != _TAINT:
            value = f"set agent.startupTaint: {APPLY}"
            yield Finding(f"{what} and its agent is not told to remove it", f"{value}; until then {take}")


# -- clocks and versions -------------------------------------------------------------------------


@_check("clocks-apart", _BREAKS, "clocks agree", how="Date of an answer; MPSNodes: status.toldAt against managedFields")
def _apart(facts: ClusterFacts) -> Iterator[Finding]:
    nodes = ((f"node {name}", behind_s) for name, behind_s in facts.node_clocks.items())
    for clock, behind_s in (("this machine", known(facts.own_clock)), *nodes):
        if abs(behind_s) > _APART_S:
            way = "behind" if behind_s > 0 else "ahead of"
            what = f"the clock of {clock} is {lasting(abs(behind_s))} {way} the API server's"
            yield Finding(what, "synchronize all clocks with one time service, such as chrony")


@_check(
    "version-skew",
    _BREAKS,
    "agents can read what control writes",
    how="MPSNodes: status.version, domains[].version",
)
def _skewed(facts: ClusterFacts) -> Iterator[Finding]:
    def version_of(node: ClusterNode) -> Fact[str]:
        return node.version or Unknown(f"the agent of {node.name} does not report its version")

    for node, version in each(_reporting(facts), version_of):
        yield from skews(version, [one.version for one in node.domains], node.name)


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


# -- resource claims -----------------------------------------------------------------------------

_OFFERS = "pods of mpsd-agent: MPSD_DRA; ResourceSlices"
_WITHOUT = "set dra.enabled to false (docs/dra.md)"
_OLDEST_SHARING = (1, 34)  # in which DRAConsumableCapacity exists; it is on from 1.36


def _offers(facts: ClusterFacts) -> Mapping[str, Object]:
    """The ResourceSlices of mpsd, by node."""
    if facts.kubernetes < _OLDEST_SHARING:
        raise NotApplicable("this Kubernetes has no ResourceSlices that several claims share")
    drivers = {CLAIM_DRIVER, *(pod.claim_driver for pod in facts.components if pod.claim_driver)}
    found = [one for one in known(facts.slices) if inside(one, "spec", "driver") in drivers]
    return {str(inside(one, "spec", "nodeName")): one for one in found}


@_check("claims-unsupported", _STOPS, "Kubernetes divides GPUs among claims", how=f"GET /version; {_OFFERS}")
def _unsupported(facts: ClusterFacts) -> Iterator[Finding]:
    if not facts.serves_claims:
        raise NotApplicable("no agent serves resource claims")
    if (found := facts.kubernetes) < _OLDEST_SHARING:
        what = f"Kubernetes {found[0]}.{found[1]} cannot divide a GPU among claims"
        why = "and agents serve GPUs by claims"
        yield Finding(f"{what}, {why}", f"upgrade it to 1.36 or newer, or {_WITHOUT}")
        return
    for node, one in _offers(facts).items():
        if not all(device.get("allowMultipleAllocations") for device in inside(one, "spec", "devices") or ()):
            dropped = f"the API server has dropped from the ResourceSlice of {node}"
            what = f"{dropped} that several claims may share a GPU"
            switch = "switch it on in API servers, schedulers and kubelets, as Kubernetes 1.36 has it"
            yield Finding(f"{what}: its feature gate DRAConsumableCapacity is off", f"{switch}, or {_WITHOUT}")
            return


@_check("slice-stale", _STOPS, "no GPU is offered to claims that nobody serves", how=_OFFERS)
def _slice_stale(facts: ClusterFacts) -> Iterator[Finding]:
    served = {pod.node for pod in facts.components if pod.claim_driver}  # also by one that is being replaced
    if isinstance(facts.slices, Unknown) and not served:  # a right that few have, and most do without
        raise NotApplicable("no agent serves resource claims")
    for node, one in _offers(facts).items():
        if node not in served:
            name = one["metadata"]["name"]
            what = f"ResourceSlice {name} offers GPUs of {node} to claims"
            why = "and no agent there serves any"
            yield Finding(f"{what}, {why}: pods that get one do not start", f"kubectl delete resourceslice {name}")


# -- what others use of the GPUs -----------------------------------------------------------------


@_check("other-plugin", _BREAKS, "no other device plugin allocates these GPUs", how="Nodes: their resources")
def _other_plugin(facts: ClusterFacts) -> Iterator[Finding]:
    for one in facts.machines:
        if one.is_shared and one.whole_gpus:
            what = f"another device plugin allocates GPUs of {one.name} too ({one.whole_gpus})"
            yield Finding(what, "keep its DaemonSet off nodes with mpsd's label, by a nodeSelector or affinity")


_VALIDATOR = "nvidia.com/gpu.deploy.operator-validator"
_MIG, _NO_MIG = "nvidia.com/mig.config", "all-disabled"
_MIG_STATE, _MIG_DONE = "nvidia.com/mig.config.state", "success"


@_check("nvidia-operator", _NOTE, "NVIDIA's GPU operator stays off mpsd's nodes", how=f"{_LABELS}; policy")
def _nvidia_operator(facts: ClusterFacts) -> Iterator[Finding]:
    for one in [one for one in facts.machines if one.is_shared]:
        set_label = f"kubectl label node {one.name} --overwrite"
        if one.nvidia_mps:
            starts = "which starts NVIDIA's own MPS daemon on its GPUs"
            what = f"{one.name} has the label {one.nvidia_mps}, {starts}"
            keep = f"{set_label} nvidia.com/gpu.deploy.device-plugin=false"
            yield Finding(what, f"{keep}, or configure its device plugin without sharing.mps there")
        if one.upgrade_state:
            what = f"NVIDIA's GPU operator upgrades the driver of {one.name}"
            yield Finding(
                f"{what}, and is at {one.upgrade_state}",
                "see whom it waits for: kubectl mps status, and docs/coexistence.md",
            )
        if facts.policy.exclusive_process and one.labels.get(_VALIDATOR, "false") != "false":
            label = f"{_VALIDATOR}={one.labels[_VALIDATOR]}"
            what = f"NVIDIA's GPU operator starts its validator on {one.name} ({label})"
            why = "whose CUDA program runs outside MPS, where EXCLUSIVE_PROCESS refuses it"
            yield Finding(f"{what}, {why}", f"{set_label} {_VALIDATOR}=false")
        wanted = one.labels.get(_MIG, _NO_MIG)
        state = one.labels.get(_MIG_STATE, _MIG_DONE if wanted == _NO_MIG else "not there")
        if state != _MIG_DONE:
            labels = f"{_MIG}={wanted}, {_MIG_STATE} is {state}"
            what = f"NVIDIA's MIG manager is to give {one.name} another layout ({labels})"
            why = "and the driver changes none that mpsd's MPS servers use"
            yield Finding(f"{what}, {why}", f"kubectl mps drain {one.name}, then as docs/hardware.md says")


@_check("outside-ledger", _BREAKS, "no pod uses GPUs outside the ledger", how="pods on mpsd's nodes, by admission")
def _outside(facts: ClusterFacts) -> Iterator[Finding]:
    findings = []
    for pod in facts.users:
        if pod.seen.node and pod.outside:
            more = f" (and {len(pod.outside) - 1} more)" if len(pod.outside) > 1 else ""
            what = f"pod {pod.seen.name} on {pod.seen.node} can use GPUs outside the ledger"
            how = f"{pod.outside[0]}{more}"
            findings.append(Finding(f"{what}: {how}", "correct and recreate it, or run it in an exempt namespace"))
    yield from at_most(_SHOWN, findings, "pods can use GPUs outside the ledger", "correct these first")


@_check("not-asked", _BREAKS, "schedulers ask mpsd for free capacity", how="annotations of pods on mpsd's nodes")
def _unplaced(facts: ClusterFacts) -> Iterator[Finding]:
    there = any(one.component == SCHEDULER for one in facts.workloads)
    unplaced = [pod for pod in (one.seen for one in facts.users) if pod.shared and pod.node and not pod.shared.choice]
    if there and unplaced:
        pod = unplaced[0]
        more = f" (and {len(unplaced) - 1} more)" if len(unplaced) > 1 else ""
        by = f"{pod.scheduler or 'default-scheduler'}, which did not ask mpsd"
        extend = "give that scheduler mpsd's extender (docs/scheduling.md)"
        remedy = f"set schedulerName: {SCHEDULER}, or {extend}"
        yield Finding(f"pod {pod.name}{more} requests GPU memory and was placed by {by}", remedy)


CLUSTER_CHECKS = (*_CHECKS, *WEBHOOK_CHECKS)
