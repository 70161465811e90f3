"""What a container's environment asks of the cards it sees, whichever dialect it was written in.

One rule: the bytes are the published formula's; what MPS is told is never more than them, and every difference is said.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mpsd.admission.rules.context import NO_DEVICES
from mpsd.model.client_limits import VISIBLE_DEVICES, ClientLimit, problems_with
from mpsd.model.grants import Gpu
from mpsd.model.problem import Problem, shown

MIB = 1024**2


class Dialect(StrEnum):
    """Whose variables they are, as their documents write the name."""

    CGPU = "cGPU"
    EGPU = "eGPU"
    CTYUN = "EGPU"  # CTyun's, after its one variable


@dataclass(frozen=True, slots=True)
class Off:
    """Nothing is asked: the container is left exactly as it was. why: which switch is off."""

    why: str


@dataclass(frozen=True, slots=True)
class InvalidDialect:
    """Everything that is wrong, at least one thing."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class CardRequest:
    """What a container asks of one card, and what MPS is told for it.

    memory_bytes: the dialect's own formula to the byte, CUDA's context included; the whole card where it sets no limit.
    memory_mib: what the ledger holds of it. thread_percent: the cap that MPS is given for all cards, 100 for none.
    reserved_percent: what the ledger holds of its threads, 0 where the dialect promises no part of them.
    weight: as it was written, None where it was not. policy: cGPU's number, None in the other dialects.
    differs: where MPS does something else than the dialect says, a sentence each without its full stop.
    """

    gpu: Gpu
    memory_bytes: int
    memory_mib: int
    thread_percent: int
    reserved_percent: int
    weight: int | None = None
    policy: int | None = None
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DialectRequest:
    """What a container asks, card by card in the order that it names them; at least one card."""

    dialect: Dialect
    cards: tuple[CardRequest, ...]


Reading = Off | InvalidDialect | DialectRequest


@dataclass(frozen=True, slots=True)
class DialectShare:
    """What was written for one card. memory_bytes: None where no limit is asked for, else by the dialect's formula.

    thread_percent: the cap on this card, 100 for none. where: the variable that decided the memory, or the threads
    where there is no limit of memory.
    """

    gpu: Gpu
    memory_bytes: int | None
    thread_percent: int
    reserved_percent: int
    where: str
    weight: int | None = None
    policy: int | None = None
    differs: tuple[str, ...] = ()


def request_of(
    dialect: Dialect, written: tuple[DialectShare, ...], problems: Sequence[Problem]
) -> DialectRequest | InvalidDialect:
    """The request, or everything that is wrong: `problems`, and what keeps any of the cards from giving it.

    written: what could be read, at least one card unless there are problems.
    """
    told = _ContainerLimits(
        memory_mib=max(map(_limit_mib, written), default=0),
        thread_percent=min((card.thread_percent for card in written), default=100),
    )
    if wrong := (*problems, *(problem for card in written for problem in _problems(card, told))):
        return InvalidDialect(wrong)
    return DialectRequest(dialect, tuple(_card(card, told) for card in written))


@dataclass(frozen=True, slots=True)
class _ContainerLimits:
    """What MPS is told for all cards of the container, since a program has one limit and one percentage for all."""

    memory_mib: int
    thread_percent: int


def _problems(card: DialectShare, told: _ContainerLimits) -> tuple[Problem, ...]:
    gpu, limit_mib = card.gpu, _limit_mib(card)
    if (card.memory_bytes or 0) > gpu.memory_mib * MIB:
        limit_mib = -(-(card.memory_bytes or 0) // MIB)
    limit = ClientLimit(max(0, limit_mib), told.thread_percent)
    return problems_with(limit, f"{card.where} on {gpu.label}", gpu.capability, gpu.memory_mib, gpu.sms)


def _limit_mib(card: DialectShare) -> int:
    """MPS counts whole MiB of what its server leaves of a card."""
    left_mib = card.gpu.memory_mib - card.gpu.capability.server_mib
    return left_mib if card.memory_bytes is None else min(left_mib, card.memory_bytes // MIB)


def _card(card: DialectShare, told: _ContainerLimits) -> CardRequest:
    whole_bytes, limit_mib = card.gpu.memory_mib * MIB, _limit_mib(card)
    memory_bytes = whole_bytes if card.memory_bytes is None else card.memory_bytes
    return CardRequest(
        gpu=card.gpu,
        memory_bytes=memory_bytes,
        memory_mib=limit_mib,
        thread_percent=told.thread_percent,
        reserved_percent=card.reserved_percent,
        weight=card.weight,
        policy=card.policy,
        differs=(*card.differs, *_differs(card, memory_bytes, limit_mib, told)),
    )


def _differs(card: DialectShare, memory_bytes: int, limit_mib: int, told: _ContainerLimits) -> Iterator[str]:
    """What MPS does differently whatever the dialect."""
    if card.memory_bytes is None:
        yield "no limit of memory is asked for: mpsd promises it the whole card, so nobody shares it"
    if limit_mib < memory_bytes // MIB:
        server_mib = card.gpu.capability.server_mib
        yield f"the MPS server holds {server_mib} MiB of the card, so the limit is {limit_mib} MiB"
    elif short := memory_bytes - limit_mib * MIB:
        yield f"MPS counts whole MiB, so the limit is {short} bytes less"
    sms = card.gpu.capability.sms_given(told.thread_percent, card.gpu.sms)
    if sms * 100 > told.thread_percent * card.gpu.sms:
        yield f"MPS gives a program no fewer than {sms} SMs, which are {100 * sms // card.gpu.sms} % of this card"
    if limit_mib < told.memory_mib:
        yield (
            f"MPS has one limit of memory for all cards of a program: it gets the largest, {told.memory_mib} MiB, and "
            f"mpsd ends what uses more than {limit_mib} MiB here"
        )
    if told.thread_percent < card.thread_percent:
        own = (
            "no cap is asked for here" if card.thread_percent == 100 else f"{card.thread_percent} % are asked for here"
        )
        yield f"MPS has one percentage for all cards of a program: it gets the smallest, {told.thread_percent} %; {own}"


# A container's variables, read one by one: numbers, lists of numbers, and which cards it sees.
#
# One rule: whatever a tenant wrote costs no time to read, and everything that is wrong is kept until all is read.

ALL_DEVICES = "all"
_WHOLE = re.compile(r"[0-9]{1,18}", re.ASCII)
LONGEST_TEXT = 2048  # characters: 40 UUIDs with room


def whole(text: str) -> int | None:
    """The whole number that `text` is, 0 or more and under 10 to the 18th; None where it is none."""
    return int(text) if _WHOLE.fullmatch(text) else None


class Words:
    """The variables of one container; what is wrong with those that were read gathers in `problems`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[Problem] = []

    def wrong(self, rule: str, where: str, value: object, message: str, remedy: str) -> None:
        self.problems.append(Problem(rule, where, shown(value), message, remedy))

    def are_right(self, *names: str) -> bool:
        """Whether nothing is wrong with these variables, as far as they were read."""
        return not any(problem.where in names for problem in self.problems)

    def text(self, name: str) -> str | None:
        """The variable as written; None where it is not set, or is too long to be meant."""
        text = self._environment.get(name)
        if text is None or len(text) <= LONGEST_TEXT:
            return text
        self.wrong("too-long", name, text, f"has {len(text)} characters", f"write at most {LONGEST_TEXT}")
        return None

    def number(self, name: str, remedy: str, least: int = 1) -> int | None:
        """The whole number that a variable is; None where it is not set, or wrong."""
        text = self.text(name)
        if text is None:
            return None
        number = whole(text)
        if number is None or number < least:
            self.wrong("not-a-number", name, text, f"is not a whole number from {least} on", remedy)
            return None
        return number

    def numbers(self, name: str, remedy: str) -> tuple[int, ...]:
        """The whole numbers of a list with commas, 0 or more; none where it is not set, or wrong."""
        text = self.text(name)
        if text is None:
            return ()
        numbers = [whole(part) for part in text.split(",")]
        if None in numbers:
            self.wrong("not-a-number", name, text, "is no whole number, nor a list of them with commas", remedy)
            return ()
        return tuple(number for number in numbers if number is not None)

    def gpus(self, machine: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """The machine's cards that the container sees, in the order that it names them; wrong unless one at least.

        Where the variable is not set the machine's only card is meant.
        """
        text = self._environment.get(VISIBLE_DEVICES)
        name_them = "name the cards, by index or by UUID with commas between them"
        if not machine:
            self.wrong("no-gpu", VISIBLE_DEVICES, text or "", "the machine has no card", "run it where a GPU is")
        elif text is None and len(machine) > 1:
            message = f"does not say which of the machine's {len(machine)} cards, and is not set"
            self.problems.append(Problem("devices-unsaid", VISIBLE_DEVICES, "", message, f"{name_them}, or write all"))
        elif text in NO_DEVICES:
            message = "gives the container no card, and a share of one is asked for"
            self.wrong("devices-none", VISIBLE_DEVICES, text, message, f"{name_them}, or leave the share out")
        elif text in (None, ALL_DEVICES):
            return tuple(machine)
        elif (named := self.text(VISIBLE_DEVICES)) is not None:
            return self._named(named.split(","), machine)
        return ()

    def _named(self, names: Sequence[str], machine: Sequence[Gpu]) -> tuple[Gpu, ...]:
        by_name = {gpu.uuid: gpu for gpu in machine} | {str(gpu.ordinal): gpu for gpu in machine}
        found: dict[str, Gpu] = {}
        for name in names:
            gpu = by_name.get(name)
            if gpu is None:
                known = ", ".join(str(gpu.ordinal) for gpu in machine)
                message = "is no card of this machine"
                self.wrong("device-unknown", VISIBLE_DEVICES, name, message, f"write {known}, or a card's UUID")
            elif gpu.uuid in found:
                message = f"names {gpu.label} a second time"
                self.wrong("device-twice", VISIBLE_DEVICES, name, message, "name each card once")
            else:
                found[gpu.uuid] = gpu
        return tuple(found.values())
