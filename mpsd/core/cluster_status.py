"""What a cluster tells of its GPUs: its MPSNodes, read for people and programs; `kubectl mps -o json`.

One rule: any JSON is a node here, with what could be read of it and the rest said to be unreadable; nothing raises.
Names and units are an interface, those of core.node_status where they mean the same; fields are added, never renamed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from mpsd.core.cordon import ALL, drains, read_cordoned, unknown_cordons
from mpsd.core.domain_states import State
from mpsd.core.domains import Domain
from mpsd.core.durations import lasting
from mpsd.core.heartbeat import HEARTBEAT_S
from mpsd.core.mps_ready import CONDITION, SAID_OF_DOMAINS, Truth
from mpsd.core.problem import shown
from mpsd.core.shape import Fields, Shape
from mpsd.core.status_rows import DomainRow, GpuRow, GrantRow

STALE_S = 2 * HEARTBEAT_S
_LARGEST = 2**63 - 1  # an int64, as the definition has it

Seconds = Callable[[str], float | None]  # since 1970, of a time as Kubernetes writes it; None for any other text


@dataclass(frozen=True, slots=True)
class ConditionStatus:
    """since: seconds since 1970."""

    type: str
    status: str
    reason: str
    message: str
    since: float | None


@dataclass(frozen=True, slots=True)
class PodStatus:
    """What a pod got, memory on each of its GPUs (UUIDs). used_mib: on the GPU where it uses most."""

    node: str
    namespace: str
    pod: str
    uid: str
    gpus: tuple[str, ...]
    memory_mib: int | None
    thread_percent: int | None
    reserved_percent: int | None
    used_mib: int | None
    clients: int | None


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """ready: it has told of late that every GPU it has takes programs; a cordoned one takes none.

    told_at: seconds since 1970, None where it has told nothing yet. stale: too long ago to be believed.
    cordoned: as in the spec, UUIDs or `all`. pods None: the node does not know. unreadable: what is wrong with the
    object, a sentence each. version: of the agent's mpsd; empty where an older one does not say.
    """

    name: str
    ready: bool
    told_at: float | None
    stale: bool
    driver: str
    cordoned: tuple[str, ...]
    conditions: tuple[ConditionStatus, ...]
    gpus: tuple[GpuRow, ...]
    domains: tuple[DomainRow, ...]
    pods: tuple[PodStatus, ...] | None
    unreadable: tuple[str, ...]
    version: str = ""

    @property
    def condition(self) -> ConditionStatus | None:
        """MPSReady; None where nobody has told it."""
        return next((one for one in self.conditions if one.type == CONDITION), None)

    @property
    def labels(self) -> dict[str, str]:
        """The GPUs' labels by UUID."""
        return {gpu.uuid: gpu.label for gpu in self.gpus}


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """now: seconds since 1970, by the clock of whoever asks."""

    now: float
    nodes: tuple[ClusterNode, ...]

    @property
    def ready(self) -> bool:
        return bool(self.nodes) and all(node.ready for node in self.nodes)


def cluster_status(mpsnodes: Iterable[object], now: float, seconds: Seconds) -> ClusterStatus:
    """The nodes by name."""
    nodes = [read_mpsnode(thing, now, seconds) for thing in mpsnodes]
    return ClusterStatus(now, tuple(sorted(nodes, key=lambda node: node.name)))


def read_mpsnode(thing: object, now: float, seconds: Seconds) -> ClusterNode:
    """One MPSNode, whatever it holds."""
    fields: Fields = thing if isinstance(thing, dict) else {}
    reader = _Reader(fields, seconds)
    if not isinstance(thing, dict):
        reader.unreadable.append(f"the object is {shown(thing)}, which is no MPSNode")
    node = reader.node(now)
    if reader.shape.too_many:  # nothing of it may be believed
        empty = _Reader({"metadata": {"name": node.name}}, seconds)
        empty.unreadable.append(str(reader.shape.too_many))
        return empty.node(now)
    return node


def is_stale(told_at: float | None, now: float) -> bool:
    return told_at is not None and now - told_at > STALE_S


def is_ready(
    told_at: float | None, stale: bool, states: Sequence[str | None], conditions: Iterable[ConditionStatus]
) -> bool:
    """states: of the domain of each GPU, None where no control daemon holds it."""
    return (
        told_at is not None
        and not stale
        and bool(states)
        and all(state == State.READY for state in states)
        and any(one.type == CONDITION and one.status == Truth.TRUE for one in conditions)
    )


def amount(found: int | None) -> int | None:
    """None for what is none, such as -1."""
    return found if found is not None and 0 <= found <= _LARGEST else None


def gpu_label(uuid: str, index: int | None) -> str:
    return uuid if index is None else f"gpu{index}"


class _Reader:
    def __init__(self, fields: Fields, seconds: Seconds) -> None:
        self.shape = Shape()
        self.unreadable: list[str] = []
        self._fields = fields
        self._seconds = seconds
        self._status = self.shape.mapping(fields, "status", "")
        metadata = fields.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        self._name = name if isinstance(name, str) and name else "(no name)"

    def node(self, now: float) -> ClusterNode:
        told_at = self._time(self._status, "toldAt", "status")
        stale = is_stale(told_at, now)
        conditions = tuple(self._conditions())
        domains = tuple(self._domains())
        gpus = tuple(self._gpus(domains))
        pods = tuple(self._pods()) if self._status.get("grants") is not None else None
        return ClusterNode(
            name=self._name,
            ready=is_ready(told_at, stale, [gpu.state for gpu in gpus], conditions),
            told_at=told_at,
            stale=stale,
            driver=self.shape.text(self._status, "driver", "status"),
            cordoned=tuple(sorted(read_cordoned(self._fields))),
            conditions=conditions,
            gpus=gpus,
            domains=domains,
            pods=pods,
            unreadable=(*self.unreadable, *(problem.fault for problem in self.shape.problems)),
            version=self.shape.text(self._status, "version", "status"),
        )

    def _conditions(self) -> Iterator[ConditionStatus]:
        for path, entry in self.shape.entries(self._status, "conditions", "status"):
            yield ConditionStatus(
                type=self.shape.text(entry, "type", path),
                status=self.shape.text(entry, "status", path),
                reason=self.shape.text(entry, "reason", path),
                message=self.shape.text(entry, "message", path),
                since=self._time(entry, "lastTransitionTime", path),
            )

    def _domains(self) -> Iterator[DomainRow]:
        for path, entry in self.shape.entries(self._status, "domains", "status"):
            context_mib, doubt = self._canary(entry, path) if "canary" in entry else (None, "")
            suspects, faults, last_fault = self._faults(entry, path) if "faults" in entry else ((), None, None)
            yield DomainRow(
                node=self._name,
                name=self.shape.text(entry, "name", path),
                gpus=self.shape.texts(entry, "gpus", path),
                state=self.shape.text(entry, "state", path) or "unknown",
                since=self._time(entry, "since", path),
                reason=self.shape.text(entry, "reason", path),
                restarts=self._amount(entry, "restarts", path),
                suspects=suspects,
                context_mib=context_mib,
                doubt=doubt,
                version=self.shape.text(entry, "version", path),
                faults=faults,
                last_fault=last_fault,
            )

    def _canary(self, domain: Fields, path: str) -> tuple[int | None, str]:
        """What a context costs, and what the canary doubts."""
        inner = f"{path}.canary"
        canary = self.shape.mapping(domain, "canary", path)
        doubts = [self.shape.text(canary, name, inner) for name in ("problem", "warning")]
        return self._amount(canary, "contextMiB", inner), next(filter(None, doubts), "")

    def _faults(self, domain: Fields, path: str) -> tuple[tuple[tuple[str, int | None], ...], int | None, float | None]:
        """The suspects, how many faults there were, and when the last one was."""
        inner = f"{path}.faults"
        faults = self.shape.mapping(domain, "faults", path)
        suspects = tuple(
            (self.shape.text(entry, "pod", where), self._amount(entry, "faults", where))
            for where, entry in self.shape.entries(faults, "suspects", inner)
        )
        return suspects, self._amount(faults, "count", inner), self._time(faults, "last", inner)

    def _gpus(self, domains: Sequence[DomainRow]) -> Iterator[GpuRow]:
        by_name = {domain.name: domain for domain in domains}
        cordoned = read_cordoned(self._fields)
        known = [Domain(domain.name, domain.gpus) for domain in domains] if cordoned else []
        draining = drains(cordoned, known)
        for path, entry in self.shape.entries(self._status, "gpus", "status"):
            uuid = self.shape.text(entry, "uuid", path)
            index = self._amount(entry, "index", path)
            domain = by_name.get(self.shape.text(entry, "domain", path))
            yield GpuRow(
                node=self._name,
                uuid=uuid,
                label=gpu_label(uuid, index),
                name=self.shape.text(entry, "model", path),
                domain=domain.name if domain else None,
                state=domain.state if domain else None,
                cordoned=ALL in cordoned or uuid in cordoned or bool(domain and domain.name in draining),
                restarts=domain.restarts if domain else None,
                memory_mib=self._amount(entry, "memoryMiB", path),
                promised_mib=self._amount(entry, "promisedMiB", path),
                granted_mib=self._amount(entry, "grantedMiB", path),
                granted_percent=self._amount(entry, "grantedPercent", path),
                used_mib=self._amount(entry, "usedMiB", path),
                clients=self._amount(entry, "clients", path),
                context_mib=domain.context_mib if domain else None,
                promised_percent=self._amount(entry, "promisedPercent", path),
                promised_clients=self._amount(entry, "promisedClients", path),
            )

    def _pods(self) -> Iterator[PodStatus]:
        for path, entry in self.shape.entries(self._status, "grants", "status"):
            namespace, _slash, name = self.shape.text(entry, "pod", path).rpartition("/")
            yield PodStatus(
                node=self._name,
                namespace=namespace,
                pod=name,
                uid=self.shape.text(entry, "uid", path),
                gpus=self.shape.texts(entry, "gpus", path),
                memory_mib=self._amount(entry, "memoryMiB", path),
                thread_percent=self._amount(entry, "threadPercent", path),
                reserved_percent=self._amount(entry, "reservedPercent", path),
                used_mib=self._amount(entry, "usedMiB", path),
                clients=self._amount(entry, "clients", path),
            )

    def _amount(self, fields: Fields, key: str, path: str) -> int | None:
        found = fields.get(key)
        if type(found) is not int:  # which it nearly always is
            found = self.shape.number(fields, key, path, absent=None)
        return amount(found)

    def _time(self, fields: Fields, key: str, path: str) -> float | None:
        return self._seconds(self.shape.text(fields, key, path))


# -- for people ----------------------------------------------------------------------------------------------------


def pod_rows(node: ClusterNode) -> tuple[GrantRow, ...]:
    """The pods of a node, as a status on the node shows them."""
    labels = node.labels
    return tuple(
        GrantRow(
            node=pod.node,
            id=pod.uid,
            pod=f"{pod.namespace}/{pod.pod}",
            pid=None,
            gpus=tuple(labels.get(uuid, uuid) for uuid in pod.gpus),
            memory_mib=pod.memory_mib,
            thread_percent=pod.thread_percent,
            used_mib=pod.used_mib,
            clients=pod.clients,
            command="",
            ended=False,
        )
        for pod in node.pods or ()
    )


def cordoned_gpus(node: ClusterNode) -> str:
    """What is cordoned, by label; empty where nothing is."""
    labels = node.labels
    return ",".join(sorted(labels.get(one, one) for one in node.cordoned))


def silence(node: ClusterNode, now: float) -> str | None:
    """Why what is shown of a node may not be how it is; None where it has told of late."""
    if node.told_at is None:
        return f"{node.name} has told nothing yet; see whether a pod of the DaemonSet mpsd-agent runs there"
    if not node.stale:
        return None
    how_long = f"for {lasting(now - node.told_at)}, and should every {lasting(HEARTBEAT_S)}"
    why = "its agent does not run, or does not reach the API server"
    return f"{node.name} has told nothing {how_long}: {why}; shown is what it told last"


def troubles(node: ClusterNode, now: float) -> Iterator[str]:
    """What is to be known of a node beside its rows and its domains, a sentence each."""
    if silent := silence(node, now):
        yield silent
    for condition in node.conditions:
        if condition.status != Truth.TRUE and condition.reason not in SAID_OF_DOMAINS:
            yield _said(node, condition, now)
    known = [Domain(domain.name, domain.gpus) for domain in node.domains]
    for stranger in unknown_cordons(frozenset(node.cordoned), known) if known else ():
        yield f"{node.name}: spec.cordoned names {shown(stranger)}, which is no GPU of this node"
    if node.unreadable:
        more = f" (and {len(node.unreadable) - 1} more)" if len(node.unreadable) > 1 else ""
        yield f"{node.name}: what it told cannot be read: {node.unreadable[0]}{more}"


def _said(node: ClusterNode, condition: ConditionStatus, now: float) -> str:
    since = "" if condition.since is None else f" for {lasting(now - condition.since)}"
    return f"{node.name}: {condition.type} is {condition.status}{since}, {condition.reason}: {condition.message}"
