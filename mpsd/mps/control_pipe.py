"""Talks to a control daemon: one `nvidia-cuda-mps-control` process a command, as its manual has it.

One rule: every command has a deadline (a stopped daemon never answers), and every setting is read back.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mpsd.model.cuda_limit_parser import PIPE_DIRECTORY
from mpsd.model.node_view import ServerLimit
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import Command

PROGRAM = "nvidia-cuda-mps-control"
Answer = TypeVar("Answer")


class ControlFailed(Exception):
    """A command did not do what it says."""


class NoAnswer(ControlFailed):
    """Nothing came back within the deadline: the daemon is stopped, wedged or very busy."""


class NoDaemon(ControlFailed):
    """No daemon listens in the pipe directory."""


class SettingRefused(ControlFailed):
    """The daemon took a setting in silence and does not have it."""


@dataclass(frozen=True, slots=True)
class ControlPipe:
    """The way to the daemon of one pipe directory. environment: of the commands, PATH first of all."""

    directory: Path
    environment: Mapping[str, str]
    deadline_s: float

    async def ask(self, command: Command[Answer]) -> Answer:
        """The daemon's answer. NoAnswer, NoDaemon, ControlFailed, or NotUnderstood for an answer of unknown form."""
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
            raise NoAnswer(f'no answer to "{_shown(command.text)}" within {self.deadline_s:g} s') from None
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
            of_whom = "servers to come" if limit.server is None else f"server {limit.server}"
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
