"""What lifts a client's limits, or raises its priority: the variables that it was started with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpsd.model import cuda_limit_parser as cuda
from mpsd.model.client_limits import BELOW_NORMAL
from mpsd.model.grants import Grant
from mpsd.model.problem import shown
from mpsd.model.violations import ViolationKind

_MIB = 1024**2
_AS_SET = "start the program with the values that mpsd set"


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What holds a client. grant: its own. server_mib: the limit of its server, which is the domain's largest grant.
    sees: the UUIDs of the GPUs that its process can see, before CUDA_VISIBLE_DEVICES narrows them."""

    grant: Grant
    server_mib: int
    sees: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Escape:
    """message: what the process does, by which variable or what else tells it, and what it was given."""

    kind: ViolationKind
    message: str


def escapes(environment: Mapping[str, str], gpu: str, held: ClientLimits) -> tuple[Escape, ...]:
    """What lifts the limits of a client with this environment on the GPU with this UUID, or raises its priority; empty
    where nothing does."""
    found = []
    if lifted := "; ".join(filter(None, (_memory(environment, gpu, held), _threads(environment, held.grant)))):
        found.append(Escape(ViolationKind.LIMIT_LIFTED, f"lifts its limit: {lifted}; {_AS_SET}"))
    if environment.get(cuda.PARTITIONING) == "1":
        what = f"{cuda.PARTITIONING}=1 lifts the server's thread percentage; remove it from the program's environment"
        found.append(Escape(ViolationKind.PARTITIONING_ENABLED, f"lifts its limit: {what}"))
    value = environment.get(cuda.CLIENT_PRIORITY)
    if held.grant.priority == BELOW_NORMAL and cuda.client_priority_as_read(value) != BELOW_NORMAL:
        what = f"{cuda.CLIENT_PRIORITY} {_written(value)}, which is normal, and its grant is below normal"
        found.append(Escape(ViolationKind.PRIORITY_RAISED, f"raises its priority: {what}; {_AS_SET}"))
    return tuple(found)


def _written(value: str | None) -> str:
    return f"is {shown(value)}" if value is not None else "is not set"


def _memory(environment: Mapping[str, str], gpu: str, held: ClientLimits) -> str:
    visible = cuda.visible_devices(environment.get(cuda.CUDA_VISIBLE_DEVICES), held.sees)
    if gpu not in visible:  # it sees other GPUs than is known here, so the meaning of its ordinals is unknown
        return ""
    value = environment.get(cuda.MEMORY_LIMIT)
    written = f"is {shown(value)}" if value else "is not set"
    why = _lifting(value, visible, visible.index(gpu), held)
    return f"{cuda.MEMORY_LIMIT} {written}: {why}; {held.grant.memory_mib} MiB are granted" if why else ""


def _lifting(value: str | None, visible: Sequence[str], ordinal: int, held: ClientLimits) -> str:
    """Why this value holds its process to no less than it was granted, or empty."""
    granted_mib = max(held.grant.memory_mib, held.grant.earlier_mib)  # what runs keeps what it was started with
    match cuda.memory_limit_as_read(value, visible):
        case cuda.Lifted(reason):
            return f"{reason}, so no limit applies, not even the server's"
        case cuda.Limited(bytes_by_ordinal) if ordinal in bytes_by_ordinal:
            limit_mib = min(bytes_by_ordinal[ordinal] // _MIB, held.server_mib)
            more = bytes_by_ordinal[ordinal] > granted_mib * _MIB
            return f"that exceeds its grant and allows {limit_mib} MiB" if more else ""
        case cuda.Limited() if ordinal > 0:
            return ""  # what mpsd writes names the first device alone: an entry for another could lift every limit
        case cuda.Unset() | cuda.Limited():
            more = held.server_mib > granted_mib
            return f"only the server's limit of {held.server_mib} MiB applies" if more else ""
        case cuda.Unusable():
            return ""  # no context can be made with it


def _threads(environment: Mapping[str, str], grant: Grant) -> str:
    value = environment.get(cuda.THREAD_PERCENT)
    read = cuda.thread_percent_as_read(value)
    if read <= max(grant.thread_percent, grant.earlier_percent):
        return ""
    return f"{cuda.THREAD_PERCENT} {_written(value)}, which means {read:g} %; {grant.thread_percent} % are granted"
