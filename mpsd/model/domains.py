"""Which GPUs share a control daemon.

One rule: a GPU that the policy does not put beside others has a daemon to itself, so that a fault or a restart stays
with it, and a server's limit for ordinal 0 is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpsd.model.problem import InvalidInput, Problem

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.grants import Gpu
    from mpsd.model.policy import Policy


@dataclass(frozen=True, slots=True)
class Domain:
    """The GPUs (UUIDs, by ordinal) of one control daemon; its name is that of its folder, `gpu0` or `gpu2-3`."""

    name: str
    gpus: tuple[str, ...]


def domains(gpus: Sequence["Gpu"], policy: "Policy") -> tuple[Domain, ...]:
    """The domains of a node with these GPUs. InvalidInput where the policy names a GPU that is not there."""
    by_ordinal = {gpu.ordinal: gpu for gpu in gpus}
    problems = [
        Problem(
            "domain-gpu-missing",
            f"domains[{index}]",
            str(ordinal),
            f"is no GPU of this node, which has {len(gpus)}",
            "name ordinals that nvidia-smi -L lists",
        )
        for index, group in enumerate(policy.domains)
        for ordinal in group
        if ordinal not in by_ordinal
    ]
    if problems:
        raise InvalidInput("policy.yaml", problems)
    grouped = [tuple(sorted(group)) for group in policy.domains]
    alone = [(ordinal,) for ordinal in by_ordinal if not any(ordinal in group for group in grouped)]
    return tuple(
        Domain(name="gpu" + "-".join(map(str, ordinals)), gpus=tuple(by_ordinal[n].uuid for n in ordinals))
        for ordinals in sorted([*grouped, *alone])
    )
