"""JSON by the two C functions that the package `json` is built on, and fields by their type. `json`
itself imports `re` and `enum`, and would add 9 ms to the 16 of each start. What is read can be
written again: bytes that are no UTF-8 and lone surrogates come out as escapes. A field whose name
is there in another case is refused: Go would take it for the same field."""

from _json import encode_basestring_ascii, make_encoder, make_scanner


class ContainerRefused(Exception):
    """exit_code: of `mpsd-runtime`. reasons: each with the object, what is wrong with it and the
    remedy."""

    def __init__(self, *reasons: str, exit_code: int = 1) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons
        self.exit_code = exit_code


def shown(text: str, longest: int = 60) -> str:
    """Escaped and cut, for one line."""
    return ascii(text if len(text) <= longest else text[: longest - 1] + "…")


_SPACE = " \t\r\n"


class _Rules:
    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int

    @staticmethod
    def parse_constant(text: str) -> object:
        raise ValueError(text)  # NaN and Infinity, which are no JSON


def _unknown(value: object) -> object:
    raise TypeError(type(value).__name__)


_scan = make_scanner(_Rules)  # type: ignore[arg-type]  # any object with these attributes
_encode = make_encoder(None, _unknown, encode_basestring_ascii, None, ":", ",", False, False, False)


def read(data: bytes, what: str) -> object:
    """Refused."""
    text = data.decode("utf-8", "surrogateescape").strip(_SPACE)
    value: object
    try:
        value, end = _scan(text, 0)
        if end < len(text):
            raise ValueError
    # SystemError: its own error is in json.decoder, not loaded here
    except (ValueError, StopIteration, SystemError):
        raise ContainerRefused(f"{what} is not JSON; write it anew") from None
    except (RecursionError, MemoryError):
        raise ContainerRefused(
            f"{what} is nested too deeply to be read; write it flatter"
        ) from None
    return value


def write(value: object, what: str) -> str:
    """JSON in ASCII on one line. Refused, as for a number that is too large."""
    try:
        return "".join(_encode(value, 0))
    except (ValueError, RecursionError):
        raise ContainerRefused(
            f"{what} holds a value that JSON cannot express; write it anew"
        ) from None


def table(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ContainerRefused(f"{where} is {_kind(value)}; it must be an object")
    return value


def member(holder: dict[str, object], name: str, where: str) -> object:
    """None where it is not there. Refused where another spelling of it is."""
    folded = name.casefold()
    for other in holder:
        if other != name and other.casefold() == folded:
            raise ContainerRefused(f"{where} has a field {shown(other)}; write it {name}")
    return holder.get(name)


def inner(holder: dict[str, object], name: str, where: str) -> dict[str, object]:
    """A new one, not in the holder, where there is none. Refused."""
    value = member(holder, name, where)
    return {} if value is None else table(value, f"{where}: {name}")


def rows(holder: dict[str, object], name: str, where: str) -> list[object]:
    """New, not in the holder, where there is none. Refused."""
    value = member(holder, name, where)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ContainerRefused(f"{where}: {name} is {_kind(value)}; it must be a list")
    return value


def texts(holder: dict[str, object], name: str, where: str) -> list[str]:
    """None where there is no list. Refused, for NULs too."""
    return [
        word(value, f"{where}: {name}[{index}]")
        for index, value in enumerate(rows(holder, name, where))
    ]


def text(holder: dict[str, object], name: str, where: str) -> str:
    """Empty where there is none. Refused."""
    value = member(holder, name, where)
    return "" if value is None else word(value, f"{where}: {name}")


def word(value: object, where: str) -> str:
    """Refused, for one with a NUL too."""
    if not isinstance(value, str):
        raise ContainerRefused(f"{where} is {_kind(value)}; it must be a text")
    if "\0" in value:
        raise ContainerRefused(f"{where} is {shown(value)}; a text with a NUL is read in two ways")
    return value


def _kind(value: object) -> str:
    return {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a truth value",
        type(None): "null",
    }.get(type(value), "a number")
