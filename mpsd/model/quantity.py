"""A Kubernetes quantity, by Kubernetes' own grammar, as a whole number of the units that a resource
is counted in. No number, however large, costs time or memory."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from mpsd.model.problem import Problem, shown

_LONGEST_TEXT = 64  # characters; what is longer is no number that a person wrote
# beyond it a number is over the ceiling, or under every fraction that Kubernetes keeps
_LARGEST_EXPONENT = 64

_BYTES = {f"{prefix}i": 1024**power for power, prefix in enumerate("KMGTPE", 1)}
_BYTES |= {prefix: 1000**power for power, prefix in enumerate("MGTPE", 2)}
_COUNTS: dict[str, Fraction | int] = {
    prefix: Fraction(1, 1000**power) for power, prefix in enumerate("mun", 1)
}
_COUNTS |= {"": 1, "k": 1000}

_GRAMMAR = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE]?)|[eE](?P<exponent>[+-]?[0-9]+))"
)
# the number that a person had in mind
_MEANT = re.compile(
    r"\s*(?P<whole>[0-9]{1,6})(?:[.,][0-9]*)?\s*(?:g|gb|gib|%|percent)?\s*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class QuantityUnit:
    """name: as it follows a number in a sentence. mib: of one, None for what is not memory."""

    name: str
    example: int
    mib: int | None = None


@lru_cache(maxsize=16)
def memory_unit(mib: int) -> QuantityUnit:
    """The unit of a memory resource whose one is `mib` MiB."""
    name = f"units of {mib} MiB"
    if mib == 1:
        name = "MiB"
    elif mib == 1024:
        name = "GiB"
    elif mib % 1024 == 0:
        name = f"units of {mib // 1024} GiB"
    return QuantityUnit(name, max(1, 7 * 1024 // mib), mib)


def whole_units(value: object, where: str, unit: QuantityUnit) -> int | Problem:
    """The whole number of units, 1 or more, that `value` (what YAML or JSON gave) stands for, or
    what is wrong."""
    number, is_bytes = _amount(value)
    remedy = f"write whole {unit.name}, such as {unit.example}"
    if number is None:
        found = ("quantity-malformed", "is not a Kubernetes quantity")
        meant = _MEANT.fullmatch(value[:_LONGEST_TEXT]) if isinstance(value, str) else None
        if meant and int(meant["whole"]):
            remedy = f"write whole {unit.name}, such as {int(meant['whole'])}"
    elif is_bytes and unit.mib is not None:
        found = ("quantity-has-a-unit", f"has a unit, and the unit is already {unit.name}")
        remedy = f"write {max(1, math.ceil(number / (unit.mib * 1024**2)))}"
    elif number > 2**63 - 1:  # Kubernetes' own ceiling
        found = ("quantity-too-large", "is beyond every number Kubernetes knows")
    elif number <= 0:
        found = ("quantity-below-one", "is not 1 or more")
        remedy = f"write 1 {unit.name} or more, or nothing"
    elif number.denominator > 1:
        found = ("quantity-fraction", "is not a whole number")
        remedy = f"write whole {unit.name}, such as {math.ceil(number)}"
    else:
        return number.numerator
    rule, message = found
    return Problem(rule, where, shown(value), message, remedy)


def is_zero(value: object) -> bool:
    """In any way to write it; false for what is no quantity."""
    return _amount(value)[0] == 0


def whole(value: object) -> int | None:
    """The whole number that a quantity stands for, bytes where it has their suffix."""
    number, _is_bytes = _amount(value)
    return number.numerator if number is not None and number.denominator == 1 else None


def _amount(value: object) -> tuple[Fraction | int | None, bool]:
    """The number that a quantity stands for, if it is one, and whether its suffix is of bytes."""
    match = _GRAMMAR.fullmatch(_text(value))
    if match is None:
        return None, False
    digits = match["number"]
    # int is a tenth of the cost, and most have no more
    number = int(digits) if digits.isdigit() else Fraction(digits)
    if match["exponent"] is not None:
        held = max(-_LARGEST_EXPONENT, min(_LARGEST_EXPONENT, int(match["exponent"])))
        return number * Fraction(10) ** held, False
    suffix = match["suffix"]
    if suffix in _BYTES:
        return number * _BYTES[suffix], True
    return number * _COUNTS[suffix], False


def _text(value: object) -> str:
    """What the API server would parse; empty for what is no quantity."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    if isinstance(value, int):  # of thousands of digits str raises
        huge = 10**_LARGEST_EXPONENT
        return str(max(-huge, min(huge, value)))
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else ""


def gib(memory_mib: int) -> str:
    """MiB as GiB for people: whole where it is whole, else with one decimal, never rounded up."""
    tenths = memory_mib * 10 // 1024
    return str(tenths // 10) if tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10}"


# -- an amount of memory as `mpsd set` takes it: whole MiB, or with a unit

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
        message = "is not 1 MiB or more in whole MiB"
        return Problem("memory-malformed", where, shown(text), message, remedy)
    return int(mib)
