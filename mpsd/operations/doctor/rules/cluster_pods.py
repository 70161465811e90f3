"""Checks of `kubectl mps doctor` of the webhook, of resource claims, and of the pods that use GPUs.

A pod is outside the ledger where admission would refuse it now for a way to a GPU, or where another device plugin gave
it one. A cluster that does without a webhook has no fault here.
"""

import binascii
import ssl
from base64 import b64decode
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from mpsd.admission.rules.configurations import NOT_CALLED, FailurePolicy
from mpsd.model.cluster_status import ClusterNode, PodStatus
from mpsd.model.names import APPLY, CLAIM_CLASS, CLAIM_DRIVER, CLAIMS_LABEL, NAME_LABEL, NAMESPACE, SCHEDULER, WEBHOOK
from mpsd.model.problem import shortened, shown_name
from mpsd.model.times import DAY_S, lasting
from mpsd.operations.doctor.rules import checks
from mpsd.operations.doctor.rules.checks import CheckTable, Finding, NotApplicable, Unknown, each, known
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts, Object, OwnPod, inside
from mpsd.operations.doctor.rules.components import claim_left
from mpsd.platform.rules.certificates import ANNOTATION, read_annotation
from mpsd.platform.rules.kubernetes_objects import LABELS
from mpsd.status.rules.pods import counted, quoted

_SHOWN, _MOST_REFUSALS = 5, 3  # pods that are named, and refusals
_NEAR_S = 14 * DAY_S  # mpsd and cert-manager renew theirs when a third of its life is left, 30 days of 90
_NEAR_PART = 6  # of the life that a serving certificate has, which operators choose: half of what renewal has
_TAINT, _VALIDATOR = "mpsd.io/not-ready", "nvidia.com/gpu.deploy.operator-validator"
_MIG, _NO_MIG = "nvidia.com/mig.config", "all-disabled"
_MIG_STATE, _MIG_DONE = "nvidia.com/mig.config.state", "success"
_RENEW = "see in the webhook's log why it was not renewed; with cert-manager, renew it there"
_AGENT_POLICY, _UNTIED = "mpsd-agent-writes", "an agent's token writes to every node"
_CONFIGURATIONS = f"webhook configurations {WEBHOOK}"
# What of kube-scheduler's options can name extenders; the policies are of versions before 1.23.
_CONFIGURING = {"--config", "--policy-config-file", "--policy-configmap"}
_STOPS, _BREAKS, _NOTE = checks.Severity

POD_CHECKS = CheckTable[ClusterFacts]()
_check = POD_CHECKS.check
_OPEN = (
    f"let the control plane reach TCP port {{port}} of the pods of deploy/{WEBHOOK}: see firewall rules and security "
    "groups of the nodes (above all of a private GKE or EKS cluster), and network policies"
)


# -- the webhook -------------------------------------------------------------------------------------------------------


def _configurations(facts: ClusterFacts) -> list[Object]:
    is_installed = any(one.component == WEBHOOK for one in facts.workloads)
    found = [*known(facts.validating), *known(facts.mutating)]
    if not found and not is_installed:  # by choice
        raise NotApplicable("this cluster has no webhook of mpsd's")
    return found


def _webhooks(facts: ClusterFacts) -> list[Object]:
    return [one for thing in _configurations(facts) for one in thing.get("webhooks") or ()]


@_check("webhook-unregistered", _BREAKS, "admission is registered", how=_CONFIGURATIONS)
def _unregistered(facts: ClusterFacts) -> Iterator[Finding]:
    _configurations(facts)
    for kind, found in (("Validating", facts.validating), ("Mutating", facts.mutating)):
        if not any(one.get("webhooks") for one in known(found)):
            what = f"{kind}WebhookConfiguration {WEBHOOK} is missing: every pod is admitted"
            yield Finding(what, APPLY)


@_check("webhook-authority", _BREAKS, "API servers can verify the webhook", how=f"caBundle in {_CONFIGURATIONS}")
def _bundle(facts: ClusterFacts) -> Iterator[Finding]:
    bundles = [(one["name"], inside(one, "clientConfig", "caBundle")) for one in _webhooks(facts)]
    restart = f"restart the webhook, which writes its own: kubectl -n {NAMESPACE} rollout restart deploy/{WEBHOOK}"
    for name, bundle in bundles:
        if not bundle:
            yield Finding(f"webhook {name} has no caBundle: no API server can verify the webhook", restart)
    if len({bundle for _name, bundle in bundles if bundle}) > 1:
        yield Finding("the two webhook configurations name different CAs (caBundle)", restart)


@_check("webhook-certificate", _BREAKS, "the webhook's authority lasts", how=f"caBundle in {_CONFIGURATIONS}")
def _certificate(facts: ClusterFacts) -> Iterator[Finding]:
    bundles = dict.fromkeys(inside(one, "clientConfig", "caBundle") for one in _webhooks(facts))
    for authorities in map(_authorities, filter(None, bundles)):
        if not authorities:
            yield Finding(f"a caBundle of {WEBHOOK} contains no CA certificate", f"restart deploy/{WEBHOOK}")
            continue
        ends_at, subject = max(authorities)
        if ends_at - facts.now < _NEAR_S:
            yield Finding(f"the webhook's CA certificate ({subject}) {_ends(ends_at - facts.now)}", _RENEW)
        return


@_check("policy-missing", _BREAKS, "the policies of components/modern are in force", how="ValidatingAdmissionPolicies")
def _policy(facts: ClusterFacts) -> Iterator[Finding]:
    if not any(one.get("matchConditions") for one in _webhooks(facts)):
        raise NotApplicable("components/modern is not applied")
    if facts.kubernetes < (1, 30):
        what = "components/modern is applied, and ValidatingAdmissionPolicies are served from Kubernetes 1.30 on"
        yield Finding(f"{what}: {_UNTIED}", "leave it out (docs/install.md)")
    elif _AGENT_POLICY not in {one["metadata"]["name"] for one in known(facts.policies)}:
        yield Finding(f"ValidatingAdmissionPolicy {_AGENT_POLICY} is missing: {_UNTIED}", APPLY)


def _authorities(bundle: str) -> list[tuple[float, str]]:
    """What OpenSSL takes for certificates of authorities: when each ends, and whose it is. bundle: base64 of PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=b64decode(bundle, validate=True).decode())
    except (ssl.SSLError, ValueError, binascii.Error):
        return []
    return [(ssl.cert_time_to_seconds(str(one["notAfter"])), _subject(one)) for one in context.get_ca_certs()]


def _subject(certificate: Mapping[str, Any]) -> str:
    pairs = [pair for row in certificate.get("subject", ()) for pair in row]
    return next((str(value) for key, value in pairs if key == "commonName"), str(pairs))


def _ends(left_s: float) -> str:
    return f"expires in {lasting(left_s)}" if left_s > 0 else "has expired"


@_check(
    "webhook-serving",
    _BREAKS,
    "the webhook's own certificate lasts",
    how=f"annotation {ANNOTATION} of {_CONFIGURATIONS}",
)
def _serving(facts: ClusterFacts) -> Iterator[Finding]:
    configurations = _configurations(facts)
    if not configurations:
        raise Unknown("there is no webhook configuration that could report it")
    if facts.is_injected:
        raise NotApplicable(f"it is cert-manager's: kubectl -n {NAMESPACE} get certificates")
    unreported = f"no webhook has reported it (annotation {ANNOTATION}): it is older, or has not registered itself yet"
    for _thing, life in each(configurations, lambda one: read_annotation(one) or Unknown(unreported)):
        left_s = life.ends_at - facts.now
        if left_s < (life.ends_at - life.begins_at) / _NEAR_PART:
            yield Finding(f"a serving certificate of the webhook {_ends(left_s)}", _RENEW)
            return


@_check("webhook-unreachable", _BREAKS, "API servers reach the webhook", how="Endpoints of its Service, and events")
def _unreachable(facts: ClusterFacts) -> Iterator[Finding]:
    webhooks = _webhooks(facts)
    messages = dict.fromkeys(str(event.get("message")) for event in known(facts.warnings))
    refusals = [one for one in messages if "failed calling webhook" in one and "mpsd.io" in one]
    for refusal in map(quoted, refusals[:_MOST_REFUSALS]):
        what = f"an API server cannot call the webhook: {refusal}"
        yield Finding(what, "see its pods, its Service, and network policies")
    if any(NOT_CALLED in (inside(one, "metadata", "annotations") or {}) for one in _configurations(facts)):
        behind = [subset for one in known(facts.endpoints) for subset in one.get("subsets") or ()]
        number = next((port["port"] for subset in behind for port in subset.get("ports") or ()), 9443)
        what = f"API servers cannot call the webhook, so its failurePolicy is {FailurePolicy.IGNORE}"
        yield Finding(f"{what}: pods are admitted without review", _OPEN.format(port=number))
    subsets = [subset for one in known(facts.endpoints) for subset in one.get("subsets") or ()]
    if not any(one.get("addresses") for one in subsets):
        fails = any(one.get("failurePolicy") == "Fail" for one in webhooks)
        then = "the pods that it reviews are refused" if fails else "pods are admitted without review"
        see = f"see kubectl -n {NAMESPACE} get pods,endpoints -l {NAME_LABEL}={WEBHOOK}"
        yield Finding(f"no ready pod is behind the Service {WEBHOOK}: {then}", see)


@_check("webhook-fail-open", _NOTE, "nothing is admitted without review", how=_CONFIGURATIONS)
def _fail_open(facts: ClusterFacts) -> Iterator[Finding]:
    """Where cert-manager serves the webhook may not set Fail."""
    ignoring = [one for one in _webhooks(facts) if one.get("failurePolicy") == FailurePolicy.IGNORE]
    if ignoring and facts.is_injected:
        what = f"failurePolicy is {FailurePolicy.IGNORE}: while no webhook answers, pods are admitted without review"
        see = "once API servers call it, add components/fail-closed to your kustomization and apply it"
        yield Finding(what, see)


# -- resource claims ---------------------------------------------------------------------------------------------------

_CLAIM_AGENTS, _OFFERS = "pods of mpsd-agent: MPSD_DRA", "ResourceSlices"
_WITHOUT = "leave out components/dra (docs/dra.md)"
_OLDEST_SHARING = (1, 34)  # in which DRAConsumableCapacity exists; it is on from 1.36


def _claim_agents(facts: ClusterFacts) -> Mapping[str, OwnPod]:
    if not facts.claim_agents:
        raise NotApplicable("no agent serves resource claims")
    return facts.claim_agents


def _offers(facts: ClusterFacts) -> Mapping[str, Object]:
    """The ResourceSlices of mpsd, by node."""
    if facts.kubernetes < _OLDEST_SHARING:
        raise NotApplicable("this Kubernetes has no ResourceSlices that several claims share")
    drivers = {CLAIM_DRIVER, *(pod.claim_driver for pod in facts.claim_agents.values())}
    found = [one for one in known(facts.slices) if inside(one, "spec", "driver") in drivers]
    return {str(inside(one, "spec", "nodeName")): one for one in found}


@_check("claims-unsupported", _STOPS, "Kubernetes divides GPUs among claims", how=f"GET /version, {_OFFERS}")
def _unsupported(facts: ClusterFacts) -> Iterator[Finding]:
    _claim_agents(facts)
    if (found := facts.kubernetes) < _OLDEST_SHARING:
        what = f"Kubernetes {found[0]}.{found[1]} cannot divide a GPU among claims, and agents serve GPUs by claims"
        yield Finding(what, f"upgrade it to 1.36 or newer, or {_WITHOUT}")
        return
    for node, one in _offers(facts).items():
        if not all(device.get("allowMultipleAllocations") for device in inside(one, "spec", "devices") or ()):
            what = f"the API server has dropped from the ResourceSlice of {node} that several claims may share a GPU"
            switch = "switch it on in API servers, schedulers and kubelets, as Kubernetes 1.36 has it"
            yield Finding(f"{what}: its feature gate DRAConsumableCapacity is off", f"{switch}, or {_WITHOUT}")
            return


@_check("slice-missing", _STOPS, "GPUs are offered where claims are served", how=f"{_CLAIM_AGENTS}; {_OFFERS}")
def _slice_missing(facts: ClusterFacts) -> Iterator[Finding]:
    agents, offers = _claim_agents(facts), _offers(facts)
    for node in facts.reports.values():
        is_due = node.name in agents and not _left(facts, node)
        if is_due and node.name not in offers and node.gpus and not node.stale:
            what = f"{node.name} has no ResourceSlice of {agents[node.name].claim_driver}: no claim is allocated there"
            see = f"kubectl -n {NAMESPACE} logs {agents[node.name].name}"
            yield Finding(what, f"see why in the log of its agent, and whether kubelet has taken the driver: {see}")


@_check("slice-stale", _STOPS, "no GPU is offered to claims that nobody serves", how=f"{_CLAIM_AGENTS}; {_OFFERS}")
def _slice_stale(facts: ClusterFacts) -> Iterator[Finding]:
    if isinstance(facts.slices, Unknown) and not facts.claim_agents:  # a right that few have, and most do without
        raise NotApplicable("no agent serves resource claims")
    served = {pod.node for pod in facts.components if pod.claim_driver}  # also by one that is being replaced
    for node, one in _offers(facts).items():
        if node not in served:
            name = one["metadata"]["name"]
            what = f"ResourceSlice {name} offers GPUs of {node} to claims, and no agent there serves any"
            yield Finding(f"{what}: pods that get one do not start", f"kubectl delete resourceslice {name}")


@_check("device-class-missing", _STOPS, "claims find their DeviceClass", how="DeviceClasses; policy: device_classes")
def _class_missing(facts: ClusterFacts) -> Iterator[Finding]:
    _claim_agents(facts)
    admission, there = facts.policy.admission, {str(one["metadata"]["name"]) for one in known(facts.device_classes)}
    named = admission.device_classes[:1] if admission.claims_for_requests else admission.device_classes
    if named and there.isdisjoint(named):
        what = f"the DeviceClass {shown_name(named[0])} does not exist, by which claims ask for GPUs of mpsd"
        yield Finding(what, f"components/dra has {CLAIM_CLASS}: {APPLY}")


@_check("requests-unserved", _STOPS, "pods that are given claims find nodes", how=f"policy, {_CLAIM_AGENTS}")
def _requests_unserved(facts: ClusterFacts) -> Iterator[Finding]:
    if not facts.policy.admission.claims_for_requests:
        raise NotApplicable("pods keep what they request (claims_for_requests)")
    if facts.policy.claim_nodes == "labelled":
        if not facts.claim_agents:
            what = (
                f"claims_for_requests gives claims to pods that select {CLAIMS_LABEL}=true, and no such node serves any"
            )
            yield Finding(f"{what}: they wait", f"kubectl label node NODE {CLAIMS_LABEL}=true, where components/dra is")
        return
    if others := sorted(facts.agents.keys() - facts.claim_agents.keys()):
        what = f"claims_for_requests gives pods claims, but GPUs of {counted(others, 'nodes')} have only device plugins"
        yield Finding(f"{what}: no new pod comes there", "add components/dra there, or switch claims_for_requests off")


@_check("claims-left", _NOTE, "no claim is left where none are served", how=f"MPSNodes: grants; {_CLAIM_AGENTS}")
def _claims_left(facts: ClusterFacts) -> Iterator[Finding]:
    for node in facts.reports.values():
        left = _left(facts, node)
        if left and facts.policy.claim_nodes == "labelled" and facts.agents[node.name].claim_driver:
            how = "the device plugins" if node.name in facts.claim_agents else "claims"
            pods = counted([pod.names[0] for pod in left], "pods")
            what = f"{node.name} serves its GPUs by {how}, and not yet as its label {CLAIMS_LABEL} says"
            yield Finding(f"{what}: {pods} must end first", f"kubectl mps drain {node.name} --evict ends them now")
            continue
        for pod in left:
            yield claim_left(pod.claim or "", pod.names[0], pod.names[1:], node.name)


def _left(facts: ClusterFacts, node: ClusterNode) -> list[PodStatus]:
    """The pods that hold a GPU of the node in another way than it is to be served. Where the policy goes by the label
    the node waits for them; else it only goes on for claims."""
    by_label, serves = facts.policy.claim_nodes == "labelled", node.name in facts.claim_agents
    if node.name not in facts.agents or (serves and not by_label):
        return []
    return [pod for pod in node.pods or () if bool(pod.claim) is not serves]


# -- pods that use GPUs ------------------------------------------------------------------------------------------------


@_check("no-scheduler", _STOPS, "the scheduler that pods wait for exists", how="pods that wait, and Deployments")
def _no_scheduler(facts: ClusterFacts) -> Iterator[Finding]:
    there = any(one.component == SCHEDULER and one.ready for one in facts.workloads)
    for pod in [one.seen for one in facts.users if not there]:
        if pod.shared and pod.is_pending and not pod.node and pod.scheduler == SCHEDULER:
            what = f"pod {pod.name} waits for {SCHEDULER}, but no pod of it is ready"
            yield Finding(what, "install it (docs/scheduling.md), or remove schedulerName from the pod")
            return


@_check("other-plugin", _BREAKS, "no other device plugin allocates these GPUs", how="Nodes: their resources")
def _other_plugin(facts: ClusterFacts) -> Iterator[Finding]:
    for one in facts.machines:
        if one.is_shared and one.whole_gpus:
            what = f"another device plugin allocates GPUs of {one.name} too ({one.whole_gpus})"
            yield Finding(what, "keep its DaemonSet off nodes with mpsd's label, by a nodeSelector or affinity")


@_check("nvidia-mps", _STOPS, "NVIDIA's own MPS daemon stays off mpsd's nodes", how="Nodes: their labels")
def _nvidia_mps(facts: ClusterFacts) -> Iterator[Finding]:
    for one in facts.machines:
        if one.is_shared and one.nvidia_mps:
            what = f"{one.name} has the label {one.nvidia_mps}, which starts NVIDIA's own MPS daemon on its GPUs"
            keep = f"kubectl label node {one.name} nvidia.com/gpu.deploy.device-plugin=false (NVIDIA's GPU operator)"
            yield Finding(what, f"{keep}, or give the node a configuration of the device plugin without sharing.mps")


@_check("driver-upgrade", _BREAKS, "no upgrade of a driver waits", how="Nodes: their labels; MPSNodes: the pods there")
def _driver_upgrade(facts: ClusterFacts) -> Iterator[Finding]:
    """By NVIDIA's GPU operator. One that goes on is no fault."""
    for one in [one for one in facts.machines if one.is_shared]:
        label = f"kubectl label node {one.name} --overwrite nvidia.com/gpu-driver-upgrade-state="
        if one.is_never_validated:
            what = (
                f"the upgrade of the driver of {one.name} waits for NVIDIA's validator, which is kept away from there"
            )
            yield Finding(what, f"when its GPUs serve (kubectl mps {one.name}), end it: {label}uncordon-required")
        state = one.driver_upgrade.partition("=")[2]
        what = f"the upgrade of the driver of {one.name} ({one.driver_upgrade})"
        report = facts.reports.get(one.name)
        pods = (
            sorted({f"{pod.namespace}/{pod.pod}" for pod in report.pods or ()}) if report and not report.stale else []
        )
        if state and pods:
            told = report.condition if report else None
            known = told.since if told and told.reason == "DriverUpgrade" else None
            since = f" (for {lasting(facts.now - known)})" if known else ""
            to_do = f"let them end, or evict them: kubectl mps drain {one.name} --evict, and undrain when it is done"
            if state in ("pod-restart-required", "upgrade-failed"):
                to_do += "; the operator does not wait for them: give it driver.upgradePolicy.waitForCompletion"
            yield Finding(f"{what} waits for {shortened(pods, _SHOWN)}{since}", f"{to_do} (docs/coexistence.md)")
        elif state == "upgrade-failed":
            see = f"see the driver's pods on the node, then let the operator begin again: {label}upgrade-required"
            yield Finding(f"{what} has failed, and mpsd serves nothing there", see)


@_check("nvidia-validator", _NOTE, "NVIDIA's validator stays off mpsd's nodes", how="Nodes: their labels; policy")
def _nvidia_validator(facts: ClusterFacts) -> Iterator[Finding]:
    if not facts.policy.exclusive_process:
        raise NotApplicable("a program outside MPS may use a GPU (exclusive_process)")
    for one in facts.machines:
        if one.is_shared and one.labels.get(_VALIDATOR, "false") != "false":
            what = f"NVIDIA's GPU operator starts its validator on {one.name} ({_VALIDATOR}={one.labels[_VALIDATOR]})"
            why = "whose CUDA program runs outside MPS, where EXCLUSIVE_PROCESS refuses it"
            yield Finding(f"{what}, {why}", f"kubectl label node {one.name} --overwrite {_VALIDATOR}=false")


@_check("mig-wanted", _NOTE, "NVIDIA's MIG manager has no GPU of mpsd's to divide", how="Nodes: their labels")
def _mig_wanted(facts: ClusterFacts) -> Iterator[Finding]:
    for one in facts.machines:
        wanted = one.labels.get(_MIG, _NO_MIG)
        state = one.labels.get(_MIG_STATE, _MIG_DONE if wanted == _NO_MIG else "not there")
        if one.is_shared and state != _MIG_DONE:
            labels = f"{_MIG}={wanted}, {_MIG_STATE} is {state}"
            what = f"NVIDIA's MIG manager is to give {one.name} another layout ({labels})"
            why = "and the driver changes none that mpsd's MPS servers use"
            yield Finding(f"{what}, {why}", f"kubectl mps drain {one.name}, then as docs/hardware.md says")


@_check("startup-taint", _STOPS, "no node keeps its startup taint", how="Nodes: their taints; DaemonSets")
def _startup_taint(facts: ClusterFacts) -> Iterator[Finding]:
    for one in facts.machines:
        if any(taint.key == _TAINT for taint in one.taints):
            what = f"{one.name} has the taint {_TAINT}, so that no pod comes there,"
            take = f"kubectl taint node {one.name} {_TAINT}-"
            if not one.is_shared:
                yield Finding(f"{what} and no agent that could remove it", f"label it {LABELS[0]}, or {take}")
            elif facts.of_agents("MPSD_STARTUP_TAINT") != _TAINT:
                component = f"add components/startup-taint (agent.startupTaint of the chart): {APPLY}"
                yield Finding(f"{what} and its agent is not told to remove it", f"{component}; until then {take}")


_PODS = "pods on mpsd's nodes, as admission reads them"


@_check("whole-gpus", _BREAKS, "no pod has a whole GPU of mpsd's", how=_PODS)
def _whole_gpus(facts: ClusterFacts) -> Iterator[Finding]:
    for pod in [pod for pod in facts.users if pod.seen.node and pod.whole_gpus][:_SHOWN]:
        what = f"pod {pod.seen.name} on {pod.seen.node} has {pod.whole_gpus}, a whole GPU that mpsd shares as well"
        yield Finding(what, "move it to a node without mpsd's label, and keep that device plugin off mpsd's nodes")


@_check("outside-books", _BREAKS, "no pod uses GPUs outside the ledger", how=_PODS)
def _outside(facts: ClusterFacts) -> Iterator[Finding]:
    findings = []
    for pod in facts.users:
        if pod.seen.node and pod.outside:
            more = f" (and {len(pod.outside) - 1} more)" if len(pod.outside) > 1 else ""
            what = f"pod {pod.seen.name} on {pod.seen.node} can use GPUs outside the ledger: {pod.outside[0]}{more}"
            findings.append(Finding(what, "correct and recreate it, or run it in an exempt namespace"))
    yield from checks.at_most(_SHOWN, findings, "pods can use GPUs outside the ledger", "correct these first")


@_check("not-asked", _BREAKS, "schedulers ask mpsd for free capacity", how="annotations of pods on mpsd's nodes")
def _unplaced(facts: ClusterFacts) -> Iterator[Finding]:
    there = any(one.component == SCHEDULER for one in facts.workloads)
    unplaced = [pod for pod in (one.seen for one in facts.users) if pod.shared and pod.node and not pod.shared.choice]
    if there and unplaced:
        pod = unplaced[0]
        more = f" (and {len(unplaced) - 1} more)" if len(unplaced) > 1 else ""
        by = f"{pod.scheduler or 'default-scheduler'}, which did not ask mpsd"
        remedy = f"set schedulerName: {SCHEDULER}, or give that scheduler mpsd's extender (docs/scheduling.md)"
        yield Finding(f"pod {pod.name}{more} requests GPU memory and was placed by {by}", remedy)


@_check(
    "scheduler-unconfigured",
    _BREAKS,
    "kube-scheduler is given a configuration",
    how="commands of kube-scheduler's pods in kube-system, not what is in the file that they name",
)
def _unconfigured(facts: ClusterFacts) -> Iterator[Finding]:
    if not any(one.component == SCHEDULER and one.kind == "ds" for one in facts.workloads):
        raise NotApplicable("no extender of mpsd's runs beside the cluster's own kube-scheduler")
    pods = [pod for pod in known(facts.pods) if pod["metadata"]["namespace"] == "kube-system"]
    # kubeadm and its like label theirs so
    schedulers = [pod for pod in pods if inside(pod, "metadata", "labels", "component") == "kube-scheduler"]
    if not schedulers:
        raise Unknown("no pod of kube-scheduler is in kube-system: it may run as no pod, or out of sight")
    for one in schedulers:
        lists = [of.get(part) or () for of in inside(one, "spec", "containers") or () for part in ("command", "args")]
        words = " ".join(chain(*lists)).split()  # as a shell takes them, which some clusters start it by
        if _CONFIGURING.isdisjoint(word.partition("=")[0] for word in words):
            what = f"pod kube-system/{one['metadata']['name']} has no --config in its command, so it asks no extender"
            to_do = "name a configuration with mpsd's extender there (docs/scheduling.md)"
            yield Finding(f"{what}: pods are placed without mpsd", to_do)
