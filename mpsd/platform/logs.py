"""Logging: one line an event, with fields; JSON for machines, text for a terminal. Configured once,
by a process's entry point.

A long-running process never waits for who reads its log, and no call here raises: a thread writes,
and what it cannot write is dropped and counted.
"""

import atexit
import io
import json
import os
import select
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from mpsd.model.times import utc
from mpsd.platform import clock

# of a logger and a call, then `event`, `level` and `timestamp`
Line = Mapping[str, object]
Take = Callable[[Line], None]

LEVELS = ("info", "warning", "error")
_EVENT_WIDTH = 30  # so that fields stand below each other
_COLOURS = {"info": "32", "warning": "33", "error": "31"}
_APART = ("event", "level", "timestamp", "exception")
_QUOTED = frozenset(" =\"'")
_LONGEST_LINE = 16_384  # bytes; container runtimes split longer ones
_LONGEST_VALUE = 2000  # characters of a field, in a line that is longer
_MOST_QUEUED = 1024**2  # bytes
_LAST_LINES_S = 1.0  # at the process's end


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
        line = {**self._fields, **fields, "event": event, "level": level, "timestamp": _now()}
        if error:
            line["exception"] = "".join(traceback.format_exception(error)).rstrip()
        _take(line)


def logger(**fields: object) -> Logger:
    return Logger(fields)


def configure(log_format: str, log_level: str) -> None:
    """For a long-running process: whatever it writes to sys.stderr goes to its log's thread.

    log_format: `json`, `console`, or `auto`: console on a terminal. log_level: of LEVELS, the least
    that is logged.
    """
    global _queue
    descriptor = sys.stderr.fileno()
    is_terminal = os.isatty(descriptor)
    render: Callable[[Line], str] = as_json
    if log_format == "console" or (log_format == "auto" and is_terminal):
        render = partial(as_text, coloured=is_terminal)
    _queue = queue = LogQueue(descriptor, render)
    atexit.register(flush)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C code writes to the descriptor itself
    sys.stderr = _Errors(queue, descriptor)
    told = LEVELS[LEVELS.index(log_level) :]

    def take(line: Line) -> None:
        if line["level"] in told:
            queue.take(line)

    take_by(take)


def be_silent() -> None:
    """For a program whose output is its answer."""
    take_by(lambda _line: None)


def take_by(take: Take) -> Take:
    """Gives each line to `take`. Returns what took them until now."""
    global _take
    before = _take
    _take = take
    return before


def dropped() -> int:
    """Lines of this process that were written nowhere."""
    return _queue.dropped if _queue else 0


def flush() -> None:
    """Waits for what is queued, and not for long: for a process that ends."""
    if _queue:
        _queue.flush(_LAST_LINES_S)


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


def _now() -> str:
    return utc(clock.wall_s()).isoformat().replace("+00:00", "Z")


class LogQueue:
    """Lines that a thread of its own writes in their order, as somebody reads them. Of more than
    _MOST_QUEUED bytes the oldest are dropped, as is each that cannot be written: a closed pipe, a
    full disk. Once a line is written again, one more says how many were.

    The descriptor stays blocking: O_NONBLOCK would be of everybody who shares the open file.
    """

    def __init__(self, descriptor: int, render: Callable[[Line], str]) -> None:
        self.dropped = 0
        self._descriptor = descriptor
        self._render = render
        self._lines: deque[bytes] = deque()
        self._size = 0  # of these lines, in bytes
        self._writing = False  # a line that is not among them any more
        self._said = 0  # of those dropped
        self._torn = False  # the last write ended within a line
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def take(self, line: Line) -> None:
        """Never waits, and never raises: what cannot be rendered is dropped."""
        try:
            data = self._rendered(line)
            if len(data) > _LONGEST_LINE:
                data = self._rendered({name: _cut(str(value)) for name, value in line.items()})
            self.add(data)
        except Exception:  # such as of a __repr__ of others, or for want of memory
            self._drop()

    def _rendered(self, line: Line) -> bytes:
        return _encoded(f"{self._render(line)}\n")

    def _drop(self) -> None:
        with self._changed:
            self.dropped += 1

    def add(self, data: bytes) -> None:
        """data: a line with its end."""
        with self._changed:
            self._lines.append(data)
            self._size += len(data)
            while self._size > _MOST_QUEUED:
                self._size -= len(self._lines.popleft())
                self.dropped += 1
            self._changed.notify_all()
            self._begin()

    def _begin(self) -> None:
        """Without room for a thread the next line tries again."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._write_on, name="log", daemon=True)
            with suppress(RuntimeError, MemoryError):
                thread.start()
                self._thread = thread

    def flush(self, within_s: float) -> None:
        """Waits until all is written, and no longer than that."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._writing, within_s)

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                data = self._lines.popleft()
                self._size -= len(data)
                self._writing = True
            if self._write(data):
                self._say_dropped()
            else:
                self._drop()

    def _say_dropped(self) -> None:
        dropped = self.dropped
        if lines := dropped - self._said:
            what = {"lines": lines, "event": "log lines dropped", "level": "warning"}
            if self._write(self._rendered({**what, "timestamp": _now()})):
                self._said = dropped

    def _write(self, data: bytes) -> bool:
        """Waits for who reads."""
        left = memoryview(b"\n" + data if self._torn else data)
        try:
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                    self._torn = True
                except BlockingIOError:  # another process made the open file so
                    room = select.poll()
                    room.register(self._descriptor, select.POLLOUT)
                    room.poll()
        except OSError:
            return False
        self._torn = False
        return True


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _cut(value: str) -> str:
    """Without its middle, where it is long: a traceback's last line says most."""
    if len(value) <= _LONGEST_VALUE:
        return value
    half = _LONGEST_VALUE // 2
    return f"{value[:half]} … {value[-half:]}"


class _Errors(io.TextIOBase):
    """sys.stderr of a process with a LogQueue: what Python and libraries write is queued there, in
    whole lines."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, queue: LogQueue, descriptor: int) -> None:
        self._queue = queue
        self._descriptor = descriptor
        self._begun = ""  # a line without its end

    def write(self, text: str, /) -> int:
        *whole, self._begun = (self._begun + text).split("\n")
        if len(self._begun) > _LONGEST_LINE:
            whole.append(self._begun)
            self._begun = ""
        for line in whole:
            self._queue.add(_encoded(f"{line[:_LONGEST_LINE]}\n"))
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor


def _write(line: Line) -> None:
    """At once, so that lines of threads do not run together."""
    with suppress(OSError):
        sys.stderr.write(f"{as_text(line)}\n")
        sys.stderr.flush()


_queue: LogQueue | None = None  # before `configure`
_take: Take = _write
