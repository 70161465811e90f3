"""An amount of memory as `mpsd set` takes it: MiB, or with a unit.

One rule: it is whole MiB, since that is what the books and MPS count in.
"""

import re
from fractions import Fraction

from mpsd.model.problem import Problem, shown

_GRAMMAR = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)\s?(?P<unit>Mi|MiB|Gi|GiB)?")
_MIB = {"Mi": 1, "MiB": 1, "Gi": 1024, "GiB": 1024}


def written_mib(text: str, where: str) -> int | Problem:
    """`3276`, `3276MiB`, `3276Mi`, `6GiB`, `6.5Gi`; 1 MiB or more."""
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        remedy = "write MiB, such as 3276, or GiB with the unit, such as 6GiB"
        return Problem("memory-malformed", where, shown(text), "is no amount of memory", remedy)
    mib = Fraction(match["number"]) * _MIB[match["unit"] or "Mi"]
    if mib.denominator > 1 or mib < 1:
        remedy = f"write {max(1, int(mib))}MiB, or another whole number of them"
        return Problem("memory-malformed", where, shown(text), "is not 1 MiB or more in whole MiB", remedy)
    return int(mib)
