"""Ends one process on a GPU, with proof that it is the right one; before that calls the script of its container.

SIGKILL goes to a pidfd of this very process, after the kernel still places it in its pod or container and NVML lists it
on the GPU again while the pidfd is held. Where one of these is missing, nothing is sent (NotEnded).
"""

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mpsd.grants.ledger import ContainerGrant
from mpsd.model.domain import ANSWERING
from mpsd.model.node_view import Client, DomainRecord
from mpsd.model.violations import Violation, ViolationKind
from mpsd.mps.control_daemon import ControlPipe
from mpsd.mps.node_gpus import Node
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import ControlFailed
from mpsd.platform import processes
from mpsd.platform.containers import ContainerProcesses, Whereabouts
from mpsd.platform.event_loop import until
from mpsd.platform.logs import Logger
from mpsd.platform.nvml import NvmlFailed
from mpsd.platform.settings import Settings

_TERMINATE_S = 0.1  # for terminate_client, which took 0.011 s on hardware; SIGKILL does not wait longer for it
_GONE_S = 2.0  # for the process and its memory to be gone, which took 0.04 to 0.07 s
_POLL_S = 0.01
_STUCK = {"D": "it waits for a device, and the signal is delivered after that", "Z": "a thread of it has not ended"}


class NotEnded(Exception):
    """The process was not ended; the message says why."""


class NotKilled(NotEnded):
    """The process must not be ended, and continues."""


@dataclass(slots=True)
class ClientEnd:
    """Ends clients of MPS. whereabouts: None where no process is in a pod or container."""

    settings: Settings
    node: Node
    whereabouts: Whereabouts | None
    # By GPU: when it was asked, and the pids there.
    _listed: dict[str, tuple[float, frozenset[int]]] = field(default_factory=dict)

    async def signal(self, violation: Violation, record: DomainRecord | None) -> None:
        """SIGKILL. record: of the GPU's domain; None where there is none. NotEnded where it is not sent."""
        client = violation.client
        try:
            descriptor = processes.open_pidfd(client.process)
        except OSError as error:  # such as too many open files
            raise NotEnded(f"it cannot be held: {error.strerror}") from None
        if descriptor is None:
            raise NotEnded("it had ended by itself")
        try:
            await self._signal(descriptor, violation, record)
        finally:
            os.close(descriptor)

    async def _signal(self, descriptor: int, violation: Violation, record: DomainRecord | None) -> None:
        client = violation.client
        self._prove(violation)
        if processes.has_ended(descriptor):  # then the pid may have been another's when NVML named it
            raise NotEnded("it had ended by itself")
        if client.on_mps and record and record.daemon and record.state in ANSWERING:
            # The server ends its work first where the daemon answers soon; else SIGKILL does it all.
            pipe = ControlPipe(self.settings.domain(record.domain).pipe, self.node.environment, _TERMINATE_S)
            with contextlib.suppress(ControlFailed, OSError):
                for server in record.servers:
                    if await pipe.ask(control_protocol.terminate_client(server, client.pid)):
                        break
        try:
            processes.signal_held(descriptor, signal.SIGKILL)
        except PermissionError:
            raise NotKilled("mpsd may not signal it: it is another user's") from None

    def _prove(self, violation: Violation) -> None:
        """NotEnded where the process with this pid is not the one that was scanned, or must not be ended."""
        client = violation.client
        pod = self.whereabouts.owner_of(client.pid) if self.whereabouts else client.pod
        # On a machine of its own one that has left is held to its grant, unless another's cgroup has it.
        is_outside = pod is None and isinstance(self.whereabouts, ContainerProcesses) and client.grant is not None
        if pod != client.pod and not is_outside:
            raise NotEnded("its cgroup does not name its pod or container any more")
        try:
            listed = any(pid == client.pid for pid, _used in self.node.nvml.uses(client.gpu))
            draws = self.node.nvml.draws(client.gpu, client.pid)
        except NvmlFailed as error:
            raise NotEnded(str(error)) from None
        if not listed and not draws:
            raise NotEnded("it had left the GPU by itself")
        if draws and violation.kind is ViolationKind.IN_NO_POD:
            raise NotKilled("it shows something on a display, and such a process is never ended")

    async def until_gone(self, client: Client, seen_at: float) -> float:
        """Waits until the process and its memory are gone; the seconds since `seen_at` (monotonic). NotEnded."""

        def is_gone() -> bool:
            if processes.is_alive(client.process):
                return False
            is_others = processes.identity_of(client.pid) is not None  # the pid is another process's by now
            return is_others or client.pid not in self._pids_on(client.gpu)

        try:
            await until(is_gone, _GONE_S, f"{client.process} is gone", _POLL_S)
        except TimeoutError:
            state = processes.state_of(client.process)
            why = _STUCK.get(state, f"the kernel shows it in state {state}") if state else "NVML still lists its memory"
            raise NotEnded(f"still there {_GONE_S:g} s after SIGKILL: {why}") from None
        except NvmlFailed as error:
            raise NotEnded(f"NVML does not say whether its memory is back: {error}") from None
        return time.monotonic() - seen_at

    def _pids_on(self, gpu: str) -> frozenset[int]:
        """One call to NVML for all that wait: many may be ended at once."""
        now = time.monotonic()
        asked_at, pids = self._listed.get(gpu, (-math.inf, frozenset[int]()))
        if now - asked_at >= _POLL_S / 2:
            pids = frozenset(pid for pid, _used in (*self.node.nvml.uses(gpu), *self.node.nvml.drawing(gpu)))
            self._listed[gpu] = (now, pids)
        return pids


_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}  # of the runtime
_REAP_S = 1.0


async def run_in_container(
    grant: ContainerGrant, program: str, variables: Mapping[str, str], pid_file: Path, deadline_s: float
) -> int | None:
    """Runs a program by the runtime that made the container, so that it has the container's user, capabilities, seccomp
    and cgroups; no shell is involved. pid_file: where the runtime writes its pid; removed at the end. Its exit code;
    None where it was still running at the deadline, and then it is ended. OSError where there is no such runtime."""
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
    """SIGKILL for the program itself, which lives on without its runtime: only where it is the runtime's child."""
    with contextlib.suppress(OSError, ValueError):
        found = processes.identity_of(int(pid_file.read_text()))
        if found and processes.parent_of(found.pid) == runtime:
            processes.send_signal(found, signal.SIGKILL)


_WAIT_S = 0.15  # of the half second in which what is over its grant is ended
_LIFE_S = 10.0  # after which the script itself is ended
_AGAIN_S = 5.0  # between two calls for one container


@dataclass(slots=True)
class OomScripts:
    """Calls a container's script, of ALIYUN_COM_GPU_OOM_SCRIPT, before a process of it is ended for its memory.
    Whatever the script does, the process is ended when the time is over. directory: mpsd's own, for pid files."""

    directory: Path
    log: Logger
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # by grant
    _called_at: dict[str, float] = field(default_factory=dict)

    async def call(self, grant: ContainerGrant, pid: int, used_mib: int, granted_mib: int) -> None:
        """Returns when the script has ended or its time to be waited for is over. pid: of the process that is to end.
        Nothing is called while an earlier call goes on, or soon after it."""
        now = time.monotonic()
        if grant.id in self._running or now - self._called_at.get(grant.id, -math.inf) < _AGAIN_S:
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
        for task in (running := tuple(self._running.values())):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, grant: ContainerGrant, variables: dict[str, str]) -> None:
        pid_file, began = self.directory / f"oom-{grant.id}.pid", time.monotonic()
        about = {"container": grant.holder.id, "script": grant.oom_script}
        try:
            code = await run_in_container(grant, grant.oom_script, variables, pid_file, _LIFE_S)
        except OSError as error:
            self.log.warning("script not called", **about, reason=f"{grant.runtime}: {error.strerror}")
        else:
            fate = "ended at its deadline" if code is None else f"exit code {code}"
            self.log.info("script called", **about, outcome=fate, took_s=round(time.monotonic() - began, 3))
