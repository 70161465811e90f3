"""The sentences of the rules of admission, as people read them: `wording.txt` has them all.

Renew it with: python -m tests.admission.test_wording
"""

from pathlib import Path

from tests.admission.cases import found
from tests.admission.test_rules import BREAKERS

WORDING = Path(__file__).with_name("wording.txt")


def wording() -> str:
    """The problems of one object that breaks each rule."""
    lines = []
    for rule, (thing, policy) in BREAKERS.items():
        lines += [str(rule), *(f"  {one.problem}" for one in found(thing, policy))]
    return "\n".join(lines) + "\n"


def test_the_sentences_of_the_rules_are_those_in_the_file() -> None:
    assert wording() == WORDING.read_text(), "renew it with: python -m tests.admission.test_wording"


if __name__ == "__main__":
    WORDING.write_text(wording())
