"""Logging: one line an event, with fields; JSON for machines, text for a terminal. Configured once,
by a process's entry point."""

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial

from mpsd.model.times import utc
from mpsd.platform import clock

# of a logger and a call, then `event`, `level` and `timestamp`
Line = Mapping[str, object]
Take = Callable[[Line], None]

_EVENT_WIDTH = 30  # so that fields stand below each other
_COLOURS = {"info": "32", "warning": "33", "error": "31"}
_APART = ("event", "level", "timestamp", "exception")
_QUOTED = frozenset(" =\"'")


class Logger:
    """A logger whose fields stand in each of its lines."""

    def __init__(self, fields: Line) -> None:
        self._fields = fields

    def info(self, event: str, **fields: object) -> None:
        self._tell("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._tell("warning", event, fields)

    def error(self, event: str, *, exc_info: BaseException | None = None, **fields: object) -> None:
        """exc_info: with its traceback."""
        self._tell("error", event, fields, exc_info)

    def _tell(
        self, level: str, event: str, fields: Line, error: BaseException | None = None
    ) -> None:
        timestamp = utc(clock.wall_s()).isoformat().replace("+00:00", "Z")
        line = {**self._fields, **fields, "event": event, "level": level, "timestamp": timestamp}
        if error:
            line["exception"] = "".join(traceback.format_exception(error)).rstrip()
        _take(line)


def logger(**fields: object) -> Logger:
    return Logger(fields)


def configure(log_format: str) -> None:
    """log_format: `json`, `console`, or `auto`: console on a terminal."""
    is_terminal = sys.stderr.isatty()
    render: Callable[[Line], str] = as_json
    if log_format == "console" or (log_format == "auto" and is_terminal):
        render = partial(as_text, coloured=is_terminal)
    take_by(partial(_write, render))


def be_silent() -> None:
    """For a program whose output is its answer."""
    take_by(lambda _line: None)


def take_by(take: Take) -> Take:
    """Gives each line to `take`. Returns what took them until now."""
    global _take
    before = _take
    _take = take
    return before


def as_json(line: Line) -> str:
    return json.dumps(line, default=repr)


def as_text(line: Line, *, coloured: bool = False) -> str:
    """One line, and a traceback below it. What a terminal would not show as it is stands in quotes,
    escaped: it may be a tenant's."""
    event, level, timestamp, exception = (str(line.get(name, "")) for name in _APART)
    shown = f"[\x1b[{_COLOURS[level]}m{level:7}\x1b[0m]" if coloured else f"[{level:7}]"
    fields = (f"{name}={_shown(str(value))}" for name, value in line.items() if name not in _APART)
    text = " ".join((timestamp, shown, f"{event:{_EVENT_WIDTH}}", *fields)).rstrip()
    return f"{text}\n{exception}" if exception else text


def _shown(value: str) -> str:
    is_plain = value and value.isprintable() and not _QUOTED.intersection(value)
    return value if is_plain else repr(value)


def _write(render: Callable[[Line], str], line: Line) -> None:
    sys.stderr.write(f"{render(line)}\n")  # at once, so that lines of threads do not run together
    sys.stderr.flush()


_take: Take = partial(_write, as_text)
