"""The sentences of the rules of admission, as people read them: `wording.txt` has them all."""

from tests.admission.cases import found
from tests.admission.test_rules import BREAKERS


def wording() -> str:
    """The problems of one object that breaks each rule."""
    lines = []
    for rule, (thing, policy) in BREAKERS.items():
        lines += [str(rule), *(f"  {one.problem}" for one in found(thing, policy))]
    return "\n".join(lines) + "\n"
