"""What a pod's containers ask of GPUs. `read_share` is strict, as admission is, and refuses what
Kubernetes would refuse, but earlier: when a file is explained, not when a Job makes pods.
`read_allocated` is of pods that exist, as kubelet allocates for them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from mpsd.model.client_limits import ClientLimit
from mpsd.model.container import Container, Role
from mpsd.model.fields import at
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.pod import Pod
from mpsd.model.policy import Policy, Resources
from mpsd.model.problem import Problem, shown
from mpsd.model.quantity import QuantityUnit, is_zero, memory_unit, whole_units

# -- how much one request may ask for
# It is refused here only if no GPU in the facts could ever hold it, or the policy forbids it.

PERCENT = QuantityUnit("percent", 30)
GPUS = QuantityUnit("GPUs", 2)


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What a container or a program asks for, over all of its GPUs, and where each number was
    written. percent: None when no share of the threads is asked for.
    """

    memory_units: int
    percent: int | None
    gpus: int
    memory_where: str = ""
    percent_where: str = ""

    def each_mib(self, resources: Resources) -> int:
        return self.memory_units * resources.memory_unit_mib // self.gpus

    @property
    def each_percent(self) -> int | None:
        return None if self.percent is None else self.percent // self.gpus


def problems_with_asked(asked: GpuRequest, policy: Policy, facts: GpuFacts) -> Iterator[Problem]:
    """Every reason why no GPU could ever serve this."""
    yield from _memory(asked, policy, facts)
    if asked.percent is not None:
        yield from problems_with_percent(asked.percent, asked.gpus, asked.percent_where, policy)


def problems_with_percent(percent: int, gpus: int, where: str, policy: Policy) -> Iterator[Problem]:
    """Why a share of the threads cannot be, whatever memory is asked for beside it."""
    least = policy.requests.minimum_thread_percent * gpus
    step = policy.requests.thread_percent_step * gpus
    most = 100 * gpus
    over = ""
    if gpus > 1:
        over = f" over {gpus} GPUs"
    if not least <= percent <= most:
        message = f"is not a share of the threads{over}: those are {least} to {most} percent"
        remedy = f"write {least} to {most}, in steps of {step}"
        yield Problem("percent-range", where, str(percent), message, remedy)
    elif percent % step:
        message = f"is not in steps of {step}{over}"
        remedy = _nearest(percent, step, least, most)
        yield Problem("percent-step", where, str(percent), message, remedy)


def _nearest(value: int, step: int, least: int, most: int) -> str:
    below = value - value % step
    near = [str(one) for one in (below, below + step) if least <= one <= most]
    return f"write {' or '.join(near)}"


def _memory(asked: GpuRequest, policy: Policy, facts: GpuFacts) -> Iterator[Problem]:
    gpus = asked.gpus
    units = asked.memory_units
    if units % gpus:
        message = (
            f"{memory_unit(policy.resources.memory_unit_mib).name} cannot be divided evenly over"
            f" {gpus} GPUs"
        )
        nearest = _nearest(units, gpus, gpus, units + gpus)
        yield Problem("memory-uneven", asked.memory_where, str(units), message, nearest)
        return
    memory_mib = asked.each_mib(policy.resources)
    # A percentage that cannot be is a problem of its own; here the nearest that could be counts.
    percent = min(100, max(1, asked.each_percent or policy.requests.default_thread_percent))
    if not any(room.context_mib(percent) < memory_mib <= room.mib for room in facts.rooms):
        yield _out_of_bounds(asked, memory_mib, percent, policy, facts)


def _out_of_bounds(
    asked: GpuRequest, memory_mib: int, percent: int, policy: Policy, facts: GpuFacts
) -> Problem:
    """Of memory that no card has, or of which a CUDA context leaves nothing on any."""
    where = asked.memory_where
    value = str(asked.memory_units)
    gpus = asked.gpus
    unit_mib = policy.resources.memory_unit_mib
    each = ""
    if gpus > 1:
        each = " on each GPU"
    large_enough = [room for room in facts.rooms if memory_mib <= room.mib]
    if not large_enough:
        largest = facts.largest_room
        most = largest.mib // unit_mib
        has = f"has {most} {memory_unit(unit_mib).name}"
        message = f"is more than any GPU has{each}: {largest.card.name}, the largest known, {has}"
        if len({card.name for card in facts.cards}) == 1:
            message = f"is more than the GPU has{each}: {largest.card.name} {has}"
        return Problem("memory-over-card", where, value, message, f"request at most {most * gpus}")
    cost_mib = min(room.context_mib(percent) for room in large_enough)
    least = (cost_mib // unit_mib + 1) * gpus
    message = (
        f"is {memory_mib} MiB{each}, too small for a CUDA context, which takes at least"
        f" {cost_mib} MiB"
    )
    return Problem("memory-below-context", where, value, message, f"request {least} or more")


# Of devices that init containers have held, the next container gets whichever come first in a Go
# map (devicesToAllocate of pkg/kubelet/cm/devicemanager/manager.go): where it needs fewer and they
# lie on several GPUs, it gets more of one than of another, and cannot start so.


def taken_in_part(asked: Sequence[tuple[Role, int]]) -> tuple[int, int] | None:
    """The positions of an init container and of the first after it that gets a part of its devices;
    None for none. asked: in the order in which kubelet allocates, with the number of devices.
    """
    holder = 0
    left = 0
    for position, (role, units) in enumerate(asked):
        if 0 < units < left:
            return holder, position
        if role is Role.INIT and units:
            holder = position
            left = units
        elif units:
            left = 0  # a container that goes on keeps what it has
    return None


_MOST_GPUS = 32  # GPUs that NVIDIA's driver takes in one machine: NV_MAX_DEVICES in its nvlimits.h
_LIMITS = ("resources", "limits")
_REQUESTS = ("resources", "requests")
_COUNT = re.compile(r"[1-9][0-9]?")


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """memory_units: as written, over all GPUs. memory_mib, thread_percent: on each of `gpus` GPUs.
    thread_percent: None asks for no share; the policy's default is then a cap, and nothing is
    reserved. thread_cap: where a claim may use more than it reserves; None where it may not.
    below_normal: a claim says so."""

    container: str
    role: Role
    memory_units: int
    memory_mib: int
    thread_percent: int | None
    gpus: int
    thread_cap: int | None = None
    below_normal: bool = False

    @property
    def percents(self) -> int:
        """Over all GPUs; 0 where no share is asked for."""
        return (self.thread_percent or 0) * self.gpus


@dataclass(frozen=True, slots=True)
class PodRequest:
    requests: tuple[ContainerRequest, ...]
    problems: tuple[Problem, ...]

    @property
    def memory_mib(self) -> int:
        """On each GPU, when the pod holds most."""
        return _at_peak(self.requests, lambda request: request.memory_mib)

    @property
    def thread_percent(self) -> int:
        """Of each GPU, when most is reserved; 0 where it asks for no share."""
        return _at_peak(self.requests, lambda request: request.thread_percent or 0)


def client_limit(request: ContainerRequest, policy: Policy) -> ClientLimit:
    """The limit that each process of the container gets on each of its GPUs."""
    default = policy.requests.default_thread_percent
    # neither is ever 0
    percent = request.thread_cap or request.thread_percent or default
    return ClientLimit(request.memory_mib, percent)


def asks(container: Container, resources: Resources) -> bool:
    """Whether a container names anything of mpsd's, well or badly."""
    names = {resources.memory, resources.percent, resources.count}
    return not names.isdisjoint((*container.limits, *container.requests))


def asks_for_gpu(pod: Pod, resources: Resources) -> bool:
    return any(asks(container, resources) for container in pod.containers)


def read_allocated(pod: Pod, resources: Resources) -> PodRequest:
    """All that kubelet allocates for, whether or not admission would refuse it. What is no number
    is a problem, and counts as 0, or as 1 GPU."""
    count = gpu_count(pod, resources)
    gpus = count if isinstance(count, int) else 1
    requests = []
    problems = []
    for container in pod.containers:
        if container.limits.keys().isdisjoint((resources.memory, resources.percent)):
            continue
        amounts = [0, 0]
        for position, (name, unit) in enumerate(_units(resources)):
            found = _limit(container, name, unit)
            if isinstance(found, int):
                amounts[position] = found
            elif found and not is_zero(container.limits[name]):
                problems.append(found)
        if any(amounts) and container.role is not Role.EPHEMERAL:
            asked = GpuRequest(amounts[0], amounts[1] or None, gpus)
            requests.append(_request(container, asked, resources))
    return PodRequest(tuple(requests), tuple(problems))


def _units(resources: Resources) -> tuple[tuple[str, QuantityUnit], tuple[str, QuantityUnit]]:
    return (resources.memory, memory_unit(resources.memory_unit_mib)), (resources.percent, PERCENT)


def _limit(container: Container, name: str, unit: QuantityUnit) -> int | Problem | None:
    """The number of one resource; None where the container's limits do not name it."""
    if name not in container.limits:
        return None
    return whole_units(container.limits[name], at(container.path, *_LIMITS, name), unit)


def read_share(pod: Pod, policy: Policy, facts: GpuFacts) -> PodRequest:
    """The requests of all containers of a pod, or every problem in them."""
    asking = [container for container in pod.containers if asks(container, policy.resources)]
    if not asking:
        return PodRequest((), ())
    problems: list[Problem] = []
    gpus: int | None = None
    count = gpu_count(pod, policy.resources)
    if isinstance(count, int):
        gpus = count
    else:
        problems.append(count)
    requests = [_read(container, gpus, policy, facts, problems) for container in asking]
    if problems:
        return PodRequest((), tuple(problems))
    share = PodRequest(tuple(filter(None, requests)), ())
    return replace(share, problems=tuple(_pod_problems(pod, share, policy, facts)))


def _read(
    container: Container, gpus: int | None, policy: Policy, facts: GpuFacts, problems: list[Problem]
) -> ContainerRequest | None:
    """One container's request, where nothing is wrong with it; else adds to `problems`. gpus: None
    where the pod's label cannot be read."""
    names = policy.resources
    problems.extend(_faults(container, names))
    memory_units = _number(container, names.memory, memory_unit(names.memory_unit_mib), problems)
    percent = _number(container, names.percent, PERCENT, problems)
    if gpus is None:
        return None
    percent_where = at(container.path, *_LIMITS, names.percent)
    if memory_units is not None:
        memory_where = at(container.path, *_LIMITS, names.memory)
        asked = GpuRequest(memory_units, percent, gpus, memory_where, percent_where)
        problems.extend(problems_with_asked(asked, policy, facts))
        return _request(container, asked, names)
    if percent is not None:
        problems.extend(problems_with_percent(percent, gpus, percent_where, policy))
    return None


def gpu_count(pod: Pod, resources: Resources) -> int | Problem:
    """The number of GPUs that the pod's label divides its requests over; 1 without the label."""
    label = pod.labels.get(resources.count)
    if label is None:
        return 1
    where = at(pod.path, "metadata", "labels", resources.count)
    if not isinstance(label, str):
        message = "is not text, and every label is"
        remedy = 'write it in quotes, such as "2"'
        return Problem("label-not-text", where, shown(label), message, remedy)
    if not _COUNT.fullmatch(label) or int(label) > _MOST_GPUS:
        message = "is not a number of GPUs that one machine can have"
        remedy = f"write 1 to {_MOST_GPUS}"
        return Problem("gpu-count-malformed", where, shown(label), message, remedy)
    return int(label)


def _faults(container: Container, resources: Resources) -> Iterator[Problem]:
    """What is wrong with the way a container asks, whatever the numbers are."""
    named = container.limits.keys() | container.requests.keys()
    if container.role is Role.EPHEMERAL:
        where = at(container.path, "resources")
        message = "an ephemeral container can ask for no resources"
        remedy = "remove them; it sees the GPU of no other container"
        yield Problem("ephemeral-asks", where, "", message, remedy)
    if resources.count in named:
        where = at(container.path, *_LIMITS, resources.count)
        message = "is a label of the pod, and no resource to ask for"
        remedy = f"write {resources.memory} here, and the number of GPUs under metadata.labels"
        yield Problem("count-is-a-label", where, "", message, remedy)
    if resources.percent in named and resources.memory not in named:
        where = at(container.path, *_LIMITS, resources.percent)
        message = "asks for threads of a GPU and for no memory"
        remedy = f"add {resources.memory} beside it"
        yield Problem("percent-without-memory", where, "", message, remedy)


def _number(
    container: Container, name: str, unit: QuantityUnit, problems: list[Problem]
) -> int | None:
    """The number of one resource, as kubelet allocates it, if any. Adds to `problems`."""
    limit = _limit(container, name, unit)
    if isinstance(limit, Problem):
        problems.append(limit)
        return None
    if name not in container.requests:  # which Kubernetes itself fills in from the limit
        return limit
    where = at(container.path, *_REQUESTS, name)
    written = container.requests[name]
    if limit is None:
        message = "is asked for under requests alone, which Kubernetes refuses for such a resource"
        remedy = "write it under limits instead"
        problems.append(Problem("limit-missing", where, shown(written), message, remedy))
        return None
    request = whole_units(written, where, unit)
    if isinstance(request, Problem):
        problems.append(request)
    elif request != limit:
        message = f"is not the limit, which is {limit}, and Kubernetes wants the two alike"
        remedy = "remove it; limits is enough"
        problems.append(Problem("request-not-limit", where, str(request), message, remedy))
    return limit


def _request(container: Container, asked: GpuRequest, resources: Resources) -> ContainerRequest:
    memory_mib = asked.each_mib(resources)
    return ContainerRequest(
        container.name,
        container.role,
        asked.memory_units,
        memory_mib,
        asked.each_percent,
        asked.gpus,
    )


def _pod_problems(
    pod: Pod, share: PodRequest, policy: Policy, facts: GpuFacts
) -> Iterator[Problem]:
    """Why containers that could each be served cannot be on one GPU, or one set of them."""
    where = at(pod.path, "spec")
    promised = policy.oversubscription
    most_mib = facts.largest_room.mib * promised.memory_percent // 100
    remedy = "request less, or use two pods"
    ask = "its containers ask for more"
    if share.memory_mib > most_mib:
        value = f"{share.memory_mib} MiB"
        message = f"{ask} of one GPU than any can promise, {most_mib} MiB"
        yield Problem("pod-memory-over-card", where, value, message, remedy)
    if share.thread_percent > (most := promised.thread_percent):
        value = f"{share.thread_percent} percent"
        message = f"{ask} threads of one GPU than may be promised, {most} percent"
        yield Problem("pod-percent-over-gpu", where, value, message, remedy)
    yield from _init_over_gpus(pod, share, policy.resources)


def _init_over_gpus(pod: Pod, share: PodRequest, resources: Resources) -> Iterator[Problem]:
    """Why kubelet cannot divide evenly what an init container leaves to the next."""
    found = taken_in_part([(request.role, request.memory_units) for request in share.requests])
    if found is None or share.requests[0].gpus == 1:
        return
    init, later = (share.requests[position] for position in found)
    named = {one.name: one for one in pod.containers if one.role is Role.INIT}
    message = (
        f"is more than container {later.container} asks after it, and of an init container's"
        f" devices on {init.gpus} GPUs kubelet gives the next one any, not as many of each"
    )
    remedy = f"request {later.memory_units} or less here, or for {init.memory_units} there"
    where = at(named[init.container].path, *_LIMITS, resources.memory)
    yield Problem("init-over-gpus", where, str(init.memory_units), message, remedy)


def _at_peak(
    requests: tuple[ContainerRequest, ...], amount: Callable[[ContainerRequest], int]
) -> int:
    """What a pod holds at its peak, as Kubernetes counts: an init container beside the sidecars
    that started before it, or all main containers beside all sidecars."""
    sidecars = mains = peak = 0
    for request in requests:
        if request.role is Role.SIDECAR:
            sidecars += amount(request)
        elif request.role is Role.INIT:
            peak = max(peak, sidecars + amount(request))
        elif request.role is Role.MAIN:
            mains += amount(request)
    return max(peak, sidecars + mains)
