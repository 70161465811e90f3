"""What can be said to nvidia-cuda-mps-control, and what its answers mean.

One rule: the daemon never complains (it takes an unknown device or garbage in silence, exit code 0), so an answer that
does not have exactly the form seen on real hardware is NotUnderstood, and every setting is read back by its caller.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class NotUnderstood(Exception):
    """The daemon answered something that this command never answers."""

    def __init__(self, command: str, answer: str) -> None:
        self.command = command
        self.answer = answer
        super().__init__(
            f'nvidia-cuda-mps-control answered "{answer[:200]}" to "{command}"; this mpsd does not know that answer'
        )


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


class ServerStatus(StrEnum):
    """`get_server_status`; GONE stands for "Server S not found"."""

    ACTIVE = "ACTIVE"
    FAULT = "FAULT"
    GONE = "GONE"


def server_list() -> Command[tuple[int, ...]]:
    return Command("get_server_list", _pids)


def server_status(server: int) -> Command[ServerStatus]:
    def read(output: str) -> ServerStatus:
        return ServerStatus.GONE if output == _gone(server) else ServerStatus(output)

    return Command(f"get_server_status {server}", read)


def health(server: int) -> Command[tuple[tuple[int, ...], ServerStatus]]:
    """`server_list` and `server_status` of one known server, asked in one go: each costs a process."""
    list_of_servers, status_of_one = server_list(), server_status(server)

    def read(output: str) -> tuple[tuple[int, ...], ServerStatus]:
        *servers, status = output.splitlines() or [""]
        return list_of_servers.read("\n".join(servers)), status_of_one.read(status)

    return Command(f"{list_of_servers.text}\n{status_of_one.text}", read)


def client_list(server: int) -> Command[tuple[int, ...]]:
    def read(output: str) -> tuple[int, ...]:
        return () if output == _gone(server) else _pids(output)

    return Command(f"get_client_list {server}", read)


def devices() -> Command[tuple[str, ...]]:
    """The UUIDs of the daemon's GPUs, in its order."""
    return Command("device_query --csv", _device_uuids)


def start_server(uid: int) -> Command[None]:
    return Command(f"start_server -uid {uid}", _silence)


def quit_daemon(timeout_s: int) -> Command[None]:
    """Waits up to `timeout_s` seconds for clients, then ends them and the daemon."""
    return Command(f"quit -t {timeout_s}", _silence)


def terminate_client(server: int, pid: int) -> Command[bool]:
    """True: the client's work was ended; False: the server knows no such process."""
    unknown = {f"Invalid process {pid}!", f"Server {server} not found", f"Server {server} not found!", "1"}

    def read(output: str) -> bool:
        if output in {"0", "1"}:
            return output == "0"
        if output.endswith("\n1") and set(output.splitlines()) <= unknown:
            return False
        raise ValueError(output)

    return Command(f"terminate_client {server} {pid}", read)


def set_server_memory_limit(server: int, ordinal: int, memory_mib: int) -> Command[None]:
    def read(output: str) -> None:
        _silence("" if output == _gone(server) else output)  # reading it back finds no limit then

    return Command(f"set_device_pinned_mem_limit {server} {ordinal} {memory_mib}M", read)


def server_memory_limit(server: int, ordinal: int) -> Command[int | None]:
    """MiB, as `memory_mib_as_shown` rounds them; None where the server has no limit for that ordinal."""

    def read(output: str) -> int | None:
        return None if output == _gone(server) else _memory_mib(output)

    return Command(f"get_device_pinned_mem_limit {server} {ordinal}", read)


def set_default_memory_limit(ordinal: int, memory_mib: int) -> Command[None]:
    return Command(f"set_default_device_pinned_mem_limit {ordinal} {memory_mib}M", _silence)


def default_memory_limit(ordinal: int) -> Command[int | None]:
    """MiB for servers to come, as `memory_mib_as_shown` rounds them; None where there is none."""
    return Command(f"get_default_device_pinned_mem_limit {ordinal}", _memory_mib)


def memory_mib_as_shown(memory_mib: int) -> int:
    """What a limit reads back as: the daemon keeps every byte and shows whole GiB from 1 GiB on (580.159.04)."""
    return memory_mib if memory_mib < 1024 else memory_mib - memory_mib % 1024


def _gone(server: int) -> str:
    return f"Server {server} not found"


def _silence(output: str) -> None:
    if output:
        raise ValueError(output)


def _pids(output: str) -> tuple[int, ...]:
    return tuple(_pid(line) for line in output.splitlines())


def _pid(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,9}", text):
        raise ValueError(text)
    return int(text)


def _memory_mib(output: str) -> int | None:
    if not output:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,9})([MG])", output)
    if match is None:
        raise ValueError(output)
    return int(match[1]) * (1024 if match[2] == "G" else 1)


def _device_uuids(output: str) -> tuple[str, ...]:
    """The daemon's own table comes first (`Default`); each server's table repeats it."""
    title, header, *rows = output.splitlines() or ["", ""]
    if title != "Default" or not header.startswith("Device Ordinal,PCI IDs,UUID,"):
        raise ValueError(output)
    uuids = []
    for row in rows:
        if not row:
            break
        uuids.append(row.split(",")[2])
    return tuple(uuids)
