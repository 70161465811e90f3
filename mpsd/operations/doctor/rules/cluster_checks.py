"""Checks of `kubectl mps doctor`: what is installed, nodes, versions, what others use of the GPUs.

They are about what no condition, alert or `kubectl describe` says; conditions are printed as they
are. A cause stands before its consequences.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from mpsd.model.cluster_status import ClusterNode, silence
from mpsd.model.conditions import Truth
from mpsd.model.names import (
    AGENT,
    APPLY,
    CLAIM_DRIVER,
    CONTROL,
    NAME_LABEL,
    NAMESPACE,
    SCHEDULER,
    WEBHOOK,
)
from mpsd.model.node_report import NodeStatus
from mpsd.model.times import lasting
from mpsd.operations.doctor.rules.checks import (
    CheckTable,
    Finding,
    NotApplicable,
    Severity,
    Unknown,
    known,
)
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, Object, inside
from mpsd.operations.doctor.rules.webhook_checks import WEBHOOK_CHECKS
from mpsd.platform.rules.kubernetes_objects import LABELS

_SHOWN = 5  # pods that are named
_APART_S = 30.0  # stamps of the API are whole seconds, and a write may wait
_STATUS_FIELDS = ("reportedAt", "summary", "grants", *NodeStatus.__struct_encode_fields__)
_CRD = "CustomResourceDefinition mpsnodes.mpsd.io"
_LABELS = "Nodes: their labels"
_TAINT = "mpsd.io/not-ready"
_STOPS, _BREAKS, _NOTE = Severity

_CHECKS = CheckTable[ClusterFacts]()
_check = _CHECKS.check


# -- what is installed


@_check(_STOPS, "mpsd is installed", f"namespaces, {_CRD}, DaemonSets")
def not_installed(facts: ClusterFacts) -> Iterator[Finding]:
    definitions = known(facts.definition)
    there = {one.component for one in facts.workloads}
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


@_check(_NOTE, "MPSNode's definition is of this version", _CRD)
def definition_old(facts: ClusterFacts) -> Iterator[Finding]:
    for definition in known(facts.definition):
        whole = inside(_version(definition), "schema", "openAPIV3Schema")
        schema = inside(whole, "properties", "status", "properties")
        if lacks := [name for name in _STATUS_FIELDS if schema and name not in schema]:
            dropped = f"the API server drops status.{', '.join(lacks)}"
            yield Finding(f"CRD mpsnodes.mpsd.io is of an older mpsd: {dropped}", APPLY)


@_check(_STOPS, "mpsd's pods are ready", f"DaemonSets, Deployments, pods of {NAMESPACE}")
def pods_not_ready(facts: ClusterFacts) -> Iterator[Finding]:
    for pod in facts.components:
        if pod.trouble and not pod.ending:
            what = f"pod {NAMESPACE}/{pod.name}"
            if pod.node:
                what = f"{what} on {pod.node}"
            see = f"see kubectl -n {NAMESPACE} describe pod {pod.name}"
            yield Finding(f"{what} does not run: {pod.trouble}", see)
    for one in facts.workloads:
        if one.ready < one.wanted:
            what = f"{one.kind}/{one.name} has {one.ready} of {one.wanted} pods ready"
            see = f"see kubectl -n {NAMESPACE} describe {one.kind} {one.name}, and its pods"
            yield Finding(what, see)


# -- nodes


@_check(_STOPS, "nodes are labelled for mpsd", _LABELS)
def no_node_labelled(facts: ClusterFacts) -> Iterator[Finding]:
    if not facts.shared:
        what = f"no node has the label {LABELS[0]}, so mpsd shares no GPU"
        yield Finding(what, f"kubectl label node NODE {LABELS[0]}")


@_check(_STOPS, "every node reports, and that it is ready", "MPSNodes: status.conditions")
def node_not_ready(facts: ClusterFacts) -> Iterator[Finding]:
    """The conditions of each report as they are, but for what somebody has cordoned."""
    nodes = facts.reports
    for one in facts.shared:
        if one.name not in nodes or nodes[one.name].reported_at is None:
            what = f"{one.name} is labelled for mpsd but has not reported yet (MPSNode)"
            yield Finding(what, f"see its pod: {_pods_on(one.name, AGENT)}")
    for node in nodes.values():
        if node.reported_at is not None and (silent := silence(node, facts.now)):
            yield Finding(silent.partition("; ")[0], f"see its pod: {_pods_on(node.name, AGENT)}")
    for node in _reporting(facts):
        for told in node.conditions:
            if told.status != Truth.TRUE and told.reason != "Cordoned":
                what = f"{node.name}: {told.type} is {told.status}, {told.reason}: {told.message}"
                run = f"run mpsd doctor in its control pod ({_pods_on(node.name, CONTROL)})"
                yield Finding(what, run)
        for why in node.unreadable[:1]:
            what = f"{node.name}: its MPSNode cannot be read: {why}"
            yield Finding(what, "see kubectl get mps -o yaml")


def _pods_on(node: str, component: str) -> str:
    which = f"-l {NAME_LABEL}={component} --field-selector spec.nodeName={node}"
    return f"kubectl -n {NAMESPACE} get pods {which} -o wide"


def _reporting(facts: ClusterFacts) -> list[ClusterNode]:
    return [one for one in facts.reports.values() if one.reported_at is not None and not one.stale]


# The first versions that put CDI devices into a container: of a runtime, and of a kubelet that
# passes their names on.
_CDI = re.compile(r"(containerd|cri-o|kubelet)://(v?(\d+)\.(\d+).*)")
_CDI_SINCE = {"containerd": (1, 7), "cri-o": (1, 23), "kubelet": (1, 28)}


@_check(_STOPS, "CDI is known where the agent uses it", "DaemonSet mpsd-agent; Nodes: nodeInfo")
def no_cdi(facts: ClusterFacts) -> Iterator[Finding]:
    strategy = facts.of_agents("MPSD_DEVICE_LIST_STRATEGY")
    if not strategy.startswith("cdi-"):
        raise NotApplicable("the agent gives containers their GPU without CDI")
    for one in facts.machines:
        parts = [one.runtime]
        if strategy == "cdi-cri":
            parts.append(f"kubelet://{one.kubelet}")
        for found in filter(None, map(_CDI.match, parts)):
            is_old = (int(found[3]), int(found[4])) < _CDI_SINCE[found[1]]
            if one.node.is_labelled and is_old:
                what = f"{one.node.name} runs {found[1]} {found[2]}, which knows no CDI"
                to_do = "upgrade it, or set agent.deviceListStrategy to envvar (docs/install.md)"
                yield Finding(f"{what}: containers get no GPU by {strategy}", to_do)


@_check(_STOPS, "no node keeps its startup taint", "Nodes: their taints; DaemonSets")
def startup_taint(facts: ClusterFacts) -> Iterator[Finding]:
    for machine in facts.machines:
        one = machine.node
        if _TAINT not in [taint.key for taint in one.taints]:
            continue
        what = f"{one.name} has the taint {_TAINT}, so that no pod comes there,"
        take = f"kubectl taint node {one.name} {_TAINT}-"
        if not one.is_labelled:
            label = f"label it {LABELS[0]}, or {take}"
            yield Finding(f"{what} and no agent that could remove it", label)
        elif facts.of_agents("MPSD_STARTUP_TAINT") != _TAINT:
            value = f"set agent.startupTaint: {APPLY}; until then {take}"
            yield Finding(f"{what} and its agent is not told to remove it", value)


# -- clocks and versions


@_check(_BREAKS, "clocks agree", "Date of an answer; MPSNodes: reportedAt and managedFields")
def clocks_apart(facts: ClusterFacts) -> Iterator[Finding]:
    nodes = {f"node {name}": behind_s for name, behind_s in facts.node_clocks.items()}
    clocks = {"this machine": known(facts.own_clock), **nodes}
    for clock, behind_s in clocks.items():
        way = "behind" if behind_s > 0 else "ahead of"
        if abs(behind_s) > _APART_S:
            what = f"the clock of {clock} is {lasting(abs(behind_s))} {way} the API server's"
            yield Finding(what, "synchronize all clocks with one time service, such as chrony")


@_check(_BREAKS, "all parts are of one version", "MPSNodes: version; images of mpsd's pods")
def version_skew(facts: ClusterFacts) -> Iterator[Finding]:
    """An older control is normal after an upgrade: its DaemonSet is OnDelete."""
    nodes = _reporting(facts)
    for node in nodes:
        for control in sorted({one.version for one in node.domains}):
            if node.version and _numbers(control) > _numbers(node.version):
                versions = f"control is of version {control} and the agent of {node.version}"
                why = "the agent may not understand records that a later version writes"
                roll = f"roll the agents out: kubectl -n {NAMESPACE} rollout status ds/{AGENT}"
                yield Finding(f"{node.name}: {versions}: {why}", roll)
    pods = [pod for pod in facts.components if not pod.ending]
    agents = sorted({pod.image for pod in pods if pod.component == AGENT})
    for pod in pods:
        # webhook and scheduler report no version but an image
        if agents and pod.component in (WEBHOOK, SCHEDULER) and pod.image not in agents:
            what = f"pod {pod.name} runs image {pod.image}, and the agents run {', '.join(agents)}"
            why = "admission and placement follow rules that the nodes may not have"
            roll = f"roll it out: kubectl -n {NAMESPACE} rollout status deploy/{pod.component}"
            yield Finding(f"{what}: {why}", roll)
    for node in nodes:
        if not node.version:
            raise Unknown(f"the agent of {node.name} does not report its version")


def _numbers(version: str) -> list[int]:
    """As 0, 10 and 1 in 0.10.1 and 0.10.1rc2; none where it is not reported."""
    found = re.match(r"\d{1,9}(?:\.\d{1,9})*", version, re.ASCII)
    if not found:
        return []
    return list(map(int, found[0].split(".")))


# -- resource claims

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


@_check(_STOPS, "Kubernetes divides GPUs among claims", f"GET /version; {_OFFERS}")
def claims_unsupported(facts: ClusterFacts) -> Iterator[Finding]:
    if not any(pod.claim_driver and not pod.ending for pod in facts.components):
        raise NotApplicable("no agent serves resource claims")
    if (found := facts.kubernetes) < _OLDEST_SHARING:
        what = f"Kubernetes {found[0]}.{found[1]} cannot divide a GPU among claims"
        upgrade = f"upgrade it to 1.36 or newer, or {_WITHOUT}"
        yield Finding(f"{what}, and agents serve GPUs by claims", upgrade)
        return
    for node, one in _offers(facts).items():
        devices = inside(one, "spec", "devices") or ()
        if not all(device.get("allowMultipleAllocations") for device in devices):
            dropped = f"the API server has dropped from the ResourceSlice of {node}"
            why = "its feature gate DRAConsumableCapacity is off"
            where = "in API servers, schedulers and kubelets, as Kubernetes 1.36 has it"
            yield Finding(
                f"{dropped} that several claims may share a GPU: {why}",
                f"switch it on {where}, or {_WITHOUT}",
            )
            return


@_check(_STOPS, "no GPU is offered to claims that nobody serves", _OFFERS)
def slice_stale(facts: ClusterFacts) -> Iterator[Finding]:
    # also by one that is being replaced
    served = {pod.node for pod in facts.components if pod.claim_driver}
    # a right that few have, and most do without
    if isinstance(facts.slices, Unknown) and not served:
        raise NotApplicable("no agent serves resource claims")
    for node, one in _offers(facts).items():
        if node not in served:
            name = one["metadata"]["name"]
            what = f"ResourceSlice {name} offers GPUs of {node} to claims"
            why = "and no agent there serves any: pods that get one do not start"
            yield Finding(f"{what}, {why}", f"kubectl delete resourceslice {name}")


# -- what others use of the GPUs


@_check(_BREAKS, "no other device plugin allocates these GPUs", "Nodes: their resources")
def other_plugin(facts: ClusterFacts) -> Iterator[Finding]:
    for one in facts.machines:
        if one.node.is_labelled and one.whole_gpus:
            what = f"another device plugin allocates GPUs of {one.node.name} too"
            keep = "keep its DaemonSet off nodes with mpsd's label, by a nodeSelector or affinity"
            yield Finding(f"{what} ({one.whole_gpus})", keep)


_VALIDATOR = "nvidia.com/gpu.deploy.operator-validator"
_MIG = "nvidia.com/mig.config"
_MIG_STATE = "nvidia.com/mig.config.state"


@_check(_NOTE, "NVIDIA's GPU operator stays off mpsd's nodes", f"{_LABELS}; policy")
def nvidia_operator(facts: ClusterFacts) -> Iterator[Finding]:
    for one in facts.shared:
        set_label = f"kubectl label node {one.name} --overwrite"
        if one.nvidia_mps:
            starts = "which starts NVIDIA's own MPS daemon on its GPUs"
            what = f"{one.name} has the label {one.nvidia_mps}, {starts}"
            keep = f"{set_label} nvidia.com/gpu.deploy.device-plugin=false"
            yield Finding(what, f"{keep}, or configure its device plugin without sharing.mps there")
        validator = one.labels.get(_VALIDATOR, "false")
        if facts.policy.exclusive_process and validator != "false":
            label = f"{_VALIDATOR}={validator}"
            what = f"NVIDIA's GPU operator starts its validator on {one.name} ({label})"
            why = "whose CUDA program runs outside MPS, where EXCLUSIVE_PROCESS refuses it"
            yield Finding(f"{what}, {why}", f"{set_label} {_VALIDATOR}=false")
        wanted = one.labels.get(_MIG, "all-disabled")
        state = one.labels.get(_MIG_STATE)
        if state != "success" and (state or wanted != "all-disabled"):
            labels = f"{_MIG}={wanted}, {_MIG_STATE} is {state or 'not there'}"
            what = f"NVIDIA's MIG manager is to give {one.name} another layout ({labels})"
            why = "and the driver changes none that mpsd's MPS servers use"
            drain = f"kubectl mps drain {one.name}, then as docs/hardware.md says"
            yield Finding(f"{what}, {why}", drain)


@_check(_BREAKS, "no pod uses GPUs outside the ledger", "pods on mpsd's nodes, by admission")
def outside_ledger(facts: ClusterFacts) -> Iterator[Finding]:
    found = [pod for pod in facts.users if pod.seen.node and pod.outside]
    for pod in found[:_SHOWN]:
        what = f"pod {pod.seen.name} on {pod.seen.node} can use GPUs outside the ledger"
        correct = "correct and recreate it, or run it in an exempt namespace"
        yield Finding(f"{what}: {pod.outside[0]}{_more(pod.outside)}", correct)
    if len(found) > _SHOWN:
        others = f"{len(found) - _SHOWN} more pods can use GPUs outside the ledger"
        yield Finding(others, "correct these first")


def _more(things: Sequence[object]) -> str:
    """How many there are behind the first."""
    if len(things) < 2:
        return ""
    return f" (and {len(things) - 1} more)"


@_check(_BREAKS, "schedulers ask mpsd for free capacity", "annotations of pods on mpsd's nodes")
def not_asked(facts: ClusterFacts) -> Iterator[Finding]:
    seen = [one.seen for one in facts.users]
    unplaced = [pod for pod in seen if pod.node and pod.shared and not pod.shared.choice]
    if SCHEDULER in [one.component for one in facts.workloads] and unplaced:
        pod = unplaced[0]
        what = f"pod {pod.name}{_more(unplaced)} requests GPU memory and was placed by"
        extend = "give that scheduler mpsd's extender (docs/scheduling.md)"
        remedy = f"set schedulerName: {SCHEDULER}, or {extend}"
        by = f"{pod.scheduler or 'default-scheduler'}, which did not ask mpsd"
        yield Finding(f"{what} {by}", remedy)


CLUSTER_CHECKS = (*_CHECKS, *WEBHOOK_CHECKS)
