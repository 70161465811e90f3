"""The steps in which a node's control pod is replaced without a program losing its GPU, decided by what is seen.

The step follows from the cluster alone, so that the same command continues where an upgrade stopped; and the old pod is
deleted only where nothing holds its GPUs. What an upgrade has cordoned itself is in an annotation of the MPSNode while
the upgrade lasts: only that is put back into use, and what another client has cordoned stays cordoned.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mpsd.model.cluster_status import ClusterNode, DomainRow
from mpsd.model.domain import ALL, State, after_is, drains
from mpsd.model.names import CONTROL, LABEL, NAME_LABEL, PRODUCT
from mpsd.model.times import seconds
from mpsd.operations.lifecycle.rules.emptying import are_empty, refusals, reports, what_is_left
from mpsd.status.rules.cordon import holders, holding

MARK = "mpsd.io/cordoned-by-upgrade"


class UpgradeStep(StrEnum):
    """The value: what is being done, after the node's name."""

    CORDON = "cordon"
    DRAIN = "drain"
    END = "end the old pod"
    REPLACE = "wait for the new pod"
    START = "wait for its domains"
    PUT_BACK = "put back"
    SERVE = "wait until it serves"
    FINISH = "finish"
    DONE = "done"
    STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class ControlPod:
    """started_at: of its container, seconds since 1970 by the node's clock; None while it does not run.

    trouble: why it does not, as kubelet reports; empty where it does or nothing is reported.
    """

    name: str
    uid: str
    node: str
    revision: str
    image: str
    ready: bool
    ending: bool
    started_at: float | None
    trouble: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a node is. pod None: it has no control pod now. revision: the newest of the DaemonSet, empty while the
    cluster's controller has not reported it.

    mark: the UUIDs that an upgrade has cordoned itself; None where none is under way. version: the MPSNode's.
    """

    node: ClusterNode
    pod: ControlPod | None
    revision: str
    mark: frozenset[str] | None
    version: str = ""

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.node.gpus)

    @property
    def uncordoned(self) -> tuple[str, ...]:
        """The GPUs that nobody has cordoned by name or by `all`."""
        cordoned = frozenset(self.node.cordoned)
        return () if ALL in cordoned else tuple(uuid for uuid in self.gpus if uuid not in cordoned)

    @property
    def ours(self) -> frozenset[str]:
        """What an upgrade has cordoned and nobody has put back."""
        return (self.mark or frozenset()).intersection(self.node.cordoned)

    @property
    def current(self) -> bool:
        return self.pod is not None and self.pod.revision == self.revision


@dataclass(frozen=True, slots=True)
class Decision:
    """why: of STUCK, and what a wait is for."""

    step: UpgradeStep
    why: str = ""


def next_step(seen: Standing) -> Decision:
    pod = seen.pod
    if not seen.revision:
        return Decision(UpgradeStep.REPLACE, "the DaemonSet's controller has not processed its last change")
    if pod is None or pod.ending:
        return Decision(UpgradeStep.REPLACE, "the old pod ends" if pod else "there is no control pod")
    if not seen.current:
        if seen.mark is None or seen.uncordoned:
            return Decision(UpgradeStep.CORDON)
        empty = are_empty(seen.node, seen.gpus)
        return Decision(UpgradeStep.END) if empty else Decision(UpgradeStep.DRAIN, what_is_left(seen.node, seen.gpus))
    if seen.mark is None:
        return Decision(UpgradeStep.DONE)
    if not pod.ready or pod.started_at is None:
        return Decision(UpgradeStep.REPLACE, pod.trouble or "it is not ready yet")
    return _with_the_new_pod(seen, pod.started_at)


def _with_the_new_pod(seen: Standing, started_at: float) -> Decision:
    fresh = reports(seen.node)
    begun = [domain for domain in seen.node.domains if domain.since is not None and domain.since >= started_at]
    refused = [refusal for domain in begun for refusal in refusals(seen.node, domain.gpus)]
    if fresh and refused:
        return Decision(UpgradeStep.STUCK, "; ".join(refused))
    out = drains(frozenset(seen.node.cordoned), seen.node.domains)
    in_use = [domain for domain in seen.node.domains if domain.name not in out]  # of which nothing is cordoned
    covered = {uuid for domain in begun for uuid in domain.gpus}
    if not fresh or len(begun) < len(seen.node.domains) or not covered.issuperset(seen.gpus) or not covered:
        return Decision(UpgradeStep.START, "the node has not reported its new domains yet")
    settled = (State.DRAINED, State.READY)
    if waiting := [one for one in begun if one.state not in settled and (seen.ours or one not in in_use)]:
        return Decision(UpgradeStep.START, _states(waiting))
    if seen.ours:
        return Decision(UpgradeStep.PUT_BACK)
    idle = [domain for domain in in_use if domain.state != State.READY]
    return Decision(UpgradeStep.SERVE, _states(idle)) if idle else Decision(UpgradeStep.FINISH)


def _states(domains: list[DomainRow]) -> str:
    unsaid = (State.DRAINED, State.DRAINING)  # for a reason that the upgrade itself has given
    reasons = ["" if one.state in unsaid or not one.reason else f": {one.reason}" for one in domains]
    return "; ".join(f"{one.name} is {after_is(one.state)}{why}" for one, why in zip(domains, reasons, strict=True))


# -- what is written -----------------------------------------------------------------------------------------------


def read_mark(mpsnode: Mapping[str, Any]) -> frozenset[str] | None:
    """What an upgrade has cordoned of this MPSNode; None where none is under way."""
    text = ((mpsnode.get("metadata") or {}).get("annotations") or {}).get(MARK)
    return frozenset(one for one in text.split(",") if one) if isinstance(text, str) else None


def left_to_others(mark: frozenset[str], gpus: Collection[str]) -> str:
    """The annotation once another client has decided whether these GPUs are to be used."""
    return ",".join(sorted(mark.difference(gpus)))


def patch_of(step: UpgradeStep, seen: Standing) -> dict[str, Any]:
    """The merge patch of the MPSNode that CORDON, PUT_BACK or FINISH is."""
    cordoned, mark = frozenset(seen.node.cordoned), seen.ours.union(seen.uncordoned)
    after, marked = {
        UpgradeStep.CORDON: (cordoned.union(mark), ",".join(sorted(mark))),
        UpgradeStep.PUT_BACK: (cordoned - seen.ours, ""),
        UpgradeStep.FINISH: (cordoned, None),  # None: the annotation goes
    }[step]
    metadata = {"resourceVersion": seen.version, "annotations": {MARK: marked}}
    return {"metadata": metadata, "spec": {"cordoned": sorted(after)}}


# -- the DaemonSet and its pods ----------------------------------------------------------------------------------------
# What is missing in an object reads as not there yet, so that it is waited for.

REVISION = "controller-revision-hash"
SELECTOR = f"{LABEL}={PRODUCT},{NAME_LABEL}={CONTROL}"  # of the DaemonSet
ON_DELETE = "OnDelete"

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ControlSet:
    """container: the name of the one that runs the daemons. revision: of the newest template; empty while the API's
    controller has not seen the last change of it. selector: of its pods, as a query has it.
    """

    namespace: str
    name: str
    uid: str
    container: str
    image: str
    strategy: str
    revision: str
    selector: str

    def __str__(self) -> str:
        return f"DaemonSet {self.namespace}/{self.name}"


def read_control_set(daemon_set: Object, revisions: Iterable[Object]) -> ControlSet:
    """revisions: ControllerRevisions, those of other objects too."""
    metadata, spec = daemon_set["metadata"], daemon_set["spec"]
    container = spec["template"]["spec"]["containers"][0]
    observed = (daemon_set.get("status") or {}).get("observedGeneration") or 0
    own = [one for one in revisions if is_owned(one, metadata["uid"])]
    newest = max(own, key=lambda one: int(one.get("revision") or 0), default=None)
    settled = newest is not None and observed >= metadata.get("generation", 0)
    return ControlSet(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        container=container["name"],
        image=str(container.get("image", "")),
        strategy=str((spec.get("updateStrategy") or {}).get("type", "")),
        revision=_revision(newest) if newest and settled else "",
        selector=pod_selector(daemon_set),
    )


def pod_selector(daemon_set: Object) -> str:
    wanted = (daemon_set["spec"].get("selector") or {}).get("matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(wanted.items()))


def control_pods(pods: Iterable[Object], owner: str) -> dict[str, ControlPod]:
    """By node, those that this owner made. Of two on a node the one that stays counts, and of those the younger."""
    own = [pod for pod in pods if is_owned(pod, owner)]
    own.sort(key=lambda one: str(one["metadata"].get("creationTimestamp", "")))
    read = sorted(map(_control_pod, own), key=lambda one: not one.ending)  # the last one of a node wins
    return {one.node: one for one in read if one.node}


def is_owned(thing: Object, uid: str) -> bool:
    return any(one.get("uid") == uid for one in thing["metadata"].get("ownerReferences") or ())


def _control_pod(pod: Object) -> ControlPod:
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    states = [one.get("state") or {} for one in status.get("containerStatuses") or ()]
    began = [seconds((state.get("running") or {}).get("startedAt")) for state in states]
    known = [at for at in began if at is not None]
    waiting = [state["waiting"] for state in states if state.get("waiting")]
    return ControlPod(
        name=metadata["name"],
        uid=metadata["uid"],
        node=str(spec.get("nodeName") or ""),
        revision=_revision(pod),
        image=str((spec.get("containers") or [{}])[0].get("image", "")),
        ready=any((one.get("type"), one.get("status")) == ("Ready", "True") for one in status.get("conditions") or ()),
        ending=bool(metadata.get("deletionTimestamp")),
        started_at=max(known) if known and len(known) == len(began) else None,
        trouble="; ".join(f"{one.get('reason', 'waits')}: {one.get('message', '')}".rstrip(": ") for one in waiting),
    )


def _revision(thing: Object) -> str:
    return str((thing["metadata"].get("labels") or {}).get(REVISION, ""))


# -- what is printed: each sentence names the node and what holds there now ------------------------------------------


def plan(control: ControlSet, nodes: Sequence[Standing], image: str | None) -> Iterator[str]:
    """What would be done, a line each. image: what the DaemonSet is to have first, None for what it has."""
    if sets_image(control, image):
        yield f"{control}: the image becomes {image}, instead of {control.image}"
    due = [one for one in nodes if is_due(one, control, image)]
    yield f"{control}, image {image or control.image}: {len(due)} of {len(nodes)} nodes to upgrade"
    for one in nodes:
        replaced = not one.current or sets_image(control, image)
        yield f"{one.node.name}: {'; '.join(_of_node(one, replaced=replaced)) if one in due else 'up to date'}"


def sets_image(control: ControlSet, image: str | None) -> bool:
    return image is not None and image != control.image


def is_due(one: Standing, control: ControlSet, image: str | None) -> bool:
    """Whether something is to be done on this node: its pod is old, or an upgrade was given up in the middle."""
    return not one.current or one.mark is not None or sets_image(control, image)


def _of_node(one: Standing, *, replaced: bool) -> Iterator[str]:
    labels = one.node.labels
    if one.pod is None:
        yield "no control pod runs there now"
    elif replaced:
        yield f"{one.pod.name} is of revision {one.pod.revision}, image {one.pod.image}"
    else:
        yield f"{one.pod.name} is new, and the upgrade of this node was not finished"
    if one.uncordoned and replaced:
        yield f"cordon {_named(one.uncordoned, labels)}"
    if one.node.pods is None:
        yield "it does not report its pods"
    elif replaced and (pods := holders(one.node, one.gpus)):
        yield f"wait for {', '.join(holding(pod, labels) for pod in pods)}"
    back = one.ours.union(one.uncordoned if replaced else ())
    yield f"{'replace the pod, ' if replaced else ''}put back {_named(back, labels) or 'nothing'}"
    if kept := set(one.gpus).difference(one.ours, one.uncordoned):
        yield f"{_named(kept, labels)} was cordoned by another client and stays cordoned"


def _named(gpus: Iterable[str], labels: dict[str, str]) -> str:
    return ", ".join(sorted(labels.get(uuid, uuid) for uuid in gpus))


_PROGRESS = {
    UpgradeStep.CORDON: "cordons {uncordoned}",
    UpgradeStep.DRAIN: "draining: {why}",
    UpgradeStep.END: "no pod is left; deletes {pod}, image {image}",
    UpgradeStep.REPLACE: "waits for the new control pod: {why}",
    UpgradeStep.START: "waits for the domains of the new pod, image {image}: {why}",
    UpgradeStep.PUT_BACK: "puts {ours} back into use",
    UpgradeStep.SERVE: "waits until it serves: {why}",
    UpgradeStep.FINISH: "done",
    UpgradeStep.DONE: "done",
    UpgradeStep.STUCK: "{why}",
}


def progress(seen: Standing, decided: Decision) -> str:
    """A line when a step begins, or what it waits for is another thing."""
    labels = seen.node.labels
    what = _PROGRESS[decided.step].format(
        why=decided.why,
        pod=seen.pod.name if seen.pod else "the pod",
        image=seen.pod.image if seen.pod else "?",
        ours=_named(seen.ours, labels),
        uncordoned=_named(seen.uncordoned, labels) or "nothing: all GPUs are cordoned already",
    )
    return f"{seen.node.name}: {what}"


def how_it_stands(control: ControlSet, seen: Standing, step: UpgradeStep, where: str = "") -> Iterator[str]:
    """What is so on a node where an upgrade stopped in this step, and how to go on or back. where: options for every
    command, such as ` --context a`, with their leading blank.
    """
    name, ours = seen.node.name, _named(seen.ours, seen.node.labels)
    cordoned = f"still cordoned by this upgrade: {ours}" if ours else "this upgrade has no GPU cordoned"
    look = f"kubectl mps {name}{where}"
    if step in (UpgradeStep.CORDON, UpgradeStep.DRAIN, UpgradeStep.END):
        yield f"{name}: the old control pod still runs; {cordoned}"
        yield f"to see who is left: {look}; to continue: run the same command again"
        if ours:
            gpus = "".join(f" --gpu {one}" for one in ours.split(", "))
            yield f"to go back: kubectl mps undrain {name}{gpus}{where}"
        return
    yield f"{name}: the old control pod is gone; {cordoned}"
    if seen.pod:
        look = f"kubectl -n {control.namespace} describe pod {seen.pod.name}{where}"
    yield f"to find the cause: {look}; to continue, once it is removed: run the same command again"
    undo = f"kubectl -n {control.namespace} rollout undo daemonset/{control.name}{where}"
    yield f"to go back: {undo} && kubectl mps upgrade {name}{where}"
