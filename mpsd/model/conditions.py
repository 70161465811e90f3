"""Whether a node's GPUs are served, as a condition in the words of Kubernetes.

True means that every GPU which is not cordoned takes pods; the reason is the worst of what keeps
others from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mpsd.model.domain import DRAINS, State, after_is
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
# reasons that each domain's own state shows too
REASONS_OF_DOMAINS = frozenset({*_REASONS.values(), "Cordoned"})


def mps_ready(view: "NodeView", driver_upgrade: str = "") -> Condition:
    """The condition that a look at the node leads to. driver_upgrade: the Node's label that is of
    an upgrade of its driver; empty where none is. mpsd's daemons may be gone for it."""
    if driver_upgrade:
        why = (
            f"the driver is upgraded (the Node's label {driver_upgrade}), so no new pods are"
            " accepted"
        )
        return Condition(Truth.FALSE, "DriverUpgrade", f"{why}; {_awaited(view)}")
    served = {uuid for domain in view.domains for uuid in domain.record.gpus}
    missing = [gpu.label for gpu in view.gpus if gpu.uuid not in served]
    here = {gpu.uuid for gpu in view.gpus}  # a MIG instance that was removed is nobody's trouble
    domains = [domain for domain in view.domains if not here.isdisjoint(domain.record.gpus)]
    whole = len(domains)
    if not view.gpus:
        return Condition(Truth.FALSE, "NoGPUs", "the driver shows no GPU that MPS can share")
    if missing:
        message = f"no control daemon has reported {', '.join(missing)}"
        return Condition(
            Truth.FALSE,
            "ControlAbsent",
            f"{message}; check that mps-control-daemon runs on this node",
        )
    for state, reason in _REASONS.items():
        if troubled := [domain for domain in domains if domain.state is state]:
            named = [(f"{one.name} is {after_is(state)}", one.record.reason) for one in troubled]
            what = [f"{trouble}: {why}" if why else trouble for trouble, why in named]
            ready = sum(domain.state is State.READY for domain in domains)
            return Condition(
                Truth.FALSE, reason, "; ".join([f"{ready} of {whole} domains serve", *what])
            )
    if view.unknown:
        return Condition(Truth.UNKNOWN, "NotSeen", "; ".join(view.unknown))
    cordoned = [domain.name for domain in domains if domain.state in DRAINS]
    if len(cordoned) == whole:
        others = {
            domain.record.reason
            for domain in domains
            if "spec.cordoned" not in domain.record.reason
        }
        why = "; ".join(sorted(others - {""})) or "spec.cordoned of the MPSNode"
        return Condition(Truth.FALSE, "Cordoned", f"every GPU is cordoned ({why})")
    serving = f"{whole - len(cordoned)} of {whole} domains serve"
    if cordoned:
        return Condition(Truth.TRUE, "SomeCordoned", f"{serving}; cordoned: {', '.join(cordoned)}")
    return Condition(Truth.TRUE, "AllServe", serving)


def _awaited(view: "NodeView") -> str:
    """Who uses the node's GPUs still, in plain words."""
    if not view.grants_known:
        return "who has a grant here is not known yet"
    pods = sorted(
        {f"{pod.namespace}/{pod.name}" for held in view.grants for pod in held.grant.pods}
    )
    ungranted = sorted(
        {client.pid for client in view.clients or () if client.on_mps and client.grant is None}
    )
    stuck = [
        one for one in (*view.domains, *view.leaving) if one.state in {State.WEDGED, State.FAULT}
    ]
    awaited = [
        *([shortened(pods, _SHOWN)] if pods else []),
        *(f"pid {pid}, which has no grant" for pid in ungranted[:_SHOWN]),
        *(f"{one.name}, which is {after_is(one.state)}" for one in stuck),
    ]
    return f"it waits for {'; '.join(awaited)}" if awaited else "no pod has a grant here"


def is_to_be_left(view: "NodeView", driver_upgrade: str, *, left: bool) -> bool:
    """Whether mpsd's pods may leave the node: while its driver is upgraded, from when nobody uses
    its GPUs. left: they may already, which holds until the upgrade is over, since an agent without
    daemons sees little."""
    return bool(driver_upgrade) and (left or view.is_unused)


def condition_object(
    condition: Condition, before: Mapping[str, Any] | None, now: str
) -> dict[str, Any]:
    """As Kubernetes keeps it. before: the one that it keeps now, None where it has none. now: RFC
    3339."""
    since = (
        before.get("lastTransitionTime")
        if before and before.get("status") == condition.status.value
        else None
    )
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
    return next(
        (one for one in conditions if isinstance(one, dict) and one.get("type") == CONDITION), None
    )


def node_status_patch(
    condition: dict[str, Any], count: str, gpus: int, now: str, former: str
) -> dict[str, Any]:
    """A strategic merge patch of a Node's status, which touches our condition and our resource and
    nothing else. count: the resource whose amount is the number of GPUs, `policy.resources.count`;
    former: the one that it had when this was last reported, empty where that is not known.
    """
    amount: dict[str, str | None] = {former: None} if former and former != count else {}
    amount[count] = str(gpus)
    conditions = [condition | {"lastHeartbeatTime": now}]
    return {"status": {"conditions": conditions, "capacity": amount, "allocatable": amount}}
