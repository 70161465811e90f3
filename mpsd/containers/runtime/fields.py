"""The fields of a JSON object, with their types.

One rule: a name that is there in another case is refused: Go reads it as the same field, and would see something else
than was seen here.
"""

from mpsd.containers.runtime.refused import Refused, shown


def table(value: object, where: str) -> dict[str, object]:
    """An object. Refused."""
    if not isinstance(value, dict):
        raise Refused(f"{where} is {_kind(value)}; it must be an object")
    return value


def member(holder: dict[str, object], name: str, where: str) -> object:
    """The field's value; None where it is not there. Refused where another spelling of it is."""
    folded = name.casefold()
    for other in holder:
        if other != name and other.casefold() == folded:
            raise Refused(f"{where} has a field {shown(other)}; write it {name}")
    return holder.get(name)


def inner(holder: dict[str, object], name: str, where: str) -> dict[str, object]:
    """The object in this field; a new one, not in the holder, where there is none. Refused."""
    value = member(holder, name, where)
    return {} if value is None else table(value, f"{where}: {name}")


def rows(holder: dict[str, object], name: str, where: str) -> list[object]:
    """The list in this field; a new one, not in the holder, where there is none. Refused."""
    value = member(holder, name, where)
    if value is None:
        return []
    if not isinstance(value, list):
        raise Refused(f"{where}: {name} is {_kind(value)}; it must be a list")
    return value


def texts(holder: dict[str, object], name: str, where: str) -> list[str]:
    """The list of texts in this field; none where there is no list. Refused, for NULs too."""
    return [word(value, f"{where}: {name}[{index}]") for index, value in enumerate(rows(holder, name, where))]


def text(holder: dict[str, object], name: str, where: str) -> str:
    """The text in this field; empty where there is none. Refused."""
    value = member(holder, name, where)
    return "" if value is None else word(value, f"{where}: {name}")


def word(value: object, where: str) -> str:
    """A text. Refused, for one with a NUL too."""
    if not isinstance(value, str):
        raise Refused(f"{where} is {_kind(value)}; it must be a text")
    if "\0" in value:
        raise Refused(f"{where} is {shown(value)}; a text with a NUL is read in two ways")
    return value


def _kind(value: object) -> str:
    return {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}.get(
        type(value), "a number"
    )
