"""Whether a node's GPUs are served, as a condition of Kubernetes. True: every GPU that is not
cordoned takes pods; else the reason is the worst of what keeps GPUs from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mpsd.model.domain import DRAINS, State, after_is, because
from mpsd.model.names import CONDITION
from mpsd.model.problem import shortened

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.node_view import NodeView

_SHOWN = 3  # pods that a message names


class Truth(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
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
# reasons that each domain's own state shows too
REASONS_OF_DOMAINS = frozenset({*_REASONS.values(), "GPUUnavailable", "GPUSick", "Cordoned"})


def mps_ready(view: "NodeView", driver_upgrade: str = "") -> Condition:
    """The condition that a look at the node leads to. driver_upgrade: the Node's label that is of
    an upgrade of its driver, for which mpsd's daemons may be gone; empty where none is."""
    if driver_upgrade:
        label = f"the Node's label {driver_upgrade}"
        why = f"the driver is upgraded ({label}), so no new pods are accepted"
        return Condition(Truth.FALSE, "DriverUpgrade", f"{why}; {_awaited(view)}")
    if not view.gpus:
        return Condition(Truth.FALSE, "NoGPUs", "the driver shows no GPU that MPS can share")
    served = view.domain_of
    missing = [gpu.label for gpu in view.gpus if gpu.uuid not in served]
    if missing:
        message = f"no control daemon has reported {', '.join(missing)}"
        remedy = "check that mps-control-daemon runs on this node"
        return Condition(Truth.FALSE, "ControlAbsent", f"{message}; {remedy}")
    here = {gpu.uuid for gpu in view.gpus}  # a MIG instance that was removed is nobody's trouble
    domains = [domain for domain in view.domains if not here.isdisjoint(domain.record.gpus)]
    whole = len(domains)
    ready = sum(domain.state is State.READY for domain in domains)
    served_now = f"{ready} of {whole} domains serve"
    for state, reason in _REASONS.items():
        if troubled := [domain for domain in domains if domain.state is state]:
            text = served_now
            for one in troubled:
                text += because(f"; {one.name} is {after_is(state)}", one.record.reason)
            return Condition(Truth.FALSE, reason, text)
    if view.troubles:
        why = "; ".join(dict.fromkeys(view.troubles.values()))
        return Condition(Truth.FALSE, "GPUUnavailable", f"{served_now}; {why}")
    if sick := [domain for domain in domains if domain.is_sick and domain.state in DRAINS]:
        why = "; ".join(domain.record.reason for domain in sick)
        return Condition(Truth.FALSE, "GPUSick", f"{served_now}; {why}")
    unknown = [*view.unknown, *[f"it is not known {one}" for one in view.unseen_in_words]]
    if not view.grants_known:
        return Condition(Truth.UNKNOWN, "NotSeen", "; ".join(unknown))
    cordoned = [domain.name for domain in domains if domain.state in DRAINS]
    if len(cordoned) == whole:
        reasons = {domain.record.reason for domain in domains}
        others = sorted(one for one in reasons if one and "spec.cordoned" not in one)
        why = "; ".join(others) or "spec.cordoned of the MPSNode"
        return Condition(Truth.FALSE, "Cordoned", f"every GPU is cordoned ({why})")
    hidden = view.ungrantable.keys() | view.unseen.keys()
    unseen = {domain.name for domain in domains if not hidden.isdisjoint(domain.record.gpus)}
    number = whole - len(unseen.union(cordoned))
    if not number:
        return Condition(Truth.UNKNOWN, "NotSeen", "; ".join(unknown))
    reason = "AllServe"
    text = f"{number} of {whole} domains serve"
    if cordoned:
        reason = "SomeCordoned"
        text += f"; cordoned: {', '.join(cordoned)}"
    if unseen:
        reason = "SomeNotSeen"
        text += f"; {'; '.join(unknown)}"
    return Condition(Truth.TRUE, reason, text)


def _awaited(view: "NodeView") -> str:
    """Who uses the node's GPUs still, in plain words."""
    if not view.grants_known:
        return "who has a grant here is not known yet"
    pods = {str(pod) for held in view.grants for pod in held.grant.pods}
    awaited = []
    if pods:
        awaited.append(shortened(sorted(pods), _SHOWN))
    clients = [one for one in view.clients if one.on_mps and one.grant is None]
    pids = sorted({one.pid for one in clients})[:_SHOWN]
    awaited += [f"pid {pid}, which has no grant" for pid in pids]
    stuck = [one for one in view.every_domain if one.state in {State.WEDGED, State.FAULT}]
    awaited += [f"{one.name}, which is {after_is(one.state)}" for one in stuck]
    if not awaited:
        return "no pod has a grant here"
    return f"it waits for {'; '.join(awaited)}"


def is_to_be_left(view: "NodeView", driver_upgrade: str, *, left: bool) -> bool:
    """Whether mpsd's pods may leave the node: while its driver is upgraded, from when nobody uses
    its GPUs. left: they may already, until it is over, since an agent without daemons sees little.
    """
    return bool(driver_upgrade) and (left or view.is_unused)


def condition_object(
    condition: Condition, before: Mapping[str, Any] | None, now: str
) -> dict[str, Any]:
    """As Kubernetes keeps it. before: the one that it keeps now, if any. now: RFC 3339."""
    since = None
    if before and before.get("status") == condition.status.value:
        since = before.get("lastTransitionTime")
    return {
        "type": CONDITION,
        "status": condition.status.value,
        "lastTransitionTime": since or now,
        "reason": condition.reason,
        "message": condition.message,
    }


def condition_in(thing: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """mpsd's among the conditions of a Node or an MPSNode."""
    for one in (thing.get("status") or {}).get("conditions") or []:
        if isinstance(one, dict) and one.get("type") == CONDITION:
            return one
    return None


def node_status_patch(
    condition: dict[str, Any], count: str, gpus: int, now: str, former: str
) -> dict[str, Any]:
    """A strategic merge patch of a Node's status, of mpsd's condition and resource alone. count:
    `policy.resources.count`; former: when this was last reported, empty where that is not known."""
    amount: dict[str, str | None] = {former: None} if former and former != count else {}
    amount[count] = str(gpus)
    conditions = [condition | {"lastHeartbeatTime": now}]
    return {"status": {"conditions": conditions, "capacity": amount, "allocatable": amount}}
