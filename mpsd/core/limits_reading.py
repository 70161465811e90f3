"""Turns what a limits file holds into `Policy` or `GpuFacts`, or into every problem in it.

One rule: nothing is guessed and nothing is ignored; a field that is unknown, missing, of the wrong type or at odds
with another is a problem with its path and a remedy.
"""

import json
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from mpsd.core.gpu_facts import GpuFacts
from mpsd.core.policy import Policy
from mpsd.core.problem import InvalidInput, Problem, shown

Shape = TypeVar("Shape", Policy, GpuFacts)

_UNKNOWN = ("field-unknown", "is not a field here", "remove it, or correct its spelling")

# pydantic's error types, as (rule, message, remedy); what is not listed keeps pydantic's own message.
_WORDS = {
    "missing": ("field-missing", "is missing", "add it; limits/ in the source tree shows every field"),
    "unexpected_keyword_argument": _UNKNOWN,
    "extra_forbidden": _UNKNOWN,
    "literal_error": ("version-unknown", "is not a version this mpsd reads", 'write "v1"'),
}


def read_policy(data: object, subject: str) -> Policy:
    """The policy in `data` (what a YAML file holds), or InvalidInput naming `subject` with every problem."""
    return _read(TypeAdapter(Policy), data, subject)


def read_gpu_facts(data: object, subject: str) -> GpuFacts:
    """The facts in `data` (what a YAML file holds), or InvalidInput naming `subject` with every problem."""
    return _read(TypeAdapter(GpuFacts), data, subject)


def _read(adapter: TypeAdapter[Shape], data: object, subject: str) -> Shape:
    if not isinstance(data, dict):
        found = "nothing" if data is None else type(data).__name__
        raise InvalidInput(
            subject,
            [
                Problem(
                    "not-a-mapping",
                    "the file",
                    found,
                    "is not a mapping of fields",
                    "start it with version: v1",
                )
            ],
        )
    try:  # pydantic's strict mode takes enums and nested records from JSON only, hence the detour
        return adapter.validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise InvalidInput(subject, [_problem(details) for details in error.errors(include_url=False)]) from None


def _problem(details: ErrorDetails) -> Problem:
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in details["loc"]).lstrip(".")
    value = "" if details["type"] == "missing" else shown(details["input"])
    if words := _WORDS.get(details["type"]):
        return Problem(words[0], where, value, words[1], words[2])
    if details["type"] == "value_error":
        contradiction = details["msg"].removeprefix("Value error, ")
        return Problem("fields-contradict", where or "the file", "", contradiction, "make the two agree")
    message = details["msg"][0].lower() + details["msg"][1:]
    return Problem(
        "field-wrong",
        where,
        value,
        message,
        "see the comment beside this field in limits/ of the source tree",
    )
