"""The devices that kubelet hands out: one is a unit of one GPU's memory, or one percent of the threads of no GPU.

One rule: an id is a pure function of the GPU's UUID and a number, so it means the same after any restart or reboot, and
what is over after the last whole unit of a card has no id.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from mpsd.model.domain import State
from mpsd.model.grants import Gpu, promised_mib
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput, Problem, printable

PERCENT = "percent"  # stands where a memory device has its GPU
_ID = re.compile(r"(?P<of>.+)/(?P<number>0|[1-9][0-9]{0,8})", re.ASCII | re.DOTALL)
_SHOWN = 3  # of many wrong ids

# A domain that was ready and is on its way back keeps its devices: a pod that comes meanwhile waits for it in
# PreStartContainer, while one that finds no healthy device fails for good.
_STAYS_HEALTHY = frozenset({State.FAULT, State.STARTING, State.DOWN})


def memory_devices(gpus: Sequence[Gpu], policy: Policy) -> tuple[str, ...]:
    """`<UUID>/<n>` for every whole unit (policy.resources.memory_unit_mib) that each GPU may promise."""
    unit_mib = policy.resources.memory_unit_mib
    return tuple(f"{gpu.uuid}/{n}" for gpu in gpus for n in range(max(0, promised_mib(gpu, policy)) // unit_mib))


def percent_devices(gpus: Sequence[Gpu], policy: Policy) -> tuple[str, ...]:
    """`percent/<n>` for every percent of the threads that all GPUs together may promise."""
    return tuple(f"{PERCENT}/{n}" for n in range(policy.oversubscription.thread_percent * len(gpus)))


@lru_cache(maxsize=16_384)  # the same few thousand ids are asked about at every look
def _read(device_id: str) -> tuple[str, int] | None:
    """What an id is of, a UUID or PERCENT, and its number there; None for an id that is not ours."""
    found = _ID.fullmatch(device_id)
    return (found["of"], int(found["number"])) if found else None


def gpu_of(device_id: str) -> str | None:
    """The UUID of the GPU that a memory device is of; None for an id that is no memory device's."""
    found = _read(device_id)
    return found[0] if found and found[0] != PERCENT else None


def is_percent(device_id: str) -> bool:
    found = _read(device_id)
    return found is not None and found[0] == PERCENT


def number_of(device_id: str) -> int:
    """The number within its GPU, or among the percents; 0 for an id that is not ours."""
    found = _read(device_id)
    return found[1] if found else 0


def units_by_gpu(ids: Iterable[str]) -> dict[str, int]:
    """From UUID to the number of units there, in the order of their first ids. InvalidInput for ids not ours."""
    named = tuple(ids)
    gpus = [gpu_of(device_id) for device_id in named]
    wrong = tuple(device_id for device_id, gpu in zip(named, gpus, strict=True) if gpu is None)
    if wrong:
        raise InvalidInput("the devices", [not_ours(wrong)])
    return dict(Counter(gpu for gpu in gpus if gpu is not None))


def not_ours(wrong: Sequence[str]) -> Problem:
    """What to say of ids that mpsd never offered."""
    names = ", ".join(printable(device_id) for device_id in wrong[:_SHOWN])
    if len(wrong) > _SHOWN:
        names += f" and {len(wrong) - _SHOWN} more"
    message = "no device of this resource has such a name"
    remedy = "see that no other device plugin of this node registers the same resource"
    return Problem("device-unknown", names, "", message, remedy)


def healthy(state: State | None, was_ready: bool) -> bool:
    """Whether kubelet may give a GPU's devices to new pods. state None: its domain has no daemon yet.

    was_ready: the domain has been ready since the agent or the daemon began.
    """
    return state is State.READY or (was_ready and state in _STAYS_HEALTHY)
