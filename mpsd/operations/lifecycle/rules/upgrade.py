"""How a node's control pod is replaced without a program losing its GPU.

What comes next follows from what the cluster reports, so that the same command continues where an
upgrade stopped. The old pod is deleted only where nothing holds its GPUs. What an upgrade has
cordoned itself is in an annotation of the MPSNode while it lasts: only that is put back into use.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mpsd.model.cluster_status import ClusterNode
from mpsd.model.domain import ALL, State, after_is, drains
from mpsd.model.names import CONTROL, LABEL, NAME_LABEL, PRODUCT
from mpsd.model.node_report import DomainReport
from mpsd.model.times import seconds
from mpsd.operations.lifecycle.rules.emptying import (
    are_empty,
    put_back,
    refusals,
    reports,
    what_is_left,
)
from mpsd.status.rules.cordon import holders, holding

ANNOTATION = "mpsd.io/cordoned-by-upgrade"
REVISION = "controller-revision-hash"
SELECTOR = f"{LABEL}={PRODUCT},{NAME_LABEL}={CONTROL}"  # of the DaemonSet
ON_DELETE = "OnDelete"

Object = Mapping[str, Any]


class UpgradeStep(StrEnum):
    DRAIN = "drain"
    REPLACE = "delete the old pod"
    START = "wait for the new pod"
    UNDRAIN = "put back"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ControlPod:
    name: str
    uid: str
    node: str
    revision: str
    image: str
    ready: bool
    ending: bool
    #: Of its container, seconds since 1970 by the node's clock; None while it does not run.
    started_at: float | None
    #: Why it does not run, as kubelet reports; empty where it does or nothing is reported.
    trouble: str


@dataclass(frozen=True, slots=True)
class ControlSet:
    namespace: str
    name: str
    uid: str
    image: str
    strategy: str
    #: Of the newest template; empty while its controller has not seen the last change.
    revision: str
    #: Of its pods, as a query has it.
    selector: str

    def __str__(self) -> str:
        return f"DaemonSet {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Standing:
    node: ClusterNode
    #: None: it has no control pod now.
    pod: ControlPod | None
    #: The newest of the DaemonSet.
    revision: str
    #: The UUIDs that an upgrade has cordoned itself; None where none is under way.
    annotation: frozenset[str] | None
    #: The MPSNode's resourceVersion.
    version: str = ""

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.node.gpus)

    @property
    def uncordoned(self) -> tuple[str, ...]:
        cordoned = self.node.cordoned
        if ALL in cordoned:
            return ()
        return tuple(uuid for uuid in self.gpus if uuid not in cordoned)

    @property
    def ours(self) -> frozenset[str]:
        """What an upgrade has cordoned and nobody has put back."""
        return (self.annotation or frozenset()).intersection(self.node.cordoned)

    @property
    def others(self) -> frozenset[str]:
        return frozenset(self.node.cordoned) - self.ours

    @property
    def current(self) -> bool:
        return self.pod is not None and self.pod.revision == self.revision


@dataclass(frozen=True, slots=True)
class Decision:
    step: UpgradeStep
    #: What is waited for; empty where something is to be done.
    why: str = ""
    #: What is to be written to the MPSNode, None for nothing.
    patch: dict[str, Any] | None = None
    #: Why the new pod will not serve; empty where nothing is known against it.
    refusal: str = ""

    @property
    def cordons(self) -> bool:
        return self.step is UpgradeStep.DRAIN and self.patch is not None


def next_step(seen: Standing) -> Decision:
    pod = seen.pod
    if not seen.revision:
        why = "the DaemonSet's controller has not processed its last change"
        return Decision(UpgradeStep.START, why)
    if pod is None:
        return Decision(UpgradeStep.START, "there is no control pod")
    if pod.ending:
        return Decision(UpgradeStep.START, "the old pod ends")
    if not seen.current:
        if seen.annotation is None or seen.uncordoned:
            ours = seen.ours.union(seen.uncordoned)
            patch = _patch(seen, ours.union(seen.node.cordoned), left_to_others(ours, ()))
            return Decision(UpgradeStep.DRAIN, patch=patch)
        if are_empty(seen.node, seen.gpus):
            return Decision(UpgradeStep.REPLACE)
        return Decision(UpgradeStep.DRAIN, what_is_left(seen.node, seen.gpus))
    if seen.annotation is None:
        return Decision(UpgradeStep.DONE)
    if not pod.ready or pod.started_at is None:
        return Decision(UpgradeStep.START, pod.trouble or "it is not ready yet")
    return _with_the_new_pod(seen, pod.started_at)


def _with_the_new_pod(seen: Standing, started_at: float) -> Decision:
    node = seen.node
    begun = [one for one in node.domains if one.since and one.since.timestamp() >= started_at]
    if not reports(node):
        begun = []
    covered = {uuid for domain in begun for uuid in domain.gpus}
    if refused := list(refusals(node, covered)):
        return Decision(UpgradeStep.START, refusal="; ".join(refused))
    if not covered or len(begun) < len(node.domains) or not covered.issuperset(seen.gpus):
        return Decision(UpgradeStep.START, "the node has not reported its new domains yet")
    if seen.ours:
        settled = (State.DRAINED, State.READY)
        if waiting := [one for one in begun if one.state not in settled]:
            return Decision(UpgradeStep.START, _states(waiting))
        return Decision(UpgradeStep.UNDRAIN, patch=_patch(seen, seen.others, ""))
    out = drains(frozenset(node.cordoned), node.domains)
    if idle := [one for one in begun if one.name not in out and one.state != State.READY]:
        return Decision(UpgradeStep.UNDRAIN, _states(idle))
    return Decision(UpgradeStep.UNDRAIN, patch=_patch(seen, seen.others, None))


def _states(domains: Iterable[DomainReport]) -> str:
    return "; ".join(f"{one.name} is {after_is(one.state)}" for one in domains)


# -- what is written


def _patch(seen: Standing, cordoned: Collection[str], annotation: str | None) -> dict[str, Any]:
    """annotation None: it goes."""
    metadata = {"resourceVersion": seen.version, "annotations": {ANNOTATION: annotation}}
    return {"metadata": metadata, "spec": {"cordoned": sorted(cordoned)}}


def read_annotation(mpsnode: Mapping[str, Any]) -> frozenset[str] | None:
    """What an upgrade has cordoned of this MPSNode; None where none is under way."""
    text = ((mpsnode.get("metadata") or {}).get("annotations") or {}).get(ANNOTATION)
    if not isinstance(text, str):
        return None
    return frozenset(filter(None, text.split(",")))


def left_to_others(annotation: frozenset[str], gpus: Collection[str]) -> str:
    """The annotation once another client has decided whether these GPUs are to be used."""
    return ",".join(sorted(annotation.difference(gpus)))


# -- the DaemonSet and its pods: what is missing in an object reads as not there yet

_NONE: Object = {"metadata": {}}


def read_control_set(daemon_set: Object, revisions: Iterable[Object]) -> ControlSet:
    """revisions: ControllerRevisions, those of other objects too."""
    metadata = daemon_set["metadata"]
    spec = daemon_set["spec"]
    container = spec["template"]["spec"]["containers"][0]
    observed = (daemon_set.get("status") or {}).get("observedGeneration") or 0
    own = [one for one in revisions if is_owned(one, metadata["uid"])]
    newest = max(own, key=lambda one: int(one.get("revision") or 0), default=_NONE)
    if observed < metadata.get("generation", 0):
        newest = _NONE
    return ControlSet(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        image=str(container.get("image", "")),
        strategy=str((spec.get("updateStrategy") or {}).get("type", "")),
        revision=_revision(newest),
        selector=pod_selector(daemon_set),
    )


def pod_selector(daemon_set: Object) -> str:
    wanted = (daemon_set["spec"].get("selector") or {}).get("matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(wanted.items()))


def control_pods(pods: Iterable[Object], owner: str) -> dict[str, ControlPod]:
    """By node, those of this owner; of two on a node the one that stays, then the younger."""
    own = [pod for pod in pods if is_owned(pod, owner)]
    own.sort(key=lambda one: str(one["metadata"].get("creationTimestamp", "")))
    read = sorted(map(_control_pod, own), key=lambda one: not one.ending)
    return {one.node: one for one in read if one.node}  # the last one of a node wins


def is_owned(thing: Object, uid: str) -> bool:
    return any(one.get("uid") == uid for one in thing["metadata"].get("ownerReferences") or ())


def _control_pod(pod: Object) -> ControlPod:
    metadata = pod["metadata"]
    spec = pod.get("spec") or {}
    status = pod.get("status") or {}
    conditions = [(one.get("type"), one.get("status")) for one in status.get("conditions") or ()]
    began = []
    troubles = []
    statuses = status.get("containerStatuses") or ()
    for one in statuses:
        state = one.get("state") or {}
        if at := seconds((state.get("running") or {}).get("startedAt")):
            began.append(at)
        if waiting := state.get("waiting"):
            told = (waiting.get("reason", "waits"), waiting.get("message"))
            troubles.append(": ".join(filter(None, told)))
    started_at = None
    if began and len(began) == len(statuses):
        started_at = max(began)
    return ControlPod(
        name=metadata["name"],
        uid=metadata["uid"],
        node=str(spec.get("nodeName") or ""),
        revision=_revision(pod),
        image=str((spec.get("containers") or [{}])[0].get("image", "")),
        ready=("Ready", "True") in conditions,
        ending=bool(metadata.get("deletionTimestamp")),
        started_at=started_at,
        trouble="; ".join(troubles),
    )


def _revision(thing: Object) -> str:
    return str((thing["metadata"].get("labels") or {}).get(REVISION, ""))


# -- what is printed


def is_due(one: Standing, control: ControlSet) -> bool:
    """Whether something is to be done: its pod is old, or an upgrade was given up in the middle.

    control: as it is now; `one` may have been looked at before it changed.
    """
    is_old = one.pod is None or one.pod.revision != control.revision
    return is_old or one.annotation is not None


def plan(control: ControlSet, nodes: Sequence[Standing]) -> Iterator[str]:
    due = [one for one in nodes if is_due(one, control)]
    yield f"{control}, image {control.image}: {len(due)} of {len(nodes)} nodes to upgrade"
    for one in nodes:
        what = _to_do(one) if one in due else "up to date"
        yield f"{one.node.name}: {what}"


def _to_do(one: Standing) -> str:
    pod = "no control pod runs there now"
    if one.pod:
        pod = f"replace {one.pod.name}, image {one.pod.image}"
    pods = ", ".join(holding(pod, one.node.labels) for pod in holders(one.node, one.gpus))
    back = one.ours.union(one.uncordoned)
    what = f"wait for {pods or 'nobody'}; {pod}; put back {_named(back, one) or 'nothing'}"
    if kept := _named(set(one.gpus) - back, one):
        return f"{what}; {kept} stays cordoned, as others want it"
    return what


def _named(gpus: Iterable[str], one: Standing) -> str:
    return ", ".join(sorted(one.node.labels.get(uuid, uuid) for uuid in gpus))


def progress(seen: Standing, decided: Decision) -> str:
    what = decided.why or decided.refusal
    if decided.cordons:
        what = f"cordon {_named(seen.uncordoned, seen) or 'nothing: all GPUs are cordoned'}"
    elif decided.step is UpgradeStep.REPLACE and seen.pod:
        what = f"{seen.pod.name}, image {seen.pod.image}"
    elif decided.step is UpgradeStep.UNDRAIN and seen.ours:
        what = _named(seen.ours, seen)
    return ": ".join(filter(None, (seen.node.name, decided.step, what)))


def how_it_stands(
    control: ControlSet, seen: Standing, decided: Decision, where: str = ""
) -> Iterator[str]:
    """What is so on a node once `decided` is begun, and how to go on or back.

    where: options for every command, such as ` --context a`, with their leading blank.
    """
    name = seen.node.name
    ours = seen.ours
    if decided.cordons:
        ours = ours.union(seen.uncordoned)
    pod = "is gone"
    if decided.step is UpgradeStep.REPLACE:
        pod = "is being deleted"
    elif seen.pod and not seen.current and not seen.pod.ending:
        pod = "still runs"
    cordoned = f"still cordoned by this upgrade: {_named(ours, seen) or 'no GPU'}"
    yield f"{name}: the old control pod {pod}; {cordoned}"
    back = ""
    if pod != "still runs":
        undo = f"kubectl -n {control.namespace} rollout undo daemonset/{control.name}{where}"
        back = f"; to go back: {undo} && kubectl mps upgrade {name}{where}"
    elif ours:
        back = f"; to go back: {put_back(seen.node, sorted(ours), where)}"
    yield f"to continue: run the same command again{back}"
