"""MPSNodes as the API server answers them, a list or one.

One rule: what is no such answer is None; of one, each object is read by itself, so that one that nobody's agent wrote
takes nothing from the others.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from mpsd.core.shape import MOST_FIELDS

Told = TypeVar("Told")

_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_LONGEST = 2 * MOST_FIELDS  # bytes: no more fields than may be read fit in


class _Answer(msgspec.Struct):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


_ANSWER = msgspec.json.Decoder(_Answer)


def mpsnodes(body: bytes) -> Sequence[msgspec.Raw] | None:
    """The objects, none of them read."""
    try:
        answer = _ANSWER.decode(body)
    except _NO_JSON:
        return None
    match answer:
        case _Answer("MPSNodeList", [*items]):
            return items
        case _Answer("MPSNode"):
            return [msgspec.Raw(body)]
        case _:
            return None


def read(thing: msgspec.Raw) -> object:
    """Whatever it holds; ValueError for what is no JSON."""
    try:
        return msgspec.json.decode(thing)
    except _NO_JSON as error:
        raise ValueError("no JSON that can be read") from error


def reader(kind: type[Told]) -> Callable[[msgspec.Raw], Told | None]:
    """Reads the fields of this kind alone: None where one has another type than an agent writes, or where there may be
    more fields than are believed.
    """
    decoder = msgspec.json.Decoder(kind)

    def told(thing: msgspec.Raw) -> Told | None:
        try:
            return decoder.decode(thing) if len(memoryview(thing)) <= _LONGEST else None
        except _NO_JSON:
            return None

    return told
