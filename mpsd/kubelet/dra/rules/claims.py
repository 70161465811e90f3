"""What a ResourceClaim gets on this node.

The allocation alone says which GPUs and how much of each. The parameters (MPSConfig) may only raise
the cap of its threads above what it reserves, and lower its priority. What is missing is refused,
never guessed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mpsd.grants.rules.placement import what_lacks
from mpsd.kubelet.dra.rules.config import THREAD_CAP, ClaimConfig, claim_config
from mpsd.kubelet.dra.rules.slices import CLIENTS, MEMORY, THREADS, device_name
from mpsd.kubelet.rules.allocation import Allocation, domain_with, names_by_gpu
from mpsd.kubelet.rules.node_pods import NodePod
from mpsd.model.client_limits import (
    NORMAL,
    ClientLimit,
    client_priority,
    problems_with,
)
from mpsd.model.domain import Domain
from mpsd.model.fields import FieldReader, Fields, at
from mpsd.model.grants import Gpu, Grant, Request, evenly, rooms
from mpsd.model.identity import PodName
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.model.quantity import whole

_RECREATE = "delete the pod and its claim, so that the scheduler allocates it again"
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """As the allocation names it. share: the id of its part of the device."""

    request: str
    pool: str
    device: str
    share: str
    gpu: str


@dataclass(frozen=True, slots=True)
class ClaimGrant(Grant):
    """The one grant of all pods that share a claim. holder: the first of them."""

    sharing: tuple[PodName, ...] = ()
    claim: str | None = None

    @property
    def pods(self) -> tuple[PodName, ...]:
        return self.sharing


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim that has its grant on this node. memory_mib, reserved_percent: of each GPU. pods:
    those that it was reserved for, now or later. at: seconds since 1970. left: kubelet has given it
    up, and it counts until no process of its pods lives. priority: None where it was given none."""

    uid: str
    namespace: str
    name: str
    domain: str
    devices: tuple[ClaimDevice, ...]
    memory_mib: int
    reserved_percent: int
    thread_percent: int
    clients: int
    pods: tuple[PodName, ...]
    boot_id: str
    at: float
    left: bool = False
    priority: int | None = None

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(device.gpu for device in self.devices)

    @property
    def allocation(self) -> Allocation:
        return Allocation(
            self.domain, self.gpus, self.memory_mib, self.thread_percent, self.priority
        )

    @property
    def share(self) -> tuple[object, ...]:
        """What it takes of which GPUs."""
        amounts = self.memory_mib, self.reserved_percent, self.thread_percent
        return self.domain, self.gpus, *amounts, self.clients

    def grant(self, holders: Sequence[PodName]) -> ClaimGrant:
        """holders: the pods that have it now."""
        return ClaimGrant(
            id=self.uid,
            domain=self.domain,
            parts=evenly(self.gpus, self.memory_mib, self.reserved_percent),
            thread_percent=self.thread_percent,
            clients=self.clients,
            holder=holders[0] if holders else PodName(self.namespace, self.name, ""),
            command=str(self),
            priority=self.priority or NORMAL,
            sharing=tuple(holders),
            claim=f"{self.namespace}/{self.name}",
        )

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ClaimNode:
    """pool: the name of the node. boot_id: of its kernel's present boot."""

    driver: str
    pool: str
    gpus: tuple[Gpu, ...]
    domains: tuple[Domain, ...]
    boot_id: str


# -- the allocation


def read_claim(
    thing: Fields, uid: str, node: ClaimNode, policy: Policy, now: float, started: int | None = None
) -> PreparedClaim:
    """What the claim has here. uid: of the one that kubelet means. InvalidInput with every reason
    why it can have nothing. started: the cap of the threads that its programs were started with, a
    fact that today's policy does not judge; None where it was not prepared before."""
    fields = FieldReader()
    metadata = fields.mapping(thing, "metadata", "")
    status = fields.mapping(thing, "status", "")
    namespace, name = (fields.text(metadata, key, "metadata") for key in ("namespace", "name"))
    subject = f"ResourceClaim {namespace}/{name}"
    if metadata.get("uid") != uid:
        message = f"is not the claim {uid} that kubelet prepares; that one was deleted"
        found = shown(metadata.get("uid"))
        fault = Problem("claim-replaced", "metadata.uid", found, message, _RECREATE)
        raise InvalidInput(subject, [fault])
    allocation = fields.mapping(status, "allocation", "status")
    devices = fields.mapping(allocation, "devices", "status.allocation")
    path = "status.allocation.devices"
    reader = _Results(fields, node, policy)
    is_new = node.driver and started is None
    taken = []
    for where, result in fields.entries(devices, "results", path):
        is_ours = node.driver in ("", result.get("driver")) and result.get("pool") == node.pool
        if is_ours and (is_new or result.get("device") in reader.uuids):
            taken.append(reader.read(where, result))
    if not taken:
        message = f"allocates no device of {node.driver or 'mpsd'} on node {node.pool}"
        raise InvalidInput.of(subject, "claim-not-allocated", path, "", message, _RECREATE)
    config = ClaimConfig(started)
    if started is None:
        config = claim_config(fields, devices, path, node.driver, policy)
    if reader.problems or (fields.problems and started is None):
        raise InvalidInput(subject, [*reader.problems, *fields.problems])
    first = taken[0]
    by_gpu = {each.device.gpu: each.device for each in taken}
    domain = domain_with(by_gpu, node.domains)
    if started is not None and domain is None:  # its GPUs may have been divided since
        domain = domain_with([first.device.gpu], node.domains)
    percent = config.cap or first.threads or policy.requests.default_thread_percent
    problems = [
        *_together(taken, domain, path, node.driver),
        *_below_reservation(first, percent, path),
    ]
    for gpu in (gpu for gpu in node.gpus if gpu.uuid in by_gpu):
        limit = ClientLimit(first.memory_mib, percent)
        problems += problems_with(limit, f"{path}.results", gpu.capability, gpu.memory_mib, gpu.sms)
    if domain is None or (problems and started is None):
        raise InvalidInput(subject, problems)
    return PreparedClaim(
        uid=uid,
        namespace=namespace,
        name=name,
        domain=domain.name,
        devices=tuple(
            by_gpu[uuid] for uuid in dict.fromkeys((*domain.gpus, *by_gpu)) if uuid in by_gpu
        ),
        memory_mib=first.memory_mib,
        reserved_percent=first.threads,
        thread_percent=percent,
        clients=first.clients,
        pods=tuple(_reserved_for(fields, status, namespace)),
        boot_id=node.boot_id,
        at=now,
        priority=config.priority or None,
    )


def _reserved_for(fields: FieldReader, status: Fields, namespace: str) -> Iterator[PodName]:
    for where, one in fields.entries(status, "reservedFor", "status"):
        if one.get("resource") == "pods" and not one.get("apiGroup"):
            pod = PodName(
                namespace, fields.text(one, "name", where), fields.text(one, "uid", where)
            )
            if pod.name and pod.uid:
                yield pod


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a result consumes of one device."""

    device: ClaimDevice
    memory_mib: int
    threads: int
    clients: int


class _Results:
    """Reads the results of an allocation."""

    def __init__(self, fields: FieldReader, node: ClaimNode, policy: Policy) -> None:
        self._fields = fields
        self._node = node
        self._policy = policy
        self.uuids = {device_name(gpu): gpu.uuid for gpu in node.gpus}
        self.problems: list[Problem] = []

    def read(self, where: str, result: Fields) -> _Taken:
        request, pool, name, share = (
            self._fields.text(result, key, where)
            for key in ("request", "pool", "device", "shareID")
        )
        uuid = self.uuids.get(name, "")
        if not uuid:
            message = f"is no GPU of node {self._node.pool} now"
            place = at(where, "device")
            self.problems.append(Problem("device-gone", place, shown(name), message, _RECREATE))
        if self._fields.flag(result, "adminAccess", where):
            message = "mpsd gives nobody access to a GPU beside its grants"
            place = at(where, "adminAccess")
            remedy = "remove adminAccess"
            self.problems.append(Problem("admin-access", place, "true", message, remedy))
        amounts = self._fields.mapping(result, "consumedCapacity", where)
        memory, threads, clients = (
            self._amount(amounts, where, key) for key in (MEMORY, THREADS, CLIENTS)
        )
        device = ClaimDevice(request, pool, name, share, uuid)
        return _Taken(device, memory // _MIB, threads, max(1, clients))

    def _amount(self, amounts: Fields, where: str, capacity: str) -> int:
        found = whole(amounts.get(capacity))
        if found is not None and found >= 0:
            return found
        wrong = ""
        if capacity in amounts:
            wrong = shown(amounts[capacity])
        place = at(where, "consumedCapacity", capacity)
        message = "does not say how much of the device the claim consumes"
        remedy = "switch on DRAConsumableCapacity in the API server and the scheduler, as in"
        remedy = f"{remedy} Kubernetes 1.36; {_RECREATE}"
        self.problems.append(Problem("capacity-unknown", place, wrong, message, remedy))
        return 0


def _together(
    taken: Sequence[_Taken], domain: Domain | None, path: str, driver: str
) -> Iterator[Problem]:
    """A client of MPS has one domain, and one limit for all its GPUs."""
    where = f"{path}.results"
    names = " and ".join(each.device.device for each in taken)
    if len({each.device.gpu for each in taken}) < len(taken):
        remedy = "ask for it once, with the sum, or add the constraint distinctAttribute:"
        message = "allocates one GPU more than once"
        yield Problem("device-twice", where, names, message, f"{remedy} {driver}/uuid")
    elif len({(each.memory_mib, each.threads, each.clients) for each in taken}) > 1:
        remedy = "ask for the same memory and threads in each request"
        yield Problem("devices-uneven", where, names, "does not take the same of each GPU", remedy)
    if domain is None:
        remedy = f"add the constraint matchAttribute: {driver}/domain, and list the GPUs under"
        remedy = f"{remedy} domains in the policy"
        message = "takes GPUs that no control daemon has together"
        yield Problem("devices-of-domains", where, names, message, remedy)


def _below_reservation(taken: _Taken, percent: int, path: str) -> Iterator[Problem]:
    if percent < taken.threads:
        cap = f"{THREAD_CAP} {percent}"
        message = f"is below the {taken.threads} percent that the claim reserves"
        remedy = "raise it, or leave it out"
        yield Problem("cap-below-reservation", f"{path}.config", cap, message, remedy)


# -- beside the other grants of the node


def why_no_room(
    claim: PreparedClaim, others: Iterable[Grant], node: ClaimNode, policy: Policy
) -> str:
    """Empty where the claim can have its grant beside the others."""
    domain_of = names_by_gpu(node.domains)
    gpus = [gpu for gpu in node.gpus if gpu.uuid in claim.gpus and gpu.uuid in domain_of]
    request = Request(claim.memory_mib, claim.reserved_percent, 1, claim.clients)
    here = rooms(gpus, domain_of, others, policy)
    short = [room for room in here if not room.holds(request, policy)]
    if not short:
        return ""
    return f"{claim} has no room beside the other grants: {what_lacks(request, short, policy)}"


def with_priority(claim: PreparedClaim, rows: Iterable[NodePod], policy: Policy) -> PreparedClaim:
    """Below normal where the policy says so of each of its pods that is known."""
    if policy.gpu_priority.by == "none" or claim.priority:
        return claim
    priorities = [row.priority for row in rows if row.identity in claim.pods]
    said = [client_priority(one, policy.gpu_priority) or NORMAL for one in priorities]
    return replace(claim, priority=min(said, default=NORMAL))


def other_claim_of(claim: PreparedClaim, prepared: Iterable[PreparedClaim]) -> str:
    """Why one of its pods, which may have one grant, cannot have it; empty where all can."""
    uids = {pod.uid for pod in claim.pods}
    for other in prepared:
        for pod in other.pods:
            if other.uid != claim.uid and pod.uid in uids:
                one = "a pod may have one claim of mpsd; ask for all GPUs in one claim"
                return f"pod {pod} has {other} already, and {one}"
    return ""


def replaced_by(claim: PreparedClaim, prepared: Iterable[PreparedClaim]) -> Sequence[PreparedClaim]:
    """The deleted claims of its name, without the pods of this one."""
    left: list[PreparedClaim] = []
    for old in prepared:
        if old.uid != claim.uid and str(old) == str(claim):
            pods = tuple(pod for pod in old.pods if pod not in claim.pods)
            left.append(replace(old, left=True, pods=pods))
    return left


def claim_holders(
    prepared: Sequence[PreparedClaim], rows: Sequence[NodePod]
) -> dict[str, tuple[PodName, ...]]:
    """By the uid of each claim, its pods: those of the journal, and those that have come since,
    which kubelet lets start without asking. A pod counts for the claim with the least memory."""
    by_name = {(claim.namespace, claim.name): claim.uid for claim in prepared if not claim.left}
    found: dict[str, dict[str, PodName]] = {
        claim.uid: {pod.uid: pod for pod in claim.pods} for claim in prepared
    }
    for row in rows:
        for name in row.claims:
            if uid := by_name.get((row.namespace, name)):
                found[uid][row.uid] = row.identity
    seen: set[str] = set()
    for claim in sorted(prepared, key=lambda claim: (claim.memory_mib, claim.uid)):
        found[claim.uid] = {uid: pod for uid, pod in found[claim.uid].items() if uid not in seen}
        seen.update(found[claim.uid])
    return {uid: tuple(pods.values()) for uid, pods in found.items()}


def refreshed(before: PreparedClaim, pods: Iterable[PodName]) -> PreparedClaim:
    """A prepared claim with the pods that have come to it; what it holds does not change."""
    return replace(before, pods=tuple(dict.fromkeys((*before.pods, *pods))))


def taken_up(before: PreparedClaim, now: PreparedClaim) -> PreparedClaim | None:
    """A claim that kubelet prepares again while processes of its earlier pods live: one grant for
    all, of their priority. None where it was allocated otherwise meanwhile."""
    if now.share != before.share:
        return None
    return refreshed(replace(now, pods=before.pods, priority=before.priority), now.pods)
