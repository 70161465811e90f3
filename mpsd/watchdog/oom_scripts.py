"""Calls the script of a container before a process of it is ended for its memory."""

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mpsd.grants.kept import ContainerGrant
from mpsd.platform import life, processes
from mpsd.platform.logs import Logger

# of the runtime
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_REAP_S = 1.0


async def run_in_container(
    grant: ContainerGrant,
    program: str,
    variables: Mapping[str, str],
    pid_file: Path,
    deadline_s: float,
) -> int | None:
    """Runs a program by the runtime that made the container, with its user, capabilities, seccomp
    and cgroups; without a shell. pid_file: for the runtime. The exit code; None where it was ended
    at the deadline. OSError where there is no such runtime."""
    added = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    process = await asyncio.create_subprocess_exec(
        *(grant.runtime, "--root", grant.holder.root, "exec", "--pid-file", str(pid_file)),
        *(*added, grant.holder.id, program),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=_ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    )
    processes.restore_file_limit(process.pid)
    try:
        async with asyncio.timeout(deadline_s):
            return await process.wait()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            _end_program(pid_file, process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _REAP_S)
        pid_file.unlink(missing_ok=True)  # noqa: ASYNC240 - in memory, as the run directory is


def _end_program(pid_file: Path, runtime: int) -> None:
    """SIGKILL for the program, which outlives its runtime, only where it is that one's child."""
    with contextlib.suppress(OSError, ValueError):
        found = processes.identity_of(int(pid_file.read_text()))
        if found and processes.parent_of(found.pid) == runtime:
            processes.send_signal(found, signal.SIGKILL)


_WAIT_S = 0.15  # of the half second in which what is over its grant is ended
_LIFE_S = 10.0  # after which the script itself is ended
_AGAIN_S = 5.0  # between two calls for one container


@dataclass(slots=True)
class OomScripts:
    """Calls a container's ALIYUN_COM_GPU_OOM_SCRIPT before a process of it is ended for its memory,
    whatever the script does. directory: for pid files."""

    directory: Path
    log: Logger
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # by grant
    _called_at: dict[str, float] = field(default_factory=dict)

    async def call(self, grant: ContainerGrant, pid: int, used_mib: int, granted_mib: int) -> None:
        """Returns when the script has ended or was waited for long enough. Not called while or soon
        after an earlier call. pid: of the process that is to end."""
        now = time.monotonic()
        if grant.id in self._running or now - self._called_at.get(grant.id, -math.inf) < _AGAIN_S:
            return
        self._called_at = {
            one: at for one, at in self._called_at.items() if now - at < _AGAIN_S
        } | {grant.id: now}
        variables = {
            "MPSD_OOM_PID": str(processes.pid_inside(pid)),
            "MPSD_OOM_USED_MIB": str(used_mib),
            "MPSD_OOM_GRANTED_MIB": str(granted_mib),
        }
        task = life.background(self._run(grant, variables))
        self._running[grant.id] = task
        task.add_done_callback(lambda _task: self._running.pop(grant.id, None))
        await asyncio.wait({task}, timeout=_WAIT_S)

    async def stop(self) -> None:
        for task in (running := tuple(self._running.values())):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, grant: ContainerGrant, variables: dict[str, str]) -> None:
        pid_file = self.directory / f"oom-{grant.id}.pid"
        began = time.monotonic()
        about = {"container": grant.holder.id, "script": grant.oom_script}
        try:
            code = await run_in_container(grant, grant.oom_script, variables, pid_file, _LIFE_S)
        except OSError as error:
            self.log.warning(
                "script not called", **about, reason=f"{grant.runtime}: {error.strerror}"
            )
        else:
            outcome = "ended at its deadline" if code is None else f"exit code {code}"
            self.log.info(
                "script called", **about, outcome=outcome, took_s=round(time.monotonic() - began, 3)
            )
