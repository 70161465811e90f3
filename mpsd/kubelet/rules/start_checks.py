"""Why a container may not start on the devices it holds: the check that Allocate could not make.

One rule: what is wrong for good is told from what passes by itself, because the first ends the pod and the second
only makes it wait. What cannot be known (no journal since a reboot, no word from the API) is no reason; nor is a GPU
other than a scheduler chose, since what kubelet gave wins where it holds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mpsd.kubelet.rules.allocation import JournalEntry, spread
from mpsd.kubelet.rules.devices import is_percent, units_by_gpu
from mpsd.kubelet.rules.journal import by_devices
from mpsd.kubelet.rules.node_pods import ContainerName, NodePod, memory_units, percents
from mpsd.kubelet.rules.pod_grants import ContainerDevices, pod_grants
from mpsd.model.domain import SERVING, Domain, after_is
from mpsd.model.grants import Gpu, Grant
from mpsd.model.node_view import DomainRecord
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput
from mpsd.model.request import ContainerRequest

_ANEW = "the pod has to be made anew"


@dataclass(frozen=True, slots=True)
class StartProblem:
    """One reason. rule: its stable name. waits: kubelet is to try again; else the pod is to be evicted."""

    rule: str
    sentence: str
    waits: bool


@dataclass(frozen=True, slots=True)
class StartContext:
    """Everything that a start is held against. held: of all containers of the node. journal: of this boot.

    records: one a domain that `mpsd control` has; pods: those of this node that ask for a GPU, as far as is known.
    """

    gpus: tuple[Gpu, ...]
    records: tuple[DomainRecord, ...]
    held: tuple[ContainerDevices, ...]
    journal: tuple[JournalEntry, ...]
    pods: tuple[NodePod, ...]

    def pod(self, namespace: str, name: str) -> NodePod | None:
        """The pod of this name; None where nobody has said that there is one."""
        return next((pod for pod in self.pods if (pod.namespace, pod.name) == (namespace, name)), None)


def starting_container(ids: tuple[str, ...], node: StartContext) -> ContainerDevices | None:
    """The container that kubelet is about to start with these devices of one resource; None where nobody knows.

    kubelet's PodResources leave out init containers, whose devices later containers of the pod use again.
    """
    wanted = frozenset(ids)
    if not wanted:
        return None
    overlapping = [one for one in node.held if not wanted.isdisjoint((*one.memory, *one.percent))]
    exact = [one for one in overlapping if wanted in (frozenset(one.memory), frozenset(one.percent))]
    if exact:
        last = by_devices(node.journal).get(wanted)  # where kubelet has given them twice, its second word counts
        return next((one for one in exact if last and one.container == last.pod), exact[0])
    name = _init_container(ids, overlapping[0] if overlapping else None, node)
    return _as_noted(name, ids, node) if name else None


def _init_container(ids: tuple[str, ...], later: ContainerDevices | None, node: StartContext) -> ContainerName | None:
    """later: a container of the same pod that uses some of these devices again, as kubelet says."""
    entry = by_devices(node.journal).get(frozenset(ids))
    noted = entry.pod if entry else None
    if later is None or (noted and (noted.namespace, noted.pod) == later.pod):
        return noted
    pod = node.pod(*later.pod)
    amount = percents if is_percent(ids[0]) else memory_units
    asking = (request for request in pod.requests if amount(request) == len(ids)) if pod else ()
    return next((pod.container(request) for request in asking if pod), later.container)


def _as_noted(name: ContainerName, ids: tuple[str, ...], node: StartContext) -> ContainerDevices:
    """The container with these devices, and those of the other resource that the journal has for it."""
    other = "memory" if is_percent(ids[0]) else "percent"
    noted = [entry for entry in node.journal if entry.pod == name and entry.resource == other]
    rest = max(noted, key=lambda entry: entry.at).ids if noted else ()
    return ContainerDevices(name, rest, ids) if other == "memory" else ContainerDevices(name, ids, rest)


def start_problems(starting: ContainerDevices, node: StartContext, policy: Policy) -> tuple[StartProblem, ...]:
    """Every reason why this container may not start; none where it may."""
    try:
        units = units_by_gpu(starting.memory)
    except InvalidInput as error:
        return (StartProblem("device-unknown", f"{starting.container}: {error}", waits=False),)
    pod = node.pod(*starting.pod)
    request = pod.request(starting.container.container) if pod else None
    start = _Start(starting, units, pod, request, node, by_devices(node.journal), policy)
    return tuple(
        StartProblem(check.rule, f"{starting.container}: {sentence}", check.waits)
        for check in _CHECKS
        for sentence in check.sentences(start)
    )


@dataclass(frozen=True, slots=True)
class _Start:
    """units: from UUID to the container's units there. request None: nobody has said what it asks for."""

    starting: ContainerDevices
    units: Mapping[str, int]
    pod: NodePod | None
    request: ContainerRequest | None
    node: StartContext
    noted: Mapping[frozenset[str], JournalEntry]
    policy: Policy

    @property
    def held(self) -> tuple[ContainerDevices, ...]:
        """What everybody holds, with the container that starts, which kubelet may not list."""
        listed = any(one.container == self.starting.container for one in self.node.held)
        return self.node.held if listed else (*self.node.held, self.starting)

    def label(self, uuid: str) -> str:
        return next((gpu.label for gpu in self.node.gpus if gpu.uuid == uuid), uuid)

    def labels(self, uuids: Iterable[str]) -> str:
        return ", ".join(sorted(map(self.label, uuids)))

    def record(self, uuid: str) -> DomainRecord | None:
        return next((record for record in self.node.records if uuid in record.gpus), None)


def _gone(start: _Start) -> Iterator[str]:
    here = {gpu.uuid for gpu in start.node.gpus}
    gone = [uuid for uuid in start.units if uuid not in here]
    if gone:
        yield f"its {' and '.join(gone)} is no GPU of this node any more; {_ANEW}"


def _of_two_domains(start: _Start) -> Iterator[str]:
    names = sorted({record.domain for uuid in start.units if (record := start.record(uuid))})
    if len(names) > 1:
        yield f"its devices are of the domains {', '.join(names)}, and a container lies in one; {_ANEW}"


def _uneven(start: _Start) -> Iterator[str]:
    if len(set(start.units.values())) > 1:
        yield f"it holds {spread(start.units)}, which is not the same of each GPU; {_ANEW}"


def _wrong_number(start: _Start) -> Iterator[str]:
    if start.request and start.units and start.request.gpus != len(start.units):
        label = start.policy.resources.count
        yield f"it lies on {len(start.units)} GPUs and asks for {start.request.gpus} (label {label}); {_ANEW}"


def _given_twice(start: _Start) -> Iterator[str]:
    """Kubelet forgets what it is about to give where it looks for ended pods meanwhile, and gives it again.

    UpdateAllocatedDevices of its pkg/kubelet/cm/devicemanager/manager.go, which every question to its PodResources and
    every Allocate begins with. Of two pods that have a device, the one that was given it last is at fault.
    """
    own, last = set(start.starting.memory), _given_at(start.starting, start)
    for one in start.node.held:
        twice = own.intersection(one.memory)
        if twice and one.pod != start.starting.pod and _given_at(one, start) <= last:
            namespace, name = one.pod
            yield f"kubelet has given {len(twice)} of its devices to pod {namespace}/{name} before; {_ANEW}"


def _given_at(one: ContainerDevices, start: _Start) -> float:
    """When its memory devices were given to this container; before all others where nobody has written it down."""
    entry = start.noted.get(frozenset(one.memory))
    return entry.at if entry else 0.0


def _wrong_amount(start: _Start) -> Iterator[str]:
    held = sum(start.units.values())
    if start.request and held and held != start.request.memory_units:
        resource = start.policy.resources.memory
        yield f"it holds {held} of {resource} and asks for {start.request.memory_units}; {_ANEW}"


def _apart(start: _Start) -> Iterator[str]:
    """A pod has one grant, on one GPU or on as many as its label says; every container has all of them."""
    for one in start.node.held:
        if one.pod != start.starting.pod or not start.units:
            continue
        try:
            there = frozenset(units_by_gpu(one.memory))
        except InvalidInput:
            continue
        if there and there != frozenset(start.units):
            name = one.container.container
            yield (
                f"it lies on {start.labels(start.units)}, and container {name} of the pod on "
                f"{start.labels(there)}; a pod lies on one GPU, so {_ANEW}"
            )


def _percent_over(start: _Start) -> Iterator[str]:
    """Of pods that together have too much of a GPU, only those that came last are at fault."""
    grants = _grants(start)
    own = next((grant for grant in grants if _pod_of(grant) == start.starting.pod), None)
    if own is None or not own.reserved_percent:
        return
    most, last = start.policy.oversubscription.thread_percent, _came(own, start)
    for uuid in start.units:
        before = [grant for grant in grants if uuid in grant.gpus and _came(grant, start) <= last]
        total = sum(grant.part_of(uuid).reserved_percent for grant in before)
        if total > most:
            yield (
                f"with its pod's {own.reserved_percent} percent, {total} percent of the threads of "
                f"{start.label(uuid)} are promised, and {most} may be; {_ANEW}"
            )


def _grants(start: _Start) -> tuple[Grant, ...]:
    domains = tuple(Domain(record.domain, record.gpus) for record in start.node.records)
    return pod_grants(start.held, start.node.journal, start.node.pods, domains, start.policy)


def _pod_of(grant: Grant) -> tuple[str, str]:
    if grant.pod is None:  # `pod_grants` makes no such grant
        return "", ""
    return grant.pod.namespace, grant.pod.name


def _came(grant: Grant, start: _Start) -> tuple[float, str, str]:
    """When the pod was given its devices; before all others where nobody has written it down."""
    holding = [one for one in start.held if one.pod == _pod_of(grant) and one.memory]
    entries = [start.noted.get(frozenset(one.memory)) for one in holding]
    at = 0.0 if None in entries else max((entry.at for entry in entries if entry), default=0.0)
    pod = start.node.pod(*_pod_of(grant))
    return at, pod.created if pod else "", grant.id


def _other_limit(start: _Start) -> Iterator[str]:
    """Allocate answers the pod it expects, and two pods that ask for equal amounts can be taken for each other."""
    if start.request is None:
        return
    devices = start.starting
    entries = [start.noted.get(frozenset(ids)) for ids in (devices.memory, devices.percent) if ids]
    said = {entry.thread_percent for entry in entries if entry and entry.thread_percent is not None}
    asked = start.request.thread_percent
    wanted = start.policy.requests.default_thread_percent if asked is None else asked
    if said - {wanted}:
        others = " and ".join(f"{percent} percent" for percent in sorted(said - {wanted}))
        yield f"its threads were limited to {others}, and it asks for {wanted} percent; {_ANEW}"
    elif None not in entries and entries and not said:
        yield f"its threads were given no limit, and it asks for {wanted} percent; {_ANEW}"


def _not_served(start: _Start) -> Iterator[str]:
    here = {gpu.uuid for gpu in start.node.gpus}
    for uuid in start.units:
        record = start.record(uuid)
        if record is None and uuid in here:
            yield f"{start.label(uuid)} has no control daemon yet; it starts as soon as there is one"
    for record in start.node.records:
        if not start.units.keys().isdisjoint(record.gpus) and record.state not in SERVING:
            why = f" ({record.reason})" if record.reason else ""
            yield f"{record.domain} is {after_is(record.state)}{why}; it starts as soon as {record.domain} is ready"


@dataclass(frozen=True, slots=True)
class _Check:
    rule: str
    sentences: Callable[[_Start], Iterator[str]]
    waits: bool = False


_CHECKS = (
    _Check("device-gone", _gone),
    _Check("devices-of-domains", _of_two_domains),
    _Check("devices-uneven", _uneven),
    _Check("gpu-count", _wrong_number),
    _Check("devices-given-twice", _given_twice),
    _Check("memory-amount", _wrong_amount),
    _Check("pod-on-two-gpus", _apart),
    _Check("percent-over-gpu", _percent_over),
    _Check("percent-of-another", _other_limit),
    _Check("domain-not-ready", _not_served, waits=True),
)
