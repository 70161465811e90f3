"""The checks of `kubectl mps doctor` of the nodes: labels, what each tells of itself, clocks, and versions.

One rule: a node counts as mpsd's by its label alone; what a node has told is believed for as long as it tells.
"""

from collections.abc import Iterator

from mpsd.model.cluster_status import ClusterNode
from mpsd.model.cordon import ALL
from mpsd.model.domain_states import State, after_is, remedy
from mpsd.model.durations import DAY_S, lasting
from mpsd.model.installed import AGENT, CONTROL, NAME_LABEL, NAMESPACE, SCHEDULER, WEBHOOK
from mpsd.model.node_troubles import silence
from mpsd.operations.doctor.rules.cluster_facts import Clock, ClusterFacts
from mpsd.operations.doctor.rules.doctor import Check, Severity, Wrong
from mpsd.operations.doctor.rules.doctor_facts import Elsewhere, NotKnown, Unknown, known
from mpsd.operations.doctor.rules.version_skew import Part, Skew, compare, skew_of
from mpsd.platform.rules.kubernetes_node import LABELS

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
        agent = (Part.AGENT, node.version)
        for version in sorted({one.version for one in node.domains if one.version}):
            if row := skew_of((Part.CONTROL, version), agent):
                yield f"{node.name}: control is of version {version} and the agent of {node.version}", row
        if row := skew_of((Part.COMMAND, facts.ours), agent):
            yield f"{Part.COMMAND} is of version {facts.ours} and the agent of {node.name} of {node.version}", row
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


_STOPS, _BREAKS, _NOTE = Severity.STOPS, Severity.BREAKS, Severity.NOTE
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
