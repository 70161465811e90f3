"""What each command of nvidia-cuda-mps-control does and answers.

The answers, the silences and the order of the checks are those of driver 580.159.04, mistakes
included.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpsd.model.cuda_limit_parser import thread_percent_as_read
from mpsd.simulator.mps.client_share import device_table, limit_as_shown
from mpsd.simulator.mps.server_link import CommandSender, ServerLink, server_device

if TYPE_CHECKING:
    from mpsd.simulator.mps.daemon import ControlDaemon

# The text to print, or None when the answer comes later from elsewhere: from the server, or at the
# end of a quit.
Answer = str | None


@dataclass(frozen=True, slots=True)
class Given:
    """A command, to whom and by whom it was given; `words` are its arguments."""

    daemon: "ControlDaemon"
    asker: CommandSender
    words: Sequence[str]

    def word(self, place: int) -> str:
        """The argument in this place, empty where there is none."""
        return self.words[place] if place < len(self.words) else ""

    @property
    def server(self) -> ServerLink | None:
        """The server that the first argument names; None when it is not the one that runs."""
        running = self.daemon.server
        return running if running and self.word(0) == str(running.pid) else None

    @property
    def owner_asks(self) -> bool:
        """Whether the asker may act on servers: through either socket, by its uid as the kernel
        tells it."""
        return self.asker.privileged or self.asker.peer.uid in {0, self.daemon.settings.uid}

    @property
    def insufficient(self) -> str:
        return (
            f"Insufficient privileges for UID {self.asker.peer.uid}. Control deamon settings can"
            " only be modified by the user who started it or by the root user.\n"
        )


Handler = Callable[[Given], Answer]


def answer(daemon: "ControlDaemon", asker: CommandSender, text: str) -> Answer:
    """Carry out the first line. What an empty one is answered was not observed."""
    line, _break, _rest = text.partition("\n")
    name, *words = line.split() or [""]
    if not name:
        return ""
    handler = _HANDLERS.get(name)
    return handler(Given(daemon, asker, words)) if handler else f'Unknown command "{name}"\n'


def _is_number(text: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None


def _start_server(given: Given) -> Answer:
    if len(given.words) != 2 or given.words[0] != "-uid" or not _is_number(given.words[1]):
        return "Invalid start_server cmd. Expected cmd: start_server -uid <user id>\n"
    uid = int(given.words[1])
    if not given.owner_asks and uid != given.asker.peer.uid:
        return given.insufficient
    # A multi-user daemon has one server, its own user's; for another uid it starts none and says
    # nothing.
    if given.daemon.server is None and (
        uid == given.daemon.settings.uid or not given.daemon.settings.multiuser
    ):
        given.daemon.start_server(uid)
    return ""


def _shutdown_server(given: Given) -> Answer:
    if not given.owner_asks:
        return given.insufficient
    server = given.server
    if server is None:
        return ""
    if "-f" in given.words:
        given.daemon.end_server()
    else:
        server.close_when_idle()
    return ""


def _quit(given: Given) -> Answer:
    if not given.asker.privileged:
        return "Not enough privilege to execute quit command\n"
    timeout_s = (
        float(given.words[1])
        if len(given.words) == 2 and given.words[0] == "-t" and _is_number(given.words[1])
        else None
    )
    if timeout_s is not None:
        given.daemon.log.control(f"quit command issued with timeout of {timeout_s:.0f}")
    given.daemon.quit(given.asker, timeout_s)
    return None


def _get_server_list(given: Given) -> Answer:
    return f"{given.daemon.server.pid}\n" if given.daemon.server else ""


def _from_server(command: str, missing: str) -> Handler:
    """A question that only the server can answer; `missing` is said when the one named does not
    run."""

    def ask(given: Given) -> Answer:
        server = given.server
        if server is None:
            return missing.format(given.word(0))
        server.ask(given.asker, command, given.words[1:])
        return None

    return ask


def _from_any_server(command: str, missing: str) -> Handler:
    """A question to the server that runs, or to the one named."""

    def ask(given: Given) -> Answer:
        named = [word for word in given.words if not word.startswith("-")]
        server = given.daemon.server
        if server is None or (named and named[0] != str(server.pid)):
            return missing
        server.ask(given.asker, command, given.words)
        return None

    return ask


def _terminate_client(given: Given) -> Answer:
    server = given.server
    if server is None:
        said_to_owners = f"Server {given.word(0)} not found\n" if given.owner_asks else ""
        return f"{said_to_owners}Server {given.word(0)} not found!\n1\n"
    if not given.owner_asks:
        return f"{given.insufficient}800\n"  # CUDA_ERROR_NOT_PERMITTED
    server.ask(given.asker, "terminate_client", given.words[1:])
    return None


def _device_query(given: Given) -> Answer:
    if given.daemon.server:
        given.daemon.server.ask(given.asker, "device_query", given.words)
        return None
    return "Default\n" + device_table(given.daemon.settings.gpus, csv="--csv" in given.words)


def _percent(text: str, old: float) -> float:
    """The percentage asked for; the old one when it is none."""
    new = thread_percent_as_read(text)
    return old if new == 100 and text not in {"100", "100.0"} else new


def _set_default_percent(given: Given) -> Answer:
    if not given.asker.privileged:
        return given.insufficient
    given.daemon.defaults.thread_percent = _percent(
        given.word(0), given.daemon.defaults.thread_percent
    )
    return f"{given.daemon.defaults.thread_percent:.1f}\n"


def _get_default_percent(given: Given) -> Answer:
    return f"{given.daemon.defaults.thread_percent:.1f}\n"


def _set_percent(given: Given) -> Answer:
    server = given.server
    if server is None:
        return ""
    if not given.owner_asks:
        return given.insufficient
    server.settings.thread_percent = _percent(given.word(1), server.settings.thread_percent)
    server.apply_settings()
    return f"{server.settings.thread_percent:.1f}\n"


def _get_percent(given: Given) -> Answer:
    server = given.server
    return (
        f"{server.settings.thread_percent:.1f}\n"
        if server
        else f"Server {given.word(0)} not found\n"
    )


def _set_default_memory(given: Given) -> Answer:
    if not given.asker.privileged:
        return given.insufficient
    if len(given.words) >= 2:
        given.daemon.log.control(
            f"set_default_device_pinned_mem_limit {given.words[0]} {given.words[1]}."
        )
        given.daemon.defaults.set_memory_limit(given.words[0], given.words[1])
    return ""


def _get_default_memory(given: Given) -> Answer:
    value = given.daemon.defaults.memory_limits.get(given.word(0))
    if value is None:
        given.daemon.log.control("No default pinned memory limit set for the device!")
        return ""
    return f"{limit_as_shown(value)}\n"


def _set_memory(given: Given) -> Answer:
    server = given.server
    if server is None:
        return ""
    if not given.owner_asks:
        return given.insufficient
    if len(given.words) >= 3:
        server.settings.set_memory_limit(
            server_device(given.words[1], given.daemon.settings.gpus), given.words[2]
        )
        server.apply_settings()
    return ""


def _get_memory(given: Given) -> Answer:
    server = given.server
    if server is None:
        return f"Server {given.word(0)} not found\n"
    device = server_device(given.word(1), given.daemon.settings.gpus)
    value = server.settings.memory_limits.get(device)
    return f"{limit_as_shown(value)}\n" if value else ""


def _set_priority(given: Given) -> Answer:
    if not given.asker.privileged:
        return given.insufficient
    if given.words and _is_number(given.words[0]):
        given.daemon.defaults.priority = int(given.words[0])
    return ""


def _get_priority(given: Given) -> Answer:
    return f"{given.daemon.defaults.priority}\n"


_HANDLERS: Mapping[str, Handler] = {
    "start_server": _start_server,
    "shutdown_server": _shutdown_server,
    "quit": _quit,
    "get_server_list": _get_server_list,
    "get_server_status": _from_server("get_server_status", missing="Server {} not found\n"),
    "get_client_list": _from_server("get_client_list", missing="Server {} not found\n"),
    "get_device_client_list": _from_any_server("get_device_client_list", missing=""),
    "ps": _from_any_server("ps", missing="Server not found\n"),
    "device_query": _device_query,
    "terminate_client": _terminate_client,
    "set_default_active_thread_percentage": _set_default_percent,
    "get_default_active_thread_percentage": _get_default_percent,
    "set_active_thread_percentage": _set_percent,
    "get_active_thread_percentage": _get_percent,
    "set_default_device_pinned_mem_limit": _set_default_memory,
    "get_default_device_pinned_mem_limit": _get_default_memory,
    "set_device_pinned_mem_limit": _set_memory,
    "get_device_pinned_mem_limit": _get_memory,
    "set_default_client_priority": _set_priority,
    "get_default_client_priority": _get_priority,
}
