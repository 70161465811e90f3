"""The limits that mpsd writes into a client's environment, and which of them can be.

Only the forms that were seen to work on real hardware are written (`model.cuda_limit_parser` has the others).
"""

from dataclasses import dataclass

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT, PARTITIONING, PIPE_DIRECTORY, THREAD_PERCENT
from mpsd.model.gpu_facts import Capability
from mpsd.model.problem import Problem

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"


DENY_MIB = 8  # a server limit that no context fits under; 0 would mean no limit at all


@dataclass(frozen=True, slots=True)
class ClientLimit:
    """What one process may have of one GPU: MiB (context included) and active-thread percentage, 1 to 100."""

    memory_mib: int
    thread_percent: int


def environment(limit: ClientLimit, pipe_directory: str) -> dict[str, str]:
    """The variables that hold a client to its limit.

    The one entry `0=` is right for every client, whichever GPU it got and however it narrows its devices: the ordinal
    counts the devices the process sees, and an entry for one it does not see would lift every limit.
    """
    return {
        PIPE_DIRECTORY: pipe_directory,
        MEMORY_LIMIT: f"0={limit.memory_mib}M",
        THREAD_PERCENT: str(limit.thread_percent),
        PARTITIONING: "0",
    }


def problems_with(
    limit: ClientLimit, where: str, capability: Capability, card_mib: int, sms: int
) -> tuple[Problem, ...]:
    """Why a client could not start, or would not be held, under this limit on a GPU of `card_mib` MiB and `sms` SMs."""
    problems = []
    if not 1 <= limit.thread_percent <= 100:
        problems.append(
            Problem("percent-range", where, str(limit.thread_percent), "is no thread percentage", "write 1 to 100")
        )
    cost_mib = capability.context_cost_mib(capability.sms_given(min(100, max(1, limit.thread_percent)), sms))
    if limit.memory_mib <= cost_mib:
        problems.append(
            Problem(
                "memory-below-context",
                where,
                f"{limit.memory_mib} MiB",
                f"does not hold a CUDA context, which takes {cost_mib} MiB on this GPU",
                f"ask for more than {cost_mib} MiB, or for fewer threads",
            )
        )
    if limit.memory_mib > card_mib:
        problems.append(
            Problem(
                "memory-over-card",
                where,
                f"{limit.memory_mib} MiB",
                f"is more than the GPU's {card_mib} MiB",
                f"ask for at most {card_mib} MiB",
            )
        )
    return tuple(problems)
