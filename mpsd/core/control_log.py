"""What a line of the control daemon's output means to an operator.

One rule: the daemon writes several lines for every command it gets; only what changes something is forwarded.
"""

import re
from dataclasses import dataclass
from enum import StrEnum


class LogEvent(StrEnum):
    """What happened, as a line of the log tells it."""

    SERVER_STARTING = "server starting"
    SERVER_READY = "server ready"
    SERVER_EXITED = "server exited"
    FAULT = "fatal GPU error"
    CLIENT_TORN_DOWN = "client torn down by a fault"
    CLIENT_REFUSED = "client refused"
    FATAL = "fatal exception"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line; `pid` is the process that the event is about, None where the line names none."""

    event: LogEvent
    pid: int | None
    text: str


_LINE = re.compile(r"\[[0-9-]+ [0-9:.]+ (?P<writer>\w+) +(?P<pid>[0-9]{1,10})\] (?P<text>.*)")
_CLIENT = r"\{PID: (?P<pid>[0-9]{1,10}), Context ID: [0-9]+\}"
_EVENTS = (
    (LogEvent.SERVER_STARTING, re.compile(r"Starting new server (?P<pid>[0-9]{1,10}) for user")),
    (LogEvent.SERVER_READY, re.compile(r"NEW SERVER (?P<pid>[0-9]{1,10}): Ready")),
    (LogEvent.SERVER_EXITED, re.compile(r"Server (?P<pid>[0-9]{1,10}) exited with status")),
    (LogEvent.FAULT, re.compile(r"Server is handling a fatal GPU error")),
    (LogEvent.CLIENT_TORN_DOWN, re.compile(rf"Client {_CLIENT} on device [0-9]+ to be torn down")),
    (LogEvent.CLIENT_REFUSED, re.compile(rf"Failed to accept client {_CLIENT} with status")),
    (LogEvent.FATAL, re.compile(r"Server encountered a fatal exception")),
)
_CHATTER = re.compile(
    r"NEW UI|UI closed|Accepting connection|Unable to accept connection|Cmd:"
    r"|User did not send valid credentials|NEW CLIENT|Received new client"
    r"|Creating worker thread|is associated|connected$|disconnected$|exiting\. Number of|assuming client .* exit"
    r"|Status of client .* is ACTIVE|Received device query|^[0-9.]*[MG]?$|^(ACTIVE|FAULT)$|^PID +ID|^[0-9]+ +[0-9]+ "
)


def read_line(line: str) -> LogLine | None:
    """What the line says; None for chatter that follows every command and every client."""
    match = _LINE.fullmatch(line.rstrip())
    text = match["text"] if match else line.strip()
    for event, pattern in _EVENTS:
        if found := pattern.search(text):
            pid = found.groupdict().get("pid")
            return LogLine(event, int(pid) if pid else None, text)
    if match is None or not text or _CHATTER.search(text):
        return None
    return LogLine(LogEvent.OTHER, int(match["pid"]), text)
