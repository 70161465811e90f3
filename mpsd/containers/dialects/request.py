"""What a container's environment requests of the cards it sees, whichever dialect it was written
in.

The bytes are those of the dialect's published formula; MPS is never given more than them, and every
difference between what MPS does and what the dialect says becomes a message.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from mpsd.model.client_limits import ClientLimit, problems_with
from mpsd.model.grants import CardsRequest, Gpu, GpuShare
from mpsd.model.problem import Problem

MIB = 1024**2


class Dialect(StrEnum):
    """Whose variables they are, as their documents write the name."""

    CGPU = "cGPU"
    EGPU = "eGPU"
    CTYUN = "EGPU"  # CTyun's, after its one variable


@dataclass(frozen=True, slots=True)
class Off:
    """Nothing is requested: the container is left exactly as it was. why: which switch is off."""

    why: str


@dataclass(frozen=True, slots=True)
class InvalidDialect:
    """Everything that is wrong, at least one thing."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class CardRequest:
    """What a container requests of one card, and the limits that MPS is given for it.

    where: the variable that decides the memory, or the threads where memory has no limit.
    memory_bytes: the dialect's own formula to the byte, CUDA's context included; the whole card
    where it sets no limit. thread_percent: the cap, 100 for none. reserved_percent: what the ledger
    holds of the threads, 0 where the dialect promises no part of them. weight: as it was written,
    None where it was not. policy: cGPU's number, None in the other dialects. differs: where MPS
    does something else than the dialect says, a sentence each without its full stop. memory_mib:
    what the ledger holds of the memory; set by `request_of`, which also makes thread_percent that
    of all cards together.
    """

    gpu: Gpu
    where: str
    memory_bytes: int
    thread_percent: int
    reserved_percent: int
    weight: int | None = None
    policy: int | None = None
    differs: tuple[str, ...] = ()
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class DialectRequest:
    """What a container requests, card by card in the order that it names them; at least one
    card."""

    dialect: Dialect
    cards: tuple[CardRequest, ...]


Reading = Off | InvalidDialect | DialectRequest


def request_of(
    dialect: Dialect, cards: Sequence[CardRequest], problems: Sequence[Problem]
) -> DialectRequest | InvalidDialect:
    """The request, or everything that is wrong: `problems`, and what keeps any of the cards from
    giving it.

    cards: as far as they could be read, at least one unless there are problems.
    """
    limited = [  # MPS counts whole MiB of what its server leaves of a card
        replace(
            card,
            memory_mib=min(
                card.gpu.memory_mib - card.gpu.capability.server_mib, card.memory_bytes // MIB
            ),
        )
        for card in cards
    ]
    # A program has one limit of memory and one percentage for all of its cards.
    memory_mib = max((card.memory_mib for card in limited), default=0)
    thread_percent = min((card.thread_percent for card in limited), default=100)
    if found := (
        *problems,
        *(problem for card in limited for problem in _problems(card, thread_percent)),
    ):
        return InvalidDialect(found)
    settled = (
        replace(
            card,
            thread_percent=thread_percent,
            differs=tuple(_differs(card, memory_mib, thread_percent)),
        )
        for card in limited
    )
    return DialectRequest(dialect, tuple(settled))


def _problems(card: CardRequest, thread_percent: int) -> tuple[Problem, ...]:
    gpu = card.gpu
    is_over = card.memory_bytes > card.gpu.memory_mib * MIB
    limit = ClientLimit(
        -(-card.memory_bytes // MIB) if is_over else max(0, card.memory_mib), thread_percent
    )
    return tuple(
        problems_with(
            limit, f"{card.where} on {gpu.label}", gpu.capability, gpu.memory_mib, gpu.sms
        )
    )


def _differs(card: CardRequest, memory_mib: int, thread_percent: int) -> Iterator[str]:
    """All that MPS does differently. memory_mib, thread_percent: of all cards together."""
    gpu = card.gpu
    yield from card.differs
    if card.memory_mib < card.memory_bytes // MIB:
        yield (
            f"the MPS server uses {gpu.capability.server_mib} MiB of the card, so the limit is"
            f" {card.memory_mib} MiB"
        )
    elif short := card.memory_bytes - card.memory_mib * MIB:
        yield f"MPS counts whole MiB, so the limit is {short} bytes less"
    sms = gpu.capability.sms_given(thread_percent, gpu.sms)
    if sms * 100 > thread_percent * gpu.sms:
        yield (
            f"MPS gives a program no fewer than {sms} SMs, which are {100 * sms // gpu.sms} % of"
            " this card"
        )
    if card.memory_mib < memory_mib:
        yield (
            "MPS has one limit of memory for all cards of a program: it gets the largest,"
            f" {memory_mib} MiB, and mpsd ends what uses more than {card.memory_mib} MiB here"
        )
    if thread_percent < card.thread_percent:
        own = f"{card.thread_percent} % are" if card.thread_percent < 100 else "no cap is"
        one = (
            "MPS has one percentage for all cards of a program: it gets the smallest,"
            f" {thread_percent} %"
        )
        yield f"{one}; {own} requested here"


# -- from the request to the ledger and to the user ----------------------------------------------


def cards_request(request: DialectRequest) -> CardsRequest:
    """What the ledger is to hold: of every card what was requested of that card, whatever MPS is
    given for all."""
    parts = []
    for card in request.cards:
        # cGPU's is 1 where none is written
        weight = None if card.policy is None else card.weight or 1
        parts.append(GpuShare(card.gpu.uuid, card.memory_mib, card.reserved_percent, weight))
    return CardsRequest(tuple(parts), min(card.thread_percent for card in request.cards))


def messages(request: DialectRequest) -> tuple[str, ...]:
    """Where MPS does something else than the dialect says: each sentence once, with the cards that
    it is about unless it is about all of them."""
    about: dict[str, list[str]] = {}
    for card in request.cards:
        for sentence in card.differs:
            about.setdefault(sentence, []).append(card.gpu.label)
    return tuple(
        sentence if len(labels) == len(request.cards) else f"{', '.join(labels)}: {sentence}"
        for sentence, labels in about.items()
    )
