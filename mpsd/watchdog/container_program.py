"""Starts a program in a container that runs, through the runtime that made it.

One rule: the runtime does it, so that the program is what any other of that container is: its user, its capabilities,
its seccomp, its cgroups. No shell reads its name.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mpsd.grants.rules.container_messages import ContainerName
from mpsd.platform import processes

_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}  # of the runtime
_LAST_WORDS_S = 1.0


class ContainerProgram:
    """One program, once. pid_file: where the runtime writes its pid; removed at the end."""

    def __init__(self, runtime: str, container: ContainerName, pid_file: Path) -> None:
        self._command = (runtime, "--root", container.root, "exec", "--pid-file", str(pid_file))
        self._container = container.id
        self._pid_file = pid_file

    async def run(self, program: str, variables: Mapping[str, str], deadline_s: float) -> int | None:
        """Its exit code; None where it was still running at the deadline, and then it is ended. OSError where there is
        no such runtime."""
        added = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *added,
            self._container,
            program,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(deadline_s):
                return await process.wait()
        except TimeoutError:
            return None
        finally:
            if process.returncode is None:
                self._end_program(process.pid)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _LAST_WORDS_S)
            self._pid_file.unlink(missing_ok=True)

    def _end_program(self, runtime: int) -> None:
        """SIGKILL for the program itself, which lives on without its runtime: only where it is the runtime's child."""
        with suppress(OSError, ValueError):
            found = processes.identity_of(int(self._pid_file.read_text()))
            if found and processes.parent_of(found.pid) == runtime:
                processes.send_signal(found, signal.SIGKILL)
