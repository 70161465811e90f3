"""The process `nvidia-cuda-mps-control -f -M` of one domain: commands to it, its start, its
sockets. It outlives mpsd, in a session of its own; the next mpsd adopts what listens in the
directory."""

import asyncio
import errno
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mpsd.model.cuda_limit_parser import CUDA_VISIBLE_DEVICES, PIPE_DIRECTORY
from mpsd.model.identity import ProcessIdentity
from mpsd.model.metrics import CommandTimes
from mpsd.model.node_view import ServerLimit
from mpsd.mps.records import read_of_this_boot
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import Command, ControlFailed
from mpsd.platform import processes, records
from mpsd.platform.peers import peer_of
from mpsd.platform.process_environment import environment_of
from mpsd.platform.run_directory import DomainFolder
from mpsd.platform.settings import Settings

# -- commands: one process each, as the manual has it
# Each has a deadline, and every setting is read back.

PROGRAM = "nvidia-cuda-mps-control"
Answer = TypeVar("Answer")


class DaemonSilent(ControlFailed):
    """Nothing came back within the deadline: the daemon is stopped, wedged or very busy."""


async def communicate(
    argv: Sequence[str],
    environment: Mapping[str, str],
    deadline_s: float,
    said: str = "",
    on_start: Callable[[int], None] = lambda _pid: None,
) -> tuple[int, str, str]:
    """The exit code of a program, its output and errors; it is killed at its deadline, or with the
    caller. said: its input. on_start: gets its pid. TimeoutError, OSError."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *argv, env=environment, stdin=pipe, stdout=pipe, stderr=pipe
    )
    on_start(process.pid)
    processes.restore_file_limit(process.pid)
    try:
        async with asyncio.timeout(deadline_s):
            output, errors = await process.communicate(said.encode())
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return (
        process.returncode or 0,
        output.decode(errors="replace"),
        errors.decode(errors="replace").strip(),
    )


@dataclass(frozen=True, slots=True)
class ControlPipe:
    """The way to the daemon of one pipe directory. environment: of the commands, PATH first."""

    directory: Path
    environment: Mapping[str, str]
    deadline_s: float

    async def ask(self, command: Command[Answer]) -> Answer:
        """Its answer. ControlFailed: DaemonSilent, or NotUnderstood for unknown forms."""
        environment = {**self.environment, PIPE_DIRECTORY: str(self.directory)}
        shown = command.text.replace("\n", "; ")  # several commands asked in one go
        try:
            code, output, errors = await communicate(
                [PROGRAM], environment, self.deadline_s, f"{command.text}\n"
            )
        except TimeoutError:
            raise DaemonSilent(f'no answer to "{shown}" within {self.deadline_s:g} s') from None
        if errors.startswith("Cannot find MPS control daemon") and code:
            raise ControlFailed("no control daemon listens here")
        if code:
            raise ControlFailed(f'"{shown}" ended with code {code}: {errors or "no message"}')
        return command.answer(output)

    async def clients(self, servers: Iterable[int]) -> list[int]:
        found: list[int] = []
        for server in servers:
            pids = await self.ask(control_protocol.client_list(server))
            found += pids
        return found

    async def set_limit(self, limit: ServerLimit) -> None:
        """Sets a memory limit and reads it back; ControlFailed where it is another one then."""
        await self.ask(
            control_protocol.set_memory_limit(limit.server, limit.ordinal, limit.memory_mib)
        )
        found = await self.ask(control_protocol.memory_limit(limit.server, limit.ordinal))
        if found != control_protocol.memory_mib_as_shown(limit.memory_mib):
            of_whom = f"server {limit.server}"
            if limit.server is None:
                of_whom = "new servers"
            shown = f"{found} MiB"
            if found is None:
                shown = "none"
            which = f"the memory limit of {of_whom} for device {limit.ordinal}"
            set_to = f"was set to {limit.memory_mib} MiB"
            raise ControlFailed(f"{which} {set_to} and reads back as {shown}")


# -- the process

LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"


def multi_user() -> bool:
    """Whether the daemon can serve several users: it demands root for that."""
    return os.geteuid() == 0


def program_found(environment: Mapping[str, str]) -> bool:
    return shutil.which(PROGRAM, path=environment.get("PATH")) is not None


def serves(daemon: ProcessIdentity, gpus: Sequence[str]) -> bool:
    """Whether this daemon was started for these GPUs; False if its environment cannot be read."""
    environment = environment_of(daemon.pid, (CUDA_VISIBLE_DEVICES,))
    return environment is not None and environment.get(CUDA_VISIBLE_DEVICES) == ",".join(gpus)


def start(
    folder: DomainFolder, gpus: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a daemon for these GPUs, multi-user where we are root. OSError if it cannot be."""
    argv = [PROGRAM, "-f"]
    if multi_user():
        argv.append("-M")
    with folder.log.open("ab") as output:
        child = subprocess.Popen(
            argv,
            env={
                **environment,
                PIPE_DIRECTORY: str(folder.pipe),
                LOG_DIRECTORY: str(folder.log.parent),
                CUDA_VISIBLE_DEVICES: ",".join(gpus),
            },
            cwd=folder.path,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    processes.restore_file_limit(child.pid)
    return child


def listener(folder: DomainFolder) -> ProcessIdentity | None:
    """The process that listens on the domain's control socket, as the kernel has it, or None."""
    # the driver does not say which it uses
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        with socket.socket(socket.AF_UNIX, kind) as probe:
            probe.settimeout(1)  # a full backlog, as a stopped daemon leaves it, must not hang us
            try:
                probe.connect(str(folder.pipe / "control"))
            except (FileNotFoundError, ConnectionRefusedError):
                return None
            except BlockingIOError:  # its backlog is full: no shortage of ours
                raise TimeoutError("it accepts no connections") from None
            except OSError as error:
                if error.errno != errno.EPROTOTYPE:  # a socket, but of another kind
                    raise
            else:
                # of pid 0, in another pid namespace, nothing is known
                return peer_of(probe).process
    return None


def offer_to_clients(folder: DomainFolder) -> None:
    """Puts the daemon's socket into client/, which is never replaced: mounts of containers stay
    good."""
    beside = folder.client / ".control.new"
    beside.unlink(missing_ok=True)
    os.link(folder.pipe / "control", beside)
    beside.replace(folder.client / "control")
    # rename does nothing where both are links to one socket already, as after adoption
    beside.unlink(missing_ok=True)


def withdraw_from_clients(folder: DomainFolder) -> None:
    (folder.client / "control").unlink(missing_ok=True)


def command_times(settings: Settings, domains: Iterable[str]) -> Mapping[str, CommandTimes]:
    """By domain, how long its daemon took to answer in this boot; none where unreadable."""
    found = {}
    for domain in domains:
        with suppress(records.UnreadableRecord):
            if read := read_of_this_boot(settings.domain(domain).commands, CommandTimes):
                found[domain] = read
    return found
