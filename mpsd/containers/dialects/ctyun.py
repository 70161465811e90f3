"""EGPU, CTyun's: one variable with a header and, for every card, MiB and a percentage of its compute.

One rule: what is wrong in it is found while it is parsed, so nothing is ever reserved for it.
"""

from collections.abc import Mapping, Sequence

from mpsd.containers.dialects.names import EGPU, VISIBLE_DEVICES
from mpsd.containers.dialects.request import MIB, Dialect, DialectShare, Reading, Words, request_of, whole
from mpsd.model.grants import Gpu

_EXAMPLE = "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10"
_HEADER = {"POLICY": "0", "ONLINE": "0", "TYPE": "DOCKER"}  # the only values whose meaning is published
_CARD = ("PGPU", "MEM", "WEIGHT")

_CAPPED = (
    "WEIGHT caps the SMs that a program may use, where EGPU counts time; it is set when a program makes its context"
)


def read_ctyun(environment: Mapping[str, str], machine: Sequence[Gpu]) -> Reading:
    """What the environment asks in the variable EGPU; not set is as wrong as empty."""
    words = Words(environment)
    header, *cards = (words.text(EGPU) or "").split(":")
    if not words.problems:
        _read_header(words, header)
        if not cards:
            words.wrong("no-card", EGPU, header, "names no card", f"write it as {_EXAMPLE}")
    numbers = [_read_card(words, card) for card in cards]
    by_ordinal = {card["PGPU"]: card for card in numbers if "PGPU" in card}
    if sum("PGPU" in card for card in numbers) > len(by_ordinal):
        words.wrong("device-twice", EGPU, environment[EGPU], "has one PGPU twice", "name each card once")
    gpus = _gpus(words, environment, machine, by_ordinal)
    return request_of(
        Dialect.CTYUN,
        tuple(_written(gpu, card) for gpu in gpus if "MEM" in (card := by_ordinal[gpu.ordinal])),
        words.problems,
    )


def _written(gpu: Gpu, card: Mapping[str, int]) -> DialectShare:
    weight = card.get("WEIGHT", 100)  # one that is wrong keeps nothing else of the card from being said
    return DialectShare(
        gpu=gpu,
        memory_bytes=card["MEM"] * MIB,
        thread_percent=weight,
        reserved_percent=weight,
        where=f"{EGPU} MEM",
        weight=weight,
        differs=(_CAPPED,) if weight < 100 else (),
    )


def _fields(words: Words, part: str, keys: Sequence[str]) -> dict[str, str]:
    """The KEY=VALUE of one part; wrong unless every key is there once and no other."""
    pairs = [pair.partition("=") for pair in part.split(",")]
    if sorted(key for key, _, _ in pairs) != sorted(keys) or not all(equals for _, equals, _ in pairs):
        message = f"does not give {', '.join(keys)} once each"
        words.wrong("dialect-malformed", EGPU, part, message, f"write it as {_EXAMPLE}")
        return {}
    return {key: value for key, _, value in pairs}


def _read_header(words: Words, header: str) -> None:
    for key, value in _fields(words, header, tuple(_HEADER)).items():
        if value != _HEADER[key]:
            message = f"is not {_HEADER[key]}, the only value that is published"
            words.wrong("dialect-unknown-value", f"{EGPU} {key}", value, message, f"write {_HEADER[key]}")


def _read_card(words: Words, part: str) -> dict[str, int]:
    """The numbers of one card, those that are right."""
    right = {}
    for key, text in _fields(words, part, _CARD).items():
        number, where = whole(text), f"{EGPU} {key}"
        if number is None or (key == "MEM" and not number):
            remedy = "write a card's index" if key == "PGPU" else "write MiB" if key == "MEM" else "write 1 to 100"
            words.wrong("not-a-number", where, text, "is not a whole number that can be", remedy)
        elif key == "WEIGHT" and not 1 <= number <= 100:
            words.wrong("percent-range", where, text, "is no share of a card: those are 1 to 100", "write 1 to 100")
        else:
            right[key] = number
    return right


def _gpus(
    words: Words, environment: Mapping[str, str], machine: Sequence[Gpu], by_ordinal: Mapping[int, object]
) -> tuple[Gpu, ...]:
    """The cards that PGPU names: the very ones that the container sees, where NVIDIA_VISIBLE_DEVICES says."""
    known = {gpu.ordinal: gpu for gpu in machine}
    for ordinal in by_ordinal:
        if ordinal not in known:
            remedy = f"write {', '.join(map(str, known))}" if known else "run it where a GPU is"
            words.wrong("device-unknown", f"{EGPU} PGPU", ordinal, "is no card of this machine", remedy)
    named = tuple(known[ordinal] for ordinal in by_ordinal if ordinal in known)
    if VISIBLE_DEVICES not in environment:
        return named
    seen = words.gpus(machine)
    if seen and by_ordinal:
        for gpu in seen:
            if gpu.ordinal not in by_ordinal:
                message = f"shows {gpu.label}, for which {EGPU} has no PGPU={gpu.ordinal}"
                words.wrong(
                    "device-unlimited", VISIBLE_DEVICES, environment[VISIBLE_DEVICES], message, "name the same cards"
                )
        for gpu in named:
            if gpu not in seen:
                message = f"names {gpu.label}, which {VISIBLE_DEVICES} does not show"
                words.wrong("device-unseen", f"{EGPU} PGPU", gpu.ordinal, message, "name the same cards")
    return named
