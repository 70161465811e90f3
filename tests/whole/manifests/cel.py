"""Evaluates the CEL in admission policies with Google's own runtime, as an API server would.

What Kubernetes adds to CEL is here only as far as the manifests use it. Types of fields are not
known: what has the wrong type fails when it is evaluated.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

Object = dict[str, Any]

_CONSTRUCTOR = re.compile(r"\bObject(\.\w+)*\{")
_FIELD = re.compile(r"(?<=[{,])(\s*)(\w+):(?!:)")
_AUTHORIZER = re.compile(r"\bauthorizer(\.\w+\([^()]*\))+")


@cache
def _environment() -> Any:
    names = ("object", "oldObject", "params", "request", "variables")
    return cel.NewEnv(
        variables=dict.fromkeys(names, cel.Type.DYN), extensions=[ext_strings.ExtStrings()]
    )


@cache
def _compiled(expression: str) -> Any:
    return _environment().compile(expression)


def evaluate(expression: str, **given: object) -> Any:
    """As plain Python. Raises whatever the runtime says is wrong. `request.isAuthorized` answers
    what an API server would ask its authorizer."""
    value = (
        _compiled(_AUTHORIZER.sub("request.isAuthorized", expression))
        .eval(data=given)
        .plain_value()
    )
    if isinstance(value, BaseException):
        raise value
    return value


def apply_configuration(expression: str, **given: object) -> Object:
    """What a mutation would merge into the object."""
    plain = _CONSTRUCTOR.sub("{", expression)
    plain = _FIELD.sub(r'\1"\2":', plain) if plain != expression else plain
    return evaluate(plain, **given)


def is_asked(policy: Mapping[str, Any], **given: object) -> bool:
    return all(
        evaluate(condition["expression"], **given)
        for condition in policy.get("matchConditions", ())
    )


def broken(policy: Object, **given: object) -> Iterator[str]:
    """The messages of a ValidatingAdmissionPolicy's rules that do not hold."""
    spec = policy["spec"]
    if not is_asked(spec, **given):
        return
    variables: dict[str, Any] = {}
    for variable in spec.get("variables", ()):
        variables[variable["name"]] = evaluate(variable["expression"], **given, variables=variables)
    for validation in spec["validations"]:
        holds = evaluate(validation["expression"], **given, variables=variables)
        assert isinstance(holds, bool), validation["expression"]
        if not holds:
            yield validation["message"]
