"""How much one request may ask for: what the policy allows and some GPU could give.

One rule: a request is refused here only if no GPU in the facts could ever hold it, or the policy says no.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.policy import Policy
from mpsd.model.problem import Problem
from mpsd.model.quantity import Unit, memory_unit

PERCENT = Unit("percent", 30)
GPUS = Unit("GPUs", 2)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a container or a program asks for, over all of its GPUs, and where each number was written.

    percent: None when no share of the threads is asked for.
    """

    memory_units: int
    percent: int | None
    gpus: int
    memory_where: str
    percent_where: str


def each_mib(asked: Asked, policy: Policy) -> int:
    """MiB on each of the GPUs."""
    return asked.memory_units * policy.resources.memory_unit_mib // asked.gpus


def each_percent(asked: Asked) -> int | None:
    """Percent of the threads of each of the GPUs; None when none is asked for."""
    return None if asked.percent is None else asked.percent // asked.gpus


def problems_with_asked(asked: Asked, policy: Policy, facts: GpuFacts) -> tuple[Problem, ...]:
    """Every reason why no GPU could ever serve this."""
    percent = (
        () if asked.percent is None else problems_with_percent(asked.percent, asked.gpus, asked.percent_where, policy)
    )
    return (*_memory(asked, policy, facts), *percent)


def problems_with_percent(percent: int, gpus: int, where: str, policy: Policy) -> Iterator[Problem]:
    """Why a share of the threads cannot be, whatever memory is asked for beside it."""
    least, step = policy.requests.minimum_thread_percent * gpus, policy.requests.thread_percent_step * gpus
    most, over = 100 * gpus, f" over {gpus} GPUs" if gpus > 1 else ""
    if not least <= percent <= most:
        message = f"is not a share of the threads{over}: those are {least} to {most} percent"
        remedy = f"write {least} to {most}, in steps of {step}"
        yield Problem("percent-range", where, str(percent), message, remedy)
    elif percent % step:
        message, remedy = f"is not in steps of {step}{over}", _nearest(percent, step, least, most)
        yield Problem("percent-step", where, str(percent), message, remedy)


def _nearest(value: int, step: int, least: int, most: int) -> str:
    """The remedy for a value between two steps."""
    below = value - value % step
    return "write " + " or ".join(str(near) for near in (below, below + step) if least <= near <= most)


def _memory(asked: Asked, policy: Policy, facts: GpuFacts) -> Iterator[Problem]:
    if asked.memory_units % asked.gpus:
        yield _uneven(asked, policy)
        return
    memory_mib = each_mib(asked, policy)
    # A percentage that cannot be is a problem of its own; here the nearest that could be counts.
    percent = min(100, max(1, each_percent(asked) or policy.requests.default_thread_percent))
    if not any(room.context_mib(percent) < memory_mib <= room.mib for room in facts.rooms):
        yield _out_of_bounds(asked, memory_mib, percent, policy, facts)


def _uneven(asked: Asked, policy: Policy) -> Problem:
    unit, gpus = memory_unit(policy.resources.memory_unit_mib).name, asked.gpus
    message = f"{unit} cannot be divided evenly over {gpus} GPUs"
    remedy = _nearest(asked.memory_units, gpus, gpus, asked.memory_units + gpus)
    return Problem("memory-uneven", asked.memory_where, str(asked.memory_units), message, remedy)


def _out_of_bounds(asked: Asked, memory_mib: int, percent: int, policy: Policy, facts: GpuFacts) -> Problem:
    """What is said of memory that no card has, or that no card's context leaves anything of."""
    where, value, gpus = asked.memory_where, str(asked.memory_units), asked.gpus
    unit_mib, each = policy.resources.memory_unit_mib, " on each GPU" if gpus > 1 else ""
    large_enough = [room for room in facts.rooms if memory_mib <= room.mib]
    if not large_enough:
        largest = facts.largest_room
        most, unit = largest.mib // unit_mib, memory_unit(unit_mib).name
        message = f"is more than any GPU has{each}: {largest.card.name}, the largest known, has {most} {unit}"
        return Problem("memory-over-card", where, value, message, f"ask for at most {most * gpus}")
    cost_mib = min(room.context_mib(percent) for room in large_enough)
    least = (cost_mib // unit_mib + 1) * gpus
    message = f"is {memory_mib} MiB{each} and does not hold a CUDA context, which takes {cost_mib} MiB at least"
    return Problem("memory-below-context", where, value, message, f"ask for {least} or more")
