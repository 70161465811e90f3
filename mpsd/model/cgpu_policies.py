"""cGPU's compute policies, and what mpsd does instead on MPS, which has no weights and no time
slices."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class ThreadCap(StrEnum):
    """The cap on the part of a card's threads that a container may use."""

    WHOLE = "none"
    EQUAL = "1/max_inst"
    WEIGHT = "weight/max_inst"


@dataclass(frozen=True, slots=True)
class ComputePolicy:
    """A row. means: what cGPU does. on_mps: what mpsd does instead, and why."""

    number: int
    name: str
    means: str
    share: ThreadCap
    on_mps: str


NATIVE = 5
WEIGHTED = 2

_ROWS = (
    ComputePolicy(
        0,
        "equal",
        "time slices of equal length: each container gets 1/max_inst of the time",
        ThreadCap.EQUAL,
        "a cap of 1/max_inst of the SMs, which the ledger reserves, in place of time slices, which"
        " MPS does not have; it is set when a program makes its context",
    ),
    ComputePolicy(
        1,
        "preemptive",
        "time slices; those of containers that do not use the GPU are skipped",
        ThreadCap.WHOLE,
        "no cap: programs run at the same time, and what one leaves idle the others use; nothing"
        " makes their parts equal, because MPS has no time slices",
    ),
    ComputePolicy(
        WEIGHTED,
        "weighted preemptive",
        "slices as long as ALIYUN_COM_GPU_SCHD_WEIGHT: containers get m:n",
        ThreadCap.WHOLE,
        "no cap, and the weight only counts towards max_inst: MPS has no weights, so programs that"
        " run at the same time do not get m:n; alone, a container has the whole card, as in cGPU",
    ),
    ComputePolicy(
        3,
        "fixed share",
        "weight/max_inst of the time, whoever else runs",
        ThreadCap.WEIGHT,
        "a cap of weight/max_inst of the SMs, which the ledger reserves, in place of time; it is"
        " set when a program makes its context",
    ),
    ComputePolicy(
        4,
        "weak",
        "time slices, held less strictly than in policy 1",
        ThreadCap.WHOLE,
        "no cap, as for policy 1: MPS has no time slices to hold more or less strictly",
    ),
    ComputePolicy(
        NATIVE,
        "native",
        "memory only; the driver schedules",
        ThreadCap.WHOLE,
        "no cap: programs run at the same time through MPS, where the driver alone would take"
        " turns",
    ),
)
POLICIES: Mapping[int, ComputePolicy] = {row.number: row for row in _ROWS}
# max_inst: of more than that, the share of one would be less than 1 %, the least that MPS has
MOST_INSTANCES = 100


def policy_for(weight: int, own: int) -> ComputePolicy:
    """Of a container on a card whose policy is `own`: a weight over 1 selects the weighted one,
    unless the card's is a share by weight."""
    if weight > 1 and POLICIES[own].share is not ThreadCap.WEIGHT:
        return POLICIES[WEIGHTED]
    return POLICIES[own]


def percent_of(share: ThreadCap, weight: int, max_inst: int | None) -> int:
    """The cap that a share comes to, 1 to 100; over 100 where the weight is more than max_inst.
    max_inst: not None where the share is a part of it."""
    if share is ThreadCap.WHOLE or max_inst is None:
        return 100
    parts = weight if share is ThreadCap.WEIGHT else 1
    return max(1, 100 * parts // max_inst)
