"""The program `sim-cuda`: a CUDA process that does what its arguments say and prints what it saw,
one JSON a line.

    sim-cuda [device=N] [lift=VALUE] [threads=PERCENT] [kernel=MS | gemm=N] [ACTION ...]

Its twin on a real GPU is mpsd/bench/cuda_client.py, which has the actions and the lines at its top.
The speed that it reports is simulated, with the proportions observed on an H200; a product of N × N
halves lasts as long as there.

Sleeping costs nothing. A held context is a blocked process, so that a hundred of them can be
started.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT, THREAD_PERCENT
from mpsd.simulator.card import INVALID_DEVICE, MPS_CLIENT, OUTSIDE_MPS, SUCCESS, shown
from mpsd.simulator.cuda_driver import CudaFailure, CudaProcess, SimulatedContext
from mpsd.simulator.gpus import MIB
from mpsd.simulator.kernel_queue import KernelQueue, KernelsAhead, complaint_of_kernels

PIECE_MIB = 32

# Launches a second that one SM does of the kernel in the measurements, and how many were in flight
# at once: 4701/s at 132 SMs with a median of 2.09 ms (H200, driver 580.159.04).
LAUNCHES_PER_SM = 35.6
IN_FLIGHT = 9.8
# 47.6 launches/s beside 1799.3 of a client with priority 0, both filling the GPU
BELOW_NORMAL_WEIGHT = 0.0265
# launches of 8 blocks, by a client that is alone; eight did 354 471 together under MPS
SMALL_PER_S = 52754.0


@dataclass(frozen=True, slots=True)
class SimulatedWork:
    """What is computed: its launches a second on one SM, up to so many SMs, and how many of all SMs
    that keeps busy.

    sliced: what is left of the launches where processes beside MPS take turns, since the GPU
    changes between them.
    """

    per_sm: float
    most_sms: int | None = None  # None: the more it has, the faster
    busy_sms: int | None = None  # None: all that it has
    sliced: float = 0.975  # 4578 of 4697 a second, in eight processes
    sample_launches: int = 1
    buffers_mib: int = 0


LAUNCH = SimulatedWork(LAUNCHES_PER_SM)
WORKS: Mapping[str, SimulatedWork] = {
    # Read off an H200, driver 580.159.04: docs/benchmarks. 1815 a second at 132 SMs, 1564 of eight
    # that took turns.
    "arithmetic": SimulatedWork(1815 / 132, sliced=0.862, sample_launches=16),
    # Whatever its SMs; they have room for more. 31 898 a second were left of it in eight that took
    # turns.
    "small": SimulatedWork(SMALL_PER_S, most_sms=1, busy_sms=2, sliced=0.605, sample_launches=10),
    # 57 a second on each of 26 SMs; the memory does 3 760, so who has 66 SMs leaves nothing to
    # others.
    "bandwidth": SimulatedWork(57.0, most_sms=66, sample_launches=4, buffers_mib=1024),
}
_LIFTED = {"lift": MEMORY_LIMIT, "threads": THREAD_PERCENT}
_CHOICES = {"device", "kernel", "gemm", *_LIFTED}
_LOOK_EVERY_S = 0.05
_SAY_EVERY_S = 0.25


class Broke(Exception):
    """The context broke while it was being looked at."""


class CudaProgram:
    """The process between its first context and its end."""

    def __init__(self, cuda: CudaProcess, chosen: Mapping[str, str]) -> None:
        self.cuda = cuda
        self.device = int(chosen.get("device", 0))
        self._chosen = chosen
        self.kernels: KernelsAhead | None = None  # None: short ones, few of them queued
        self.allocated_mib = 0
        self.read_ahead = b""
        self.prepared = ""  # the name of a work
        self.buffers_mib = 0  # that it holds

    def load_kernels(self) -> None:
        """Those that were chosen, and the memory for them."""
        if "kernel" in self._chosen:
            self.kernels = KernelsAhead(float(self._chosen["kernel"]) / 1000)
        if "gemm" in self._chosen:
            size = int(self._chosen["gemm"])
            result = self.cuda.allocate(3 * 2 * size**2)  # two factors and their product
            if result != SUCCESS:
                raise CudaFailure("gemm", result)
            self.kernels = KernelsAhead.of_gemm(size)

    def watch(self, files: Sequence[int], timeout_s: float | None) -> Sequence[int]:
        """Sleep until one of the files can be read or the time is up; Broke when the context is
        broken, or breaks."""
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if ends is None else max(0.0, ends - time.monotonic())
            ready = self.cuda.wait(files, left) if self.cuda.error == SUCCESS else ()
            if self.cuda.error != SUCCESS:
                raise Broke
            if ready or left == 0:
                return ready


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    actions = [(word.partition("=")[0], word.partition("=")[2]) for word in words]
    chosen: dict[str, str] = {}
    while actions and actions[0][0] in _CHOICES:
        name, value = actions.pop(0)
        chosen[name] = value
    if wrong := complaint_of_kernels(chosen) or _complaint(actions):
        print(f"sim-cuda: {wrong}", file=sys.stderr)
        return 2
    lifted = {_LIFTED[name]: value for name, value in chosen.items() if name in _LIFTED}
    began = time.perf_counter()
    try:
        program = _start(chosen, {**os.environ, **lifted})
        _say(_first_look(program, time.perf_counter() - began))
        program.load_kernels()
    except CudaFailure as failure:
        _say({"fail": failure.step, "err": shown(failure.code)})
        return 3
    for name, value in actions:
        began = time.perf_counter()
        try:
            _ACTIONS[name](program, value)
        except CudaFailure as failure:
            _say({"fail": failure.step, "err": shown(failure.code)})
            return 3
        except Broke:
            _say(
                {
                    "broke": shown(program.cuda.error),
                    "after_s": round(time.perf_counter() - began, 3),
                }
            )
            return 4
    _say({"end": shown(program.cuda.synchronize())})
    return 0


def _complaint(actions: Sequence[tuple[str, str]]) -> str:
    """What makes no sense in these actions and values; "" where all of it does."""
    prepared = False
    for name, value in actions:
        if name in _CHOICES:
            return f"{name}={value} is after the first action; write {name}= before the actions"
        if name not in _ACTIONS:
            return f"{name} is not one of {', '.join(_ACTIONS)}"
        if name == "prepare" and value not in WORKS:
            return f"prepare={value} is not one of {', '.join(WORKS)}"
        if name in {"measure", "serve"} and not prepared:
            return (
                f"{name}={value} has nothing prepared before it; write prepare=WORK first:"
                f" {', '.join(WORKS)}"
            )
        if name in {"prepare", "reconnect"}:  # another context has nothing prepared
            prepared = name == "prepare"
    return ""


def _start(chosen: Mapping[str, str], environment: Mapping[str, str]) -> CudaProgram:
    program = CudaProgram(CudaProcess(environment), chosen)
    if program.device >= len(program.cuda.visible):
        raise CudaFailure("cuInit", INVALID_DEVICE)
    result = program.cuda.create_context(program.device)
    if result != SUCCESS:
        raise CudaFailure("ctx", result)
    return program


def _first_look(program: CudaProgram, took_s: float) -> Mapping[str, object]:
    cuda = program.cuda
    gpu = cuda.visible[program.device]
    return {
        "pid": os.getpid(),
        "devices": len(cuda.visible),
        "uuid": gpu.uuid,
        "total_MiB": gpu.memory_mib,
        **_memory(program),
        "init_s": round(took_s, 3),
    }


def _memory(program: CudaProgram) -> Mapping[str, object]:
    memory = program.cuda.memory_info()
    sms = program.cuda.context.sms if program.cuda.context else 0
    return {"meminfo_free_MiB": memory.free_mib, "meminfo_total_MiB": memory.total_mib, "sms": sms}


def _say(line: Mapping[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(line)}\n")  # in one piece: others may write to the same file
    sys.stdout.flush()


def _alloc(program: CudaProgram, value: str) -> None:
    got = 0
    result = SUCCESS
    while got < int(value) and result == SUCCESS:
        piece = min(PIECE_MIB, int(value) - got)
        result = program.cuda.allocate(piece * MIB)
        got += piece if result == SUCCESS else 0
    program.allocated_mib += got
    memory = program.cuda.memory_info()
    _say(
        {
            "alloc_MiB": got,
            "rc": shown(result),
            "free_after_MiB": memory.free_mib,
            "total_after_MiB": memory.total_mib,
        }
    )


def _free(program: CudaProgram, _: str) -> None:
    result = program.cuda.allocate(-program.allocated_mib * MIB)
    program.allocated_mib = 0 if result == SUCCESS else program.allocated_mib
    program.cuda.free_managed()
    _say({"free": shown(result)})


def _managed(program: CudaProgram, value: str) -> None:
    result = program.cuda.allocate_managed(int(value))
    _say(
        {
            "managed_MiB": int(value) if result == SUCCESS else 0,
            "rc": shown(result),
            **_memory(program),
        }
    )


def _hold(program: CudaProgram, value: str) -> None:
    with _termination() as terminated:
        _say({"ready": os.getpid()})
        program.cuda.synchronize()
        program.watch([terminated], float(value) if value else None)


@contextmanager
def _termination() -> Iterator[int]:
    """A file that can be read once SIGTERM has come, which ends the process at any other time."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    usual = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield reading
    finally:
        signal.signal(signal.SIGTERM, usual)
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)


def _step(program: CudaProgram, _: str) -> None:
    _say({"ready": os.getpid()})
    program.cuda.synchronize()
    standard_input = 0
    while b"\n" not in program.read_ahead:
        program.watch([standard_input], None)
        more = os.read(standard_input, 4096)
        program.read_ahead += more or b"\n"
    program.read_ahead = program.read_ahead.partition(b"\n")[2]


def _launch(program: CudaProgram, value: str) -> None:
    """Pretend kernels, for so long."""
    launches, took_s = _compute(program, LAUNCH, float(value), ())
    rate = launches / max(took_s, 1e-9)
    in_flight = 1 if program.kernels else IN_FLIGHT
    median_ms = round(1000 * in_flight / rate, 3) if rate else 0.0
    _say(
        {
            "launches_per_s": round(rate, 1),
            "n": int(launches),
            "p50_ms": median_ms,
            "p99_ms": median_ms,
        }
    )


def _work(program: CudaProgram, value: str) -> None:
    ends = time.monotonic() + float(value or "inf")
    launches = 0.0
    with _termination() as terminated:
        while time.monotonic() < ends and not select.select([terminated], [], [], 0)[0]:
            launches += _compute(
                program, LAUNCH, min(_SAY_EVERY_S, ends - time.monotonic()), [terminated]
            )[0]
            _say({"launches": int(launches), "at": round(time.time(), 3)})


def _prepare(program: CudaProgram, name: str) -> None:
    work = WORKS[name]
    result = program.cuda.allocate((work.buffers_mib - program.buffers_mib) * MIB)
    if result != SUCCESS:
        raise CudaFailure("prepare", result)
    program.prepared = name
    program.buffers_mib = work.buffers_mib
    _say({"prepared": name})


def _measure(program: CudaProgram, value: str) -> None:
    """Pretend kernels, for so long; nothing of their time is Python's."""
    work = WORKS[program.prepared]
    launches, took_s = _compute(program, work, max(float(value), 1e-3), ())
    sample_launches = 1 if program.kernels else work.sample_launches
    sample_ms = round(1000 * took_s * sample_launches / launches, 3)
    _say(
        {
            "work": program.prepared,
            "seconds": round(took_s, 3),
            "launches": round(launches),
            "launches_per_s": round(launches / took_s, 1),
            "sample_launches": sample_launches,
            "p50_ms": sample_ms,
            "p99_ms": sample_ms,
            "gpu_ms": sample_ms,
        }
    )


def _serve(program: CudaProgram, value: str) -> None:
    """Pretend requests. One that comes while others are served waits for as long as their number
    makes it."""
    work, (per_s, seconds) = WORKS[program.prepared], [float(part) for part in value.split(",")]
    wanted = max(1, round(per_s * seconds))
    launches, took_s = _compute_short(program, work, max(seconds, 1e-3), ())
    most_per_s = launches / took_s / work.sample_launches
    sample_s = 1 / most_per_s
    behind_s = max(0.0, wanted / most_per_s - seconds)
    waits_s = [behind_s * percent / 100 for percent in (50, 99)]
    _say(
        {
            "work": program.prepared,
            "requests": wanted,
            "per_s": round(min(per_s, most_per_s), 1),
            "p50_ms": round(1000 * (sample_s + waits_s[0]), 3),
            "p99_ms": round(1000 * (sample_s + waits_s[1]), 3),
        }
    )


def _compute(
    program: CudaProgram, work: SimulatedWork, asked_s: float, files: Sequence[int]
) -> tuple[float, float]:
    """Launches in this time, or until a file can be read; and the seconds that they took."""
    if program.kernels:
        return _compute_ahead(program, program.kernels, asked_s, files)
    return _compute_short(program, work, asked_s, files)


def _compute_short(
    program: CudaProgram, work: SimulatedWork, asked_s: float, files: Sequence[int]
) -> tuple[float, float]:
    """Of this work, with a synchronise behind each few.

    What a processor takes to begin and to end them is not among these: rates are a GPU's, whatever
    else runs here.
    """
    context = program.cuda.context
    if context is None or program.cuda.synchronize() != SUCCESS:
        raise Broke
    sms = min(context.sms, work.most_sms or context.sms)
    launches = 0.0
    began = then = time.monotonic()
    while then < began + asked_s:
        program.cuda.compute(
            _busy_sms(work, context), KernelQueue(int((then + _LOOK_EVERY_S) * 1e9))
        )
        asked_to_end = program.watch(files, min(_LOOK_EVERY_S, began + asked_s - then))
        now = time.monotonic()
        launches += (now - then) * work.per_sm * sms * _share(work, context)
        then = now
        if asked_to_end:
            break
    program.cuda.compute(0, KernelQueue(int(then * 1e9)))
    return launches, then - began


def _compute_ahead(
    program: CudaProgram, kernels: KernelsAhead, asked_s: float, files: Sequence[int]
) -> tuple[float, float]:
    """With several of these queued all the time; one ends at least, and what is left runs on."""
    context = program.cuda.context
    if context is None or program.cuda.check() != SUCCESS:
        raise Broke
    began = now = time.monotonic()
    before = kernels.completed(began)
    while True:
        kernels.fill(now)
        program.cuda.compute(context.sms, kernels.queue)
        first_s = kernels.kernel_s if kernels.completed(now) == before else 0.0
        asked_to_end = program.watch(files, min(_LOOK_EVERY_S, max(first_s, began + asked_s - now)))
        now = time.monotonic()
        launches = kernels.completed(now) - before
        if asked_to_end or (launches and now >= began + asked_s):
            return launches, now - began


def _busy_sms(work: SimulatedWork, context: SimulatedContext) -> int:
    """Of what bounds the work, be it memory, as much as so many SMs are of all."""
    if work.buffers_mib and work.most_sms:
        return context.gpu.sms * min(context.sms, work.most_sms) // work.most_sms
    return min(context.sms, work.busy_sms or context.sms)


def _share(work: SimulatedWork, context: SimulatedContext) -> float:
    """What it has now of its launches alone.

    Processes beside MPS and the MPS server take turns on the whole GPU. In the server's turn every
    client who computes gets the SMs in proportion to what he may use and to his priority, once they
    are all taken.
    """
    now_ns = time.monotonic_ns()
    computing = [holding for holding in context.card.holdings() if holding.computes(now_ns)]
    outside = {holding.slot for holding in computing if holding.kind == OUTSIDE_MPS}
    on_mps = [holding for holding in computing if holding.kind == MPS_CLIENT]
    turns = max(1, len(outside) + bool(on_mps))
    turn = 1.0 if turns == 1 else work.sliced / turns
    if context.slot in outside or sum(holding.busy_sms for holding in on_mps) <= context.gpu.sms:
        return turn
    weights = {holding.slot: BELOW_NORMAL_WEIGHT if holding.priority else 1.0 for holding in on_mps}
    wanted = sum(weights[holding.slot] * holding.busy_sms for holding in on_mps)
    return turn * min(1.0, weights.get(context.slot, 1.0) * context.gpu.sms / max(wanted, 1.0))


def _fault(program: CudaProgram, _: str) -> None:
    _say({"bad": shown(program.cuda.fault())})


def _linger(_: CudaProgram, value: str) -> None:
    _say({"lingering": os.getpid()})
    if value:
        time.sleep(float(value))
    else:
        signal.pause()


def _exit(_: CudaProgram, __: str) -> None:
    os._exit(0)


def _reconnect(program: CudaProgram, _: str) -> None:
    program.cuda.synchronize()
    destroyed = program.cuda.destroy_context()
    program.allocated_mib = program.buffers_mib = 0
    again = program.cuda.create_context(program.device)
    _say({"destroy": shown(destroyed), "again": shown(again)})
    if again == SUCCESS:
        program.load_kernels()


def _info(program: CudaProgram, _: str) -> None:
    _say(_memory(program))


_ACTIONS: Mapping[str, Callable[[CudaProgram, str], None]] = {
    "alloc": _alloc,
    "managed": _managed,
    "free": _free,
    "hold": _hold,
    "step": _step,
    "prepare": _prepare,
    "measure": _measure,
    "serve": _serve,
    "launch": _launch,
    "work": _work,
    "fault": _fault,
    "linger": _linger,
    "exit": _exit,
    "reconnect": _reconnect,
    "info": _info,
}


if __name__ == "__main__":
    sys.exit(main())
