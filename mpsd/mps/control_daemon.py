"""The process `nvidia-cuda-mps-control -f -M` of one domain: commands to it, its start, its sockets.

The daemon outlives mpsd. It has a session of its own and writes to a file, so that nothing breaks for its clients when
mpsd ends; the next mpsd adopts it on proof that it is the one that listens in our directory.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mpsd.model.cuda_limit_parser import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsd.model.identity import ProcessIdentity
from mpsd.model.metrics import CommandTimes
from mpsd.model.node_view import ServerLimit
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import Command
from mpsd.platform import processes, records
from mpsd.platform.http_server import peer_of
from mpsd.platform.run_directory import DomainFolder
from mpsd.platform.settings import Settings

# -- commands: one process each, as the manual has it; each has a deadline, and every setting is read back -----------

PROGRAM = "nvidia-cuda-mps-control"
Answer = TypeVar("Answer")


class ControlFailed(Exception):
    """A command failed."""


class DaemonSilent(ControlFailed):
    """Nothing came back within the deadline: the daemon is stopped, wedged or very busy."""


class NoDaemon(ControlFailed):
    """No daemon listens in the pipe directory."""


class SettingRefused(ControlFailed):
    """The daemon accepted a setting without complaint and does not have it."""


@dataclass(frozen=True, slots=True)
class ControlPipe:
    """The way to the daemon of one pipe directory. environment: of the commands, PATH first of all."""

    directory: Path
    environment: Mapping[str, str]
    deadline_s: float

    async def ask(self, command: Command[Answer]) -> Answer:
        """The daemon's answer. ControlFailed (DaemonSilent, NoDaemon), or NotUnderstood for one of unknown form."""
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            env={**self.environment, PIPE_DIRECTORY: str(self.directory)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(self.deadline_s):
                output, errors = await process.communicate(f"{command.text}\n".encode())
        except TimeoutError:
            raise DaemonSilent(f'no answer to "{_shown(command.text)}" within {self.deadline_s:g} s') from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # after the deadline, or when the caller was cancelled
            await process.wait()
        if process.returncode:
            raise _failure(command.text, process.returncode, errors.decode(errors="replace").strip())
        return command.answer(output.decode(errors="replace"))

    async def clients(self, servers: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """The pids of the clients of each of these servers."""
        return tuple([await self.ask(control_protocol.client_list(server)) for server in servers])

    async def set_limit(self, limit: ServerLimit) -> None:
        """Sets a memory limit and reads it back; SettingRefused where the daemon has another one then."""
        if limit.server is None:
            await self.ask(control_protocol.set_default_memory_limit(limit.ordinal, limit.memory_mib))
            found = await self.ask(control_protocol.default_memory_limit(limit.ordinal))
        else:
            await self.ask(control_protocol.set_server_memory_limit(limit.server, limit.ordinal, limit.memory_mib))
            found = await self.ask(control_protocol.server_memory_limit(limit.server, limit.ordinal))
        if found != control_protocol.memory_mib_as_shown(limit.memory_mib):
            of_whom = "the default for new servers" if limit.server is None else f"server {limit.server}"
            raise SettingRefused(
                f"the memory limit of {of_whom} for device {limit.ordinal} was set to {limit.memory_mib} MiB "
                f"and reads back as {'none' if found is None else f'{found} MiB'}"
            )


def _failure(command: str, code: int, errors: str) -> ControlFailed:
    if errors.startswith("Cannot find MPS control daemon"):
        return NoDaemon("no control daemon listens here")
    return ControlFailed(f'"{_shown(command)}" ended with code {code}: {errors or "no message"}')


def _shown(command: str) -> str:
    """Several commands asked in one go, in one line."""
    return command.replace("\n", "; ")


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what MPS would take as a setting, and with `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "NVIDIA_"))}
    return kept | dict(extra)


# -- the process ---------------------------------------------------------------------------------------------------

LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
_SOCKET_KINDS = (socket.SOCK_SEQPACKET, socket.SOCK_STREAM)  # the driver does not say which it uses


def multi_user() -> bool:
    """Whether the daemon can serve several users: it demands root for that."""
    return os.geteuid() == 0


def server_user() -> int:
    """The uid that a server may be started for."""
    return os.geteuid()


def program_found(environment: Mapping[str, str]) -> bool:
    """Whether the daemon's program is on the PATH of this environment."""
    return shutil.which(PROGRAM, path=environment.get("PATH")) is not None


def serves(daemon: ProcessIdentity, gpus: Sequence[str]) -> bool:
    """Whether this daemon was started for exactly these GPUs; False too when its environment cannot be read."""
    environment = processes.environment_of(daemon.pid)
    return environment is not None and environment.get(VISIBLE_DEVICES) == ",".join(gpus)


def start(folder: DomainFolder, gpus: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a daemon for these GPUs; multi-user where we are root, as the daemon demands. OSError if it cannot be."""
    with folder.log.open("ab") as output:
        return subprocess.Popen(
            [PROGRAM, "-f", *(["-M"] if multi_user() else [])],
            env={
                **environment,
                PIPE_DIRECTORY: str(folder.pipe),
                LOG_DIRECTORY: str(folder.log.parent),
                VISIBLE_DEVICES: ",".join(gpus),
            },
            cwd=folder.path,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def listener(folder: DomainFolder) -> ProcessIdentity | None:
    """The process that listens on the domain's control socket, as the kernel reports it; None when none does."""
    for kind in _SOCKET_KINDS:
        try:
            pid = _listening_pid(folder.pipe / "control", kind)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:  # a socket, but of another kind
                raise
        else:
            return processes.identity_of(pid) if pid else None
    return None


def _listening_pid(path: Path, kind: socket.SocketKind) -> int:
    """0 where the listener is in another pid namespace."""
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.settimeout(1)  # a full backlog, as a stopped daemon leaves it, must not hang us
        probe.connect(str(path))
        return peer_of(probe).pid


def offer_to_clients(folder: DomainFolder) -> None:
    """Puts the daemon's socket into client/, in place of an older one.

    By link and rename inside client/, which itself is never replaced: mounts of running containers stay good.
    """
    beside = folder.client / ".control.new"
    beside.unlink(missing_ok=True)
    os.link(folder.pipe / "control", beside)
    beside.replace(folder.client / "control")
    beside.unlink(missing_ok=True)  # rename does nothing where both are links to one socket already, as after adoption


def withdraw_from_clients(folder: DomainFolder) -> None:
    """Takes the socket out of client/."""
    (folder.client / "control").unlink(missing_ok=True)


def end(daemon: ProcessIdentity) -> bool:
    """SIGKILL to this very daemon; its server and clients die with it. False when it was gone."""
    return processes.send_signal(daemon, signal.SIGKILL)


def command_times(settings: Settings, domains: Iterable[str]) -> Mapping[str, CommandTimes]:
    """How long daemons took to answer `mpsd control`, by domain, as it recorded in this boot; none where unreadable."""
    found = {}
    for domain in domains:
        with suppress(records.UnreadableRecord):
            read = records.read(settings.domain(domain).commands, CommandTimes)
            if read and read.boot_id == processes.boot_id():
                found[domain] = read
    return found
