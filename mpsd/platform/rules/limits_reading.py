"""Turns what a limits file holds into `Policy` or `GpuFacts`, or into every problem in it.

Nothing is guessed and nothing is ignored; a field that is unknown, missing, of the wrong type or at odds
with another is a problem with its path and a remedy.
"""

import json
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from mpsd.model.cgpu_policies import MOST_INSTANCES
from mpsd.model.fields import Fields
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput, Problem, shown

Shape = TypeVar("Shape", Policy, GpuFacts)

_SHIPPED = "the files that `env -u MPSD_LIMITS mpsd check` names"
_UNKNOWN = ("field-unknown", "is not a field here", "remove it, or correct its spelling")

# pydantic's error types, as (rule, message, remedy); what is not listed keeps pydantic's own message.
_WORDS = {
    "missing": ("field-missing", "is missing", f"add it; {_SHIPPED} show every field"),
    "unexpected_keyword_argument": _UNKNOWN,
    "extra_forbidden": _UNKNOWN,
    "max_inst_unset": (
        "max-inst-unset",
        "is not set, and the policy beside it gives a container 1/max_inst or weight/max_inst of a card",
        f"write 1 to {MOST_INSTANCES}, or policy 1, 2, 4 or 5",
    ),
    "no_ordinal": ("no-ordinal", "is no GPU's ordinal", "write it as nvidia-smi does, such as 0"),
    "literal_error": ("version-unknown", "is not a version this mpsd reads", 'write "v1"'),
}

_TEXTS = {"enum", "string_type"}  # pydantic's errors where text is wanted


def read_policy(data: object, subject: str) -> Policy:
    """The policy in `data` (what a YAML file holds), or InvalidInput naming `subject` with every problem."""
    return _read(TypeAdapter(Policy), data, subject)


def read_gpu_facts(data: object, subject: str) -> GpuFacts:
    """The facts in `data` (what a YAML file holds), or InvalidInput naming `subject` with every problem."""
    return _read(TypeAdapter(GpuFacts), data, subject)


def _read(adapter: TypeAdapter[Shape], data: object, subject: str) -> Shape:
    if not isinstance(data, dict):
        value = "nothing" if data is None else type(data).__name__
        message, remedy = "is not a mapping of fields", "start it with version: v1"
        raise InvalidInput(subject, [Problem("not-a-mapping", "the file", value, message, remedy)])
    fields: Fields = data
    try:
        return _validated(adapter, fields)
    except ValidationError as error:
        found: list[ErrorDetails] = error.errors(include_url=False)
        raise InvalidInput(subject, map(_problem, [*found, *_hidden(adapter, fields, found)])) from None


def _validated(adapter: TypeAdapter[Shape], data: Fields) -> Shape:
    """pydantic's strict mode takes enums and nested records from JSON only, hence the detour."""
    return adapter.validate_json(json.dumps(data, default=str), strict=True)


def _hidden(adapter: TypeAdapter[Shape], data: Fields, found: list[ErrorDetails]) -> list[ErrorDetails]:
    """The contradictions in lists, which pydantic looks for only where no entry is wrong in itself."""
    lists = {details["loc"][0] for details in found if len(details["loc"]) > 1 and isinstance(details["loc"][1], int)}
    wrong = {details["loc"][:2] for details in found}
    sound = {
        key: [entry for position, entry in enumerate(value) if (key, position) not in wrong]
        if key in lists and isinstance(value, list)
        else value
        for key, value in data.items()
    }
    try:
        _validated(adapter, sound)
    except ValidationError as error:
        return [
            details
            for details in error.errors(include_url=False)
            if details["type"] == "value_error" and len(details["loc"]) == 1 and details["loc"][0] in lists
        ]
    return []


def _problem(details: ErrorDetails) -> Problem:
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in details["loc"]).lstrip(".")
    value = "" if details["type"] == "missing" else shown(details["input"])
    if words := _WORDS.get(details["type"]):
        return Problem(words[0], where, value, words[1], words[2])
    if details["type"] == "value_error":
        contradiction = details["msg"].removeprefix("Value error, ")
        return Problem("fields-contradict", where or "the file", "", contradiction, "make the two agree")
    message = details["msg"][0].lower() + details["msg"][1:]
    return Problem("field-wrong", where, value, message, _remedy(details))


def _remedy(details: ErrorDetails) -> str:
    if details["type"] in _TEXTS and isinstance(details["input"], bool):
        return "write it in quotes; without, YAML reads on, off, yes and no as true or false"
    if details["type"] in _TEXTS and isinstance(details["input"], int | float):
        return "write it in quotes"
    return f"see the comment beside this field in {_SHIPPED}"
