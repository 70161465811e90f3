"""The steps in which a node's control pod is replaced without a program losing its GPU, decided by what is seen.

One rule: the step follows from the cluster alone, so that whoever begins again goes on where it was given up; and the
old pod is ended only where nobody holds anything of its GPUs.

What an upgrade has cordoned itself stands in an annotation of the MPSNode while the upgrade lasts: no more than that is
put back into use, and what somebody else has cordoned stays so.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mpsd.model.cluster_status import ClusterNode
from mpsd.model.cordon import ALL, drains
from mpsd.model.domain_states import State, after_is
from mpsd.model.domains import Domain
from mpsd.model.status_rows import DomainRow
from mpsd.operations.lifecycle.rules.drain_progress import are_empty, refusals

MARK = "mpsd.io/cordoned-by-upgrade"


class Step(StrEnum):
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

    step: Step
    why: str = ""


def next_step(seen: Standing) -> Decision:
    pod = seen.pod
    if not seen.revision:
        return Decision(Step.REPLACE, "the cluster's controller has not taken up the last change of the DaemonSet")
    if pod is None or pod.ending:
        return Decision(Step.REPLACE, "the old pod ends" if pod else "there is no control pod")
    if not seen.current:
        if seen.mark is None or seen.uncordoned:
            return Decision(Step.CORDON)
        return Decision(Step.END if are_empty(seen.node, seen.gpus) else Step.DRAIN)
    if seen.mark is None:
        return Decision(Step.DONE)
    if not pod.ready or pod.started_at is None:
        return Decision(Step.REPLACE, pod.trouble or "it is not ready yet")
    return _with_the_new_pod(seen, pod.started_at)


def _with_the_new_pod(seen: Standing, started_at: float) -> Decision:
    fresh = seen.node.told_at is not None and not seen.node.stale
    begun = [domain for domain in seen.node.domains if domain.since is not None and domain.since >= started_at]
    refused = [refusal for domain in begun for refusal in refusals(seen.node, domain.gpus)]
    if fresh and refused:
        return Decision(Step.STUCK, "; ".join(refused))
    in_use = _in_use(seen.node)
    covered = {uuid for domain in begun for uuid in domain.gpus}
    if not fresh or len(begun) < len(seen.node.domains) or not covered.issuperset(seen.gpus) or not covered:
        return Decision(Step.START, "the node has not told of its new domains yet")
    settled = (State.DRAINED, State.READY)
    waiting = [domain for domain in begun if domain.state not in settled and (seen.ours or domain not in in_use)]
    if waiting:
        return Decision(Step.START, _states(waiting))
    if seen.ours:
        return Decision(Step.PUT_BACK)
    idle = [domain for domain in in_use if domain.state != State.READY]
    return Decision(Step.SERVE, _states(idle)) if idle else Decision(Step.FINISH)


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


def patch_of(step: Step, seen: Standing, version: str) -> dict[str, Any]:
    """The merge patch of the MPSNode that CORDON, PUT_BACK or FINISH is. version: the resourceVersion that was seen."""
    cordoned = frozenset(seen.node.cordoned)
    match step:
        case Step.CORDON:
            mark = seen.ours.union(seen.uncordoned)
            return _patch(version, cordoned.union(seen.uncordoned), ",".join(sorted(mark)))
        case Step.PUT_BACK:
            return _patch(version, cordoned - seen.ours, "")
        case Step.FINISH:
            return _patch(version, cordoned, None)
        case _:
            raise ValueError(f"{step.name} changes no MPSNode")


def _patch(version: str, cordoned: frozenset[str], mark: str | None) -> dict[str, Any]:
    """mark None: none any more."""
    metadata = {"resourceVersion": version, "annotations": {MARK: mark}}
    return {"metadata": metadata, "spec": {"cordoned": sorted(cordoned)}}
