"""A pod as somebody sees it who wonders why it does not run, and the form of the answer.

Any JSON is read as far as it can be; what others wrote into it is text to be quoted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from mpsd.admission.rules.requests import grace_problems
from mpsd.kubelet.rules.gpu_choice import SharedPod, shared_pod
from mpsd.model.cluster_status import ClusterNode
from mpsd.model.fields import FieldReader, Fields
from mpsd.model.identity import PodName
from mpsd.model.pod import (
    ClaimName,
    ContainerReport,
    NodeWishes,
    Pod,
    PodCondition,
    PodPriority,
    pod_in,
)
from mpsd.model.policy import Policy, RuleId, RuleMode
from mpsd.model.problem import Problem, printable
from mpsd.model.request import read_allocated
from mpsd.platform.rules.kubernetes_objects import KubernetesNode
from mpsd.scheduler.rules.capacity import NodeCapacity

_LONGEST = 400
# a ReplicaSet of a Deployment is named after the Deployment and this label of its pods
_HASH = "pod-template-hash"
# minutes since 1970 behind the name of a CronJob's Job; seconds before Kubernetes 1.21
_CRON_DIGITS = 8


@dataclass(frozen=True, slots=True)
class ContainerState:
    name: str
    reason: str
    message: str
    exit_code: int | None = None  # None: it waits

    @property
    def is_plain(self) -> bool:
        return self.exit_code is None and self.reason in {
            "",
            "PodInitializing",
            "ContainerCreating",
        }


@dataclass(frozen=True, slots=True)
class Owner:
    """What made a pod, the `Deployment` too for its ReplicaSet."""

    kind: str
    name: str

    def __str__(self) -> str:
        return printable(f"{self.kind} {self.name}", 300)


@dataclass(frozen=True, slots=True)
class SeenClaim:
    """A resource claim for a GPU of mpsd. words: as it reads behind "its". nodes: those with a
    ResourceSlice of mpsd; None where nobody may ask. lacking: a sentence, what keeps it from being
    allocated whatever is free. impossible: likewise, why it can never be served as it is."""

    words: str
    nodes: frozenset[str] | None
    lacking: str = ""
    impossible: str = ""


@dataclass(frozen=True, slots=True)
class PodSeen:
    """shared: what it asks of GPUs; None where it asks for none. reason, message: of the whole pod,
    as kubelet says. unscheduled: what its scheduler says of it. waiting, ended (badly), running:
    its containers, init containers first. owners: from the nearest. bound: RFC 3339, when it got
    its node; empty where that is not said. claims: also their templates. claim: that of mpsd; None
    where it has none, or nobody looked. warnings: what is wrong where it gets a GPU."""

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
    claims: tuple[ClaimName, ...] = ()
    claim: SeenClaim | None = None
    priority: PodPriority = field(default_factory=PodPriority)
    warnings: tuple[Problem, ...] = ()

    @property
    def is_pending(self) -> bool:
        return self.phase in ("", "Pending")


def read_pod_seen(thing: object, policy: Policy) -> PodSeen:
    pod = pod_in(thing) or Pod()
    share = read_allocated(pod, policy.resources)
    spec = pod.spec
    status = pod.status
    statuses = (*status.init_container_statuses, *status.container_statuses)
    waiting = [
        ContainerState(one.name, state.reason, state.message)
        for one in statuses
        if (state := one.state.waiting)
    ]
    unscheduled = _scheduled(pod, "False")
    warnings: tuple[Problem, ...] = ()
    if policy.admission.rules[RuleId.GRACE_ZERO] is not RuleMode.AUDIT:
        warnings = grace_problems(pod)
    return PodSeen(
        name=pod.name,
        shared=shared_pod(pod, share),
        unreadable=", and ".join(map(str, share.problems)),
        phase=status.phase,
        node=spec.node,
        scheduler=spec.scheduler,
        reason=status.reason,
        message=status.message,
        unscheduled=unscheduled.message or unscheduled.reason,
        gates=tuple([one.name for one in spec.scheduling_gates if one.name]),
        waiting=tuple(waiting),
        ended=tuple(_ended(statuses)),
        owners=tuple(_owners(pod)),
        wishes=spec.wishes,
        terminating=pod.is_terminating,
        bound=_scheduled(pod, "True").last_transition_time or "",
        running=tuple(one.name for one in statuses if one.state.running is not None),
        claims=tuple(pod.claims_made.values()),
        priority=pod.priority,
        warnings=warnings,
    )


def _scheduled(pod: Pod, truth: str) -> PodCondition:
    for one in pod.status.conditions:
        if (one.type, one.status) == ("PodScheduled", truth):
            return one
    return PodCondition()


def _ended(statuses: Iterable[ContainerReport]) -> Iterator[ContainerState]:
    for one in statuses:
        end = one.state.terminated
        if end and end.exit_code:
            yield ContainerState(one.name, end.reason, end.message, end.exit_code)


def _owners(pod: Pod) -> Iterator[Owner]:
    for one in pod.metadata.owner_references:
        if not (one.controller and one.kind and one.name):
            continue
        yield Owner(one.kind, one.name)
        stem, _dash, last = one.name.rpartition("-")
        if one.kind == "ReplicaSet" and stem and pod.labels.get(_HASH) == last:
            yield Owner("Deployment", stem)
        elif one.kind == "Job" and stem and last.isdecimal() and len(last) >= _CRON_DIGITS:
            yield Owner("CronJob", stem)


# -- by what a person calls it

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
    """Kind and name of `train-0` (without a kind) or `deploy/web`; a kind that is not known here is
    as it was written."""
    kind, _slash, name = words.rpartition("/")
    return _OF_WORD.get(kind.partition(".")[0].casefold(), kind), name


def owned_by(
    pods: Iterable[PodSeen], kind: str, name: str
) -> tuple[tuple[PodSeen, ...], Owner | None]:
    """The pods that this owner made. kind: empty for the one that has most pods."""
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
    shape = FieldReader()
    found = [one for one in events if isinstance(one, dict) and one.get("type") == "Warning"]
    last = max(found, key=lambda one: _seen_at(shape, one), default={})
    said = shape.text(last, "reason", ""), shape.text(last, "message", "")
    return ": ".join(filter(None, said))


def _seen_at(shape: FieldReader, event: Fields) -> str:
    """RFC 3339 in UTC, which sorts as text."""
    series = shape.mapping(event, "series", "")
    return max(
        shape.text(series, "lastObservedTime", ""),
        shape.text(shape.mapping(event, "metadata", ""), "creationTimestamp", ""),
        shape.text(event, "lastTimestamp", ""),
        shape.text(event, "eventTime", ""),
    )


@dataclass(frozen=True, slots=True)
class PodAnnotations:
    """has: its annotations as last seen. wants: those that it must have; no others are touched."""

    pod: PodName
    has: Mapping[str, str]
    wants: Mapping[str, str]

    @property
    def missing(self) -> dict[str, str]:
        return {key: value for key, value in self.wants.items() if self.has.get(key) != value}

    @property
    def patch(self) -> dict[str, Any]:
        """A merge patch, refused with a conflict where another pod has the name by now."""
        uid = {"uid": self.pod.uid} if self.pod.uid else {}
        return {"metadata": {**uid, "annotations": self.missing}}


# -- the answer

_MOST_NAMED = 3


class Why(StrEnum):
    """What an answer comes down to, for programs: a value never changes its name."""

    ASKS_FOR_NO_GPU = "asks-for-no-gpu"
    ASKS_UNREADABLY = "asks-unreadably"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED_BY_KUBELET = "refused-by-kubelet"
    RUNS = "runs"
    RESTARTS = "restarts"
    NOT_STARTED = "not-started"
    ENDS = "ends"
    GATED = "gated"
    OTHER_SCHEDULER = "other-scheduler"
    NO_NODE = "no-node"
    NO_CLAIM = "no-claim"
    CLAIM_IMPOSSIBLE = "claim-impossible"
    TOO_LARGE = "too-large"
    NO_ROOM = "no-room"
    KEPT_AWAY = "kept-away"
    RESERVED = "reserved"
    SCHEDULER_SAYS = "scheduler-says"
    NOT_LOOKED_AT = "not-looked-at"

    @property
    def is_permanent(self) -> bool:
        """Whether only people end it."""
        return self in {
            Why.ASKS_UNREADABLY,
            Why.OTHER_SCHEDULER,
            Why.NO_NODE,
            Why.CLAIM_IMPOSSIBLE,
            Why.TOO_LARGE,
        }


@dataclass(frozen=True, slots=True, eq=False)
class ExplanationContext:
    """What is known around a pod. reported, ledger: of every MPSNode that was asked for, by name.
    machines: the Nodes; None where one may not ask.

    It is equal to itself alone: what follows from it is worked out once for thousands of pods.
    """

    policy: Policy
    now: float
    reported: Mapping[str, ClusterNode]
    ledger: Mapping[str, NodeCapacity]
    machines: Mapping[str, KubernetesNode] | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """sentence: ends with what to do where something is to be done. is_well: it runs, or has
    finished well. node, gpus (labels): where it is, as far as is known. room: where it would fit,
    `gpu0 of node1`. warnings: of what its end would do to others."""

    why: Why
    sentence: str
    is_well: bool = False
    node: str = ""
    gpus: tuple[str, ...] = ()
    room: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()


def counted(names: Sequence[str], what: str) -> str:
    """`node1`, `node1 and node2`, `12 nodes`."""
    return listed(names) if len(names) <= _MOST_NAMED else f"{len(names)} {what}"


def listed(words: Sequence[str], most: int = _MOST_NAMED) -> str:
    """`a`, `a and b`, `a, b, c and 4 more`."""
    shown = [*words[:most]]
    if len(words) > most:
        shown.append(f"{len(words) - most} more")
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
