"""Calls what a container named in ALIYUN_COM_GPU_OOM_SCRIPT, before a process of it is ended for its memory.

One rule: whatever the script does, the process is ended when its time is over. The script is a process of the
container like any other, never more than that.
"""

import asyncio
import time
from pathlib import Path

from mpsd.grants.kept_grants import ContainerGrant
from mpsd.grants.rules.container_messages import ContainerName
from mpsd.platform import processes
from mpsd.platform.logs import logger
from mpsd.watchdog.container_program import ContainerProgram

_WAIT_S = 0.15  # of the half second in which what is over its grant is ended
_LIFE_S = 10.0  # after which the script itself is ended
_AGAIN_S = 5.0  # between two calls for one container
_PAST = float("-inf")


class OomScripts:
    """directory: mpsd's own, for the pids of scripts."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, asyncio.Task[None]] = {}  # by grant
        self._called_at: dict[str, float] = {}
        self._log = logger(role="watchdog")

    async def call(self, grant: ContainerGrant, pid: int, used_mib: int, granted_mib: int) -> None:
        """Returns when the script has ended or its time to be waited for is over. pid: of the process that is to end.

        Nothing is called while an earlier call goes on, or soon after it.
        """
        now = time.monotonic()
        if grant.id in self._running or now - self._called_at.get(grant.id, _PAST) < _AGAIN_S:
            return
        self._called_at = {one: at for one, at in self._called_at.items() if now - at < _AGAIN_S} | {grant.id: now}
        variables = {
            "MPSD_OOM_PID": str(processes.pid_inside(pid)),
            "MPSD_OOM_USED_MIB": str(used_mib),
            "MPSD_OOM_GRANTED_MIB": str(granted_mib),
        }
        task = asyncio.create_task(self._run(grant, variables))
        self._running[grant.id] = task
        task.add_done_callback(lambda _task: self._running.pop(grant.id, None))
        await asyncio.wait({task}, timeout=_WAIT_S)

    async def stop(self) -> None:
        """Ends the scripts that still run."""
        running = tuple(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, grant: ContainerGrant, variables: dict[str, str]) -> None:
        name = ContainerName(grant.holder.root, grant.holder.id)
        program = ContainerProgram(grant.runtime, name, self._directory / f"oom-{grant.id}.pid")
        about = {"container": grant.holder.id, "script": grant.oom_script}
        began = time.monotonic()
        try:
            code = await program.run(grant.oom_script, variables, _LIFE_S)
        except OSError as error:
            self._log.warning("script not called", **about, reason=f"{grant.runtime}: {error.strerror}")
        else:
            fate = "ended at its deadline" if code is None else f"exit code {code}"
            self._log.info("script called", **about, outcome=fate, took_s=round(time.monotonic() - began, 3))
