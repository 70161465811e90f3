"""MPSNodes as the API server answers them, a list or one.

One rule: what is no such answer is None; of one, each object is read by itself, so that one that nobody's agent wrote
takes nothing from the others.
"""

from collections.abc import Sequence

import msgspec

from mpsd.core.node_rows import ToldNode
from mpsd.core.shape import MOST_FIELDS

_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_LONGEST = 2 * MOST_FIELDS  # bytes: no more fields than may be read fit in


class _Answer(msgspec.Struct):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


_ANSWER, _TOLD = msgspec.json.Decoder(_Answer), msgspec.json.Decoder(ToldNode)


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


def told(thing: msgspec.Raw) -> ToldNode | None:
    """None where a field has another type than an agent writes, or there may be more fields than are believed."""
    try:
        return _TOLD.decode(thing) if len(memoryview(thing)) <= _LONGEST else None
    except _NO_JSON:
        return None
