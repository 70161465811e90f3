"""Reads and writes JSON with the two C functions that the package `json` is built on.

`json` itself imports `re` and `enum` and takes longer to load than all the rest of this program.

One rule: what is read can be written again: bytes that are no UTF-8 and lone surrogates come out as escapes.
"""

from _json import encode_basestring_ascii, make_encoder, make_scanner

from mpsd.containers.runtime.refused import Refused

_SPACE = " \t\r\n"


def _no_constant(text: str) -> object:
    raise ValueError(text)  # NaN and Infinity, which are no JSON


class _Rules:
    """What make_scanner looks up, by these names."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_no_constant)


def _unknown(value: object) -> object:
    raise TypeError(type(value).__name__)


_scan = make_scanner(_Rules)  # type: ignore[arg-type]  # any object with these attributes
_encode = make_encoder(None, _unknown, encode_basestring_ascii, None, ":", ",", False, False, False)


def read(data: bytes, what: str) -> object:
    """The value of a JSON text. Refused, which names it as `what`, where it is none, or is nested without end."""
    text = data.decode("utf-8", "surrogateescape")
    begin = len(text) - len(text.lstrip(_SPACE))
    try:
        value, end = _scan(text, begin)
        if text[end:].strip(_SPACE):
            raise ValueError
    except (ValueError, StopIteration, SystemError):  # SystemError: its own error is in json.decoder, not loaded here
        raise Refused(f"{what} is not JSON; write it anew") from None
    except (RecursionError, MemoryError):
        raise Refused(f"{what} is nested too deeply to be read; write it flatter") from None
    read_value: object = value
    return read_value


def write(value: object, what: str) -> str:
    """JSON in ASCII on one line. Refused, which names it as `what`, where a number is too large to be written."""
    try:
        return "".join(_encode(value, 0))
    except (ValueError, RecursionError):
        raise Refused(f"{what} holds what JSON cannot say; write it anew") from None
