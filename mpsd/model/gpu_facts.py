"""Facts about hardware: the shape of `limits/gpus.yaml`, and the arithmetic that follows from them.

A number about hardware lives in that file with its source, never here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Annotated

from msgspec import Meta

from mpsd.model.policy import Version

Count = Annotated[int, Meta(ge=1)]
RESERVATION_KIB = 2048  # the unit of `reserved_kib`
ComputeCapability = Annotated[str, Meta(pattern=r"^[0-9]{1,2}\.[0-9]\Z")]


@dataclass(frozen=True, slots=True)
class Capability:
    """What MPS does on a GPU of one compute capability."""

    compute_capability: ComputeCapability
    clients: Count
    cores_per_sm: Count
    context_base_mib: Annotated[int, Meta(ge=0)]
    context_per_sm_kib: Annotated[int, Meta(ge=0)]
    server_mib: Annotated[int, Meta(ge=0)]
    sm_granularity: Count
    sm_minimum: Count
    measured: bool
    source: Annotated[str, Meta(min_length=1)]
    sms_per_reservation: Annotated[int, Meta(ge=0)] = 0

    def sms_given(self, thread_percent: int, sms: int) -> int:
        """SMs that a client gets of `sms` for an active-thread percentage of 1 to 100."""
        asked = sms * thread_percent // 100
        rounded = asked - asked % self.sm_granularity
        return min(sms, max(self.sm_minimum, rounded)) if thread_percent < 100 else sms

    def context_cost_mib(self, sms: int) -> int:
        """MiB that a CUDA context on `sms` SMs takes out of its client's memory limit."""
        return self.context_base_mib + self.context_per_sm_kib * sms // 1024

    def reserved_kib(self, sms: int) -> int:
        """KiB of addresses that a context on `sms` SMs reserves in an MPS client; 0 where that is
        not known here."""
        return (
            -(-sms // self.sms_per_reservation) * RESERVATION_KIB if self.sms_per_reservation else 0
        )

    def least_sms(self, reserved_kib: int, sms: int) -> int:
        """On how many SMs, at least, a context is that reserves so much on a GPU of `sms`; 0 where
        none does."""
        units, rest = divmod(reserved_kib, RESERVATION_KIB)
        is_one = units > 0 and not rest and reserved_kib <= self.reserved_kib(sms)
        return (units - 1) * self.sms_per_reservation + 1 if is_one else 0

    def of_part(self, part: Fraction) -> "Capability":
        """The same of a MIG instance with this part of its GPU's compute slices: it accepts so many
        clients less, in proportion (MIG user guide, "Deployment considerations"; documented, not
        observed)."""
        return replace(self, clients=max(1, int(self.clients * part)))


@dataclass(frozen=True, slots=True)
class Card:
    name: Annotated[str, Meta(min_length=1)]
    short: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]+\Z")]
    compute_capability: ComputeCapability
    memory_mib: Count
    sms: Count
    measured: bool
    source: Annotated[str, Meta(min_length=1)]


Slices = Annotated[str, Meta(pattern=r"^([1-7]/7|[1-8]/8)\Z")]


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A size that MIG instances of one card can have. compute, memory: the fractions of the card
    that NVIDIA gives. memory_mib, sms: as of a card."""

    card: Annotated[str, Meta(min_length=1)]
    profile: Annotated[str, Meta(pattern=r"^[1-7]g\.[1-9][0-9]{0,2}gb\Z")]
    compute: Slices
    memory: Slices
    memory_mib: Count
    sms: Count
    measured: bool
    source: Annotated[str, Meta(min_length=1)]

    @property
    def part(self) -> Fraction:
        return Fraction(self.compute)

    def card_of(self, whole: Card) -> Card:
        """An instance as a card of its own, named as CUDA names it."""
        return replace(
            whole,
            name=f"{whole.name} MIG {self.profile}",
            short=f"{whole.short}:{self.profile}",
            memory_mib=self.memory_mib,
            sms=self.sms,
            measured=self.measured,
            source=self.source,
        )


def _each_profile_once(profiles: list[MigProfile]) -> None:
    if len({(row.card, row.profile) for row in profiles}) < len(profiles):
        raise ValueError("mig names one profile of a card more than once")


def _each_once(capabilities: list[Capability]) -> None:
    if len({row.compute_capability for row in capabilities}) < len(capabilities):
        raise ValueError("capabilities name one compute_capability more than once")


def _each_named_once(cards: list[Card]) -> None:
    if len({card.short for card in cards}) < len(cards):
        raise ValueError("cards give one short name to more than one card")


@dataclass(frozen=True, slots=True)
class EmptyCard:
    """What one client can have of an empty card: mib is what CUDA can use, less what the MPS server
    holds."""

    card: Card
    capability: Capability
    mib: int

    def context_mib(self, thread_percent: int) -> int:
        """MiB of it that a CUDA context takes on this share of the threads, 1 to 100."""
        return self.capability.context_cost_mib(
            self.capability.sms_given(thread_percent, self.card.sms)
        )


@dataclass(frozen=True)
class GpuFacts:
    """The whole of `limits/gpus.yaml`. Without slots, so that what follows from it is worked out
    once."""

    version: Version
    capabilities: Annotated[list[Capability], Meta(min_length=1), _each_once]
    cards: Annotated[list[Card], Meta(min_length=1), _each_named_once]
    # an older file has none
    mig: Annotated[list[MigProfile], _each_profile_once] = field(default_factory=list)

    def __post_init__(self) -> None:
        known = {row.compute_capability for row in self.capabilities}
        for card in self.cards:
            if card.compute_capability not in known:
                wrong = (
                    f"compute_capability {card.compute_capability} is not among the capabilities"
                )
                raise ValueError(f"card {card.short}: {wrong}")

    def capability(self, compute_capability: str) -> Capability | None:
        """The facts for one compute capability; None where the file has no row for it."""
        return self._by_compute_capability.get(compute_capability)

    def card(self, short: str) -> Card | None:
        """The card with this short name; None where the file has none."""
        return next((card for card in self.cards if card.short == short), None)

    def of_only(self, card: Card, profile: MigProfile | None = None) -> "GpuFacts":
        """The facts where every GPU is this card, or a MIG instance of it."""
        if profile is None:
            return replace(self, cards=[card])
        known = [
            row for row in self.capabilities if row.compute_capability == card.compute_capability
        ]
        return replace(
            self,
            cards=[profile.card_of(card)],
            capabilities=[row.of_part(profile.part) for row in known],
        )

    def profiles(self, card: Card) -> tuple[MigProfile, ...]:
        """The sizes of MIG instances that are known of this card."""
        return tuple(row for row in self.mig if row.card == card.short)

    @cached_property
    def fewest_clients(self) -> int:
        """That a GPU of any model serves."""
        return min(row.clients for row in self.capabilities)

    @cached_property
    def largest_room(self) -> EmptyCard:
        return max(self.rooms, key=lambda room: room.mib)

    @cached_property
    def rooms(self) -> tuple[EmptyCard, ...]:
        """What one client finds on each card; `__post_init__` has seen a row for every card."""
        pairs = [
            (card, self._by_compute_capability[card.compute_capability]) for card in self.cards
        ]
        return tuple(
            EmptyCard(card, row, max(0, card.memory_mib - row.server_mib)) for card, row in pairs
        )

    @cached_property
    def _by_compute_capability(self) -> Mapping[str, Capability]:
        return {row.compute_capability: row for row in self.capabilities}
