"""Asks NVML by a reader process for each GPU, with a deadline: a driver's call for one GPU may
never return, and cannot be ended."""

import math
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from mpsd.model.seen_gpus import SeenGpu
from mpsd.platform.nvml import CALL_S, OPEN_S, NvmlFailed, NvmlLate
from mpsd.platform.nvml_reader import LARGEST_BYTES

PROGRAM = (sys.executable, "-P", "-m", "mpsd.platform.nvml_reader")
UNREAD_S = 2.0  # without an answer, before a GPU counts as not read
_LEAVE_S = 3.0  # before its reader is left behind
_AGAIN_S = 1.0  # between two readers of one GPU
_MOST_STUCK = 3  # readers that no signal ends, before no other is started
_STOP_S = 1.0

Question = tuple[str, tuple[object, ...]]  # a method of Nvml and its arguments


class ReaderHost:
    """The process that forks readers; started anew where it has ended."""

    def __init__(self, program: Sequence[str]) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None

    def fork(self) -> socket.socket:
        """The socket of a new reader, which answers once it is there. OSError."""
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            try:
                self._order(its)
            except OSError:
                own.close()
                raise
        return own

    def _order(self, its: socket.socket) -> None:
        try:
            socket.send_fds(self._started(), [b"f"], [its.fileno()])
        except BrokenPipeError:
            self.close()
            socket.send_fds(self._started(), [b"f"], [its.fileno()])

    def _started(self) -> socket.socket:
        if self._orders is None:
            own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with its:
                try:
                    self._process = subprocess.Popen(
                        self._program,
                        stdin=its.fileno(),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,  # a log that nobody reads must stop no reader
                        start_new_session=True,
                    )
                except OSError:
                    own.close()
                    raise
            self._orders = own
        return self._orders

    def close(self) -> None:
        if self._orders is None or self._process is None:
            return
        self._orders.close()
        self._orders = None
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class GpuReader:
    """Asks about one GPU, one question at a time."""

    def __init__(self, host: ReaderHost) -> None:
        self._host = host
        self._socket: socket.socket | None = None  # of the reader; None while there is none
        self._pidfd: int | None = None  # None before its first word
        self._started_at = -math.inf
        self._asked: Question | None = None  # what has no answer yet
        self._asked_at = 0.0
        self._silent_since: float | None = None  # None while it answers
        self.has_answered = False
        self._stuck: list[int] = []  # pidfds of readers that were left behind
        self._spent_s = 0.0  # by this reader
        self.spent_s = 0.0  # of processor time, by all

    @property
    def is_silent(self) -> bool:
        return self._silent_since is not None

    def ask(self, question: Question, within_s: float) -> object:
        """NvmlLate without an answer in time, which the same question may get later; NvmlFailed
        once the GPU counts as not read. Who is silent already is not waited for."""
        try:
            answer = self._answer(question, within_s)
        except TimeoutError:
            if self._socket and time.monotonic() - self._asked_at >= _LEAVE_S:
                self._leave()
            why = "NVML does not answer"
        except (OSError, EOFError) as error:
            self._leave()
            why = f"the process that asks NVML has ended: {error}"
        else:
            if isinstance(answer, NvmlFailed):
                raise answer
            return answer
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = self._asked_at
        if now - self._silent_since < UNREAD_S:
            raise NvmlLate(why)
        raise NvmlFailed(why)

    def _answer(self, question: Question, within_s: float) -> object:
        """TimeoutError, EOFError, OSError."""
        if self._asked is not None:
            earlier = self._asked
            answer = self._receive(within_s)
            if earlier == question:
                return answer
        if self._socket is None:
            self._socket = self._started()
        self._asked_at = time.monotonic()
        self._asked = question
        self._socket.send(pickle.dumps(question), socket.MSG_DONTWAIT)
        return self._receive(within_s)

    def _receive(self, within_s: float) -> object:
        until = time.monotonic()
        if not self.is_silent:
            until += within_s
        while self._socket and _is_readable(self._socket.fileno(), until - time.monotonic()):
            packet, pidfds, _flags, _address = socket.recv_fds(self._socket, LARGEST_BYTES, 1)
            if not packet:
                raise EOFError("it closed its socket")
            if pidfds:
                (self._pidfd,) = pidfds
                continue
            self._asked = self._silent_since = None
            self.has_answered = True
            answer, spent_s = pickle.loads(packet)  # noqa: S301 - of a process of this one's
            self.spent_s += spent_s - self._spent_s
            self._spent_s = spent_s
            return answer
        raise TimeoutError

    def _started(self) -> socket.socket:
        """TimeoutError where it is too early for another, or too many cannot be ended."""
        for pidfd in filter(lambda one: _is_readable(one, 0.0), self._stuck[:]):
            self._stuck.remove(pidfd)
            os.close(pidfd)
        now = time.monotonic()
        if len(self._stuck) >= _MOST_STUCK or now - self._started_at < _AGAIN_S:
            raise TimeoutError
        self._started_at = now
        self._spent_s = 0.0
        return self._host.fork()

    def _leave(self) -> None:
        """Kills the reader, which may be in a call that no signal ends, and forgets it."""
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._stuck.append(self._pidfd)
        if self._socket is not None:
            self._socket.close()
        self._socket = self._pidfd = self._asked = None

    def close(self) -> None:
        self._leave()
        while self._stuck:
            os.close(self._stuck.pop())


class GpuReaders:
    """The readers of a node's GPUs, by ordinal. program: of the host."""

    def __init__(self, program: Sequence[str] = PROGRAM) -> None:
        self._host = ReaderHost(program)
        self._by_ordinal: dict[int, GpuReader] = {}
        self._ordinals: dict[str, int] = {}  # by UUID, also of MIG instances

    @property
    def spent_s(self) -> float:
        """Of the readers' processor time."""
        return sum(reader.spent_s for reader in self._by_ordinal.values())

    def look_at(self, ordinal: int, *, first_within_s: float, within_s: float) -> SeenGpu:
        """As `Nvml.at`; from then on others may be asked about what is there."""
        reader = self._reader(ordinal)
        seen = reader.ask(("at", (ordinal,)), within_s if reader.has_answered else first_within_s)
        assert isinstance(seen, SeenGpu)
        for uuid in (seen.uuid, *[one.uuid for one in seen.instances]):
            self._ordinals[uuid] = ordinal
        return seen

    def _reader(self, ordinal: int) -> GpuReader:
        if ordinal not in self._by_ordinal:
            self._by_ordinal[ordinal] = GpuReader(self._host)
        return self._by_ordinal[ordinal]

    def ask(self, method: str, *arguments: object, within_s: float) -> object:
        """Of the GPU whose UUID is the first argument; without arguments, of the whole machine.
        NvmlFailed, NvmlLate."""
        if not arguments:
            return self._ask_any(method, within_s)
        uuid = str(arguments[0])
        if uuid not in self._ordinals:
            self._find(uuid)
        return self._reader(self._ordinals[uuid]).ask((method, arguments), within_s)

    def _ask_any(self, method: str, within_s: float) -> object:
        """The first reader that answers."""
        late = NvmlLate("NVML does not answer")
        answering = [one for one, reader in self._by_ordinal.items() if not reader.is_silent]
        for ordinal in sorted(answering) or [0]:
            try:
                return self._reader(ordinal).ask((method, ()), within_s)
            except NvmlLate as error:
                late = error
        raise late

    def _find(self, uuid: str) -> None:
        """Looks at every GPU that nobody has looked at. NvmlFailed where this is none of them."""
        why = NvmlFailed(f"NVML lists no GPU {uuid}")
        known = set(self._ordinals.values())
        count = self._ask_any("count", OPEN_S)
        assert isinstance(count, int)
        for ordinal in range(count):
            if ordinal not in known:
                try:
                    self.look_at(ordinal, first_within_s=OPEN_S, within_s=CALL_S)
                except NvmlFailed as error:
                    why = error
        if uuid not in self._ordinals:
            raise why

    def close(self) -> None:
        for reader in self._by_ordinal.values():
            reader.close()
        self._by_ordinal.clear()
        self._ordinals.clear()
        self._host.close()


def _is_readable(descriptor: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, within_s) * 1000))
