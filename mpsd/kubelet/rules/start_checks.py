"""The checks before a container starts on the devices it holds, which Allocate could not make.

A permanent problem evicts the pod, a temporary one defers the start. What cannot be known (no
journal since a reboot, no answer of the API) is no problem; nor is a GPU other than the scheduler
chose, since kubelet's choice stands.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mpsd.kubelet.rules.allocation import is_percent, spread, units_by_gpu
from mpsd.kubelet.rules.ledger import ContainerDevices, JournalEntry, by_devices, pod_grants
from mpsd.kubelet.rules.node_pods import ContainerName, Kind, NodePod, PodKey, devices_of
from mpsd.model.client_limits import BELOW_NORMAL, NORMAL, client_priority
from mpsd.model.domain import SERVING, Domain, after_is
from mpsd.model.grants import Gpu, Grant
from mpsd.model.node_view import DomainRecord
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput
from mpsd.model.request import ContainerRequest

_RECREATE = "; the pod must be recreated"
_WAITING = "domain-not-ready"  # kubelet retries the start; for any other reason the pod is evicted


@dataclass(frozen=True, slots=True)
class StartProblem:
    """One reason. rule: its stable name. waits: kubelet is to retry; else the pod is to be
    evicted."""

    rule: str
    sentence: str
    waits: bool


@dataclass(frozen=True, slots=True)
class StartContext:
    """What a start is checked against. held: of all containers of the node. journal: of this boot.
    records: one for each domain of `mpsd control`; pods: those of this node that ask for a GPU, as
    far as known."""

    gpus: tuple[Gpu, ...]
    records: tuple[DomainRecord, ...]
    held: tuple[ContainerDevices, ...]
    journal: tuple[JournalEntry, ...]
    pods: tuple[NodePod, ...]

    def pod(self, key: PodKey) -> NodePod | None:
        """None where no such pod is known."""
        return next((pod for pod in self.pods if pod.key == key), None)


def starting_container(ids: tuple[str, ...], node: StartContext) -> ContainerDevices | None:
    """The container that kubelet is about to start with these devices of one resource; None where
    it is not known. Kubelet does not list init containers, whose devices later containers of the
    pod use again."""
    wanted = frozenset(ids)
    if not wanted:
        return None
    overlapping = [one for one in node.held if not wanted.isdisjoint((*one.memory, *one.percent))]
    exact = [one for one in overlapping if wanted in one.sets]
    last = by_devices(node.journal).get(wanted)
    if exact:  # where kubelet has given them twice, the last entry counts
        return next((one for one in exact if last and one.container == last.pod), exact[0])
    noted = last.pod if last else None
    if not overlapping or (noted and noted.pod_key == overlapping[0].pod):
        return _as_noted(noted, ids, node) if noted else None
    later = overlapping[0]
    pod = node.pod(later.pod)
    kind: Kind = "percent" if is_percent(ids[0]) else "memory"
    alike = (
        [
            pod.container(request)
            for request in pod.requests
            if devices_of(request, kind) == len(ids)
        ]
        if pod
        else []
    )
    return _as_noted(alike[0] if alike else later.container, ids, node)


def _as_noted(name: ContainerName, ids: tuple[str, ...], node: StartContext) -> ContainerDevices:
    """The container with these devices, and those of the other resource that the journal has for
    it."""
    other: Kind = "memory" if is_percent(ids[0]) else "percent"
    noted = [entry for entry in node.journal if entry.pod == name and entry.resource == other]
    rest = max(noted, key=lambda entry: entry.at).ids if noted else ()
    return (
        ContainerDevices(name, rest, ids)
        if other == "memory"
        else ContainerDevices(name, ids, rest)
    )


def start_problems(
    starting: ContainerDevices, node: StartContext, policy: Policy
) -> tuple[StartProblem, ...]:
    """Every reason why this container may not start; () where it may."""
    try:
        units = units_by_gpu(starting.memory)
    except InvalidInput as error:
        return (StartProblem("device-unknown", f"{starting.container}: {error}", waits=False),)
    pod = node.pod(starting.pod)
    request = pod.request(starting.container.container) if pod else None
    start = _Start(starting, units, pod, request, node, by_devices(node.journal), policy)
    return tuple(
        StartProblem(
            rule,
            f"{starting.container}: {sentence}{'' if rule == _WAITING else _RECREATE}",
            rule == _WAITING,
        )
        for check in _CHECKS
        for rule, sentence in check(start)
    )


@dataclass(frozen=True, slots=True)
class _Start:
    """units: from UUID to the container's units there. request None: what it asks for is not
    known."""

    starting: ContainerDevices
    units: Mapping[str, int]
    pod: NodePod | None
    request: ContainerRequest | None
    node: StartContext
    noted: Mapping[frozenset[str], JournalEntry]
    policy: Policy

    @property
    def held(self) -> tuple[ContainerDevices, ...]:
        """What all containers hold, with the one that starts, which kubelet may not list."""
        listed = any(one.container == self.starting.container for one in self.node.held)
        return self.node.held if listed else (*self.node.held, self.starting)

    def is_here(self, uuid: str) -> bool:
        return any(gpu.uuid == uuid for gpu in self.node.gpus)

    def label(self, uuid: str) -> str:
        return next((gpu.label for gpu in self.node.gpus if gpu.uuid == uuid), uuid)

    def labels(self, uuids: Iterable[str]) -> str:
        return ", ".join(sorted(map(self.label, uuids)))

    def record(self, uuid: str) -> DomainRecord | None:
        return next((record for record in self.node.records if uuid in record.gpus), None)

    def given_at(self, one: ContainerDevices) -> float:
        """When its memory devices were given to this container; 0, before all others, where there
        is no entry."""
        entry = self.noted.get(frozenset(one.memory))
        return entry.at if entry else 0.0


_Checked = Iterator[tuple[str, str]]  # the rule's name, and the sentence


def _devices(start: _Start) -> _Checked:
    if gone := [uuid for uuid in start.units if not start.is_here(uuid)]:
        yield "device-gone", f"{' and '.join(gone)} no longer exists on this node"
    names = sorted({record.domain for uuid in start.units if (record := start.record(uuid))})
    if len(names) > 1:
        message = (
            f"its devices are of the domains {', '.join(names)}; a container must be in one domain"
        )
        yield "devices-of-domains", message
    if len(set(start.units.values())) > 1:
        yield "devices-uneven", f"it holds {spread(start.units)}, not the same number on each GPU"
    if start.request and start.units and start.request.gpus != len(start.units):
        asked = f"{start.request.gpus} GPUs (label {start.policy.resources.count})"
        yield "gpu-count", f"it requests {asked} but holds devices of {len(start.units)}"


def _given_twice(start: _Start) -> _Checked:
    """Kubelet may give devices twice: it forgets what it is about to give if it looks for ended
    pods meanwhile (UpdateAllocatedDevices of its pkg/kubelet/cm/devicemanager/manager.go). Of two
    pods with one device, the one that received it last is evicted."""
    own = set(start.starting.memory)
    last = start.given_at(start.starting)
    for one in start.node.held:
        twice = own.intersection(one.memory)
        if twice and one.pod != start.starting.pod and start.given_at(one) <= last:
            message = (
                f"kubelet has already allocated {len(twice)} of its devices to pod"
                f" {'/'.join(one.pod)}"
            )
            yield "devices-given-twice", message


def _wrong_amount(start: _Start) -> _Checked:
    held = sum(start.units.values())
    wanted = start.request.memory_units if start.request else 0
    if start.request and held not in (0, wanted):
        yield (
            "memory-amount",
            f"it holds {held} of {start.policy.resources.memory} but requests {wanted}",
        )


def _apart(start: _Start) -> _Checked:
    """A pod has one grant, on one GPU or on as many as its label says; every container has all of
    them."""
    for one in start.node.held:
        if one.pod != start.starting.pod or not start.units:
            continue
        try:
            there = frozenset(units_by_gpu(one.memory))
        except InvalidInput:
            continue
        if there and there != frozenset(start.units):
            name = one.container.container
            places = (
                f"it is on {start.labels(start.units)} and container {name} of its pod on"
                f" {start.labels(there)}"
            )
            yield "pod-on-two-gpus", f"{places}; all containers of a pod must be on the same GPUs"


def _percent_over(start: _Start) -> _Checked:
    """Of pods that together have too much of a GPU, only those that came last are at fault."""
    pod = start.starting.pod
    noted = (entry.resource == "percent" and entry.pod_key == pod for entry in start.node.journal)
    if not (any(one.percent for one in start.held if one.pod == pod) or any(noted)):
        return  # it reserves none
    domains = tuple(Domain(record.domain, record.gpus) for record in start.node.records)
    grants = pod_grants(start.held, start.node.journal, start.node.pods, domains, start.policy)
    own = next((grant for grant in grants if _pod_of(grant) == pod), None)
    if own is None or not own.reserved_percent:
        return
    most = start.policy.oversubscription.thread_percent
    last = _came(own, start)
    for uuid in start.units:
        before = [grant for grant in grants if uuid in grant.gpus and _came(grant, start) <= last]
        total = sum(grant.part_of(uuid).reserved_percent for grant in before)
        if total > most:
            total_is = (
                f"{total} percent of the threads of {start.label(uuid)} are reserved, more than"
                f" {most} percent"
            )
            yield "percent-over-gpu", f"with its pod's {own.reserved_percent} percent, {total_is}"


def _pod_of(grant: Grant) -> PodKey:
    # `pod_grants` makes none without a pod
    return (grant.pod.namespace, grant.pod.name) if grant.pod else ("", "")


def _came(grant: Grant, start: _Start) -> tuple[float, str, str]:
    """By when the pod received its devices; before all others where a container of it has no
    entry."""
    times = [start.given_at(one) for one in start.held if one.pod == _pod_of(grant) and one.memory]
    pod = start.node.pod(_pod_of(grant))
    return 0.0 if 0.0 in times else max(times, default=0.0), pod.created if pod else "", grant.id


def _other_limit(start: _Start) -> _Checked:
    """Allocate answers for the pod it expects, and two pods with equal requests can be mistaken for
    each other."""
    if start.request is None:
        return
    entries = [*map(start.noted.get, start.starting.sets)]
    answered = {
        entry.thread_percent for entry in entries if entry and entry.thread_percent is not None
    }
    asked = start.request.thread_percent
    wanted = start.policy.requests.default_thread_percent if asked is None else asked
    if others := " and ".join(f"{percent} percent" for percent in sorted(answered - {wanted})):
        yield (
            "percent-of-another",
            f"its threads were limited to {others} but it requests {wanted} percent",
        )
    elif None not in entries and entries and not answered:
        yield "percent-of-another", f"its threads were not limited but it requests {wanted} percent"


def _other_priority(start: _Start) -> _Checked:
    """The same of priorities. What was answered for this very pod stays, whatever its annotation
    says since."""
    entry = start.noted.get(frozenset(start.starting.memory))
    if (
        start.pod is None
        or entry is None
        or entry.priority is None
        or entry.answered_for == start.pod.uid
    ):
        return
    wanted = client_priority(start.pod.priority, start.policy.gpu_priority) or NORMAL
    if entry.priority != wanted:
        names = {NORMAL: "normal", BELOW_NORMAL: "below normal"}
        message = (
            f"it was given a GPU priority that is {names[entry.priority]}, but its own is"
            f" {names[wanted]}"
        )
        yield "priority-of-another", message


def _not_served(start: _Start) -> _Checked:
    for uuid in start.units:
        if start.record(uuid) is None and start.is_here(uuid):
            yield (
                _WAITING,
                (
                    f"{start.label(uuid)} has no control daemon yet; the container starts once it"
                    " has one"
                ),
            )
    for record in start.node.records:
        if not start.units.keys().isdisjoint(record.gpus) and record.state not in SERVING:
            why = f" ({record.reason})" if record.reason else ""
            yield (
                _WAITING,
                (
                    f"{record.domain} is {after_is(record.state)}{why}; the container starts once"
                    " it is ready"
                ),
            )


_CHECKS = (
    _devices,
    _given_twice,
    _wrong_amount,
    _apart,
    _percent_over,
    _other_limit,
    _other_priority,
    _not_served,
)
