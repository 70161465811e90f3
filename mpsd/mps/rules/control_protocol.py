"""The commands of nvidia-cuda-mps-control, its answers and its log. It never complains, so an
answer of another form than observed is NotUnderstood, and every setting is read back."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from mpsd.model.domain import ServerStatus

Answer = TypeVar("Answer")


class ControlFailed(Exception):
    """A command failed."""


class NotUnderstood(ControlFailed):
    """The daemon answered something that this command never answers."""

    def __init__(self, command: str, answer: str) -> None:
        answered = f'nvidia-cuda-mps-control answered "{answer[:200]}" to "{command}"'
        super().__init__(f"{answered}, which this version of mpsd does not know")


@dataclass(frozen=True, slots=True)
class Command(Generic[Answer]):
    """One line for the daemon's standard input, and how to read what comes back."""

    text: str
    read: Callable[[str], Answer]

    def answer(self, output: str) -> Answer:
        """The answer in the daemon's output; NotUnderstood where it has another form."""
        try:
            return self.read(output.strip())
        except ValueError:
            raise NotUnderstood(self.text, output.strip()) from None


def server_list() -> Command[tuple[int, ...]]:
    return Command("get_server_list", _pids)


def server_status(server: int) -> Command[ServerStatus]:
    return _of_server(f"get_server_status {server}", server, ServerStatus, ServerStatus.GONE)


def health(server: int) -> Command[tuple[tuple[int, ...], ServerStatus]]:
    """`server_list` and `server_status` of one known server in one process."""
    list_of_servers = server_list()
    status_of_one = server_status(server)

    def read(output: str) -> tuple[tuple[int, ...], ServerStatus]:
        *servers, status = output.splitlines() or [""]
        return list_of_servers.read("\n".join(servers)), status_of_one.read(status)

    return Command(f"{list_of_servers.text}\n{status_of_one.text}", read)


def client_list(server: int) -> Command[tuple[int, ...]]:
    return _of_server(f"get_client_list {server}", server, _pids, ())


def start_server(uid: int) -> Command[None]:
    return Command(f"start_server -uid {uid}", _silence)


def quit_daemon(timeout_s: int) -> Command[None]:
    """Waits up to `timeout_s` seconds for clients, then ends them and the daemon."""
    return Command(f"quit -t {timeout_s}", _silence)


def set_memory_limit(server: int | None, ordinal: int, memory_mib: int) -> Command[None]:
    """server None: the default for new servers."""
    if server is None:
        return Command(f"set_default_device_pinned_mem_limit {ordinal} {memory_mib}M", _silence)
    text = f"set_device_pinned_mem_limit {server} {ordinal} {memory_mib}M"
    return _of_server(text, server, _silence, None)  # reading it back finds no limit then


def memory_limit(server: int | None, ordinal: int) -> Command[int | None]:
    """MiB, as `memory_mib_as_shown`; None for none. server None: the default for new servers."""
    if server is None:
        return Command(f"get_default_device_pinned_mem_limit {ordinal}", _memory_mib)
    return _of_server(f"get_device_pinned_mem_limit {server} {ordinal}", server, _memory_mib, None)


def memory_mib_as_shown(memory_mib: int) -> int:
    """How a limit that is kept to the byte reads back: whole GiB from 1 GiB on (580.159.04)."""
    if memory_mib < 1024:
        return memory_mib
    return memory_mib - memory_mib % 1024


def _of_server(
    text: str, server: int, read: Callable[[str], Answer], gone: Answer
) -> Command[Answer]:
    """gone: the answer where there is no such server any more."""

    def read_one(output: str) -> Answer:
        if output == f"Server {server} not found":
            return gone
        return read(output)

    return Command(text, read_one)


def _silence(output: str) -> None:
    if output:
        raise ValueError(output)


def _pids(output: str) -> tuple[int, ...]:
    lines = output.splitlines()
    if not all(re.fullmatch(r"[1-9][0-9]{0,9}", line) for line in lines):
        raise ValueError(output)
    return tuple(map(int, lines))


def _memory_mib(output: str) -> int | None:
    if not output:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,9})([MG])", output)
    if match is None:
        raise ValueError(output)
    return int(match[1]) * {"M": 1, "G": 1024}[match[2]]


# -- the log
# It has several lines for every command; only those that change something are read.


class LogEvent(StrEnum):
    """The event that a line of the log reports."""

    SERVER_STARTING = "server starting"
    SERVER_READY = "server ready"
    SERVER_EXITED = "server exited"
    FAULT = "fatal GPU error"
    CLIENT_TORN_DOWN = "client torn down by a fault"
    CLIENT_REFUSED = "client refused"
    FATAL = "fatal exception"
    OTHER = "other"
    CLIENT_CONNECTED = "client connected"
    CLIENT_GONE = "client gone"
    LEFT_OUT = "more lines than are read"

    @property
    def is_forwarded(self) -> bool:
        """To mpsd's own log; clients come and go all day."""
        return self not in {LogEvent.CLIENT_CONNECTED, LogEvent.CLIENT_GONE}


@dataclass(frozen=True, slots=True)
class LogLine:
    """pid: whom the line names; None where it names none. when: the daemon's local time, sortable.
    Any tenant can have the daemon write any line, so nothing follows from one but a question to the
    daemon (docs/mps-observed.md, section 4)."""

    event: LogEvent
    pid: int | None
    text: str
    when: str = ""


_LINE = re.compile(
    r"\[(?P<when>[0-9-]+ [0-9:.]+) (?P<writer>Control|Server) +(?P<pid>[0-9]{1,10})\] (?P<text>.*)"
)
_CLIENT = r"\{PID: (?P<pid>[0-9]{1,10}), Context ID: [0-9]+\}"
_EVENTS = {
    "Control": (
        (
            LogEvent.SERVER_STARTING,
            re.compile(r"Starting new server (?P<pid>[0-9]{1,10}) for user"),
        ),
        (LogEvent.SERVER_READY, re.compile(r"NEW SERVER (?P<pid>[0-9]{1,10}): Ready")),
        (LogEvent.SERVER_EXITED, re.compile(r"Server (?P<pid>[0-9]{1,10}) exited with status")),
    ),
    "Server": (
        (LogEvent.FAULT, re.compile(r"Server is handling a fatal GPU error")),
        (LogEvent.CLIENT_TORN_DOWN, re.compile(rf"Client {_CLIENT} on .* to be torn down")),
        (LogEvent.CLIENT_REFUSED, re.compile(rf"Failed to accept client {_CLIENT} with status")),
        (LogEvent.FATAL, re.compile(r"Server encountered a fatal exception")),
        (
            LogEvent.CLIENT_CONNECTED,
            re.compile(r"Client \{PID: (?P<pid>[0-9]{1,10}), Context ID: 0\} connected$"),
        ),
        (LogEvent.CLIENT_GONE, re.compile(r"Client process (?P<pid>[0-9]{1,10}) disconnected$")),
    ),
}
_CHATTER = re.compile(
    r"^Cmd:|^Unknown command|NEW UI|UI closed|Accepting connection|Unable to accept connection"
    r"|User did not send valid credentials|NEW CLIENT|Received new client"
    r"|Creating worker thread|is associated|connected$|disconnected$|exiting\. Number of|assuming"
    r" client .* exit"
    r"|Status of client .* is ACTIVE|Received device query|^[0-9.]*[MG]?$|^(ACTIVE|FAULT)$|^PID"
    r" +ID|^[0-9]+ +[0-9]+ "
)


def read_line(line: str) -> LogLine | None:
    """The event in the line; None for those that follow every command and every client."""
    match = _LINE.fullmatch(line.rstrip())
    if match is None:
        return None
    text = match["text"]
    when = match["when"]
    for event, pattern in _EVENTS[match["writer"]]:
        if found := pattern.match(text):
            pid = None
            if named := found.groupdict().get("pid"):
                pid = int(named)
            return LogLine(event, pid, text, when)
    if not text or _CHATTER.search(text):
        return None
    return LogLine(LogEvent.OTHER, int(match["pid"]), text, when)
