"""What a line of the control daemon's output means to an operator.

One rule: the daemon writes several lines for every command it gets; only what changes something is read, and of that
only what an operator should know is forwarded.
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
    STICKY_ERRORS = "clients with a sticky error follow"
    CLIENT_REFUSED = "client refused"
    FATAL = "fatal exception"
    OTHER = "other"
    CLIENT_CONNECTED = "client connected"
    CLIENT_GONE = "client gone"
    PID = "a number by itself"  # such as the pids that follow STICKY_ERRORS

    @property
    def is_forwarded(self) -> bool:
        """Whether it is worth a line of mpsd's own log; clients come and go all day."""
        return self not in {LogEvent.CLIENT_CONNECTED, LogEvent.CLIENT_GONE, LogEvent.PID}


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line; `pid` is the process that the event is about, None where the line names none.

    when: as the daemon writes it, local time, so that a later one is greater; empty where the line has none.
    """

    event: LogEvent
    pid: int | None
    text: str
    when: str = ""


_LINE = re.compile(r"\[(?P<when>[0-9-]+ [0-9:.]+) (?P<writer>\w+) +(?P<pid>[0-9]{1,10})\] (?P<text>.*)")
_CLIENT = r"\{PID: (?P<pid>[0-9]{1,10}), Context ID: [0-9]+\}"
_EVENTS = (
    (LogEvent.SERVER_STARTING, re.compile(r"Starting new server (?P<pid>[0-9]{1,10}) for user")),
    (LogEvent.SERVER_READY, re.compile(r"NEW SERVER (?P<pid>[0-9]{1,10}): Ready")),
    (LogEvent.SERVER_EXITED, re.compile(r"Server (?P<pid>[0-9]{1,10}) exited with status")),
    (LogEvent.FAULT, re.compile(r"Server is handling a fatal GPU error")),
    (LogEvent.CLIENT_TORN_DOWN, re.compile(rf"Client {_CLIENT} on .* to be torn down")),
    (LogEvent.STICKY_ERRORS, re.compile(r"have a sticky error set:")),
    (LogEvent.CLIENT_REFUSED, re.compile(rf"Failed to accept client {_CLIENT} with status")),
    (LogEvent.FATAL, re.compile(r"Server encountered a fatal exception")),
    (LogEvent.CLIENT_CONNECTED, re.compile(r"Client \{PID: (?P<pid>[0-9]{1,10}), Context ID: 0\} connected$")),
    (LogEvent.CLIENT_GONE, re.compile(r"Client process (?P<pid>[0-9]{1,10}) disconnected$")),
)
_NUMBER = re.compile(r"[0-9]{1,10}")
_CHATTER = re.compile(
    r"NEW UI|UI closed|Accepting connection|Unable to accept connection|Cmd:"
    r"|User did not send valid credentials|NEW CLIENT|Received new client"
    r"|Creating worker thread|is associated|connected$|disconnected$|exiting\. Number of|assuming client .* exit"
    r"|Status of client .* is ACTIVE|Received device query|^[0-9.]*[MG]?$|^(ACTIVE|FAULT)$|^PID +ID|^[0-9]+ +[0-9]+ "
)


def read_line(line: str) -> LogLine | None:
    """What the line says; None for chatter that follows every command and every client."""
    match = _LINE.fullmatch(line.rstrip())
    text, when = (match["text"], match["when"]) if match else (line.strip(), "")
    for event, pattern in _EVENTS:
        if found := pattern.search(text):
            pid = found.groupdict().get("pid")
            return LogLine(event, int(pid) if pid else None, text, when)
    if match and match["writer"] == "Server" and _NUMBER.fullmatch(text):  # the daemon's own are its answers
        return LogLine(LogEvent.PID, int(text), text, when)
    if match is None or not text or _CHATTER.search(text):
        return None
    return LogLine(LogEvent.OTHER, int(match["pid"]), text, when)
