"""libcuda as a simulated process has it: cuInit, one context, memory, and the error that stays.

Whether the process is an MPS client is decided as the driver decides it, by whether something
answers at the pipe directory; if nothing does it runs beside MPS, without limits and without a
word.
"""

import mmap
import os
import select
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mpsd.model.cuda_limit_parser import CUDA_VISIBLE_DEVICES, PIPE_DIRECTORY
from mpsd.simulator.card import (
    ILLEGAL_ADDRESS,
    INVALID_CONTEXT,
    MPS_CLIENT_TERMINATED,
    MPS_CONNECTION_FAILED,
    MPS_RPC_FAILURE,
    NO_DEVICE,
    OUT_OF_MEMORY,
    OUTSIDE_MPS,
    SUCCESS,
    CardRefusal,
    CardView,
    ContextClaim,
)
from mpsd.simulator.gpus import (
    MIB,
    SimulatedGpu,
    card_path,
    device_path,
    present_gpus,
    simulated_folder,
    uvm_path,
    visible_gpus,
)
from mpsd.simulator.kernel_queue import KernelQueue
from mpsd.simulator.memory_limits import MemoryLimits
from mpsd.simulator.mps import client_share, messages, question
from mpsd.simulator.mps.control_daemon import PIPE_DIRECTORY as USUAL_PIPE_DIRECTORY
from mpsd.simulator.mps.messages import Message

# What a context outside MPS costs beyond an MPS client's, and what the first process on an idle
# card costs beside: 142629 MiB free alone on an H200, 142558 beside an MPS server (driver
# 580.159.04).
OUTSIDE_MIB = 7
FIRST_MIB = 5
_PAGE_FAULT = 31  # the Xid of an illegal access (section 16)


class CudaFailure(Exception):
    """A call at the start failed: `step` is cuInit or ctx, `code` the result."""

    def __init__(self, step: str, code: int) -> None:
        super().__init__(step, code)
        self.step = step
        self.code = code


@dataclass(frozen=True, slots=True)
class SimulatedContext:
    """A context: its GPU, its place on the card, and what it may use; limit_bytes None where
    nothing limits it."""

    gpu: SimulatedGpu
    card: CardView
    slot: int
    sms: int
    limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class CudaMemoryInfo:
    """What cuMemGetInfo tells."""

    free_mib: int
    total_mib: int


class CudaProcess:
    """CUDA in one process: created by cuInit, with one context at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._folder = simulated_folder(environment)
        present = present_gpus(self._folder, environment)
        self._pid = os.getpid()  # as who looks after the cards knows it
        self._connection = messages.connect(
            f"{environment.get(PIPE_DIRECTORY) or USUAL_PIPE_DIRECTORY}/control"
        )
        if self._connection:
            present = self._greet(self._connection, present)
        self._on_mps = self._connection is not None
        self.visible = visible_gpus(environment.get(CUDA_VISIBLE_DEVICES), present)
        if not self.visible:
            raise CudaFailure("cuInit", NO_DEVICE)
        self.context: SimulatedContext | None = None  # None: not created yet, or destroyed
        self.error = SUCCESS
        self._limits = MemoryLimits(self._folder)
        self._managed: list[mmap.mmap] = []
        # of the context; None where nobody has seen what it reserves
        self._reservation: AddressRange | None = None

    def create_context(self, ordinal: int) -> int:
        """A context on the device that this process sees as `ordinal`; the result."""
        gpu = self.visible[ordinal]
        self.error = (
            self._create_on_mps(gpu, ordinal) if self._on_mps else self._create_outside(gpu)
        )
        return self.error

    def destroy_context(self) -> int:
        """Give everything back; a context that was terminated goes without complaint, other errors
        stay."""
        result = self.check()
        if self.context:
            if not self._on_mps or self._request({"destroy": True})["status"] != SUCCESS:
                self.context.card.release(self.context.slot, self._pid)
            self.context = None
            if self._reservation:
                self._reservation.unmap()
                self._reservation = None
        return SUCCESS if result == MPS_CLIENT_TERMINATED else result

    def memory_info(self) -> CudaMemoryInfo:
        """Free within the limit, and the whole card; a limit of the cgroup is the total too."""
        if self.context is None:
            return CudaMemoryInfo(0, 0)
        free = self.context.card.free_bytes()
        total_mib = self.context.gpu.memory_mib
        if room := self._limits.room(self.context.gpu.uuid, self._pid, self.context.card):
            free = min(free, room.free)
            total_mib = min(total_mib, room.limit // MIB)
        if self.context.limit_bytes is not None:
            free = min(free, self.context.limit_bytes - self._counted_bytes(self.context))
        return CudaMemoryInfo(free // MIB, total_mib)

    def allocate(self, more_bytes: int) -> int:
        """Take memory, or give some back when negative; the result."""
        if self.check() != SUCCESS or self.context is None:
            return self.error or INVALID_CONTEXT
        fits = self._is_within_limit(self.context, more_bytes) and self._has_room(
            self.context.gpu, self.context.card, more_bytes
        )
        return (
            SUCCESS
            if fits and self.context.card.add(self.context.slot, more_bytes)
            else OUT_OF_MEMORY
        )

    def allocate_managed(self, mib: int) -> int:
        """Take managed memory, and write to all of it; the result."""
        if self.check() != SUCCESS or self.context is None:
            return self.error or INVALID_CONTEXT
        if not self._is_within_limit(self.context, mib * MIB):
            return OUT_OF_MEMORY
        self._managed.append(_mapped_uvm(self._folder, mib * MIB))
        self.context.card.add_managed(self.context.slot, mib)
        return SUCCESS

    def free_managed(self) -> None:
        for mapping in self._managed:
            mapping.close()
        self._managed.clear()
        if self.context:
            self.context.card.add_managed(
                self.context.slot, -self.context.card.managed_mib(self.context.slot)
            )

    @staticmethod
    def _counted_bytes(context: SimulatedContext) -> int:
        return context.card.held_bytes(context.slot) + context.card.managed_mib(context.slot) * MIB

    def _is_within_limit(self, context: SimulatedContext, more_bytes: int) -> bool:
        return (
            context.limit_bytes is None
            or self._counted_bytes(context) + more_bytes <= context.limit_bytes
        )

    def _has_room(self, gpu: SimulatedGpu, card: CardView, more_bytes: int) -> bool:
        """Below a limit of its cgroup."""
        room = self._limits.room(gpu.uuid, self._pid, card) if more_bytes > 0 else None
        return room is None or more_bytes <= room.free

    def compute(self, sms: int, queue: KernelQueue) -> None:
        """Have this queued, on so many SMs."""
        if self.context:
            self.context.card.be_busy(self.context.slot, self._pid, sms, queue)

    def synchronize(self) -> int:
        """Wait until what is queued has run; the result."""
        while self.context and self.error == SUCCESS:
            queue = self.context.card.queue(self.context.slot, self._pid)
            now_ns = time.monotonic_ns()
            if not queue.runs(now_ns):
                self.compute(0, queue)
                break
            self.wait((), (queue.ends_ns - now_ns) / 1e9)
        return self.check()

    def fault(self) -> int:
        """Touch an address that is not there; the result, once the driver has noticed."""
        if self.context:
            self.context.card.post_xid(_PAGE_FAULT)
        if not self._on_mps:
            self.error = ILLEGAL_ADDRESS
        elif self._connection and self.check() == SUCCESS:
            messages.send(self._connection, {"fault": True})
            while self.error == SUCCESS:
                self._listen()
        return self.error

    def check(self) -> int:
        """The context's state now, as a synchronising call would return it."""
        self.wait((), 0)
        return self.error

    def wait(self, others: Sequence[int], timeout_s: float | None) -> Sequence[int]:
        """Sleep until the context breaks, one of these files can be read, or the time is up; the
        files that can."""
        watched: list[socket.socket | int] = (
            [self._connection, *others] if self._connection else [*others]
        )
        readable, _, _ = select.select(watched, [], [], timeout_s)
        if self._connection and self._connection in readable:
            self._listen()
        return [file for file in others if file in readable]

    def _greet(
        self, connection: socket.socket, present: Sequence[SimulatedGpu]
    ) -> tuple[SimulatedGpu, ...]:
        """Become a client of the daemon; the server's devices of those present, in the server's
        order."""
        if messages.receive_packet(connection) != question.HELLO:
            raise CudaFailure("cuInit", MPS_CONNECTION_FAILED)
        for packet in (question.CREDENTIALS, question.CLIENT):
            messages.send_packet(connection, packet)
        welcome = messages.receive(connection)
        if welcome is None:
            raise CudaFailure("cuInit", MPS_CONNECTION_FAILED)
        if welcome["status"] != SUCCESS:
            raise CudaFailure("cuInit", welcome["status"])
        self._pid = welcome["pid"]
        by_uuid = {gpu.uuid: gpu for gpu in present}
        return tuple(by_uuid[uuid] for uuid in welcome["gpus"] if uuid in by_uuid)

    def _create_on_mps(self, gpu: SimulatedGpu, ordinal: int) -> int:
        wish = client_share.wish(self._environment, self.visible, ordinal)
        given = self._request(
            {"context": {"uuid": gpu.uuid, "ordinal": ordinal, "wish": asdict(wish)}}
        )
        if given["status"] == SUCCESS:
            card = CardView(card_path(self._folder, gpu))
            self.context = SimulatedContext(
                gpu, card, given["slot"], given["sms"], given["limit_bytes"]
            )
            if gpu.reserved_kib_by_sms and (kib := gpu.reserved_kib_by_sms[given["sms"]]):
                self._reservation = AddressRange(kib * 1024, device_path(self._folder, gpu))
        return int(given["status"])

    def _create_outside(self, gpu: SimulatedGpu) -> int:
        card = CardView(card_path(self._folder, gpu))
        cost_mib = (
            gpu.context_mib_by_sms[gpu.sms] + OUTSIDE_MIB + (0 if card.holdings() else FIRST_MIB)
        )
        if not self._has_room(gpu, card, cost_mib * MIB):
            return OUT_OF_MEMORY
        try:
            slot = card.claim(ContextClaim(self._pid, OUTSIDE_MPS, cost_mib * MIB))
        except CardRefusal as refused:
            return refused.code
        self.context = SimulatedContext(gpu, card, slot, gpu.sms, None)
        return SUCCESS

    def _request(self, request: Message) -> Message:
        """The server's reply; what it has to say about the context in between is kept."""
        if self._connection:
            messages.send(self._connection, request)
        while self._connection:
            reply = self._listen()
            if "status" in reply:
                return reply
        return {"status": MPS_RPC_FAILURE}

    def _listen(self) -> Message:
        """The next message; a server that is gone is one too."""
        message = messages.receive(self._connection) if self._connection else None
        if message is None:
            if self._connection:
                self._connection.close()
            self._connection = None
            self.error = self.error or MPS_RPC_FAILURE
            return {}
        self.error = message.get("broke", self.error)
        return message


def _mapped_uvm(folder: Path, size: int) -> mmap.mmap:
    """A mapping that shows in /proc/PID/maps as managed memory does."""
    file = os.open(uvm_path(folder), os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
        return mmap.mmap(file, size, prot=mmap.PROT_READ)
    finally:
        os.close(file)


class AddressRange:
    """What a context takes of the addresses of its process: from 0x200000000 on a reservation,
    whose size follows from its SMs, and behind it a mapping of the GPU's device node
    (docs/mps-observed.md, section 13)."""

    _AT = 0x2_0000_0000
    _MAPPED = 2 * MIB
    _FIXED_NOREPLACE = 0x100000

    def __init__(self, size: int, device: Path) -> None:
        import ctypes  # for Python's own mmap the kernel chooses the address

        self._size, self._libc = size, ctypes.CDLL(None)
        self._libc.mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            *[ctypes.c_int] * 3,
            ctypes.c_long,
        ]
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        flags = self._FIXED_NOREPLACE | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._libc.mmap(self._AT, size, 0, flags, -1, 0)
        file = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        flags = self._FIXED_NOREPLACE | mmap.MAP_SHARED
        self._libc.mmap(
            self._AT + size, self._MAPPED, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0
        )
        os.close(file)

    def unmap(self) -> None:
        self._libc.munmap(self._AT, self._size + self._MAPPED)
