"""Whether a node's GPUs are served, as a condition in the words of Kubernetes.

True means that every GPU which is not cordoned takes pods; the reason is the worst of what keeps others from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mpsd.model.domain import DRAINS, State, after_is

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.node_view import NodeView

CONDITION = "MPSReady"


class Truth(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """reason: CamelCase, for programs. message: for people."""

    status: Truth
    reason: str
    message: str


# The worst first.
_REASONS: Mapping[State, str] = {
    State.REFUSED: "DomainRefused",
    State.WEDGED: "DomainWedged",
    State.DOWN: "DomainDown",
    State.FAULT: "DomainFault",
    State.STARTING: "DomainStarting",
}
REASONS_OF_DOMAINS = frozenset({*_REASONS.values(), "Cordoned"})  # reasons that each domain's own state shows too


def mps_ready(view: "NodeView") -> Condition:
    """The condition that a look at the node leads to."""
    served = {uuid for domain in view.domains for uuid in domain.record.gpus}
    missing = [gpu.label for gpu in view.gpus if gpu.uuid not in served]
    whole = len(view.domains)
    if not view.gpus:
        return Condition(Truth.FALSE, "NoGPUs", "the driver shows no GPU that MPS can share")
    if missing:
        message = f"no control daemon has reported {', '.join(missing)}"
        return Condition(Truth.FALSE, "ControlAbsent", f"{message}; check that mps-control-daemon runs on this node")
    for state, reason in _REASONS.items():
        if troubled := [domain for domain in view.domains if domain.state is state]:
            named = [(f"{one.name} is {after_is(state)}", one.record.reason) for one in troubled]
            what = [f"{trouble}: {why}" if why else trouble for trouble, why in named]
            ready = sum(domain.state is State.READY for domain in view.domains)
            return Condition(Truth.FALSE, reason, "; ".join([f"{ready} of {whole} domains serve", *what]))
    if view.unknown:
        return Condition(Truth.UNKNOWN, "NotSeen", "; ".join(view.unknown))
    cordoned = [domain.name for domain in view.domains if domain.state in DRAINS]
    if len(cordoned) == whole:
        others = {domain.record.reason for domain in view.domains if "spec.cordoned" not in domain.record.reason}
        why = "; ".join(sorted(others - {""})) or "spec.cordoned of the MPSNode"
        return Condition(Truth.FALSE, "Cordoned", f"every GPU is cordoned ({why})")
    serving = f"{whole - len(cordoned)} of {whole} domains serve"
    if cordoned:
        return Condition(Truth.TRUE, "SomeCordoned", f"{serving}; cordoned: {', '.join(cordoned)}")
    return Condition(Truth.TRUE, "AllServe", serving)


def condition_object(condition: Condition, before: Mapping[str, Any] | None, now: str) -> dict[str, Any]:
    """As Kubernetes keeps it. before: the one that it keeps now, None where it has none. now: RFC 3339."""
    since = before.get("lastTransitionTime") if before and before.get("status") == condition.status.value else None
    return {
        "type": CONDITION,
        "status": condition.status.value,
        "lastTransitionTime": since or now,
        "reason": condition.reason,
        "message": condition.message,
    }


def condition_in(thing: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Ours among the conditions of a Node or an MPSNode; None where there is none."""
    conditions = (thing.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if isinstance(one, dict) and one.get("type") == CONDITION), None)


def node_status_patch(condition: dict[str, Any], count: str, gpus: int, now: str, former: str) -> dict[str, Any]:
    """A strategic merge patch of a Node's status, which touches our condition and our resource and nothing else. count:
    the resource whose amount is the number of GPUs, `policy.resources.count`; former: the one that it had when this was
    last reported, empty where that is not known.
    """
    amount: dict[str, str | None] = {former: None} if former and former != count else {}
    amount[count] = str(gpus)
    conditions = [condition | {"lastHeartbeatTime": now}]
    return {"status": {"conditions": conditions, "capacity": amount, "allocatable": amount}}
