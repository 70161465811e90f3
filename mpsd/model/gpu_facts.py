"""Facts about hardware: the shape of `limits/gpus.yaml`, which has the numbers and their sources,
and the arithmetic that follows from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any

from msgspec import Meta

from mpsd.model.gpu_health import XidKind
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
        if thread_percent == 100:
            return sms
        asked = sms * thread_percent // 100
        return min(sms, max(self.sm_minimum, asked - asked % self.sm_granularity))

    def context_cost_mib(self, sms: int) -> int:
        """MiB that a CUDA context on `sms` SMs takes out of its client's memory limit."""
        return self.context_base_mib + self.context_per_sm_kib * sms // 1024

    def reserved_kib(self, sms: int) -> int:
        """KiB of addresses that a context on `sms` SMs reserves in an MPS client; 0 where that is
        not known here."""
        if not self.sms_per_reservation:
            return 0
        return -(-sms // self.sms_per_reservation) * RESERVATION_KIB

    def least_sms(self, reserved_kib: int, sms: int) -> int:
        """On how many SMs, at least, a context is that reserves so much on a GPU of `sms`; 0 where
        none does."""
        units, rest = divmod(reserved_kib, RESERVATION_KIB)
        if units <= 0 or rest or reserved_kib > self.reserved_kib(sms):
            return 0
        return (units - 1) * self.sms_per_reservation + 1

    def of_part(self, part: Fraction) -> "Capability":
        """Of a MIG instance with this part of its GPU's compute slices, which accepts clients in
        proportion (MIG user guide, "Deployment considerations"; documented, not observed)."""
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
    """A size of MIG instances of one card. compute, memory: the fractions that NVIDIA gives."""

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


def _once(fault: str, *key: str) -> Callable[[list[Any]], None]:
    def check(rows: list[Any]) -> None:
        if len(set(map(attrgetter(*key), rows))) < len(rows):
            raise ValueError(fault)

    return check


@dataclass(frozen=True, slots=True)
class Xid:
    """An error of the driver by its number."""

    number: Count
    what: Annotated[str, Meta(min_length=1)]
    kind: XidKind
    source: Annotated[str, Meta(min_length=1)]


_XIDS_ONCE = _once("xids name one number more than once", "number")
_PROFILES_ONCE = _once("mig names one profile of a card more than once", "card", "profile")
_CARDS_ONCE = _once("cards give one short name to more than one card", "short")
_CAPABILITIES_ONCE = _once(
    "capabilities name one compute_capability more than once", "compute_capability"
)


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
    capabilities: Annotated[list[Capability], Meta(min_length=1), _CAPABILITIES_ONCE]
    cards: Annotated[list[Card], Meta(min_length=1), _CARDS_ONCE]
    # an older file has none
    mig: Annotated[list[MigProfile], _PROFILES_ONCE] = field(default_factory=list)
    xids: Annotated[list[Xid], _XIDS_ONCE] = field(default_factory=list)

    def __post_init__(self) -> None:
        for card in self.cards:
            if not self.capability(card.compute_capability):
                wrong = "is not among the capabilities"
                raise ValueError(
                    f"card {card.short}: compute_capability {card.compute_capability} {wrong}"
                )

    def capability(self, compute_capability: str) -> Capability | None:
        """None where the file has no row for it."""
        return self._by_compute_capability.get(compute_capability)

    def card(self, short: str) -> Card | None:
        """None where the file has none of this short name."""
        return next((card for card in self.cards if card.short == short), None)

    def of_only(self, card: Card, profile: MigProfile | None = None) -> "GpuFacts":
        """The facts where every GPU is this card, or a MIG instance of it."""
        if profile is None:
            return replace(self, cards=[card])
        known = self._by_compute_capability[card.compute_capability]
        part = known.of_part(profile.part)
        return replace(self, cards=[profile.card_of(card)], capabilities=[part])

    def profiles(self, card: Card) -> tuple[MigProfile, ...]:
        """The sizes of MIG instances that are known of this card."""
        return tuple(row for row in self.mig if row.card == card.short)

    def xid(self, number: int) -> Xid:
        """One that the file does not have is the hardware's, as in NVIDIA's device plugin."""
        for row in self.xids:
            if row.number == number:
                return row
        return Xid(number, "not listed in limits/gpus.yaml", XidKind.HARDWARE, "not listed")

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
        found = []
        for card in self.cards:
            row = self._by_compute_capability[card.compute_capability]
            found.append(EmptyCard(card, row, max(0, card.memory_mib - row.server_mib)))
        return tuple(found)

    @cached_property
    def _by_compute_capability(self) -> Mapping[str, Capability]:
        return {row.compute_capability: row for row in self.capabilities}
