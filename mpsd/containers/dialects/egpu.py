"""eGPU: a main switch, memory in bytes or by proportion, and a percentage of the threads.

One rule: without AMP_VGPU_ENABLE=1 nothing is changed, whatever else is written.
"""

from collections.abc import Mapping, Sequence

from mpsd.containers.dialects.cgpu import size_gib
from mpsd.containers.dialects.names import BYTES, CONTAINER, DEV, PERCENT, RESERVED, SWITCH
from mpsd.containers.dialects.request import MIB, Dialect, DialectShare, Off, Reading, Words, request_of
from mpsd.model.grants import Gpu
from mpsd.model.problem import shown

SWITCHED_ON = "1"
_RESERVED_MIB = 10  # where it is not set
_LARGEST_PERCENT = 95  # over it compute is not controlled

_CAPPED = (
    f"{PERCENT} caps the SMs that a program may use, where eGPU counts time; it is set when a program makes its context"
)


def why_off(environment: Mapping[str, str]) -> str | None:
    """Why nothing is changed; None where the switch is on."""
    switch = environment.get(SWITCH)
    if switch == SWITCHED_ON:
        return None
    return f"{SWITCH} is not set" if switch is None else f"{SWITCH} is {shown(switch)}, not {SWITCHED_ON}"


def read_egpu(environment: Mapping[str, str], machine: Sequence[Gpu]) -> Reading:
    """What the environment asks in eGPU's words."""
    if off := why_off(environment):
        return Off(off)
    words = Words(environment)
    size_bytes = words.number(BYTES, "write bytes, such as 5000000000")
    container = words.number(CONTAINER, "write the container's part, such as 5")
    dev = words.number(DEV, "write the card's size in the same unit, such as 16")
    reserved_mib = words.number(RESERVED, f"write MB, such as {_RESERVED_MIB}", least=0)
    percent = words.number(PERCENT, f"write 1 to {_LARGEST_PERCENT}, or 0 for no cap", least=0) or 0
    if BYTES in environment and CONTAINER in environment:
        message = f"and {CONTAINER} both say how much memory"
        words.wrong("memory-twice", BYTES, environment[BYTES], message, "leave one of them out")
    if DEV in environment and CONTAINER not in environment:
        message = f"says what a card has, and {CONTAINER} does not say how much of it"
        words.wrong("share-unsaid", DEV, environment[DEV], message, f"set {CONTAINER}, or leave {DEV} out")
    capped = 0 < percent <= _LARGEST_PERCENT
    if not (words.problems or size_bytes or container or capped):
        return Off(f"{SWITCH}=1, with no limit of memory and none of compute")
    gpus = words.gpus(machine)
    kept_bytes = (_RESERVED_MIB if reserved_mib is None else reserved_mib) * MIB

    def memory_bytes(gpu: Gpu) -> int | None:
        if container:
            return gpu.memory_mib * MIB * container // (dev or size_gib(gpu)) - kept_bytes
        return size_bytes - kept_bytes if size_bytes else None

    return request_of(
        Dialect.EGPU,
        tuple(
            DialectShare(
                gpu=gpu,
                memory_bytes=memory_bytes(gpu),
                thread_percent=percent if capped else 100,
                reserved_percent=percent if capped else 0,
                where=CONTAINER if container else BYTES if size_bytes else PERCENT,
                differs=(_CAPPED,) if capped else (),
            )
            for gpu in gpus
            if words.are_right(BYTES, CONTAINER, DEV, RESERVED)
        ),
        words.problems,
    )
