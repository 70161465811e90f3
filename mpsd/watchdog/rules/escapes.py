"""What lifts a client's limits or raises its priority: its variables, and the context that it has
made. A variable replaced at run time shows in no environment, but what a context reserves grows
with its SMs (docs/mps-observed.md, section 13)."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mpsd.model import cuda_limit_parser as cuda
from mpsd.model.client_limits import BELOW_NORMAL
from mpsd.model.grants import Gpu, Grant
from mpsd.model.node_view import Client
from mpsd.model.problem import shown
from mpsd.model.violations import ViolationKind

# a context is being made for so long, and two scans of it must be further apart to count
RESERVED_APART_S = 0.1
_MIB = 1024**2
_TOLERANCE_MIB = 8  # of a context's memory; a context of 65 SMs is 99 MiB more than one of 38
_AS_SET = "start the program with the values that mpsd set"


@dataclass(frozen=True, slots=True)
class ClientBounds:
    """What holds a client. server_mib: its server's limit, the domain's largest grant. sees: the
    GPUs that its process sees, by UUID, before CUDA_VISIBLE_DEVICES."""

    grant: Grant
    server_mib: int
    sees: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Escape:
    """message: what the process does, by which variable or sign, and what it was given."""

    kind: ViolationKind
    message: str


def escapes(environment: Mapping[str, str], gpu: str, held: ClientBounds) -> tuple[Escape, ...]:
    """What in this environment lifts limits on this GPU (UUID), or raises the priority."""
    if why := environment.get(cuda.FORGED):
        message = f"lifts its limit: what it calls its environment is none: {why}"
        return (Escape(ViolationKind.LIMIT_LIFTED, message),)
    found = []
    lifted = "; ".join(
        filter(None, (_memory(environment, gpu, held), _threads(environment, held.grant)))
    )
    if lifted:
        found.append(Escape(ViolationKind.LIMIT_LIFTED, f"lifts its limit: {lifted}; {_AS_SET}"))
    if environment.get(cuda.PARTITIONING) == "1":
        what = f"{cuda.PARTITIONING}=1 lifts the server's thread percentage"
        message = f"lifts its limit: {what}; remove it from the program's environment"
        found.append(Escape(ViolationKind.PARTITIONING_ENABLED, message))
    value = environment.get(cuda.CLIENT_PRIORITY)
    if held.grant.priority == BELOW_NORMAL and cuda.client_priority_as_read(value) != BELOW_NORMAL:
        written = _written(cuda.CLIENT_PRIORITY, value)
        what = f"{written}, which is normal, and its grant is below normal"
        message = f"raises its priority: {what}; {_AS_SET}"
        found.append(Escape(ViolationKind.PRIORITY_RAISED, message))
    return tuple(found)


def _written(variable: str, value: str | None) -> str:
    if value is None:
        return f"{variable} is not set"
    return f"{variable} is {shown(value)}"


def _memory(environment: Mapping[str, str], gpu: str, held: ClientBounds) -> str:
    visible = cuda.visible_devices(environment.get(cuda.CUDA_VISIBLE_DEVICES), held.sees)
    if gpu not in visible:  # the meaning of its ordinals is unknown
        return ""
    value = environment.get(cuda.MEMORY_LIMIT)
    why = _lifting(value, visible, visible.index(gpu), held)
    if not why:
        return ""
    written = _written(cuda.MEMORY_LIMIT, value or None)
    return f"{written}: {why}; {held.grant.memory_mib} MiB are granted"


def _lifting(value: str | None, visible: Sequence[str], ordinal: int, held: ClientBounds) -> str:
    """Why this value holds its process to no less than it was granted, or empty."""
    # what runs keeps what it was started with
    granted_mib = max(held.grant.memory_mib, held.grant.earlier_mib)
    match cuda.memory_limit_as_read(value, visible):
        case cuda.Lifted(reason):
            return f"{reason}, so no limit applies, not even the server's"
        case cuda.Limited(by_ordinal) if ordinal in by_ordinal:
            if by_ordinal[ordinal] > granted_mib * _MIB:
                limit_mib = min(by_ordinal[ordinal] // _MIB, held.server_mib)
                return f"that exceeds its grant and allows {limit_mib} MiB"
        case cuda.Limited() if ordinal > 0:
            pass  # mpsd's names the first device alone: an entry for another could lift every limit
        case cuda.Unset() | cuda.Limited():
            if held.server_mib > granted_mib:
                return f"only the server's limit of {held.server_mib} MiB applies"
        case cuda.Unusable():
            pass  # no context can be made with it
    return ""


def _threads(environment: Mapping[str, str], grant: Grant) -> str:
    value = environment.get(cuda.THREAD_PERCENT)
    read = cuda.thread_percent_as_read(value)
    if read <= max(grant.thread_percent, grant.earlier_percent):
        return ""
    means = f"{_written(cuda.THREAD_PERCENT, value)}, which means {read:g} %"
    return f"{means}; {grant.thread_percent} % are granted"


# -- what a context shows

_FIRST = 0x2_0000_0000  # the address at which what contexts reserve begins
_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) (.{4}) [0-9a-f]+ \S+ [0-9]+ *(.*?)\n?", re.DOTALL)


def reserved_kib(mappings: Iterable[bytes]) -> int:
    """How much is reserved before a mapping of the driver's (/dev/nvidia0); 0 before there is a
    context. mappings: lines of /proc/PID/maps, read as far as needed."""
    reserved = end = 0
    for found in map(_MAPPING.fullmatch, mappings):
        if found is None:
            return 0
        start = int(found[1], 16)
        path = found[4]
        if reserved:  # this is the one behind it
            if start != end or not path.rpartition(b"/")[2].startswith(b"nvidia"):
                return 0
            return reserved // 1024
        if start >= _FIRST:
            if start != _FIRST or found[3] != b"---p" or path:
                return 0
            end = int(found[2], 16)
            reserved = end - start
    return 0


def most_sms(grant: Grant, gpu: Gpu) -> int:
    """That a context of its clients may be on: what runs keeps what it was started with."""
    return gpu.capability.sms_given(max(grant.thread_percent, grant.earlier_percent), gpu.sms)


def shows_lifted(grant: Grant, gpus: Mapping[str, Gpu]) -> bool:
    """Whether what contexts reserve could show more SMs than granted; never for several GPUs."""
    gpu = gpus.get(grant.gpus[0])
    if gpu is None or len(grant.parts) > 1:
        return False
    reserved_kib = gpu.capability.reserved_kib
    return reserved_kib(most_sms(grant, gpu)) < reserved_kib(gpu.sms)


def threads_lifted(client: Client, gpu: Gpu, grant: Grant) -> Iterator[Escape]:
    """Where its context is on more SMs than its share, and has the memory of such a one."""
    least = gpu.capability.least_sms(client.reserved_kib, gpu.sms)
    most = most_sms(grant, gpu)
    cost_mib = gpu.capability.context_cost_mib(least) - _TOLERANCE_MIB
    if least > most and client.used_mib is not None and client.used_mib >= cost_mib:
        what = f"its context is on {least} SMs of {gpu.label} or more"
        given = f"{grant.thread_percent} % of them are {most}"
        remedy = f"do not set {cuda.THREAD_PERCENT} in the program"
        message = f"lifts its limit: {what}, and {given}; {remedy}"
        yield Escape(ViolationKind.THREADS_LIFTED, message)
