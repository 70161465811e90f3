"""What is wrong with something a person wrote. Whoever reads input reports every problem in it at
once, so readers return or raise tuples of these."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Self

LONGEST_NAME = 253  # Kubernetes' own limit on the name of an object
MOST_NAMES = 10  # in one message
_PROGRAM = re.compile(r"[\w.:/+@~-]{1,200}")


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in one field. rule: a stable id in kebab-case. where: the path inside the object,
    such as `spec.containers[0].resources.limits`. value: as written, shortened. message: what is
    wrong, and remedy: what to write instead, each a sentence without a full stop."""

    rule: str
    where: str
    value: str
    message: str
    remedy: str

    def record(self) -> dict[str, str]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.fault}; {self.remedy}"

    @property
    def fault(self) -> str:
        """The problem without its remedy."""
        shown = f" is {self.value}" if self.value else ""
        return f"{self.where}{shown}: {self.message}"


class InvalidInput(Exception):
    """An object with every problem in it. subject: as a person names it, such as `Job
    default/train`."""

    def __init__(self, subject: str, problems: Iterable[Problem]) -> None:
        self.subject = subject
        self.problems = tuple(problems)
        super().__init__(f"{subject}: " + "; ".join(str(problem) for problem in self.problems))

    @classmethod
    def of(cls, subject: str, rule: str, where: str, value: str, message: str, remedy: str) -> Self:
        return cls(subject, [Problem(rule, where, value, message, remedy)])


def shown(value: object, longest: int = 60) -> str:
    """A value as JSON for one line of a message."""
    if isinstance(value, str):
        value = value[:longest]  # quoted, that is longer already
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    # numbers of thousands of digits, nesting without end
    except (ValueError, TypeError, RecursionError):
        text = f"a {type(value).__name__} too large to show"
    return printable(text, longest)


def printable(text: str, longest: int = 60) -> str:
    """Text for one line of a message: control characters escaped, cut at `longest`."""
    cut = text[: longest + 1]
    if not cut.isprintable():
        cut = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut
        )
    return cut if len(cut) <= longest else cut[: longest - 1] + "…"


def shown_name(text: str) -> str:
    """A name for one line of a message, as `printable`; none that Kubernetes takes is cut."""
    return printable(text, LONGEST_NAME)


def shortened(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def program_of(command: str) -> str:
    """A command without its arguments, any of which may be a tenant's secret."""
    program, _space, arguments = command.strip().partition(" ")
    if program and ("://" in program or not _PROGRAM.fullmatch(program)):
        program = "[redacted]"
    return f"{program} [arguments redacted]" if arguments else program
