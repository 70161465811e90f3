"""What the environment that a client was started with lifts of its limits.

One rule: libcuda's own reading counts (`model.cuda_limit_parser`), and only what is known is judged: the environment is
what a process began with, and what it sets itself afterwards shows nowhere. So what is used decides, and this warns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpsd.model.cuda_limit_parser import (
    MEMORY_LIMIT,
    PARTITIONING,
    THREAD_PERCENT,
    VISIBLE_DEVICES,
    Lifted,
    Limited,
    Unset,
    Unusable,
    memory_limit_as_read,
    thread_percent_as_read,
    visible_devices,
)
from mpsd.model.grants import Grant
from mpsd.model.problem import shown
from mpsd.model.violations import Kind

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Held:
    """What holds a client. grant: its own. server_mib: the limit of its server, which is the domain's largest grant.

    sees: the UUIDs of the GPUs that its process can see, before CUDA_VISIBLE_DEVICES narrows them.
    """

    grant: Grant
    server_mib: int
    sees: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Escape:
    """kind: LIMIT_LIFTED or PARTITIONING_ENABLED. message: which variable does it, its value, and what it was given."""

    kind: Kind
    message: str


def escapes(environment: Mapping[str, str], gpu: str, held: Held) -> tuple[Escape, ...]:
    """What lifts the limits of a client with this environment on the GPU with this UUID; empty where nothing does."""
    lifted = [why for why in (_memory(environment, gpu, held), _threads(environment, held.grant)) if why]
    found = [Escape(Kind.LIMIT_LIFTED, f"{'; '.join(lifted)}; leave it as the program was given it")] if lifted else []
    if environment.get(PARTITIONING) == "1":
        what = f"{PARTITIONING}=1 lifts the server's thread percentage; take it out of the program's environment"
        found.append(Escape(Kind.PARTITIONING_ENABLED, what))
    return tuple(found)


def _memory(environment: Mapping[str, str], gpu: str, held: Held) -> str:
    visible = visible_devices(environment.get(VISIBLE_DEVICES), held.sees)
    if gpu not in visible:  # it sees other GPUs than is known here, so nobody can say what its ordinals mean
        return ""
    value = environment.get(MEMORY_LIMIT)
    said = f"{MEMORY_LIMIT} is {shown(value)}" if value else f"{MEMORY_LIMIT} is not set"
    why = _lifting(value, visible, visible.index(gpu), held)
    return f"{said}: {why}; it was granted {held.grant.memory_mib} MiB" if why else ""


def _lifting(value: str | None, visible: Sequence[str], ordinal: int, held: Held) -> str:
    """Why this value holds its process to no less than it was granted, or empty."""
    granted_mib = max(held.grant.memory_mib, held.grant.earlier_mib)  # what runs keeps what it was started with
    match memory_limit_as_read(value, visible):
        case Lifted(reason):
            return f"{reason}, so that it has no limit at all, not even the server's"
        case Limited(bytes_by_ordinal) if ordinal in bytes_by_ordinal:
            limit_mib = min(bytes_by_ordinal[ordinal] // _MIB, held.server_mib)
            more = bytes_by_ordinal[ordinal] > granted_mib * _MIB
            return f"that is more than its grant, and lets it have {limit_mib} MiB" if more else ""
        case Limited() if ordinal > 0:
            return ""  # what mpsd writes names the first device alone: an entry for another could lift every limit
        case Unset() | Limited():
            more = held.server_mib > granted_mib
            return f"only the server's limit of {held.server_mib} MiB holds it" if more else ""
        case Unusable():
            return ""  # no context can be made with it


def _threads(environment: Mapping[str, str], grant: Grant) -> str:
    value = environment.get(THREAD_PERCENT)
    if thread_percent_as_read(value) <= max(grant.thread_percent, grant.earlier_percent):
        return ""
    said = f"is {shown(value)}" if value is not None else "is not set"
    read = f"{thread_percent_as_read(value):g}"
    return f"{THREAD_PERCENT} {said}, which counts as {read} %; it was granted {grant.thread_percent} %"
