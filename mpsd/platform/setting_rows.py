"""How settings are written: one row each, and the readers that turn text into values.

One rule: a flag beats its variable, which beats the default; every problem is said at once.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mpsd.model.durations import DAY_S, HOUR_S, MINUTE_S
from mpsd.model.problem import InvalidInput, Problem, shown

_UNITS_S = {"s": 1.0, "m": MINUTE_S, "h": HOUR_S, "d": DAY_S}


@dataclass(frozen=True, slots=True)
class Row:
    """read: turns text into the value; a ValueError says what to write instead."""

    flag: str
    variable: str
    default: str
    read: Callable[[str], Any]


def read_rows(
    rows: Mapping[str, Row], flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> dict[str, Any]:
    """The values by the names of the rows. flags: None where not given. InvalidInput with every problem."""
    read: dict[str, Any] = {}
    problems = []
    for name, row in rows.items():
        text = flags.get(name) or environment.get(row.variable) or row.default
        try:
            read[name] = row.read(text)
        except ValueError as error:
            problems.append(problem_with(row, text, "cannot be used", str(error)))
    if problems:
        raise InvalidInput("settings", problems)
    return read


def problem_with(row: Row, value: str, message: str, remedy: str) -> Problem:
    return Problem("setting", f"{row.flag} ({row.variable})", shown(value) if value else "", message, remedy)


def port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65_536):
        raise ValueError("write a port number, such as 9443")
    return int(text)


def address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError("write an IP address, such as 0.0.0.0") from None


def name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text):
        raise ValueError("write a name that Kubernetes takes: small letters, digits and -")
    return text


def path(text: str) -> Path | None:
    return Path(text) if text else None


def url(text: str) -> str:
    parts = urlsplit(text)
    if text and (parts.scheme != "https" or not parts.hostname or parts.query or parts.fragment):
        raise ValueError("write it as https://host:port")
    return text


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", text, re.ASCII)
    if not match:
        raise ValueError("write a time, such as 10s, 12h or 30d")
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def log_format(text: str) -> str:
    if text not in {"auto", "json", "console"}:
        raise ValueError("write auto, json or console")
    return text
