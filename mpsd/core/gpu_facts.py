"""Facts about hardware: the shape of `limits/gpus.yaml`, and the arithmetic that follows from them.

One rule: a number about hardware lives in that file with its source, never here.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from mpsd.core.policy import STRICT

Count = Annotated[int, Field(ge=1)]
ComputeCapability = Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9]$")]


@dataclass(frozen=True, slots=True, config=STRICT)
class Capability:
    """What MPS does on a GPU of one compute capability."""

    compute_capability: ComputeCapability
    clients: Count
    cores_per_sm: Count
    context_base_mib: Annotated[int, Field(ge=0)]
    context_per_sm_kib: Annotated[int, Field(ge=0)]
    server_mib: Annotated[int, Field(ge=0)]
    sm_granularity: Count
    sm_minimum: Count
    measured: bool
    source: Annotated[str, Field(min_length=1)]

    def sms_given(self, thread_percent: int, sms: int) -> int:
        """SMs that a client gets of `sms` for an active-thread percentage of 1 to 100."""
        asked = sms * thread_percent // 100
        rounded = asked - asked % self.sm_granularity
        return min(sms, max(self.sm_minimum, rounded)) if thread_percent < 100 else sms

    def context_cost_mib(self, sms: int) -> int:
        """MiB that a CUDA context on `sms` SMs takes out of its client's memory limit."""
        return self.context_base_mib + self.context_per_sm_kib * sms // 1024


@dataclass(frozen=True, slots=True, config=STRICT)
class Card:
    """A model of GPU."""

    name: Annotated[str, Field(min_length=1)]
    short: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")]
    compute_capability: ComputeCapability
    memory_mib: Count
    sms: Count
    measured: bool
    source: Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True, config=STRICT)
class GpuFacts:
    """The whole of `limits/gpus.yaml`."""

    version: Literal["v1"]
    capabilities: Annotated[list[Capability], Field(min_length=1)]
    cards: Annotated[list[Card], Field(min_length=1)]

    @model_validator(mode="after")
    def rows_agree(self) -> Self:
        known = [row.compute_capability for row in self.capabilities]
        if len(set(known)) < len(known):
            raise ValueError("capabilities name one compute_capability more than once")
        shorts = [card.short for card in self.cards]
        if len(set(shorts)) < len(shorts):
            raise ValueError("cards give one short name to more than one card")
        for card in self.cards:
            if card.compute_capability not in known:
                raise ValueError(
                    f"card {card.short}: compute_capability {card.compute_capability} is not among the capabilities"
                )
        return self

    def capability(self, compute_capability: str) -> Capability | None:
        """The facts for one compute capability; None where the file has no row for it."""
        return next((row for row in self.capabilities if row.compute_capability == compute_capability), None)

    def card(self, short: str) -> Card | None:
        """The card with this short name; None where the file has none."""
        return next((card for card in self.cards if card.short == short), None)

    @property
    def largest_card(self) -> Card:
        return max(self.cards, key=lambda card: card.memory_mib)
