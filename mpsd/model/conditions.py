"""Whether a node's GPUs are served, as a condition in the words of Kubernetes.

True means that every GPU which is not cordoned takes pods; the reason is the worst of what keeps others from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mpsd.model.domain import State, after_is

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.node_view import DomainView, NodeView

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
_CORDONED = frozenset({State.DRAINING, State.DRAINED})
REASONS_OF_DOMAINS = frozenset({*_REASONS.values(), "Cordoned"})  # reasons that each domain's own state says too


def mps_ready(view: "NodeView") -> Condition:
    """The condition that a look at the node leads to."""
    served = {uuid for domain in view.domains for uuid in domain.record.gpus}
    missing = [gpu.label for gpu in view.gpus if gpu.uuid not in served]
    if not view.gpus:
        return Condition(Truth.FALSE, "NoGPUs", "the driver shows no GPU that MPS can share")
    if missing:
        what = f"no control daemon has said anything of {', '.join(missing)}"
        return Condition(Truth.FALSE, "ControlAbsent", f"{what}; see whether mps-control-daemon runs on this node")
    for state, reason in _REASONS.items():
        troubled = [domain for domain in view.domains if domain.state is state]
        if troubled:
            return Condition(Truth.FALSE, reason, _troubles(troubled, view.domains))
    if view.unknown:
        return Condition(Truth.UNKNOWN, "NotSeen", "; ".join(view.unknown))
    return _well(view.domains)


def _well(domains: Sequence["DomainView"]) -> Condition:
    cordoned = [domain.name for domain in domains if domain.state in _CORDONED]
    if len(cordoned) == len(domains):
        return Condition(Truth.FALSE, "Cordoned", "every GPU is cordoned (spec.cordoned of the MPSNode)")
    if cordoned:
        message = f"{len(domains) - len(cordoned)} of {len(domains)} domains serve; cordoned: {', '.join(cordoned)}"
        return Condition(Truth.TRUE, "SomeCordoned", message)
    return Condition(Truth.TRUE, "AllServe", f"{len(domains)} of {len(domains)} domains serve")


def _troubles(troubled: Sequence["DomainView"], domains: Sequence["DomainView"]) -> str:
    """Each domain with its reason, which says more than the number of them."""
    serving = sum(domain.state is State.READY for domain in domains)
    each = "; ".join(
        f"{domain.name} is {after_is(domain.state)}" + (f": {domain.record.reason}" if domain.record.reason else "")
        for domain in troubled
    )
    return f"{serving} of {len(domains)} domains serve; {each}"


def condition_object(condition: Condition, before: Mapping[str, Any] | None, now: str) -> dict[str, Any]:
    """As Kubernetes keeps it. before: the one that it keeps now, None where it has none. now: RFC 3339."""
    same = before is not None and before.get("status") == condition.status.value
    since = before.get("lastTransitionTime") if before and same else None
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
    """A strategic merge patch of a Node's status, which touches our condition and our resource and nothing else.

    count: the name of the resource that says how many GPUs there are, `policy.resources.count`; former: the one that
    it had when this was last told, empty where that is not known.
    """
    amount: dict[str, str | None] = {former: None} if former and former != count else {}
    amount[count] = str(gpus)
    return {
        "status": {
            "conditions": [condition | {"lastHeartbeatTime": now}],
            "capacity": amount,
            "allocatable": amount,
        }
    }
