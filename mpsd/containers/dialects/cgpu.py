"""cGPU: shares of a card in GiB, a list for several cards, and a compute policy.

One rule: bytes are card x CONTAINER / DEV, rounded down; a 0 anywhere in the list turns it off, as 1,0,0 does.
"""

from collections.abc import Mapping, Sequence

from mpsd.containers.dialects.names import CONTAINER, DEV, WEIGHT
from mpsd.containers.dialects.request import (
    LONGEST_TEXT,
    MIB,
    Dialect,
    DialectShare,
    Off,
    Reading,
    Words,
    request_of,
    whole,
)
from mpsd.model.cgpu_policies import ThreadCap, percent_of, policy_for
from mpsd.model.grants import Gpu
from mpsd.model.policy import CardCompute, Compute
from mpsd.model.problem import printable

_WRITE_DEV = "write the card's size in GiB, such as 15"


def why_off(environment: Mapping[str, str]) -> str | None:
    """Why no share is asked for: not set, 0, or a list of numbers with a 0 in it. None where one is asked for."""
    text = environment.get(CONTAINER)
    if text is None:
        return f"{CONTAINER} is not set"
    parts = [whole(part) for part in text[:LONGEST_TEXT].split(",")]
    is_off = len(text) <= LONGEST_TEXT and None not in parts and 0 in parts
    return f"{CONTAINER}={printable(text)} turns cGPU off" if is_off else None


def size_gib(gpu: Gpu) -> int:
    """What DEV is where it is not set: the card's size in GiB, rounded up, as eGPU's document has it."""
    return -(-gpu.memory_mib // 1024)


def read_cgpu(environment: Mapping[str, str], machine: Sequence[Gpu], compute: Compute) -> Reading:
    """What the environment asks in cGPU's words."""
    if off := why_off(environment):
        return Off(off)
    words = Words(environment)
    parts = words.numbers(CONTAINER, "write GiB for all cards, such as 6, or for each, such as 3,4,5,6")
    dev = words.number(DEV, _WRITE_DEV)
    weight = words.number(WEIGHT, "write 1 or more; above 1 it selects the weighted policy")
    gpus = words.gpus(machine)
    if gpus and len(parts) > len(gpus):
        message = f"has {len(parts)} values for {len(gpus)} card{'' if len(gpus) == 1 else 's'}"
        words.wrong("too-many-values", CONTAINER, environment[CONTAINER], message, "write at most one a card")
    _check_weight(words, weight, gpus, compute)
    each = (*parts, *parts[-1:] * (len(gpus) - len(parts)))  # the last value is that of all further cards
    return request_of(
        Dialect.CGPU,
        tuple(
            _written(gpu, gpu.memory_mib * MIB * part // (dev or size_gib(gpu)), weight, compute.of(gpu.ordinal))
            for gpu, part in zip(gpus, each, strict=False)
            if words.are_right(CONTAINER, DEV)
        ),
        words.problems,
    )


def _written(gpu: Gpu, memory_bytes: int, weight: int | None, compute: CardCompute) -> DialectShare:
    policy = policy_for(weight or 1, compute.policy)
    percent = percent_of(policy.share, weight or 1, compute.max_inst)
    return DialectShare(
        gpu=gpu,
        memory_bytes=memory_bytes,
        thread_percent=min(100, percent),
        reserved_percent=0 if policy.share is ThreadCap.WHOLE else percent,
        where=CONTAINER,
        weight=weight,
        policy=policy.number,
        differs=(f"policy {policy.number}, {policy.name}: {policy.on_mps}",),
    )


def _check_weight(words: Words, weight: int | None, gpus: Sequence[Gpu], compute: Compute) -> None:
    """Wrong where it is more than all parts of a card."""
    for gpu in gpus:
        max_inst = compute.of(gpu.ordinal).max_inst
        if weight is not None and max_inst is not None and weight > max_inst:
            message = f"is more than max_inst of {gpu.label}, which is {max_inst}"
            words.wrong("weight-over-card", WEIGHT, str(weight), message, f"write 1 to {max_inst}")
