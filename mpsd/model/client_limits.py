"""The limits that mpsd writes into a client's environment, in forms that were seen to work on real
hardware (`model.cuda_limit_parser` has the others), and which of them can be."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mpsd.model.cuda_limit_parser import (
    CLIENT_PRIORITY,
    MEMORY_LIMIT,
    PARTITIONING,
    PIPE_DIRECTORY,
    THREAD_PERCENT,
)
from mpsd.model.gpu_facts import Capability
from mpsd.model.pod import PRIORITY, PodPriority
from mpsd.model.policy import GpuPriority
from mpsd.model.problem import Problem, shown

NVIDIA_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
# the driver's libraries that a container gets
NVIDIA_DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
CUDA_CAPABILITIES = ("compute", "utility")  # MPS does not limit what others take (graphics, video)
DENY_MIB = 8  # a server limit that no context fits under; 0 would mean no limit at all


@dataclass(frozen=True, slots=True)
class ClientLimit:
    """Of one process on one GPU; MiB with its context. thread_percent: 1 to 100."""

    memory_mib: int
    thread_percent: int


def environment(
    limit: ClientLimit, pipe_directory: str, priority: int | None = None
) -> dict[str, str]:
    """The variables that hold a client to its limit, and to its priority if it has one. The one
    entry `0=` is right whichever GPU it got and however it narrows its devices: the ordinal counts
    the devices the process sees, and an entry for one it does not see would lift every limit."""
    variables = {
        PIPE_DIRECTORY: pipe_directory,
        MEMORY_LIMIT: f"0={limit.memory_mib}M",
        THREAD_PERCENT: str(limit.thread_percent),
        PARTITIONING: "0",
    }
    if priority is not None:
        variables[CLIENT_PRIORITY] = str(priority)
    return variables


_WRITTEN = re.compile(r"0=([1-9][0-9]{0,8})M ([1-9][0-9]?|100)")


def limit_in(variables: Mapping[str, str]) -> ClientLimit | None:
    """The limit that `environment` wrote there, if it is still there."""
    found = _WRITTEN.fullmatch(f"{variables.get(MEMORY_LIMIT)} {variables.get(THREAD_PERCENT)}")
    return ClientLimit(int(found[1]), int(found[2])) if found else None


def problems_with(
    limit: ClientLimit, where: str, capability: Capability, card_mib: int, sms: int
) -> Iterator[Problem]:
    """Why a client could not start, or would not be held, on a GPU of `card_mib` MiB."""
    percent = limit.thread_percent
    memory = f"{limit.memory_mib} MiB"
    if not 1 <= percent <= 100:
        message = "is no thread percentage"
        yield Problem("percent-range", where, str(percent), message, "write 1 to 100")
    cost_mib = capability.context_cost_mib(capability.sms_given(min(100, max(1, percent)), sms))
    if limit.memory_mib <= cost_mib:
        message = f"is too small for a CUDA context, which takes {cost_mib} MiB on this GPU"
        remedy = f"request more than {cost_mib} MiB, or fewer threads"
        yield Problem("memory-below-context", where, memory, message, remedy)
    if limit.memory_mib > card_mib:
        message = f"is more than the GPU's {card_mib} MiB"
        remedy = f"request at most {card_mib} MiB"
        yield Problem("memory-over-card", where, memory, message, remedy)


# -- priorities

# of CUDA_MPS_CLIENT_PRIORITY; who is below normal gets what the others leave
NORMAL = 0
BELOW_NORMAL = 1
# as people write them
PRIORITIES: Mapping[str, int] = {"normal": NORMAL, "below-normal": BELOW_NORMAL}


def client_priority(pod: PodPriority | None, policy: GpuPriority) -> int | None:
    """What the policy says of a pod, None where it is not known; None where it says nothing of
    any."""
    if policy.by == "none":
        return None
    if pod is None:
        return NORMAL
    if policy.by == "annotation":
        return PRIORITIES.get(pod.written or "", NORMAL)
    return BELOW_NORMAL if (pod.value or 0) < policy.below_normal_under else NORMAL


def priority_reason(pod: PodPriority, policy: GpuPriority) -> str:
    """Why the policy says that of it; empty where it says nothing of any."""
    match policy.by:
        case "none":
            return ""
        case "priority-class":
            under = f"under {policy.below_normal_under}, gpu_priority of the policy"
            if client_priority(pod, policy) == NORMAL:
                under = f"not {under}"
            return f"its priority {pod.value or 0} is {under}"
        case "annotation":
            written = "not set" if pod.written is None else shown(pod.written)
            return f"its annotation {PRIORITY} is {written}"


def priority_problem(written: object, where: str) -> Iterator[Problem]:
    """What is wrong with a priority that somebody has written there."""
    if not isinstance(written, str) or written not in PRIORITIES:
        remedy = f"write {' or '.join(PRIORITIES)}"
        yield Problem("priority-unknown", where, shown(written), "is no priority", remedy)
