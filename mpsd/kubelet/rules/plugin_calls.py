"""What kubelet has called the device plugin for, and what came of it.

One rule: every call and outcome is told from the beginning, so that the first one is seen as an increase.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from mpsd.model.metrics import Durations

HELD_BACK_S = 360.0  # kubelet tries a start that was refused again after 5 minutes at most


class Call(StrEnum):
    """In kubelet's words."""

    PREFER = "GetPreferredAllocation"
    ALLOCATE = "Allocate"
    PRE_START = "PreStartContainer"


class CallOutcome(StrEnum):
    """REFUSED: for good, by what was asked. HELD_BACK: for now; kubelet asks again. LATE: no answer was found in time.

    FAILED: by a fault of mpsd's own; its log says which.
    """

    ANSWERED = "answered"
    REFUSED = "refused"
    HELD_BACK = "held-back"
    LATE = "late"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PluginCalls:
    """Since the agent began. held_back: containers that may not start as kubelet last heard."""

    counts: Mapping[tuple[Call, CallOutcome], int]
    times: Mapping[Call, Durations]
    held_back: int
