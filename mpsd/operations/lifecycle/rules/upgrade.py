"""The steps in which a node's control pod is replaced without a program losing its GPU, decided by what is seen.

The step follows from the cluster alone, so that the same command continues where an upgrade stopped; and the old pod is
deleted only where nothing holds its GPUs. What an upgrade has cordoned itself is in an annotation of the MPSNode while
the upgrade lasts: only that is put back into use, and what somebody else has cordoned stays so.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mpsd.model.cluster_status import ClusterNode, DomainRow
from mpsd.model.domain import ALL, Domain, State, after_is, drains
from mpsd.model.names import CONTROL, LABEL, NAME_LABEL, PRODUCT
from mpsd.model.times import lasting, seconds
from mpsd.operations.lifecycle.rules.drain import are_empty, holders, holding, refusals, what_is_left

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

    trouble: why it does not, as kubelet says; empty where it does or nothing is said.
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
    cluster's controller has not said which.

    mark: the UUIDs that an upgrade has cordoned itself; None where none is under way.
    """

    node: ClusterNode
    pod: ControlPod | None
    revision: str
    mark: frozenset[str] | None

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
        return Decision(
            UpgradeStep.REPLACE, "the cluster's controller has not taken up the last change of the DaemonSet"
        )
    if pod is None or pod.ending:
        return Decision(UpgradeStep.REPLACE, "the old pod ends" if pod else "there is no control pod")
    if not seen.current:
        if seen.mark is None or seen.uncordoned:
            return Decision(UpgradeStep.CORDON)
        return Decision(UpgradeStep.END if are_empty(seen.node, seen.gpus) else UpgradeStep.DRAIN)
    if seen.mark is None:
        return Decision(UpgradeStep.DONE)
    if not pod.ready or pod.started_at is None:
        return Decision(UpgradeStep.REPLACE, pod.trouble or "it is not ready yet")
    return _with_the_new_pod(seen, pod.started_at)


def _with_the_new_pod(seen: Standing, started_at: float) -> Decision:
    fresh = seen.node.told_at is not None and not seen.node.stale
    begun = [domain for domain in seen.node.domains if domain.since is not None and domain.since >= started_at]
    refused = [refusal for domain in begun for refusal in refusals(seen.node, domain.gpus)]
    if fresh and refused:
        return Decision(UpgradeStep.STUCK, "; ".join(refused))
    in_use = _in_use(seen.node)
    covered = {uuid for domain in begun for uuid in domain.gpus}
    if not fresh or len(begun) < len(seen.node.domains) or not covered.issuperset(seen.gpus) or not covered:
        return Decision(UpgradeStep.START, "the node has not reported its new domains yet")
    settled = (State.DRAINED, State.READY)
    waiting = [domain for domain in begun if domain.state not in settled and (seen.ours or domain not in in_use)]
    if waiting:
        return Decision(UpgradeStep.START, _states(waiting))
    if seen.ours:
        return Decision(UpgradeStep.PUT_BACK)
    idle = [domain for domain in in_use if domain.state != State.READY]
    return Decision(UpgradeStep.SERVE, _states(idle)) if idle else Decision(UpgradeStep.FINISH)


def _in_use(node: ClusterNode) -> list[DomainRow]:
    """The domains of which nothing is cordoned."""
    out = drains(frozenset(node.cordoned), [Domain(domain.name, domain.gpus) for domain in node.domains])
    return [domain for domain in node.domains if domain.name not in out]


def _states(domains: list[DomainRow]) -> str:
    unsaid = (State.DRAINED, State.DRAINING)  # for a reason that the upgrade itself has given
    said = ((one, "" if one.state in unsaid else one.reason) for one in domains)
    each = (f"{one.name} is {after_is(one.state)}" + (f": {reason}" if reason else "") for one, reason in said)
    return "; ".join(each)


# -- what is written -----------------------------------------------------------------------------------------------


def read_mark(mpsnode: Mapping[str, Any]) -> frozenset[str] | None:
    """What an upgrade has cordoned of this MPSNode; None where none is under way."""
    annotations = (mpsnode.get("metadata") or {}).get("annotations") or {}
    text = annotations.get(MARK)
    return frozenset(one for one in text.split(",") if one) if isinstance(text, str) else None


def left_to_others(mark: frozenset[str], gpus: Collection[str]) -> str:
    """The annotation once somebody has said himself whether these GPUs are to be used."""
    return ",".join(sorted(mark.difference(gpus)))


def patch_of(step: UpgradeStep, seen: Standing, version: str) -> dict[str, Any]:
    """The merge patch of the MPSNode that CORDON, PUT_BACK or FINISH is. version: the resourceVersion that was seen."""
    cordoned = frozenset(seen.node.cordoned)
    match step:
        case UpgradeStep.CORDON:
            mark = seen.ours.union(seen.uncordoned)
            return _patch(version, cordoned.union(seen.uncordoned), ",".join(sorted(mark)))
        case UpgradeStep.PUT_BACK:
            return _patch(version, cordoned - seen.ours, "")
        case UpgradeStep.FINISH:
            return _patch(version, cordoned, None)
        case _:
            raise ValueError(f"{step.name} changes no MPSNode")


def _patch(version: str, cordoned: frozenset[str], mark: str | None) -> dict[str, Any]:
    """mark None: none any more."""
    metadata = {"resourceVersion": version, "annotations": {MARK: mark}}
    return {"metadata": metadata, "spec": {"cordoned": sorted(cordoned)}}


# -- the DaemonSet and its pods ----------------------------------------------------------------------------------------
# What is missing in an object reads as not there yet, so that it is waited for.

REVISION = "controller-revision-hash"
SELECTOR = f"{LABEL}={PRODUCT},{NAME_LABEL}={CONTROL}"  # of the DaemonSet
ON_DELETE = "OnDelete"

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ControlSet:
    """container: the name of the one that runs the daemons. revision: of the newest template; empty while the API's
    controller has not seen the last change of it.
    """

    namespace: str
    name: str
    uid: str
    container: str
    image: str
    strategy: str
    revision: str

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
        revision=_labels(newest).get(REVISION, "") if newest and settled else "",
    )


def pod_selector(daemon_set: Object) -> str:
    """As a query has it."""
    wanted = (daemon_set["spec"].get("selector") or {}).get("matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(wanted.items()))


def control_pods(pods: Iterable[Object], owner: str) -> dict[str, ControlPod]:
    """By node, those that this owner made. Of two on a node the one that stays counts, and of those the younger."""
    found: dict[str, ControlPod] = {}
    for pod in sorted(pods, key=lambda one: str(one["metadata"].get("creationTimestamp", ""))):
        if is_owned(pod, owner) and (read := _pod(pod)).node:
            before = found.get(read.node)
            if before is None or before.ending or not read.ending:
                found[read.node] = read
    return found


def is_owned(thing: Object, uid: str) -> bool:
    return any(one.get("uid") == uid for one in thing["metadata"].get("ownerReferences") or ())


def _pod(pod: Object) -> ControlPod:
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    conditions = status.get("conditions") or ()
    statuses = status.get("containerStatuses") or ()
    running = [(one.get("state") or {}).get("running") or {} for one in statuses]
    began = [seconds(str(one.get("startedAt", ""))) for one in running]
    known = [at for at in began if at is not None]
    return ControlPod(
        name=metadata["name"],
        uid=metadata["uid"],
        node=str(spec.get("nodeName") or ""),
        revision=_labels(pod).get(REVISION, ""),
        image=str((spec.get("containers") or [{}])[0].get("image", "")),
        ready=any((one.get("type"), one.get("status")) == ("Ready", "True") for one in conditions),
        ending=bool(metadata.get("deletionTimestamp")),
        started_at=max(known) if known and len(known) == len(began) else None,
        trouble="; ".join(_trouble(one) for one in statuses if (one.get("state") or {}).get("waiting")),
    )


def _trouble(container: Object) -> str:
    waiting = container["state"]["waiting"]
    return f"{waiting.get('reason', 'it waits')}: {waiting.get('message', '')}".rstrip(": ")


def _labels(thing: Object) -> Mapping[str, str]:
    return thing["metadata"].get("labels") or {}


# -- what is printed: each sentence names the node and what holds there now ------------------------------------------


def plan(control: ControlSet, nodes: Sequence[Standing], image: str | None) -> Iterator[str]:
    """What would be done, a line each. image: what the DaemonSet is to have first, None for what it has."""
    if image is not None and image != control.image:
        yield f"{control}: the image becomes {image}, instead of {control.image}"
    out = [one for one in nodes if is_due(one, control, image)]
    yield f"{control}, image {image or control.image}: {len(out)} of {len(nodes)} nodes to upgrade"
    for one in nodes:
        replaced = not one.current or (image is not None and image != control.image)
        yield f"{one.node.name}: {'; '.join(_of_node(one, replaced=replaced)) if one in out else 'up to date'}"


def is_due(one: Standing, control: ControlSet, image: str | None) -> bool:
    """Whether something is to be done on this node: its pod is old, or an upgrade was given up in the middle."""
    return not one.current or one.mark is not None or (image is not None and image != control.image)


def _of_node(one: Standing, *, replaced: bool) -> Iterator[str]:
    labels = one.node.labels
    if one.pod is None:
        yield "no control pod runs there now"
    elif not replaced:
        yield f"{one.pod.name} is new, and the upgrade of this node was not finished"
    else:
        yield f"{one.pod.name} is of revision {one.pod.revision}, image {one.pod.image}"
    if one.uncordoned and replaced:
        yield f"cordon {_named(one.uncordoned, labels)}"
    pods = holders(one.node, one.gpus)
    if one.node.pods is None:
        yield "which pods are there it does not know"
    elif pods and replaced:
        yield f"wait for {', '.join(holding(pod, labels) for pod in pods)}"
    back = sorted(one.ours.union(one.uncordoned if replaced else ()))
    kept = [uuid for uuid in one.gpus if uuid not in one.ours and uuid not in one.uncordoned]
    yield f"{'replace the pod, ' if replaced else ''}put back {_named(back, labels) or 'nothing'}"
    if kept:
        yield f"{_named(kept, labels)} was cordoned by somebody else and stays so"


def _named(gpus: Sequence[str], labels: dict[str, str]) -> str:
    return ", ".join(sorted(labels.get(uuid, uuid) for uuid in gpus))


def progress(seen: Standing, step: UpgradeStep, why: str) -> str:
    """A line when a step begins, or what it waits for is another thing."""
    labels, pod = seen.node.labels, seen.pod
    match step:
        case UpgradeStep.CORDON:
            what = f"cordons {_named(seen.uncordoned, labels) or 'nothing, since all is cordoned already'}"
        case UpgradeStep.DRAIN:
            what = f"draining: {what_is_left(seen.node, seen.gpus)}"
        case UpgradeStep.END:
            what = f"no pod is left; deletes {pod.name if pod else 'the pod'}, image {pod.image if pod else '?'}"
        case UpgradeStep.REPLACE:
            what = f"waits for the new control pod: {why}"
        case UpgradeStep.START:
            image = pod.image if pod else "?"
            what = f"waits for the domains of the new pod, image {image}: {why}"
        case UpgradeStep.PUT_BACK:
            what = f"puts {_named(sorted(seen.ours), labels)} back into use"
        case UpgradeStep.SERVE:
            what = f"waits until it serves: {why}"
        case UpgradeStep.FINISH | UpgradeStep.DONE:
            what = "done"
        case UpgradeStep.STUCK:
            what = why
    return f"{seen.node.name}: {what}"


def too_slow(seen: Standing, step: UpgradeStep, why: str, limit_s: float) -> str:
    """Why a step is given up after so long."""
    left = what_is_left(seen.node, seen.gpus) if step is UpgradeStep.DRAIN else why
    return f"it took longer than {lasting(limit_s)}" + (f": {left}" if left else "")


def how_it_stands(control: ControlSet, seen: Standing, step: UpgradeStep, where: str = "") -> Iterator[str]:
    """What is so on a node where an upgrade stopped in this step, and how to go on or back.

    where: options for every command, such as ` --context a`, with their leading blank.
    """
    name = seen.node.name
    ours = _named(sorted(seen.ours), seen.node.labels)
    cordoned = (
        f"cordoned by this upgrade, and still so: {ours}" if ours else "nothing of it is cordoned by this upgrade"
    )
    if step in (UpgradeStep.CORDON, UpgradeStep.DRAIN, UpgradeStep.END):
        yield f"{name}: the old control pod still runs; {cordoned}"
        yield f"to see who is left: kubectl mps {name}{where}; to go on: the same command again"
        if ours:
            gpus = "".join(f" --gpu {one}" for one in ours.split(", "))
            yield f"to go back: kubectl mps undrain {name}{gpus}{where}"
        return
    yield f"{name}: the old control pod is gone; {cordoned}"
    pod = (
        f"kubectl -n {control.namespace} describe pod {seen.pod.name}{where}"
        if seen.pod
        else f"kubectl mps {name}{where}"
    )
    yield f"to look: {pod}; to go on, once the reason is gone: the same command again, which begins here"
    undo = f"kubectl -n {control.namespace} rollout undo daemonset/{control.name}{where}"
    yield f"to go back: {undo} && kubectl mps upgrade {name}{where}"
