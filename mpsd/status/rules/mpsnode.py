"""MPSNode: what is reported of a node to the API server, and when it is written again.

A list that is not known is left out, and a merge patch then leaves the one that was reported last. Whatever happens on
the node, its status is written at most once a second, what its programs use (which never stands still) at most twice a
minute, and the last state is always written in the end. The shape is that of manifests/base/crd/mpsnode.yaml.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpsd.model.domain import State
from mpsd.model.grants import Gpu, promised_mib
from mpsd.model.identity import PodName
from mpsd.model.mpsnode import (
    API,
    KIND,
    MPSNodeStatus,
    ReportedCanary,
    ReportedDomain,
    ReportedFaults,
    ReportedGpu,
    ReportedGrant,
    ReportedSummary,
    ReportedSuspect,
    as_object,
)
from mpsd.model.names import HEARTBEAT_S as HEARTBEAT_S
from mpsd.model.names import LABEL, NAME_LABEL, PRODUCT
from mpsd.model.node_status import FaultsStatus
from mpsd.model.node_view import Canary, Client, DomainView, HeldGrant, NodeView, pod_names
from mpsd.model.times import stamp
from mpsd.mps.rules.faults import faults_status
from mpsd.watchdog.rules.reported import FIELD as VIOLATIONS
from mpsd.watchdog.rules.reported import differs, is_news

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.policy import Policy

# A resource of the Node: when GPU memory was last given back, in seconds since 1970. No watch of kube-scheduler's is on
# MPSNodes; what a Node has to allocate is the one thing that makes every version of it try again the pods that wait.
GIVEN_BACK = "mpsd.io/given-back-at"

CHANGE_S = 1.0  # between two writes, at least
USE_S = 30.0  # the same where only what programs use has changed
USE_STEP_MIB = 256  # less than this is no change
_USE = frozenset({"usedMiB", "used", "clients", "toldAt", VIOLATIONS})  # more of the same violations is as use

Object = dict[str, Any]


def mpsnode_status(view: NodeView, policy: "Policy", condition: Object, version: str = "") -> Object:
    """The whole status, less what nobody knows. condition: as `mps_ready.condition_object` makes it. version: of this
    mpsd.
    """
    use = _Use(view.clients)
    status = MPSNodeStatus(
        told_at=stamp(view.now),
        driver=view.driver,
        version=version or None,
        summary=_summary(view, policy, use),
        gpus=[_gpu(gpu, view, policy, use) for gpu in view.gpus],
        domains=[_domain(domain, view) for domain in view.domains],
        grants=[_grant(held, pod, use) for held, pod in _pods(view)] if view.grants_known else None,
    )
    return as_object(status) | {"conditions": [condition]}


@dataclass(frozen=True, slots=True)
class WrittenStatus:
    """A status as it was written, and when, on a clock that never goes back."""

    status: Object
    at: float


def write_due(status: Object, written: WrittenStatus | None) -> float:
    """When this status is to be written, on the clock of `written`; in the past where it should have been by now."""
    if written is None:
        return float("-inf")
    if is_news(status, written.status) or _without_use(status) != _without_use(written.status):
        return written.at + CHANGE_S
    return written.at + (USE_S if _use_differs(status, written.status) else HEARTBEAT_S)


def mpsnode_for(node: str, node_uid: str) -> Object:
    """A new MPSNode, which Kubernetes deletes with its Node."""
    metadata = {"name": node, "labels": dict(_LABELS), "ownerReferences": [_owner(node, node_uid)]}
    return {"apiVersion": API, "kind": KIND, "metadata": metadata, "spec": {}}


def belonging_patch(thing: Mapping[str, Any], node: str, node_uid: str) -> Object | None:
    """The merge patch that makes an MPSNode somebody else made belong to its Node; None where it does already."""
    metadata = thing.get("metadata") or {}
    owners = metadata.get("ownerReferences") or []
    labels = metadata.get("labels") or {}
    if any(owner.get("uid") == node_uid for owner in owners) and labels.items() >= _LABELS.items():
        return None
    others = [owner for owner in owners if owner.get("kind") != "Node"]
    changed = {"labels": dict(_LABELS), "ownerReferences": [*others, _owner(node, node_uid)]}
    return {"metadata": {"resourceVersion": metadata.get("resourceVersion"), **changed}}


_LABELS = {NAME_LABEL: "mpsnode", LABEL: PRODUCT}


def _owner(node: str, node_uid: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}


# -- the parts of a status -----------------------------------------------------------------------------------------


class _Use:
    """What programs use, counted once for all GPUs and grants. Every answer is None where NVML could not say."""

    def __init__(self, clients: Iterable[Client] | None) -> None:
        self._known = clients is not None
        self._mib: Counter[tuple[str | None, str]] = Counter()  # by grant (None: all) and GPU
        self._unsure: set[tuple[str | None, str]] = set()
        self._pids: dict[tuple[str | None, str], set[int]] = {}
        for client in clients or ():
            for key in {(None, client.gpu), (client.grant, client.gpu)}:
                self._pids.setdefault(key, set()).add(client.pid)
                if client.used_mib is None:
                    self._unsure.add(key)
                else:
                    self._mib[key] += client.used_mib

    def of_gpu(self, gpu: str) -> int | None:
        return self._of(None, gpu)

    def of_grant(self, grant: str, gpus: Iterable[str]) -> int | None:
        """The most on one of its GPUs."""
        used = [self._of(grant, gpu) for gpu in gpus]
        known = [mib for mib in used if mib is not None]
        return max(known, default=0) if len(known) == len(used) else None

    def clients(self, grant: str | None, gpus: Iterable[str]) -> int | None:
        if not self._known:
            return None
        none: set[int] = set()
        return len(set().union(*(self._pids.get((grant, gpu), none) for gpu in gpus)))

    def _of(self, grant: str | None, gpu: str) -> int | None:
        return self._mib[grant, gpu] if self._known and (grant, gpu) not in self._unsure else None


def _pods(view: NodeView) -> list[tuple[HeldGrant, PodName]]:
    """The grants that pods hold, by name; programs of `mpsd run` are nobody's business in a cluster."""
    held = [(one, one.grant.pod) for one in view.grants if one.grant.pod]
    return sorted(held, key=lambda pair: (str(pair[1]), pair[1].uid))


def _gpu(gpu: Gpu, view: NodeView, policy: "Policy", use: _Use) -> ReportedGpu:
    grants = [held.grant for held in view.grants if gpu.uuid in held.grant.gpus]
    domain = next((domain.name for domain in view.domains if gpu.uuid in domain.record.gpus), None)
    return ReportedGpu(
        uuid=gpu.uuid,
        index=gpu.ordinal,
        model=gpu.name,
        domain=domain,
        memory_mib=gpu.memory_mib,
        promised_mib=promised_mib(gpu, policy),
        promised_percent=policy.oversubscription.thread_percent,
        promised_clients=gpu.capability.clients,
        granted_mib=sum(grant.part_of(gpu.uuid).memory_mib for grant in grants) if view.grants_known else None,
        granted_percent=sum(grant.part_of(gpu.uuid).reserved_percent for grant in grants)
        if view.grants_known
        else None,
        used_mib=use.of_gpu(gpu.uuid),
        clients=use.clients(None, [gpu.uuid]),
    )


def _domain(domain: DomainView, view: NodeView) -> ReportedDomain:
    record = domain.record
    return ReportedDomain(
        name=record.domain,
        gpus=list(record.gpus),
        state=record.state.value,
        since=stamp(record.since),
        restarts=record.restarts_total,
        reason=record.reason,
        faults=_faults(faults_status(record, pod_names(view))) if record.faults_total else None,
        canary=_canary(record.canary) if record.canary else None,
        version=record.written_by or None,
    )


def _canary(canary: Canary) -> ReportedCanary:
    return ReportedCanary(
        at=stamp(canary.at),
        driver=canary.driver,
        context_mib=canary.context_mib,
        sms=canary.sms,
        problem=canary.problem or None,
        warning=canary.warning or None,
    )


def _faults(faults: FaultsStatus) -> ReportedFaults:
    return ReportedFaults(
        count=faults.count,
        last=None if faults.last is None else stamp(faults.last),
        suspects=[ReportedSuspect(one.pod, one.uid, one.faults) for one in faults.suspects] or None,
    )


def _grant(held: HeldGrant, pod: PodName, use: _Use) -> ReportedGrant:
    grant = held.grant
    return ReportedGrant(
        pod=str(pod),
        uid=pod.uid or None,
        gpus=list(grant.gpus),
        memory_mib=grant.memory_mib,
        thread_percent=grant.thread_percent,
        reserved_percent=grant.reserved_percent,
        used_mib=use.of_grant(grant.id, grant.gpus),
        clients=use.clients(grant.id, grant.gpus),
    )


def _summary(view: NodeView, policy: "Policy", use: _Use) -> ReportedSummary:
    uuids = [gpu.uuid for gpu in view.gpus]
    used = [use.of_gpu(uuid) for uuid in uuids]
    used_mib = [mib for mib in used if mib is not None]
    clients = use.clients(None, uuids)
    granted_mib = sum(part.memory_mib for held in view.grants for part in held.grant.parts)
    granted = _gib(granted_mib) if view.grants_known else "?"
    promised = _gib(sum(promised_mib(gpu, policy) for gpu in view.gpus))
    return ReportedSummary(
        gpus=_models(view.gpus),
        domains=f"{sum(domain.state is State.READY for domain in view.domains)}/{len(view.domains)}",
        granted=f"{granted}/{promised}Gi",
        used=f"{_gib(sum(used_mib))}Gi" if len(used_mib) == len(used) else "?",
        clients="?" if clients is None else str(clients),
        pods=len(_pods(view)) if view.grants_known else None,
    )


def _models(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{number}x {name}" for name, number in Counter(gpu.name for gpu in gpus).items())


def _gib(mib: int) -> str:
    """Rounded down, as units are."""
    return str(mib // 1024)


def gave_back(status: Object, before: Object) -> bool:
    """Whether a pod that waits may fit by now: a GPU has given away less than before, says again what it has, or serves
    again."""
    had = {gpu["uuid"]: gpu.get("grantedMiB") for gpu in before["gpus"]}
    more = any(_has_more(gpu.get("grantedMiB"), had.get(gpu["uuid"])) for gpu in status["gpus"])
    return more or not _serving(status) <= _serving(before)


def _serving(status: Object) -> set[str]:
    return {domain["name"] for domain in status["domains"] if domain["state"] == State.READY.value}


def _has_more(granted: int | None, had_granted: int | None) -> bool:
    """None: not known."""
    return granted is not None and (had_granted is None or granted < had_granted)


def given_back_patch(at_s: int) -> Object:
    """A merge patch of a Node's status: GIVEN_BACK and nothing else. at_s: now, since 1970."""
    amount = {GIVEN_BACK: str(at_s)}
    return {"status": {"capacity": amount, "allocatable": amount}}


# -- what counts as a change ---------------------------------------------------------------------------------------


def _without_use(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_use(inner) for name, inner in value.items() if name not in _USE}
    return [_without_use(inner) for inner in value] if isinstance(value, list) else value


def _use_differs(status: Object, written: Object) -> bool:
    """Whether what programs use has moved enough; the two differ in nothing else."""
    pairs = [
        *zip(status["gpus"], written["gpus"], strict=True),
        *zip(status.get("grants", ()), written.get("grants", ()), strict=True),
    ]
    return differs(status, written) or any(_moved(one, other) for one, other in pairs)


def _moved(one: Object, other: Object) -> bool:
    if one.get("clients") != other.get("clients"):
        return True
    used, before = one.get("usedMiB"), other.get("usedMiB")
    if used is None or before is None:
        return used is not before
    return bool(abs(used - before) >= USE_STEP_MIB)
