"""The program `sim-cuda`: a CUDA process that does what its arguments say and prints what it saw, one JSON a line.

    sim-cuda [device=N] [ACTION ...]

    alloc=MIB     allocate in pieces of 32 MiB until done or refused
    free          give all of it back
    hold[=SEC]    keep the context, looking at it, until SIGTERM (or for so long)
    step          the same until a line or the end of standard input
    launch=SEC    compute
    work[=SEC]    compute until SIGTERM (or for so long), with a line four times a second
    fault         touch an address that is not there
    linger[=SEC]  stay alive and leave CUDA alone
    reconnect     destroy the context and make another
    info          print the free memory again

Exit codes: 0; 2 for arguments it does not know; 3 when there is no context; 4 when a context breaks that it looks at.

One rule: sleeping costs nothing. A held context is a blocked process, so that a hundred of them can be started.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from mpsd.sim.cuda_driver import CudaFailure, CudaProcess
from mpsd.sim.cuda_results import INVALID_DEVICE, SUCCESS, shown
from mpsd.sim.gpus import MIB

PIECE_MIB = 32

# Launches a second that one SM does of the kernel in the measurements, and how many were in flight at once:
# 4701/s at 132 SMs with a median of 2.09 ms (H200, driver 580.159.04).
LAUNCHES_PER_SM = 35.6
IN_FLIGHT = 9.8
_LOOK_EVERY_S = 0.05
_SAY_EVERY_S = 0.25


class Broke(Exception):
    """The context broke while it was being looked at."""


class CudaProgram:
    """The process between its first context and its end."""

    def __init__(self, cuda: CudaProcess, device: int) -> None:
        self.cuda = cuda
        self.device = device
        self.allocated_mib = 0
        self.read_ahead = b""

    def watch(self, files: Sequence[int], timeout_s: float | None) -> Sequence[int]:
        """Sleep until one of the files can be read or the time is up; Broke when the context is broken, or breaks."""
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
    device = int(words.pop(0).removeprefix("device=")) if words and words[0].startswith("device=") else 0
    actions = [(word.partition("=")[0], word.partition("=")[2]) for word in words]
    unknown = [name for name, _ in actions if name not in _ACTIONS]
    if unknown:
        print(f"sim-cuda: {unknown[0]} is not one of {', '.join(_ACTIONS)}", file=sys.stderr)
        return 2
    began = time.perf_counter()
    try:
        program = _start(device)
    except CudaFailure as failure:
        _say({"fail": failure.step, "err": shown(failure.code)})
        return 3
    _say(_first_look(program, time.perf_counter() - began))
    for name, value in actions:
        began = time.perf_counter()
        try:
            _ACTIONS[name](program, value)
        except Broke:
            _say({"broke": shown(program.cuda.error), "after_s": round(time.perf_counter() - began, 3)})
            return 4
    _say({"end": shown(program.cuda.check())})
    return 0


def _start(device: int) -> CudaProgram:
    cuda = CudaProcess(os.environ)
    if device >= len(cuda.visible):
        raise CudaFailure("cuInit", INVALID_DEVICE)
    result = cuda.create_context(device)
    if result != SUCCESS:
        raise CudaFailure("ctx", result)
    return CudaProgram(cuda, device)


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
    print(json.dumps(line), flush=True)


def _alloc(program: CudaProgram, value: str) -> None:
    got, result = 0, SUCCESS
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
    _say({"free": shown(result)})


def _hold(program: CudaProgram, value: str) -> None:
    with _termination() as terminated:
        _say({"ready": os.getpid()})
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
    standard_input = 0
    while b"\n" not in program.read_ahead:
        program.watch([standard_input], None)
        more = os.read(standard_input, 4096)
        program.read_ahead += more or b"\n"
    program.read_ahead = program.read_ahead.partition(b"\n")[2]


def _launch(program: CudaProgram, value: str) -> None:
    """Pretend kernels, for so long."""
    began = time.monotonic()
    launches = _compute(program, float(value), ())
    rate = launches / max(time.monotonic() - began, 1e-9)
    median_ms = round(1000 * IN_FLIGHT / rate, 3) if rate else 0.0
    _say({"launches_per_s": round(rate, 1), "n": int(launches), "p50_ms": median_ms, "p99_ms": median_ms})


def _work(program: CudaProgram, value: str) -> None:
    ends = time.monotonic() + float(value or "inf")
    launches = 0.0
    with _termination() as terminated:
        while time.monotonic() < ends and not select.select([terminated], [], [], 0)[0]:
            launches += _compute(program, min(_SAY_EVERY_S, ends - time.monotonic()), [terminated])
            _say({"launches": int(launches), "at": round(time.time(), 3)})


def _compute(program: CudaProgram, asked_s: float, files: Sequence[int]) -> float:
    """Launches in this time, or until one of the files can be read.

    Everyone who computes gets the SMs in proportion to what he may use, once they are all taken.
    """
    context = program.cuda.context
    if context is None or program.cuda.check() != SUCCESS:
        raise Broke
    launches = 0.0
    began = then = time.monotonic()
    context.card.be_busy(context.slot, context.sms)
    while then < began + asked_s:
        asked_to_end = program.watch(files, min(_LOOK_EVERY_S, began + asked_s - then))
        now = time.monotonic()
        busy = sum(holding.busy_sms for holding in context.card.holdings())
        launches += (now - then) * LAUNCHES_PER_SM * context.sms * min(1.0, context.gpu.sms / max(busy, 1))
        then = now
        if asked_to_end:
            break
    context.card.be_busy(context.slot, 0)
    return launches


def _fault(program: CudaProgram, _: str) -> None:
    _say({"bad": shown(program.cuda.fault())})


def _linger(_: CudaProgram, value: str) -> None:
    _say({"lingering": os.getpid()})
    if value:
        time.sleep(float(value))
    else:
        signal.pause()


def _reconnect(program: CudaProgram, _: str) -> None:
    destroyed = program.cuda.destroy_context()
    program.allocated_mib = 0
    _say({"destroy": shown(destroyed), "again": shown(program.cuda.create_context(program.device))})


def _info(program: CudaProgram, _: str) -> None:
    _say(_memory(program))


_ACTIONS: Mapping[str, Callable[[CudaProgram, str], None]] = {
    "alloc": _alloc,
    "free": _free,
    "hold": _hold,
    "step": _step,
    "launch": _launch,
    "work": _work,
    "fault": _fault,
    "linger": _linger,
    "reconnect": _reconnect,
    "info": _info,
}


if __name__ == "__main__":
    sys.exit(main())
