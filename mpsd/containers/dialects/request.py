"""What an environment requests of cards, in whichever dialect. MPS is never given more bytes than
the dialect's formula."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from mpsd.model.client_limits import ClientLimit, problems_with
from mpsd.model.grants import CardsRequest, Gpu, GpuShare
from mpsd.model.problem import Problem

MIB = 1024**2


class Dialect(StrEnum):
    CGPU = "cGPU"
    EGPU = "eGPU"
    CTYUN = "EGPU"  # CTyun's, after its one variable


@dataclass(frozen=True, slots=True)
class Off:
    """The container is left exactly as it was. why: which switch is off."""

    why: str


@dataclass(frozen=True, slots=True)
class InvalidDialect:
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class CardRequest:
    """A request of one card, and MPS's limits for it. where: the variable that decides.
    memory_bytes: by the dialect's formula, context included; the whole card without a limit.
    thread_percent: the cap, 100 for none; of all cards, once `request_of` has set it.
    reserved_percent: what the ledger holds, or 0. weight: as written. policy: cGPU's number.
    differs: what MPS does differently, in sentences. memory_mib: what the ledger holds, by
    `request_of`."""

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
    dialect: Dialect
    cards: tuple[CardRequest, ...]


Reading = Off | InvalidDialect | DialectRequest


def request_of(
    dialect: Dialect, cards: Sequence[CardRequest], problems: Sequence[Problem]
) -> DialectRequest | InvalidDialect:
    limited = []
    for card in cards:  # MPS counts whole MiB of what its server leaves of a card
        left_mib = card.gpu.memory_mib - card.gpu.capability.server_mib
        limited.append(replace(card, memory_mib=min(left_mib, card.memory_bytes // MIB)))
    # A program has one limit of memory and one percentage for all of its cards.
    memory_mib = max((card.memory_mib for card in limited), default=0)
    thread_percent = min((card.thread_percent for card in limited), default=100)
    found = [*problems]
    settled = []
    for card in limited:
        found += _problems(card, thread_percent)
        differs = tuple(_differs(card, memory_mib, thread_percent))
        settled.append(replace(card, thread_percent=thread_percent, differs=differs))
    if found:
        return InvalidDialect(tuple(found))
    return DialectRequest(dialect, tuple(settled))


def _problems(card: CardRequest, thread_percent: int) -> Iterable[Problem]:
    gpu = card.gpu
    memory_mib = max(0, card.memory_mib)
    if card.memory_bytes > gpu.memory_mib * MIB:
        memory_mib = -(-card.memory_bytes // MIB)
    limit = ClientLimit(memory_mib, thread_percent)
    where = f"{card.where} on {gpu.label}"
    return problems_with(limit, where, gpu.capability, gpu.memory_mib, gpu.sms)


def _differs(card: CardRequest, memory_mib: int, thread_percent: int) -> Iterator[str]:
    """memory_mib, thread_percent: of all cards together."""
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
        yield (
            "MPS has one percentage for all cards of a program: it gets the smallest,"
            f" {thread_percent} %; {own} requested here"
        )


# -- from the request to the ledger and to the user


def cards_request(request: DialectRequest) -> CardsRequest:
    """What the ledger holds, whatever MPS is given."""
    parts = []
    for card in request.cards:
        # cGPU's is 1 where none is written
        weight = None if card.policy is None else card.weight or 1
        parts.append(GpuShare(card.gpu.uuid, card.memory_mib, card.reserved_percent, weight))
    return CardsRequest(tuple(parts), min(card.thread_percent for card in request.cards))


def messages(request: DialectRequest) -> tuple[str, ...]:
    """What MPS does differently, each sentence once."""
    about: dict[str, list[str]] = {}
    for card in request.cards:
        for sentence in card.differs:
            about.setdefault(sentence, []).append(card.gpu.label)
    found = []
    for sentence, labels in about.items():
        if len(labels) < len(request.cards):
            sentence = f"{', '.join(labels)}: {sentence}"
        found.append(sentence)
    return tuple(found)
