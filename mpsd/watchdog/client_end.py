"""Ends one process on a GPU, on proof that it is the one that was meant.

One rule: SIGKILL goes to a pidfd of this very process, once the kernel still places it in its pod or container and NVML
lists it on the GPU again while the pidfd is held; where one of these cannot be had, nothing is sent, and the reason is
said.
"""

import contextlib
import os
import signal
import time

from mpsd.model.domain_states import ANSWERING
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import Client, DomainRecord
from mpsd.model.violations import Kind, Violation
from mpsd.mps.control_pipe import ControlFailed, ControlPipe
from mpsd.mps.node import Node
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import NotUnderstood
from mpsd.platform import processes
from mpsd.platform.nvml import Nvml, NvmlFailed
from mpsd.platform.pod_processes import Whereabouts
from mpsd.platform.settings import Settings
from mpsd.platform.waiting import until

_TERMINATE_S = 0.1  # for terminate_client, which took 0.011 s on hardware; SIGKILL does not wait longer for it
_GONE_S = 2.0  # for the process and its memory to be gone, which took 0.04 to 0.07 s
_LOOK_AGAIN_S = 0.01
_STUCK = {"D": "it waits for a device, and the signal waits with it", "Z": "a thread of it has not ended"}


class NotEnded(Exception):
    """Nothing was sent, or it did not help; the message says why."""


class Spared(NotEnded):
    """It may not be ended, and goes on."""


class ClientEnd:
    """whereabouts: None where nobody is in a pod or container."""

    def __init__(self, settings: Settings, node: Node, whereabouts: Whereabouts | None) -> None:
        self._settings = settings
        self._nvml: Nvml = node.nvml
        self._environment = node.environment
        self._whereabouts = whereabouts
        self._listed: dict[str, tuple[float, frozenset[int]]] = {}  # by GPU: when it was asked, and the pids there

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
            await self._terminate(client.process, record)
        try:
            processes.signal_held(descriptor, signal.SIGKILL)
        except PermissionError:
            raise Spared("mpsd may not signal it: it is another user's") from None

    def _prove(self, violation: Violation) -> None:
        """NotEnded where the process with this pid is not what was seen, or may not be ended."""
        client = violation.client
        if self._whereabouts and self._whereabouts.owner_of(client.pid) != client.pod:
            raise NotEnded("its cgroup does not name its pod or container any more")
        try:
            listed = any(pid == client.pid for pid, _used in self._nvml.uses(client.gpu))
            draws = violation.kind is Kind.IN_NO_POD and self._nvml.draws(client.gpu, client.pid)
        except NvmlFailed as error:
            raise NotEnded(str(error)) from None
        if not listed:
            raise NotEnded("it had left the GPU by itself")
        if draws:
            raise Spared("it shows something on a display, and such a process is never ended")

    async def _terminate(self, process: ProcessIdentity, record: DomainRecord) -> None:
        """Has the server end its work first, where the daemon answers soon; without, SIGKILL does it all."""
        pipe = ControlPipe(self._settings.domain(record.domain).pipe, self._environment, _TERMINATE_S)
        with contextlib.suppress(ControlFailed, NotUnderstood, OSError):
            for server in record.servers:
                if await pipe.ask(control_protocol.terminate_client(server, process.pid)):
                    return

    async def until_gone(self, client: Client, seen_at: float) -> float:
        """Waits until the process and its memory are gone; the seconds since `seen_at` (monotonic). NotEnded."""

        def is_gone() -> bool:
            return not processes.is_alive(client.process) and not self._holds(client)

        try:
            await until(is_gone, _GONE_S, f"{client.process} is gone", _LOOK_AGAIN_S)
        except TimeoutError:
            state = processes.state_of(client.process)
            why = _STUCK.get(state, f"the kernel shows it in state {state}") if state else "NVML still lists its memory"
            raise NotEnded(f"still there {_GONE_S:g} s after SIGKILL: {why}") from None
        except NvmlFailed as error:
            raise NotEnded(f"nobody can say whether its memory is back: {error}") from None
        return time.monotonic() - seen_at

    def _holds(self, client: Client) -> bool:
        """Whether NVML lists the pid, unless that is another process by now."""
        return processes.identity_of(client.pid) is None and client.pid in self._pids_on(client.gpu)

    def _pids_on(self, gpu: str) -> frozenset[int]:
        """Asked once for all who wait: many may be ended at once."""
        now = time.monotonic()
        asked_at, pids = self._listed.get(gpu, (float("-inf"), frozenset[int]()))
        if now - asked_at >= _LOOK_AGAIN_S / 2:
            pids = frozenset(pid for pid, _used in self._nvml.uses(gpu))
            self._listed[gpu] = (now, pids)
        return pids
