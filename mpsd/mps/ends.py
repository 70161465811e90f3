"""Ends clients of MPS, each proven to be the right one, without harm to those beside it. Each end
is recorded before the client is stopped, so that the next mpsd goes on with it."""

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import Client, DomainRecord, EndRecord, Queue
from mpsd.mps.node_gpus import Node
from mpsd.mps.rules import ends as rules
from mpsd.mps.rules.ends import EndView, Sample, Step
from mpsd.mps.rules.faults import unhealed
from mpsd.platform import clock, life, processes, records
from mpsd.platform.containers import ContainerProcesses, Whereabouts
from mpsd.platform.event_loop import until
from mpsd.platform.logs import Logger
from mpsd.platform.nvml import NvmlFailed

# between two looks at a client that is stopped: NVML takes a sample of a server's use as often
_LOOK_S = 0.1
_SETTLE_S = 0.02  # before the first of them, in which threads stop
_MOST_RECORDS = 4096  # that are taken up at a start
_KEPT_S = 2.0  # a record after SIGKILL, for `mpsd control` to see whose end this was
_FINISH_S = 12.0  # for the last ends when mpsd stops: the longest drain, and two looks
_GONE_S = 2.0  # for the process and its memory to be gone, which took 0.04 to 0.07 s
_POLL_S = 0.01
_STUCK = {
    "": "NVML still lists its memory",
    "D": "it waits for a device, and the signal is delivered after that",
    "Z": "a thread of it has not ended",
}


class NotEnded(Exception):
    """The process was not ended; the message says why."""


class NotKilled(NotEnded):
    """The process must not be ended, and continues."""


@dataclass(frozen=True, slots=True)
class EndAsked:
    client: Client
    #: why, in words
    reason: str
    #: for how long its queue may run, in seconds; 0: it is killed at once
    drain_s: float
    #: whether it is spared where it shows something on a display
    spares_displays: bool = False
    #: whether a signal on its way ends it in some milliseconds: NVML is not asked whether it has
    #: left the GPU, which would take as long
    is_doomed: bool = False


@dataclass(slots=True)
class ClientEnd:
    record: EndRecord
    #: when the client was stopped, or killed where nothing had to be waited for, in seconds of
    #: time.monotonic
    stopped_at: float
    #: known once it was killed
    queue: Queue = Queue.UNKNOWN
    #: done once SIGKILL was sent, or the client ended by itself; None where that was done at once
    _task: asyncio.Task[None] | None = None

    async def killed(self) -> None:
        """Waits until it is killed, or gone. Whoever waits may be cancelled; the end goes on."""
        if self._task:
            await asyncio.shield(self._task)


@dataclass(slots=True)
class ClientEnds:
    folder: Path
    node: Node
    #: None where no process is in a pod or container
    whereabouts: Whereabouts | None
    #: of the domains, as they are now
    domains: Callable[[], Collection[DomainRecord]]
    log: Logger
    _under_way: dict[ProcessIdentity, ClientEnd] = field(default_factory=dict)
    #: files of clients that were killed, of which the records are still kept
    _over: set[Path] = field(default_factory=set)
    #: by GPU: when it was asked, and the pids there
    _listed: dict[str, tuple[float, frozenset[int]]] = field(default_factory=dict)

    @property
    def under_way(self) -> frozenset[ProcessIdentity]:
        """The processes that are stopped, and not killed yet."""
        return frozenset(self._under_way)

    def begin(self, asked: EndAsked) -> ClientEnd:
        """Stops the client, or kills it at once where that harms nobody. An end under way goes on.
        NotEnded where it may not be ended, or nothing proves that it is the one."""
        client = asked.client
        if known := self._under_way.get(client.process):
            return known
        try:
            pidfd = processes.open_pidfd(client.process)
        except OSError as error:  # such as too many open files
            raise NotEnded(f"it cannot be held: {error.strerror}") from None
        if pidfd is None:
            raise NotEnded("it had ended by itself")
        try:
            self._prove(asked)
            # then the pid may have been another's when NVML named it
            if processes.has_ended(pidfd):
                raise NotEnded("it had ended by itself")
            return self._begin(asked, pidfd)
        except BaseException:
            os.close(pidfd)
            raise

    def _begin(self, asked: EndAsked, pidfd: int) -> ClientEnd:
        process = asked.client.process
        drain_s = asked.drain_s if asked.client.on_mps else 0.0
        now_s = clock.boot_s()
        domains = self.domains()
        gpus = self._gpus_of(asked.client, domains)
        end = rules.begun(process, gpus, asked.reason, drain_s, now_s)
        step, end = rules.next_step(end, self._look(end, {}, domains))
        begun = ClientEnd(end, time.monotonic())
        if step is Step.STOP:
            self._stop(begun, pidfd)
            self._follow(begun, pidfd)
        else:
            self._kill(begun, pidfd)
            os.close(pidfd)
        return begun

    def _gpus_of(self, client: Client, domains: Collection[DomainRecord]) -> tuple[str, ...]:
        """The GPUs of its domain: a client of several may have queued work on each."""
        for record in domains:
            if client.gpu in record.gpus:
                return record.gpus
        return (client.gpu,)

    def _prove(self, asked: EndAsked) -> None:
        """NotEnded where this is not the process that was seen, or it must not be ended."""
        client = asked.client
        pod = client.pod
        if self.whereabouts:
            pod = self.whereabouts.owner_of(client.pid)
        # on a machine one that has left is held to its grant, unless another's cgroup has it
        on_machine = isinstance(self.whereabouts, ContainerProcesses)
        is_outside = pod is None and on_machine and client.grant is not None
        if pod != client.pod and not is_outside:
            raise NotEnded("its cgroup does not name its pod or container any more")
        if asked.is_doomed:
            return
        try:
            listed = any(pid == client.pid for pid, _used in self.node.nvml.uses(client.gpu))
            draws = self.node.nvml.draws(client.gpu, client.pid)
        except NvmlFailed as error:
            raise NotEnded(str(error)) from None
        if not listed and not draws:
            raise NotEnded("it had left the GPU by itself")
        if draws and asked.spares_displays:
            raise NotKilled("it shows something on a display, and such a process is never ended")

    # -- what goes on

    def resume(self) -> None:
        """Goes on with the ends that an earlier mpsd began and did not see through."""
        for path in sorted(self.folder.glob("*.json"))[:_MOST_RECORDS]:
            try:
                end = records.read(path, EndRecord)
                if end is None or (pidfd := processes.open_pidfd(end.process)) is None:
                    self._forget(path)
                    continue
            except (records.UnreadableRecord, OSError) as error:
                left = "if that process is stopped and nobody else's, kill it by hand"
                self.log.error("end not resumed", file=str(path), reason=f"{error}; {left}")
                continue
            self.log.info("end resumed", pid=end.process.pid, reason=end.reason)
            self._follow(ClientEnd(end, time.monotonic()), pidfd)

    def _follow(self, begun: ClientEnd, pidfd: int) -> None:
        process = begun.record.process
        self._under_way[process] = begun
        begun._task = life.background(self._see_through(begun, pidfd))
        begun._task.add_done_callback(lambda _task: self._under_way.pop(process, None))

    async def _see_through(self, begun: ClientEnd, pidfd: int) -> None:
        """To the SIGKILL. A cancelled one leaves record and stopped client for the next mpsd."""
        samples: dict[str, tuple[Sample, ...]] = {}
        try:
            pause_s = _SETTLE_S
            while True:
                await asyncio.sleep(pause_s)
                seen = self._look(begun.record, samples, self.domains())
                stops = begun.record.stops
                step, begun.record = rules.next_step(begun.record, seen)
                left_s = begun.record.deadline_s - clock.boot_s()
                pause_s = min(_LOOK_S, max(0.0, left_s))
                if step is Step.STOP:
                    samples.clear()
                    self._stop(begun, pidfd, is_again=stops == begun.record.stops)
                elif step is not Step.WAIT:
                    break
            if step is Step.KILL:
                begun.queue = seen.queue
                self._kill(begun, pidfd)
            else:
                self._forget(self._file(begun.record.process))
        finally:
            os.close(pidfd)

    def _look(
        self,
        end: EndRecord,
        samples: dict[str, tuple[Sample, ...]],
        domains: Collection[DomainRecord],
    ) -> EndView:
        is_held = end.stops > 0 and processes.is_stopped(end.process)
        queue = Queue.UNKNOWN
        if is_held:
            self._sample(end, samples, domains)
            queue = rules.queue_of(samples, end.gpus)
        return EndView(
            now_s=clock.boot_s(),
            is_alive=processes.is_alive(end.process),
            is_stopped=is_held,
            is_hit=_is_hit(end.process, domains),
            queue=queue,
        )

    def _sample(
        self,
        end: EndRecord,
        samples: dict[str, tuple[Sample, ...]],
        domains: Collection[DomainRecord],
    ) -> None:
        """Adds what NVML says of the servers' use since the last look; unknown before the first."""
        for gpu in end.gpus:
            servers = {pid for one in domains if gpu in one.gpus for pid in one.servers}
            known = samples.get(gpu) or ((int(clock.wall_s() * 1e6), None),)
            with contextlib.suppress(NvmlFailed):  # then the full time is waited for
                known += self.node.nvml.use_samples(gpu, servers, known[-1][0])
            samples[gpu] = known[-rules.IDLE_SAMPLES :]

    # -- what is done

    def _stop(self, begun: ClientEnd, pidfd: int, *, is_again: bool = False) -> None:
        """is_again: the last stop does not hold yet, and is sent once more."""
        end = begun.record
        self._over.discard(self._file(end.process))  # of an earlier process with its pid
        self._send_recorded(end, pidfd, signal.SIGSTOP)
        if not is_again:
            about = {"pid": end.process.pid, "stops": end.stops, "drain_s": end.drain_s}
            self.log.info("client stopped", **about, reason=end.reason)

    def _kill(self, begun: ClientEnd, pidfd: int) -> None:
        end = begun.record = replace(begun.record, is_killed=True)
        self._send_recorded(end, pidfd, signal.SIGKILL)
        file = self._file(end.process)
        self._over.add(file)
        asyncio.get_running_loop().call_later(_KEPT_S, self._forget_killed, file)
        self.log.info("client killed", pid=end.process.pid, queue=begun.queue, reason=end.reason)

    def _send_recorded(self, end: EndRecord, pidfd: int, signum: signal.Signals) -> None:
        """Records the end first. NotKilled where mpsd may not signal the client."""
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            records.write(self._file(end.process), end)
        # its end goes on; only an mpsd that is killed meanwhile forgets it
        except OSError as error:
            self.log.warning("end not recorded", pid=end.process.pid, reason=str(error))
        try:
            processes.signal_held(pidfd, signum)
        except PermissionError:
            self._forget(self._file(end.process))
            raise NotKilled("mpsd may not signal it: it is another user's") from None

    def _file(self, process: ProcessIdentity) -> Path:
        return self.folder / f"{process.pid}.json"

    def _forget_killed(self, path: Path) -> None:
        if path in self._over:
            self._forget(path)

    def _forget(self, path: Path) -> None:
        self._over.discard(path)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self.log.warning("record of an end not removed", file=str(path), reason=str(error))
        with contextlib.suppress(OSError):  # others are left in it, or it never was
            self.folder.rmdir()

    async def finish(self) -> None:
        """Waits until the last client is killed; a later one stays stopped, with its record."""
        tasks = [one._task for one in self._under_way.values() if one._task]
        if tasks:
            _done, late = await asyncio.wait(tasks, timeout=_FINISH_S)
            for task in late:
                task.cancel()
        for path in [*self._over]:
            self._forget(path)

    async def until_gone(self, client: Client, seen_at: float) -> float:
        """Waits for a killed process and its memory; seconds since seen_at (monotonic).
        NotEnded."""

        def is_gone() -> bool:
            if processes.is_alive(client.process):
                return False
            # the pid is another process's by now
            is_others = processes.identity_of(client.pid) is not None
            return is_others or client.pid not in self._pids_on(client.gpu)

        try:
            await until(is_gone, _GONE_S, f"{client.process} is gone", _POLL_S)
        except TimeoutError:
            state = processes.state_of(client.process)
            why = _STUCK.get(state, f"the kernel shows it in state {state}")
            raise NotEnded(f"still there {_GONE_S:g} s after SIGKILL: {why}") from None
        except NvmlFailed as error:
            raise NotEnded(f"NVML does not say whether its memory is back: {error}") from None
        return time.monotonic() - seen_at

    def _pids_on(self, gpu: str) -> frozenset[int]:
        """One call to NVML for all that wait: many may be ended at once."""
        now = time.monotonic()
        asked_at, pids = self._listed.get(gpu, (-math.inf, frozenset[int]()))
        if now - asked_at >= _POLL_S / 2:
            listed = (*self.node.nvml.uses(gpu), *self.node.nvml.drawing(gpu))
            pids = frozenset(pid for pid, _used in listed)
            self._listed[gpu] = (now, pids)
        return pids


def _is_hit(process: ProcessIdentity, domains: Collection[DomainRecord]) -> bool:
    faults = [fault for record in domains for fault in unhealed(record.faults)]
    return any(hit.process == process for fault in faults for hit in fault.hit)
