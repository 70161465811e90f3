"""How much one request may ask for: what the policy allows and some GPU could give.

One rule: a request is refused here only if no GPU in the facts could ever hold it, or the policy says no.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mpsd.core.gpu_facts import Card, GpuFacts
from mpsd.core.policy import Policy
from mpsd.core.problem import Problem
from mpsd.core.quantity import Unit, memory_unit

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


def room_mib(card: Card, facts: GpuFacts) -> int:
    """MiB that one client can have of an empty card: what CUDA can use, less what the MPS server holds."""
    capability = facts.capability(card.compute_capability)
    return max(0, card.memory_mib - (capability.server_mib if capability else 0))


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
    unit_mib, gpus = policy.resources.memory_unit_mib, asked.gpus
    where, value = asked.memory_where, str(asked.memory_units)
    unit, each = memory_unit(unit_mib).name, " on each GPU" if gpus > 1 else ""
    if asked.memory_units % gpus:
        message = f"{unit} cannot be divided evenly over {gpus} GPUs"
        remedy = _nearest(asked.memory_units, gpus, gpus, asked.memory_units + gpus)
        yield Problem("memory-uneven", where, value, message, remedy)
        return
    memory_mib = each_mib(asked, policy)
    large_enough = [card for card in facts.cards if room_mib(card, facts) >= memory_mib]
    if not large_enough:
        largest = facts.largest_card
        most = room_mib(largest, facts) // unit_mib
        message = f"is more than any GPU has{each}: {largest.name}, the largest known, has {most} {unit}"
        yield Problem("memory-over-card", where, value, message, f"ask for at most {most * gpus}")
        return
    cost_mib = min(_context_mib(asked, card, policy, facts) for card in large_enough)
    if memory_mib <= cost_mib:
        least = (cost_mib // unit_mib + 1) * gpus
        message = f"is {memory_mib} MiB{each} and does not hold a CUDA context, which takes {cost_mib} MiB at least"
        yield Problem("memory-below-context", where, value, message, f"ask for {least} or more")


def _context_mib(asked: Asked, card: Card, policy: Policy, facts: GpuFacts) -> int:
    """What a context of this request takes on this card; its threads are counted as the policy could allow them."""
    capability = facts.capability(card.compute_capability)
    if capability is None:  # GpuFacts does not load without a row for every card
        return 0
    percent = each_percent(asked) or policy.requests.default_thread_percent
    return capability.context_cost_mib(capability.sms_given(min(100, max(1, percent)), card.sms))
