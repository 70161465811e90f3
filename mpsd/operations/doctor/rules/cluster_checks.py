"""The checks of `kubectl mps doctor`, in the order in which they are to be read: causes before what follows from them.

One rule: a row says what is wrong and the one thing to do, and never more than was seen. The rows themselves are beside
this, by subject.
"""

from collections.abc import Iterator

from mpsd.model.cluster_status import ClusterNode, silence
from mpsd.model.domain import ALL, State, after_is, remedy
from mpsd.model.names import AGENT, CONTROL, NAME_LABEL, NAMESPACE, SCHEDULER, WEBHOOK
from mpsd.model.quantity import DAY_S, lasting
from mpsd.operations.doctor.rules.cluster_facts import Clock, ClusterFacts, OwnPod
from mpsd.operations.doctor.rules.cluster_pods import POD_CHECKS, WEBHOOK_CHECKS
from mpsd.operations.doctor.rules.component_rights import Component, Skew, compare, skew_of
from mpsd.operations.doctor.rules.facts import Check, Elsewhere, NotKnown, Severity, Unknown, Wrong, known
from mpsd.platform.rules.kubernetes_objects import LABELS

# The checks of `kubectl mps doctor` of what is installed: the definition, rights and pods.
#
# One rule: what a cluster does without, such as the webhook where policies stand in for it, is no fault.

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


# The checks of `kubectl mps doctor` of the nodes: labels, what each tells of itself, clocks, and versions.
#
# One rule: a node counts as mpsd's by its label alone; what a node has told is believed for as long as it tells.

_APART_S = 30.0  # stamps of the API are whole seconds, and a write may wait
_FORGOTTEN_S = DAY_S
_CORDONED = frozenset({State.DRAINING.value, State.DRAINED.value})
_LABEL = f"kubectl label node {{}} {LABELS[0]}"


def _unlabelled(facts: ClusterFacts) -> Iterator[Wrong]:
    machines = known(facts.machines)
    if not any(one.is_shared for one in machines):
        with_gpus = [one.name for one in machines if one.gpus]
        what = f"no node has the label {LABELS[0]}, so no daemon of mpsd's runs anywhere"
        yield Wrong(what, _LABEL.format(with_gpus[0] if with_gpus else "NODE"))


def _some_unlabelled(facts: ClusterFacts) -> Iterator[Wrong]:
    machines = known(facts.machines)
    for one in machines if any(other.is_shared for other in machines) else ():
        if one.gpus and not one.is_shared:
            what = f"{one.name} has NVIDIA GPUs ({one.gpus}) and not the label {LABELS[0]}: mpsd does not share them"
            yield Wrong(what, f"{_LABEL.format(one.name)}, or leave it to others")


def _no_gpus(facts: ClusterFacts) -> Iterator[Wrong]:
    told = known(facts.mpsnodes)
    for one in known(facts.machines):
        node = told.get(one.name)
        condition = node.condition if node else None
        if one.is_shared and condition and condition.reason == "NoGPUs":
            what = f"{one.name} has the label {LABELS[0]} and no GPU: {condition.message}"
            yield Wrong(what, f"kubectl label node {one.name} {LABELS[0].partition('=')[0]}-, or see its driver")


def _mpsnode_missing(facts: ClusterFacts) -> Iterator[Wrong]:
    told = known(facts.mpsnodes)
    for one in known(facts.machines):
        node = told.get(one.name)
        if one.is_shared and (node is None or node.told_at is None):
            what = f"{one.name} is labelled for mpsd and has told nothing yet (MPSNode)"
            yield Wrong(what, f"see its pod of {AGENT}: {_pods_on(one.name, AGENT)}")


def _mpsnode_stale(facts: ClusterFacts) -> Iterator[Wrong]:
    for node in known(facts.mpsnodes).values():
        if node.told_at is not None and (said := silence(node, facts.now)):
            what = said.partition("; ")[0]
            yield Wrong(what, f"see its pod of {AGENT}: {_pods_on(node.name, AGENT)}")


def _pods_on(node: str, component: str) -> str:
    which = f"-l {NAME_LABEL}={component} --field-selector spec.nodeName={node}"
    return f"kubectl -n {NAMESPACE} get pods {which} -o wide"


def _telling(facts: ClusterFacts) -> Iterator[ClusterNode]:
    """Nodes whose word still counts."""
    for node in known(facts.mpsnodes).values():
        if node.told_at is not None and not node.stale:
            yield node


def _domains(facts: ClusterFacts) -> Iterator[Wrong]:
    for node in _telling(facts):
        for domain in node.domains:
            if domain.state != State.READY and domain.state not in _CORDONED:
                state = after_is(State(domain.state)) if domain.state in set(State) else domain.state
                why = f": {domain.reason}" if domain.reason else ""
                ask = f"ask on that node: {_doctor_on(node.name)}"
                what_to_do = "; ".join(filter(None, [remedy(domain.state, domain.reason), ask]))
                yield Wrong(f"{node.name}: {domain.name} is {state}{why}", what_to_do)
        if node.unreadable:
            yield Wrong(f"{node.name}: its MPSNode cannot be read: {node.unreadable[0]}", "see kubectl get mps -o yaml")


def _not_ready(facts: ClusterFacts) -> Iterator[Wrong]:
    """What the condition says and no domain does."""
    for node in _telling(facts):
        condition = node.condition
        if condition is None or (condition.status != "True" and condition.reason in ("ControlAbsent", "NotSeen")):
            said = f"{condition.reason}: {condition.message}" if condition else "nobody has told it"
            yield Wrong(f"{node.name} is not MPSReady, {said}", f"ask on that node: {_doctor_on(node.name)}")


def _doctor_on(node: str) -> str:
    return f"mpsd doctor in its control pod ({_pods_on(node, CONTROL)})"


def _forgotten(facts: ClusterFacts) -> Iterator[Wrong]:
    for node in _telling(facts):
        out = [one for one in node.domains if one.state == State.DRAINED and one.since is not None]
        since = min((one.since for one in out if one.since is not None), default=facts.now)
        if facts.now - since > _FORGOTTEN_S:
            gpus = "every GPU" if ALL in node.cordoned else ", ".join(sorted(one.name for one in out))
            what = f"{node.name}: {gpus} is cordoned and has been empty for {lasting(facts.now - since)}"
            yield Wrong(what, f"put it back when the work is done: kubectl mps undrain {node.name}")


# -- clocks ------------------------------------------------------------------------------------------------------------


def _apart(facts: ClusterFacts) -> Iterator[Wrong]:
    for clock in (known(facts.own_clock), *known(facts.node_clocks)):
        if abs(clock.behind_s) > _APART_S:
            yield Wrong(_clock(clock), "let one time service keep them all, such as chrony")


def _clock(clock: Clock) -> str:
    way = "behind" if clock.behind_s > 0 else "ahead of"
    return f"the clock of {clock.of} is {lasting(abs(clock.behind_s))} {way} the API server's"


# -- versions ----------------------------------------------------------------------------------------------------------


def _skews(facts: ClusterFacts) -> Iterator[tuple[str, Skew]]:
    """Every pair of different versions that a row is about, with whose they are. NotKnown where no node says its."""
    silent = ""
    for node in _telling(facts):
        if not node.version:
            silent = f"the agent of {node.name} is too old to say its version"
            continue
        agent = (Component.AGENT, node.version)
        for version in sorted({one.version for one in node.domains if one.version}):
            if row := skew_of((Component.CONTROL, version), agent):
                yield f"{node.name}: control is of version {version} and the agent of {node.version}", row
        if row := skew_of((Component.COMMAND, facts.ours), agent):
            yield f"{Component.COMMAND} is of version {facts.ours} and the agent of {node.name} of {node.version}", row
    if silent:
        raise NotKnown(Unknown(silent))


def _skewed(facts: ClusterFacts) -> Iterator[Wrong]:
    for what, row in _skews(facts):
        if not row.normal:
            yield Wrong(f"{what}: {row.why}", row.remedy)


def _behind(facts: ClusterFacts) -> Iterator[Wrong]:
    shown = set()
    for what, row in _skews(facts):
        if row.normal and (row.older, row.newer) not in shown:  # of many nodes the first
            shown.add((row.older, row.newer))
            yield Wrong(f"{what}: {row.why}", row.remedy)
    versions = {node.version for node in _telling(facts) if node.version}
    if len(versions) > 1:
        first, *_others, last = sorted(versions, key=_Key)
        what = f"agents are of versions {first} to {last}: a rollout goes on, or is stuck"
        yield Wrong(what, f"kubectl -n {NAMESPACE} rollout status ds/{AGENT}")


class _Key:
    """Sorts versions."""

    def __init__(self, version: str) -> None:
        self._version = version

    def __lt__(self, other: "_Key") -> bool:
        return compare(self._version, other._version) < 0


def _images(facts: ClusterFacts) -> Iterator[Wrong]:
    """Webhook and scheduler tell their version nowhere else than in their image."""
    pods = [pod for pod in known(facts.pods) if not pod.ending]
    agents = sorted({pod.image for pod in pods if pod.component == AGENT})
    if not agents:
        raise NotKnown(Elsewhere(f"there is no pod of {AGENT} to compare with"))
    for pod in pods:
        if pod.component in (WEBHOOK, SCHEDULER) and pod.image not in agents:
            what = f"pod {pod.name} is of image {pod.image} and the agents of {', '.join(agents)}"
            why = "admission and placement go by rules that the nodes may not have"
            yield Wrong(f"{what}: {why}", f"roll it out: kubectl -n {NAMESPACE} rollout status deploy/{pod.component}")


_NODES, _MPSNODES, _TOLD = (
    "Nodes: their labels and resources",
    "MPSNodes",
    "MPSNodes: status.version, domains[].version",
)

NODE_CHECKS: tuple[Check[ClusterFacts], ...] = (
    Check("no-node-labelled", _STOPS, "nodes are labelled for mpsd", ("machines",), _NODES, _unlabelled),
    Check("no-gpus", _STOPS, "labelled nodes have GPUs", ("machines", "mpsnodes"), f"{_NODES}, MPSNodes", _no_gpus),
    Check(
        "mpsnode-missing",
        _STOPS,
        "every labelled node tells of itself",
        ("machines", "mpsnodes"),
        f"{_NODES}, MPSNodes",
        _mpsnode_missing,
    ),
    Check(
        "mpsnode-stale", _STOPS, "every node has told of late", ("mpsnodes",), "MPSNodes: status.toldAt", _mpsnode_stale
    ),
    Check("domain-not-ready", _STOPS, "every domain takes programs", ("mpsnodes",), _MPSNODES, _domains),
    Check("node-not-ready", _STOPS, "every node is MPSReady", ("mpsnodes",), _MPSNODES, _not_ready),
    Check(
        "clocks-apart",
        _BREAKS,
        "clocks agree",
        ("own_clock", "node_clocks"),
        "Date of an answer; MPSNodes: status.toldAt against managedFields",
        _apart,
    ),
    Check("version-skew", _BREAKS, "agents know what control writes", ("mpsnodes",), _TOLD, _skewed),
    Check("image-skew", _BREAKS, "all parts are of one image", ("pods",), "images of mpsd's pods", _images),
)
LATER_NODE_CHECKS: tuple[Check[ClusterFacts], ...] = (
    Check("version-behind", _NOTE, "all parts are of one version", ("mpsnodes",), _TOLD, _behind),
    Check("cordon-forgotten", _NOTE, "no GPU was left cordoned", ("mpsnodes",), _MPSNODES, _forgotten),
    Check("gpus-unshared", _NOTE, "every node with GPUs is labelled", ("machines",), _NODES, _some_unlabelled),
)


CLUSTER_CHECKS: tuple[Check[ClusterFacts], ...] = (
    *INSTALL_CHECKS,
    *NODE_CHECKS,
    RESTART_CHECK,
    *WEBHOOK_CHECKS,
    *POD_CHECKS,
    DEFINITION_CHECK,
    *LATER_NODE_CHECKS,
)
