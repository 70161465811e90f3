"""A container's variables, read one by one: numbers, lists of numbers, and which cards it sees.

Whatever a tenant wrote takes no noticeable time to read, and every problem is kept until all is read.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from mpsd.admission.rules.rule import NO_DEVICES
from mpsd.containers.dialects.names import VISIBLE_DEVICES
from mpsd.model.grants import Gpu
from mpsd.model.problem import InvalidInput, Problem, shown

LONGEST_TEXT = 2048  # characters: 40 UUIDs with room
_ALL_DEVICES = "all"
_WHOLE = re.compile(r"[0-9]{1,18}", re.ASCII)
_NAME_CARDS = "name the cards, by index or by UUID, separated by commas"


def whole_number(text: str) -> int | None:
    """The whole number that `text` is, 0 or more and under 10 to the 18th; None where it is none."""
    return int(text) if _WHOLE.fullmatch(text) else None


class Variables:
    """The variables of one container; what is wrong with those that were read gathers in `problems`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[Problem] = []

    def refuse(self, rule: str, where: str, value: object, message: str, remedy: str) -> None:
        self.problems.append(Problem(rule, where, shown(value), message, remedy))

    def are_valid(self, *names: str) -> bool:
        """Whether nothing is wrong with these variables, as far as they were read."""
        return not any(problem.where in names for problem in self.problems)

    def text(self, name: str) -> str | None:
        """The variable as written; None where it is not set, or too long to be meant."""
        text = self._environment.get(name)
        if text is None or len(text) <= LONGEST_TEXT:
            return text
        self.refuse("too-long", name, text, f"has {len(text)} characters", f"write at most {LONGEST_TEXT}")
        return None

    def number(self, name: str, remedy: str, least: int = 1) -> int | None:
        """The whole number that a variable is; None where it is not set, or wrong."""
        text = self.text(name)
        number = None if text is None else whole_number(text)
        if text is not None and (number is None or number < least):
            self.refuse("not-a-number", name, text, f"is not a whole number of at least {least}", remedy)
            return None
        return number

    def numbers(self, name: str, remedy: str) -> tuple[int, ...]:
        """The whole numbers of a list with commas, 0 or more; none where it is not set, or wrong."""
        text = self.text(name)
        if text is None:
            return ()
        numbers = [whole_number(part) for part in text.split(",")]
        if None in numbers:
            self.refuse("not-a-number", name, text, "is neither a whole number nor a list of them with commas", remedy)
            return ()
        return tuple(number for number in numbers if number is not None)

    def gpus(self, machine: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """The machine's cards that the container sees, in the order that it names them; wrong unless one at least.

        Where the variable is not set, the machine's only card is meant.
        """
        text = self._environment.get(VISIBLE_DEVICES)
        if not machine:
            self.refuse("no-gpu", VISIBLE_DEVICES, text or "", "this machine has no GPU", "run it where a GPU is")
        elif text is None and len(machine) > 1:
            message, remedy = f"is not set, and the machine has {len(machine)} cards", f"{_NAME_CARDS}, or write all"
            self.problems.append(Problem("devices-unsaid", VISIBLE_DEVICES, "", message, remedy))
        elif text in NO_DEVICES:
            message = "gives the container no card, but a share of one is requested"
            self.refuse("devices-none", VISIBLE_DEVICES, text, message, f"{_NAME_CARDS}, or leave the share out")
        elif text in (None, _ALL_DEVICES):
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
                remedy = f"write {', '.join(str(gpu.ordinal) for gpu in machine)}, or a card's UUID"
                self.refuse("device-unknown", VISIBLE_DEVICES, name, "is no card of this machine", remedy)
            elif gpu.uuid in found:
                message = f"names {gpu.label} a second time"
                self.refuse("device-twice", VISIBLE_DEVICES, name, message, "name each card once")
            else:
                found[gpu.uuid] = gpu
        return tuple(found.values())


def environment_in(lines: Iterable[str], subject: str, needed: Collection[str]) -> dict[str, str]:
    """The variables in the lines of a file, as docker reads `--env-file`: a value is taken with its quotes and blanks.

    A name without a value is the shell's, which is not known here: wrong for those that are `needed`. InvalidInput
    names `subject`.
    """
    found: dict[str, str] = {}
    problems = []
    for number, written in enumerate(lines, 1):
        line = written.lstrip().removesuffix("\r")
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not key or any(char.isspace() for char in key):
            message = "has no name before its =" if not key else "has a blank in its name"
            problems.append(Problem("line-malformed", f"line {number}", shown(line), message, "write KEY=VALUE"))
        elif equals:
            found[key] = value
        elif key in needed:
            message = "has no value here: docker takes it from the shell"
            problems.append(Problem("value-unknown", f"line {number}", shown(key), message, "write KEY=VALUE"))
    if problems:
        raise InvalidInput(subject, problems)
    return found
