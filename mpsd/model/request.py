"""What a pod asks for: its containers' requests for a share of a GPU, and every problem in them.

Two readings: `read_share` is strict, as admission is, and refuses what Kubernetes would refuse, but earlier: when a
file is explained, not when a Job makes pods. `read_allocated` is of pods that exist, as kubelet allocates for them.
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

# -- how much one request may ask for ----------------------------------------------------------------------------------
# It is refused here only if no GPU in the facts could ever hold it, or the policy forbids it.

PERCENT = QuantityUnit("percent", 30)
GPUS = QuantityUnit("GPUs", 2)


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What a container or a program asks for, over all of its GPUs, and where each number was written. percent: None
    when no share of the threads is asked for.
    """

    memory_units: int
    percent: int | None
    gpus: int
    memory_where: str
    percent_where: str


def each_mib(asked: GpuRequest, resources: Resources) -> int:
    return asked.memory_units * resources.memory_unit_mib // asked.gpus


def each_percent(asked: GpuRequest) -> int | None:
    """Percent of the threads of each of the GPUs; None when none is asked for."""
    return None if asked.percent is None else asked.percent // asked.gpus


def problems_with_asked(asked: GpuRequest, policy: Policy, facts: GpuFacts) -> Iterator[Problem]:
    """Every reason why no GPU could ever serve this."""
    yield from _memory(asked, policy, facts)
    if asked.percent is not None:
        yield from problems_with_percent(asked.percent, asked.gpus, asked.percent_where, policy)


def problems_with_percent(percent: int, gpus: int, where: str, policy: Policy) -> Iterator[Problem]:
    """Why a share of the threads cannot be, whatever memory is asked for beside it."""
    least, step = policy.requests.minimum_thread_percent * gpus, policy.requests.thread_percent_step * gpus
    most, over = 100 * gpus, f" over {gpus} GPUs" if gpus > 1 else ""
    if not least <= percent <= most:
        message = f"is not a share of the threads{over}: those are {least} to {most} percent"
        yield Problem("percent-range", where, str(percent), message, f"write {least} to {most}, in steps of {step}")
    elif percent % step:
        message, remedy = f"is not in steps of {step}{over}", _nearest(percent, step, least, most)
        yield Problem("percent-step", where, str(percent), message, remedy)


def _nearest(value: int, step: int, least: int, most: int) -> str:
    below = value - value % step
    return "write " + " or ".join(str(near) for near in (below, below + step) if least <= near <= most)


def _memory(asked: GpuRequest, policy: Policy, facts: GpuFacts) -> Iterator[Problem]:
    gpus, units = asked.gpus, asked.memory_units
    if units % gpus:
        message = f"{memory_unit(policy.resources.memory_unit_mib).name} cannot be divided evenly over {gpus} GPUs"
        nearest = _nearest(units, gpus, gpus, units + gpus)
        yield Problem("memory-uneven", asked.memory_where, str(units), message, nearest)
        return
    memory_mib = each_mib(asked, policy.resources)
    # A percentage that cannot be is a problem of its own; here the nearest that could be counts.
    percent = min(100, max(1, each_percent(asked) or policy.requests.default_thread_percent))
    if not any(room.context_mib(percent) < memory_mib <= room.mib for room in facts.rooms):
        yield _out_of_bounds(asked, memory_mib, percent, policy, facts)


def _out_of_bounds(asked: GpuRequest, memory_mib: int, percent: int, policy: Policy, facts: GpuFacts) -> Problem:
    """The problem with memory that no card has, or of which a CUDA context leaves nothing on any card."""
    where, value, gpus = asked.memory_where, str(asked.memory_units), asked.gpus
    unit_mib, each = policy.resources.memory_unit_mib, " on each GPU" if gpus > 1 else ""
    if not (large_enough := [room for room in facts.rooms if memory_mib <= room.mib]):
        largest = facts.largest_room
        most, unit = largest.mib // unit_mib, memory_unit(unit_mib).name
        which, whose = ("the", "") if len({card.name for card in facts.cards}) == 1 else ("any", ", the largest known,")
        message = f"is more than {which} GPU has{each}: {largest.card.name}{whose} has {most} {unit}"
        return Problem("memory-over-card", where, value, message, f"request at most {most * gpus}")
    cost_mib = min(room.context_mib(percent) for room in large_enough)
    least = (cost_mib // unit_mib + 1) * gpus
    message = f"is {memory_mib} MiB{each}, too small for a CUDA context, which takes at least {cost_mib} MiB"
    return Problem("memory-below-context", where, value, message, f"request {least} or more")


# No plugin chooses which devices kubelet uses again. Of those that init containers have held, the next container gets
# whichever come first in a Go map (devicesToAllocate of pkg/kubelet/cm/devicemanager/manager.go): where it needs fewer
# than there are and they lie on several GPUs, it gets more of one than of another, and cannot start so.


def taken_in_part(asked: Sequence[tuple[Role, int]]) -> tuple[int, int] | None:
    """The positions of an init container and of the first after it that gets a part of its devices; None for none.
    asked: the containers in the order in which kubelet allocates, each with the number of devices that it asks for.
    """
    holder, left = 0, 0
    for position, (role, units) in enumerate(asked):
        if 0 < units < left:
            return holder, position
        if role is Role.INIT and units:
            holder, left = position, units
        elif units:
            left = 0  # a container that goes on keeps what it has
    return None


_MOST_GPUS = 32  # GPUs that NVIDIA's driver takes in one machine: NV_MAX_DEVICES in its nvlimits.h
_LIMITS, _REQUESTS = ("resources", "limits"), ("resources", "requests")
_COUNT = re.compile(r"[1-9][0-9]?")


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container asks for. memory_units: as it was written, over all GPUs. memory_mib, thread_percent: on each
    of `gpus` GPUs. thread_percent: None asks for no share; the policy's default is then a cap, and nothing is reserved.
    thread_cap: where a claim may use more than it reserves; None where it may not. below_normal: a claim says so.
    """

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
        """MiB on each GPU that the pod holds when it holds most."""
        return _at_peak(self.requests, lambda request: request.memory_mib)

    @property
    def thread_percent(self) -> int:
        """Percent of each GPU's threads that are reserved for the pod when most are; 0 where it asks for no share."""
        return _at_peak(self.requests, lambda request: request.thread_percent or 0)


def client_limit(request: ContainerRequest, policy: Policy) -> ClientLimit:
    """The limit that each process of the container gets on each of its GPUs."""
    percent = request.thread_percent if request.thread_cap is None else request.thread_cap
    return ClientLimit(request.memory_mib, policy.requests.default_thread_percent if percent is None else percent)


def asks(container: Container, resources: Resources) -> bool:
    """Whether a container names anything of ours, well or badly."""
    names = {resources.memory, resources.percent, resources.count}
    return not names.isdisjoint(container.limits) or not names.isdisjoint(container.requests)


def asks_for_gpu(pod: Pod, resources: Resources) -> bool:
    return any(asks(container, resources) for container in pod.containers)


def read_allocated(pod: Pod, resources: Resources) -> PodRequest:
    """All that kubelet allocates for, whether or not admission would refuse it; problems: of numbers that are none.
    Such a number counts as 0, and where it is the number of GPUs, as 1.
    """
    count = gpu_count(pod, resources)
    gpus = 1 if isinstance(count, Problem) else count
    requests, problems = [], list[Problem]()
    for container in pod.containers:
        if container.limits.keys().isdisjoint((resources.memory, resources.percent)):
            continue
        found = {name: _limit(container, name, unit) for name, unit in _units(resources)}
        wrong = {name: one for name, one in found.items() if isinstance(one, Problem)}
        problems.extend(one for name, one in wrong.items() if not is_zero(container.limits[name]))
        units, percent = (one if isinstance(one, int) else 0 for one in found.values())
        if (units or percent) and container.role is not Role.EPHEMERAL:
            requests.append(_request(container, GpuRequest(units, percent or None, gpus, "", ""), resources))
    return PodRequest(tuple(requests), tuple(problems))


def _units(resources: Resources) -> tuple[tuple[str, QuantityUnit], tuple[str, QuantityUnit]]:
    return (resources.memory, memory_unit(resources.memory_unit_mib)), (resources.percent, PERCENT)


def _limit(container: Container, name: str, unit: QuantityUnit) -> int | Problem | None:
    """The number of one resource; None where the container's limits do not name it."""
    written = container.limits
    return whole_units(written[name], at(container.path, *_LIMITS, name), unit) if name in written else None


def read_share(pod: Pod, policy: Policy, facts: GpuFacts) -> PodRequest:
    """The requests of all containers of a pod, or every problem in them."""
    asking = [container for container in pod.containers if asks(container, policy.resources)]
    if not asking:
        return PodRequest((), ())
    gpus = gpu_count(pod, policy.resources)
    problems = [gpus] if isinstance(gpus, Problem) else []
    requests = []
    for container in asking:
        reading = _read(container, None if isinstance(gpus, Problem) else gpus, policy, facts)
        if isinstance(reading, ContainerRequest):
            requests.append(reading)
        else:
            problems.extend(reading)
    share = PodRequest(() if problems else tuple(requests), tuple(problems))
    return share if problems else replace(share, problems=tuple(_pod_problems(pod, share, policy, facts)))


def _read(
    container: Container, gpus: int | None, policy: Policy, facts: GpuFacts
) -> ContainerRequest | tuple[Problem, ...]:
    """One container's request, or its problems. gpus: None where the pod's label cannot be read."""
    names = policy.resources
    memory_where, percent_where = (at(container.path, *_LIMITS, name) for name in (names.memory, names.percent))
    problems = list(_faults(container, names))
    memory_units, percent = [_number(container, name, unit, problems) for name, unit in _units(names)]
    if gpus is not None and memory_units is not None:
        asked = GpuRequest(memory_units, percent, gpus, memory_where, percent_where)
        problems.extend(problems_with_asked(asked, policy, facts))
        return tuple(problems) or _request(container, asked, policy.resources)
    if gpus is not None and percent is not None:
        problems.extend(problems_with_percent(percent, gpus, percent_where, policy))
    return tuple(problems)


def gpu_count(pod: Pod, resources: Resources) -> int | Problem:
    """The number of GPUs that the pod's label divides its requests over; 1 without the label."""
    label = pod.labels.get(resources.count)
    if label is None:
        return 1
    where = at(pod.path, "metadata", "labels", resources.count)
    if not isinstance(label, str):
        message, remedy = "is not text, and every label is", 'write it in quotes, such as "2"'
        return Problem("label-not-text", where, shown(label), message, remedy)
    if not _COUNT.fullmatch(label) or int(label) > _MOST_GPUS:
        message, remedy = "is not a number of GPUs that one machine can have", f"write 1 to {_MOST_GPUS}"
        return Problem("gpu-count-malformed", where, shown(label), message, remedy)
    return int(label)


def _faults(container: Container, resources: Resources) -> Iterator[Problem]:
    """What is wrong with the way a container asks, whatever the numbers are."""
    named = container.limits.keys() | container.requests.keys()
    if container.role is Role.EPHEMERAL:
        where, message = at(container.path, "resources"), "an ephemeral container can ask for no resources"
        yield Problem("ephemeral-asks", where, "", message, "remove them; it sees the GPU of no other container")
    if resources.count in named:
        where, message = (
            at(container.path, *_LIMITS, resources.count),
            "is a label of the pod, and no resource to ask for",
        )
        remedy = f"write {resources.memory} here, and the number of GPUs under metadata.labels"
        yield Problem("count-is-a-label", where, "", message, remedy)
    if resources.percent in named and resources.memory not in named:
        where = at(container.path, *_LIMITS, resources.percent)
        message, remedy = "asks for threads of a GPU and for no memory", f"add {resources.memory} beside it"
        yield Problem("percent-without-memory", where, "", message, remedy)


def _number(container: Container, name: str, unit: QuantityUnit, problems: list[Problem]) -> int | None:
    """The number of one resource, as kubelet allocates it; None where there is no such number. Adds to `problems`."""
    limit = _limit(container, name, unit)
    if isinstance(limit, Problem):
        problems.append(limit)
        return None
    if name not in container.requests:  # which Kubernetes itself fills in from the limit
        return limit
    where, written = at(container.path, *_REQUESTS, name), container.requests[name]
    if limit is None:
        message = "is asked for under requests alone, which Kubernetes refuses for such a resource"
        problems.append(Problem("limit-missing", where, shown(written), message, "write it under limits instead"))
    elif isinstance(request := whole_units(written, where, unit), Problem):
        problems.append(request)
    elif request != limit:
        message = f"is not the limit, which is {limit}, and Kubernetes wants the two alike"
        problems.append(Problem("request-not-limit", where, str(request), message, "remove it; limits is enough"))
    return limit


def _request(container: Container, asked: GpuRequest, resources: Resources) -> ContainerRequest:
    memory_mib, percent = each_mib(asked, resources), each_percent(asked)
    return ContainerRequest(container.name, container.role, asked.memory_units, memory_mib, percent, asked.gpus)


def _pod_problems(pod: Pod, share: PodRequest, policy: Policy, facts: GpuFacts) -> Iterator[Problem]:
    """Why containers that could each be served cannot all be: a pod lives on one GPU, or on one set of them."""
    where = at(pod.path, "spec")
    promised = policy.oversubscription
    most_mib, remedy = facts.largest_room.mib * promised.memory_percent // 100, "request less, or use two pods"
    if (asked_mib := share.memory_mib) > most_mib:
        message = f"its containers ask for more of one GPU than any can promise, {most_mib} MiB"
        yield Problem("pod-memory-over-card", where, f"{asked_mib} MiB", message, remedy)
    if (percent := share.thread_percent) > (most := promised.thread_percent):
        message = f"its containers ask for more threads of one GPU than may be promised, {most} percent"
        yield Problem("pod-percent-over-gpu", where, f"{percent} percent", message, remedy)
    yield from _init_over_gpus(pod, share, policy.resources)


def _init_over_gpus(pod: Pod, share: PodRequest, resources: Resources) -> Iterator[Problem]:
    """Why kubelet cannot divide evenly, over several GPUs, what an init container leaves to the next container."""
    found = taken_in_part([(request.role, request.memory_units) for request in share.requests])
    if found is None or share.requests[0].gpus == 1:
        return
    init, later = (share.requests[position] for position in found)
    (container,) = (one for one in pod.containers if one.role is Role.INIT and one.name == init.container)
    message = (
        f"is more than container {later.container} asks after it, and of an init container's devices on {init.gpus} "
        f"GPUs kubelet gives the next one any, not as many of each"
    )
    remedy = f"request {later.memory_units} or less here, or for {init.memory_units} there"
    where = at(container.path, *_LIMITS, resources.memory)
    yield Problem("init-over-gpus", where, str(init.memory_units), message, remedy)


def _at_peak(requests: tuple[ContainerRequest, ...], amount: Callable[[ContainerRequest], int]) -> int:
    """What a pod holds at its peak, as Kubernetes counts. That is an init container beside the sidecars that started
    before it, or all main containers beside all sidecars.
    """
    sidecars = peak = 0
    for request in requests:
        if request.role is Role.SIDECAR:
            sidecars += amount(request)
        elif request.role is Role.INIT:
            peak = max(peak, sidecars + amount(request))
    return max(peak, sidecars + sum(amount(request) for request in requests if request.role is Role.MAIN))
