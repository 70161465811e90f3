"""The checks before a container starts on the devices it holds, which Allocate could not make.

What cannot be known (no journal since a reboot, no answer of the API) is no problem; nor is a GPU
other than the scheduler chose, since kubelet's choice stands.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mpsd.kubelet.rules.allocation import kind_of, misplaced, units_by_gpu
from mpsd.kubelet.rules.ledger import (
    NO_ENTRY,
    ContainerDevices,
    JournalEntry,
    by_devices,
    pod_grants,
)
from mpsd.kubelet.rules.node_pods import ContainerName, NodePod, PodKey, devices_of
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
    """rule: its stable name. waits: kubelet is to retry; else the pod is to be evicted."""

    rule: str
    sentence: str
    waits: bool


@dataclass(frozen=True, slots=True)
class StartContext:
    """What a start is checked against. held: of all containers of the node. journal: of this boot.
    pods: those that ask for a GPU, as far as known."""

    gpus: tuple[Gpu, ...]
    records: tuple[DomainRecord, ...]
    held: tuple[ContainerDevices, ...]
    journal: tuple[JournalEntry, ...]
    pods: tuple[NodePod, ...]

    def pod(self, key: PodKey) -> NodePod | None:
        return next((pod for pod in self.pods if pod.key == key), None)

    def request(self, name: ContainerName) -> ContainerRequest | None:
        """None where it is not known what this container asks for."""
        pod = self.pod(name.pod_key)
        if pod is None:
            return None
        return pod.request(name.container)


def starting_container(ids: tuple[str, ...], node: StartContext) -> ContainerDevices | None:
    """The container that kubelet is about to start with these devices of one resource; None where
    it is not known. Kubelet does not list init containers, whose devices later containers of the
    pod use again."""
    wanted = frozenset(ids)
    if not wanted:
        return None
    overlapping = [one for one in node.held if not wanted.isdisjoint((*one.memory, *one.percent))]
    exact = [one for one in overlapping if wanted in one.sets]
    name = by_devices(node.journal).get(wanted, NO_ENTRY).pod
    if exact:  # where kubelet has given them twice, the last entry counts
        return next((one for one in exact if one.container == name), exact[0])
    if overlapping and (name is None or name.pod_key != overlapping[0].pod):
        name = _asking_for_as_many(ids, overlapping[0].container, node)
    if name is None:
        return None
    # with those of the other resource that the journal has for it
    held: dict[str, tuple[str, ...]] = {}
    for entry in sorted(node.journal, key=lambda entry: entry.at):
        if entry.pod == name:
            held[entry.resource] = entry.ids
    held[kind_of(ids[0])] = ids
    return ContainerDevices(name, **held)


def _asking_for_as_many(
    ids: tuple[str, ...], later: ContainerName, node: StartContext
) -> ContainerName:
    """`later` where no container of the pod does."""
    if pod := node.pod(later.pod_key):
        for request in pod.requests:
            if devices_of(request, kind_of(ids[0])) == len(ids):
                return pod.container(request)
    return later


def start_problems(
    starting: ContainerDevices, node: StartContext, policy: Policy
) -> tuple[StartProblem, ...]:
    """Every reason why this container may not start; () where it may."""
    name = starting.container
    try:
        units = units_by_gpu(starting.memory)
    except InvalidInput as error:
        return (StartProblem("device-unknown", f"{name}: {error}", waits=False),)
    start = _Start(starting, units, node.request(name), node, by_devices(node.journal), policy)
    found: list[StartProblem] = []
    for check in _CHECKS:
        for rule, sentence in check(start):
            waits = rule == _WAITING
            remedy = "" if waits else _RECREATE
            found.append(StartProblem(rule, f"{name}: {sentence}{remedy}", waits))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Start:
    """units: from UUID to the container's units there. request None: what it asks for is not
    known."""

    starting: ContainerDevices
    units: Mapping[str, int]
    request: ContainerRequest | None
    node: StartContext
    noted: Mapping[frozenset[str], JournalEntry]
    policy: Policy

    @property
    def held(self) -> tuple[ContainerDevices, ...]:
        """What all containers hold, with the one that starts, which kubelet may not list."""
        if any(one.container == self.starting.container for one in self.node.held):
            return self.node.held
        return (*self.node.held, self.starting)

    def is_here(self, uuid: str) -> bool:
        return any(gpu.uuid == uuid for gpu in self.node.gpus)

    def label(self, uuid: str) -> str:
        return next((gpu.label for gpu in self.node.gpus if gpu.uuid == uuid), uuid)

    def labels(self, uuids: Iterable[str]) -> str:
        return ", ".join(sorted(map(self.label, uuids)))

    def record(self, uuid: str) -> DomainRecord | None:
        return next((record for record in self.node.records if uuid in record.gpus), None)

    def given_at(self, one: ContainerDevices) -> float:
        """When it was given its memory devices; 0, before all others, without an entry."""
        return self.noted.get(frozenset(one.memory), NO_ENTRY).at


_Checked = Iterator[tuple[str, str]]  # the rule's name, and the sentence


def _devices(start: _Start) -> _Checked:
    if gone := [uuid for uuid in start.units if not start.is_here(uuid)]:
        yield "device-gone", f"{' and '.join(gone)} no longer exists on this node"
    names = sorted({record.domain for record in map(start.record, start.units) if record})
    yield from misplaced(start.units, names, "it holds")
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
            pod = "/".join(one.pod)
            message = f"kubelet has already allocated {len(twice)} of its devices to pod {pod}"
            yield "devices-given-twice", message


def _wrong_amount(start: _Start) -> _Checked:
    held = sum(start.units.values())
    if start.request and held not in (0, start.request.memory_units):
        of = start.policy.resources.memory
        message = f"it holds {held} of {of} but requests {start.request.memory_units}"
        yield "memory-amount", message


def _apart(start: _Start) -> _Checked:
    """A pod has one grant; every container has all of its GPUs."""
    for one in start.node.held:
        if one.pod != start.starting.pod or not start.units:
            continue
        try:
            there = frozenset(units_by_gpu(one.memory))
        except InvalidInput:
            continue
        if there and there != frozenset(start.units):
            here = f"it is on {start.labels(start.units)}"
            other = f"container {one.container.container} of its pod on {start.labels(there)}"
            same = "all containers of a pod must be on the same GPUs"
            yield "pod-on-two-gpus", f"{here} and {other}; {same}"


def _percent_over(start: _Start) -> _Checked:
    """Of pods that together have too much of a GPU, only those that came last are at fault."""
    domains = tuple(Domain(record.domain, record.gpus) for record in start.node.records)
    grants = pod_grants(start.held, start.node.journal, start.node.pods, domains, start.policy)
    own = next((grant for grant in grants if _pod_of(grant) == start.starting.pod), None)
    if own is None or not own.reserved_percent:
        return
    most = start.policy.oversubscription.thread_percent
    last = _came(own, start)
    for uuid in start.units:
        before = [grant for grant in grants if uuid in grant.gpus and _came(grant, start) <= last]
        total = sum(grant.part_of(uuid).reserved_percent for grant in before)
        if total > most:
            its = f"with its pod's {own.reserved_percent} percent, {total} percent of the threads"
            more = f"of {start.label(uuid)} are reserved, more than {most} percent"
            yield "percent-over-gpu", f"{its} {more}"


def _pod_of(grant: Grant) -> PodKey:
    assert grant.pod, "`pod_grants` makes none without a pod"
    return grant.pod.namespace, grant.pod.name


def _came(grant: Grant, start: _Start) -> tuple[float, str, str]:
    """When the pod had its devices; before all others where a container has no entry."""
    key = _pod_of(grant)
    times = [start.given_at(one) for one in start.held if one.pod == key and one.memory]
    last = max(times, default=0.0)
    if 0.0 in times:
        last = 0.0
    created = next((pod.created for pod in start.node.pods if pod.key == key), "")
    return last, created, grant.id


def _other_limit(start: _Start) -> _Checked:
    """Allocate may have mistaken two pods with equal requests for each other."""
    if start.request is None:
        return
    entries = [start.noted.get(ids, NO_ENTRY) for ids in start.starting.sets]
    answered = {one.thread_percent for one in entries if one.thread_percent is not None}
    wanted = start.request.thread_percent
    if wanted is None:
        wanted = start.policy.requests.default_thread_percent
    others = " and ".join(f"{percent} percent" for percent in sorted(answered - {wanted}))
    if not others and entries and not answered and NO_ENTRY not in entries:
        yield "percent-of-another", f"its threads were not limited but it requests {wanted} percent"
    if others:
        message = f"its threads were limited to {others} but it requests {wanted} percent"
        yield "percent-of-another", message


def _other_priority(start: _Start) -> _Checked:
    """What was answered for this very pod stays, whatever its annotation says since."""
    entry = start.noted.get(frozenset(start.starting.memory), NO_ENTRY)
    pod = start.node.pod(start.starting.pod)
    if pod is None or entry.priority is None or entry.answered_for == pod.uid:
        return
    wanted = client_priority(pod.priority, start.policy.gpu_priority) or NORMAL
    if entry.priority != wanted:
        names = {NORMAL: "normal", BELOW_NORMAL: "below normal"}
        given = f"it was given a GPU priority that is {names[entry.priority]}"
        yield "priority-of-another", f"{given}, but its own is {names[wanted]}"


def _not_served(start: _Start) -> _Checked:
    for uuid in start.units:
        if start.record(uuid) is None and start.is_here(uuid):
            why = f"{start.label(uuid)} has no control daemon yet"
            yield _WAITING, f"{why}; the container starts once it has one"
    for record in start.node.records:
        if not start.units.keys().isdisjoint(record.gpus) and record.state not in SERVING:
            why = f"{record.domain} is {after_is(record.state)}"
            if record.reason:
                why += f" ({record.reason})"
            yield _WAITING, f"{why}; the container starts once it is ready"


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
