"""A pod as somebody sees it who wonders why it does not run: what it asks for and wishes, and what is said of it.

One rule: any JSON is read as far as it can be; what others wrote into it is text to be quoted, and may say anything.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mpsd.kubelet.rules.node_pods import request_problems
from mpsd.kubelet.rules.shared_pod import SharedPod, read_shared_pod
from mpsd.model.fields import Fields, Shape
from mpsd.model.identity import PodName
from mpsd.model.policy import Policy
from mpsd.model.problem import printable
from mpsd.platform.rules.kubernetes_node import NodeWishes, read_wishes

_STATUSES = ("initContainerStatuses", "containerStatuses")
_LONGEST = 400
_HASH = "pod-template-hash"  # a ReplicaSet of a Deployment is named after the Deployment and this label of its pods
_CRON_DIGITS = 8  # minutes since 1970 behind the name of a CronJob's Job; seconds before Kubernetes 1.21
_UNSAID = frozenset({"", "PodInitializing", "ContainerCreating"})  # reasons that tell nothing


@dataclass(frozen=True, slots=True)
class ContainerState:
    """exit_code None: it waits. reason, message: as kubelet says them."""

    name: str
    reason: str
    message: str
    exit_code: int | None = None

    @property
    def is_plain(self) -> bool:
        """It waits as every container does at its start."""
        return self.exit_code is None and self.reason in _UNSAID


@dataclass(frozen=True, slots=True)
class Owner:
    """What made a pod: kind and name as people would write them, `Deployment` for its ReplicaSet."""

    kind: str
    name: str

    def __str__(self) -> str:
        return printable(f"{self.kind} {self.name}", 300)


@dataclass(frozen=True, slots=True)
class PodSeen:
    """shared: what it asks of GPUs; None where it asks for none. reason, message: of the whole pod, as kubelet says.

    unscheduled: what its scheduler says of it; empty where it says nothing. waiting, ended: its containers, init
    containers first; ended are those that ended badly. owners: from the nearest. bound: RFC 3339, when it got its node;
    empty where that is not said. running: the names of the containers that run now, init containers first.
    """

    name: PodName
    shared: SharedPod | None
    unreadable: str
    phase: str
    node: str
    scheduler: str
    reason: str
    message: str
    unscheduled: str
    gates: tuple[str, ...]
    waiting: tuple[ContainerState, ...]
    ended: tuple[ContainerState, ...]
    owners: tuple[Owner, ...]
    wishes: NodeWishes
    terminating: bool
    bound: str = ""
    running: tuple[str, ...] = ()

    @property
    def is_pending(self) -> bool:
        return self.phase in ("", "Pending")


def read_pod_seen(thing: object, policy: Policy) -> PodSeen:
    fields: Fields = thing if isinstance(thing, dict) else {}
    shape = Shape()
    metadata = shape.mapping(fields, "metadata", "")
    spec, status = shape.mapping(fields, "spec", ""), shape.mapping(fields, "status", "")
    namespace, name, uid = (shape.text(metadata, key, "metadata") for key in ("namespace", "name", "uid"))
    gates = [shape.text(entry, "name", path) for path, entry in shape.entries(spec, "schedulingGates", "spec")]
    states = [*_states(shape, status)]
    return PodSeen(
        name=PodName(namespace, name, uid),
        shared=read_shared_pod(thing, policy),
        unreadable=", and ".join(map(str, request_problems(thing, policy))),
        phase=shape.text(status, "phase", "status"),
        node=shape.text(spec, "nodeName", "spec"),
        scheduler=shape.text(spec, "schedulerName", "spec"),
        reason=shape.text(status, "reason", "status"),
        message=shape.text(status, "message", "status"),
        unscheduled=_scheduled(shape, status, "False", "message", "reason"),
        gates=tuple(filter(None, gates)),
        waiting=tuple(one for one in states if one.exit_code is None),
        ended=tuple(one for one in states if one.exit_code is not None),
        owners=tuple(_owners(shape, metadata)),
        wishes=read_wishes(shape, spec),
        terminating=metadata.get("deletionTimestamp") is not None,
        bound=_scheduled(shape, status, "True", "lastTransitionTime"),
        running=tuple(_running(shape, status)),
    )


def _scheduled(shape: Shape, status: Fields, truth: str, *fields: str) -> str:
    """The first of these fields that says anything, of the condition PodScheduled where its status is this one."""
    for path, entry in shape.entries(status, "conditions", "status"):
        if entry.get("type") == "PodScheduled" and entry.get("status") == truth:
            return next(filter(None, (shape.text(entry, field, path) for field in fields)), "")
    return ""


def _states(shape: Shape, status: Fields) -> Iterator[ContainerState]:
    for key in _STATUSES:
        for path, entry in shape.entries(status, key, "status"):
            name, state = shape.text(entry, "name", path), shape.mapping(entry, "state", path)
            for kind in ("waiting", "terminated"):
                said = shape.mapping(state, kind, path)
                reason, message = (shape.text(said, field, path) for field in ("reason", "message"))
                code = shape.number(said, "exitCode", path, absent=0)
                if kind == "waiting" and state.get(kind) is not None:
                    yield ContainerState(name, reason, message)
                elif code:
                    yield ContainerState(name, reason, message, code)


def _running(shape: Shape, status: Fields) -> Iterator[str]:
    for key in _STATUSES:
        for path, entry in shape.entries(status, key, "status"):
            if shape.mapping(entry, "state", path).get("running") is not None:
                yield shape.text(entry, "name", path)


def _owners(shape: Shape, metadata: Fields) -> Iterator[Owner]:
    for path, entry in shape.entries(metadata, "ownerReferences", "metadata"):
        kind, name = (shape.text(entry, key, path) for key in ("kind", "name"))
        if entry.get("controller") is not True or not kind or not name:
            continue
        yield Owner(kind, name)
        stem, _dash, last = name.rpartition("-")
        hashed = shape.text(shape.mapping(metadata, "labels", "metadata"), _HASH, "metadata.labels")
        if kind == "ReplicaSet" and stem and hashed == last:
            yield Owner("Deployment", stem)
        elif kind == "Job" and stem and last.isdecimal() and len(last) >= _CRON_DIGITS:
            yield Owner("CronJob", stem)


# -- by what a person calls it -------------------------------------------------------------------------------------

_KINDS = {
    "Pod": ("pod", "pods", "po"),
    "Job": ("job", "jobs"),
    "CronJob": ("cronjob", "cronjobs", "cj"),
    "Deployment": ("deployment", "deployments", "deploy"),
    "ReplicaSet": ("replicaset", "replicasets", "rs"),
    "StatefulSet": ("statefulset", "statefulsets", "sts"),
    "DaemonSet": ("daemonset", "daemonsets", "ds"),
}
_OF_WORD = {word: kind for kind, words in _KINDS.items() for word in words}


def named(words: str) -> tuple[str, str]:
    """Kind and name of `train-0`, `pod/train-0`, `job/train` or `deploy/web`; the kind is empty where none is said, and
    as it was written where it is not known here."""
    kind, _slash, name = words.rpartition("/")
    return _OF_WORD.get(kind.partition(".")[0].casefold(), kind), name


def owned_by(pods: Iterable[PodSeen], kind: str, name: str) -> tuple[tuple[PodSeen, ...], Owner | None]:
    """The pods that this owner made, and the owner. kind: empty for any, and then the kind that has most pods."""
    found: dict[Owner, list[PodSeen]] = {}
    for pod in pods:
        for owner in pod.owners:
            if owner.name == name and kind.casefold() in ("", owner.kind.casefold()):
                found.setdefault(owner, []).append(pod)
    if not found:
        return (), None
    owner = max(found, key=lambda one: (len(found[one]), one.kind))
    return tuple(sorted(found[owner], key=lambda pod: pod.name.name)), owner


def quoted(text: str) -> str:
    """What somebody else wrote, as a part of a sentence: on one line, without a full stop, cut."""
    return printable(" ".join(text.split()), _LONGEST).rstrip(". ")


def last_warning(events: Iterable[object]) -> str:
    """Reason and message of the newest of these Events; empty where there is none."""
    shape = Shape()
    found = [one for one in events if isinstance(one, dict) and one.get("type") == "Warning"]
    last = max(found, key=lambda one: _seen_at(shape, one), default={})
    reason, message = (shape.text(last, key, "") for key in ("reason", "message"))
    return ": ".join(filter(None, (reason, message)))


def _seen_at(shape: Shape, event: Fields) -> str:
    """RFC 3339 in UTC, which sorts as text. Older events have the first, those of newer clients the others."""
    series = shape.text(shape.mapping(event, "series", ""), "lastObservedTime", "series")
    times = [series, *(shape.text(event, key, "") for key in ("lastTimestamp", "eventTime"))]
    made = shape.text(shape.mapping(event, "metadata", ""), "creationTimestamp", "metadata")
    return max(filter(None, [*times, made]), default="")
