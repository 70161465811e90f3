"""A Kubernetes quantity as a whole number of the units that a resource is counted in.

Kubernetes' own grammar decides what a number is, and no number, however large, costs time or memory.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from mpsd.model.problem import Problem, shown

_LONGEST_TEXT = 64  # characters; what is longer is no number that a person wrote
_LARGEST = 2**63 - 1  # Kubernetes' own ceiling
_LARGEST_EXPONENT = 64  # beyond it every number is over the ceiling, or under every fraction that Kubernetes keeps

_MIB = 1024**2
_BYTES = {f"{prefix}i": 1024**power for power, prefix in enumerate("KMGTPE", 1)} | {
    prefix: 1000**power for power, prefix in enumerate("MGTPE", 2)
}
_COUNTS: Mapping[str, Fraction | int] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": 1,
    "k": 1000,
}

_GRAMMAR = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:(?P<suffix>[KMGTPE]i|[numkMGTPE]?)|[eE](?P<exponent>[+-]?[0-9]+))"
)
_MEANT = re.compile(r"\s*(?P<whole>[0-9]{1,6})(?:[.,][0-9]*)?\s*(?:g|gb|gib|%|percent)?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class QuantityUnit:
    """What a resource counts: `name` follows a number in a sentence, `example` is a number that makes sense.

    mib: the size of one, None for what is not memory.
    """

    name: str
    example: int
    mib: int | None = None


@lru_cache(maxsize=16)
def memory_unit(mib: int) -> QuantityUnit:
    """The unit of a memory resource whose one is `mib` MiB."""
    name = f"{mib // 1024} GiB" if mib % 1024 == 0 else f"{mib} MiB"
    return QuantityUnit({1024: "GiB", 1: "MiB"}.get(mib, f"units of {name}"), max(1, 7 * 1024 // mib), mib)


def whole_units(value: object, where: str, unit: QuantityUnit) -> int | Problem:
    """The whole number of units, 1 or more, that `value` (what YAML or JSON gave) stands for, or what is wrong."""
    amount = _amount(value)
    if isinstance(amount, _Size) and unit.mib is not None:
        units = max(1, math.ceil(amount.bytes / (unit.mib * _MIB)))
        return _problem(
            "quantity-has-a-unit", value, where, f"has a unit, and the unit is already {unit.name}", f"write {units}"
        )
    number = amount.bytes if isinstance(amount, _Size) else amount
    if number is None:
        return _problem(
            "quantity-malformed", value, where, "is not a number as Kubernetes writes them", _such_as(value, unit)
        )
    if number > _LARGEST:
        return _problem("quantity-too-large", value, where, "is beyond every number Kubernetes knows", _whole(unit))
    if number <= 0:
        return _problem(
            "quantity-below-one", value, where, "is not 1 or more", f"write 1 {unit.name} or more, or nothing"
        )
    if number.denominator > 1:
        return _problem("quantity-fraction", value, where, "is not a whole number", _whole(unit, math.ceil(number)))
    return number.numerator


def is_zero(value: object) -> bool:
    """Whether a quantity is zero in any way to write it; false for what is no quantity."""
    amount = _amount(value)
    return (amount.bytes if isinstance(amount, _Size) else amount) == 0


@dataclass(frozen=True, slots=True)
class _Size:
    """A number that was written with a suffix for bytes."""

    bytes: Fraction | int


def _amount(value: object) -> Fraction | int | _Size | None:
    """The number that a quantity stands for; None when it is no quantity."""
    match = _GRAMMAR.fullmatch(_text(value))
    if match is None:
        return None
    digits = match["number"]
    number = int(digits) if digits.isdigit() else Fraction(digits)  # int is a tenth of the cost, and most have no more
    if match["exponent"] is not None:
        exponent = int(match["exponent"])
        held = max(-_LARGEST_EXPONENT, min(_LARGEST_EXPONENT, exponent))
        return number * Fraction(10) ** held
    suffix = match["suffix"]
    return _Size(number * _BYTES[suffix]) if suffix in _BYTES else number * _COUNTS[suffix]


def _text(value: object) -> str:
    """What the API server would parse; empty for what is no quantity."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else f"{'-' if value < 0 else ''}1e{_LARGEST_EXPONENT}"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST_TEXT else ""


def _such_as(value: object, unit: QuantityUnit) -> str:
    """The remedy that keeps the number a person had in mind, where one can be seen."""
    meant = _MEANT.fullmatch(value[:_LONGEST_TEXT]) if isinstance(value, str) else None
    return _whole(unit, int(meant["whole"]) if meant else None)


def _whole(unit: QuantityUnit, example: int | None = None) -> str:
    """The remedy for a number that cannot be; None takes the unit's own example."""
    return f"write whole {unit.name}, such as {example or unit.example}"


def _problem(rule: str, value: object, where: str, message: str, remedy: str) -> Problem:
    return Problem(rule, where, shown(value), message, remedy)


def gib(memory_mib: int) -> str:
    """MiB as GiB for people: whole where it is whole, else with one decimal, never rounded up."""
    tenths = memory_mib * 10 // 1024
    return str(tenths // 10) if tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10}"


# -- an amount of memory as `mpsd set` takes it: whole MiB, which the ledger and MPS count in, or with a unit ----------

_MEMORY_GRAMMAR = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)\s?(?P<unit>Mi|MiB|Gi|GiB)?")
_MIB_OF_UNIT = {"Mi": 1, "MiB": 1, "Gi": 1024, "GiB": 1024}


def written_mib(text: str, where: str) -> int | Problem:
    """`3276`, `3276MiB`, `3276Mi`, `6GiB`, `6.5Gi`; 1 MiB or more."""
    match = _MEMORY_GRAMMAR.fullmatch(text)
    if match is None:
        remedy = "write MiB, such as 3276, or GiB with the unit, such as 6GiB"
        return Problem("memory-malformed", where, shown(text), "is no amount of memory", remedy)
    mib = Fraction(match["number"]) * _MIB_OF_UNIT[match["unit"] or "Mi"]
    if mib.denominator > 1 or mib < 1:
        remedy = f"write {max(1, int(mib))}MiB, or another whole number of them"
        return Problem("memory-malformed", where, shown(text), "is not 1 MiB or more in whole MiB", remedy)
    return int(mib)
