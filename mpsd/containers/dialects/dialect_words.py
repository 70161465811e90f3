"""A container's variables, read one by one: numbers, lists of numbers, and which cards it sees.

One rule: whatever a tenant wrote costs no time to read, and everything that is wrong is kept until all is read.
"""

import re
from collections.abc import Mapping, Sequence

from mpsd.admission.rules.admission_case import NO_DEVICES, VISIBLE_DEVICES
from mpsd.model.grants import Gpu
from mpsd.model.problem import Problem, shown

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
