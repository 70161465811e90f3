"""The program `sim-cuda`: a CUDA process that does what its arguments say and prints what it saw,
one JSON a line.

    sim-cuda [device=N] [lift=VALUE] [threads=PERCENT] [kernel=MS | gemm=N] [ACTION ...]

It is the client of mpsd/bench/cuda_client.py, which has the actions and the lines at its top, on a
simulated device. The speed that it reports is simulated, with the proportions observed on an H200;
a product of N × N halves lasts as long as there.

Sleeping costs nothing. A held context is a blocked process, so that a hundred of them can be
started.
"""

import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpsd.bench.cuda_client import (
    SAY_EVERY_S,
    WORKS,
    CannotBegin,
    CudaClient,
    CudaError,
    raise_for,
    run,
    say,
    served,
    terminated,
)
from mpsd.simulator.card import INVALID_DEVICE, MPS_CLIENT, OUTSIDE_MPS, SUCCESS, shown
from mpsd.simulator.cuda_driver import CudaFailure, CudaProcess, SimulatedContext
from mpsd.simulator.gpus import MIB
from mpsd.simulator.kernel_queue import KernelQueue, KernelsAhead

# Launches in flight at once: 4701/s, 35.6 of each of 132 SMs, with a median of 2.09 ms (H200,
# driver 580.159.04).
IN_FLIGHT = 9.8
# 47.6 launches/s beside 1799.3 of a client with priority 0, both filling the GPU
BELOW_NORMAL_WEIGHT = 0.0265


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
    bound_by_memory: bool = False


LAUNCH = SimulatedWork(35.6)
SPEEDS: Mapping[str, SimulatedWork] = {  # of WORKS
    # Read off an H200, driver 580.159.04: docs/benchmarks. 1815 a second at 132 SMs, 1564 of eight
    # that took turns.
    "arithmetic": SimulatedWork(1815 / 132, sliced=0.862),
    # Launches of 8 blocks by a client that is alone, whatever its SMs, which have room for more:
    # eight did 354 471 a second together under MPS, and 31 898 in turns.
    "small": SimulatedWork(52754.0, most_sms=1, busy_sms=2, sliced=0.605),
    # 57 a second on each of 26 SMs; the memory does 3 760, so who has 66 SMs leaves nothing to
    # others.
    "bandwidth": SimulatedWork(57.0, most_sms=66, bound_by_memory=True),
}
_LOOK_EVERY_S = 0.05


class SimulatedClient(CudaClient):
    """The process between its first context and its end."""

    def __init__(self, chosen: Mapping[str, str]) -> None:
        super().__init__(chosen)
        self._device = int(chosen["device"])
        self._kernels: KernelsAhead | None = None  # None: short ones, few of them queued
        self._allocated_mib = 0
        self._prepared = ""  # the name of a work
        self._buffers_mib = 0  # that it holds
        try:
            self._cuda = CudaProcess(os.environ)
        except CudaFailure as failure:
            raise CannotBegin(failure.step, shown(failure.code)) from None
        if self._device >= len(self._cuda.visible):
            raise CannotBegin("cuInit", shown(INVALID_DEVICE))
        if result := self._cuda.create_context(self._device):
            raise CannotBegin("ctx", shown(result))

    def identity(self) -> Mapping[str, object]:
        gpu = self._cuda.visible[self._device]
        return {"devices": len(self._cuda.visible), "uuid": gpu.uuid, "total_MiB": gpu.memory_mib}

    def figures(self) -> Mapping[str, int]:
        memory = self._cuda.memory_info()
        sms = self._cuda.context.sms if self._cuda.context else 0
        return {
            "meminfo_free_MiB": memory.free_mib,
            "meminfo_total_MiB": memory.total_mib,
            "sms": sms,
        }

    def load_kernels(self) -> None:
        if "kernel" in self.chosen:
            self._kernels = KernelsAhead(float(self.chosen["kernel"]) / 1000)
        if "gemm" in self.chosen:
            size = int(self.chosen["gemm"])
            if result := self._cuda.allocate(3 * 2 * size**2):  # two factors and their product
                raise CannotBegin("gemm", shown(result))
            self._kernels = KernelsAhead.of_gemm(size)

    def name(self, result: int) -> str:
        return shown(result)

    def synchronize(self) -> int:
        return self._cuda.synchronize()

    def watch(self, files: Sequence[int], timeout_s: float | None) -> bool:
        """Asleep, until the context breaks too."""
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if ends is None else max(0.0, ends - time.monotonic())
            ready = self._cuda.wait(files, left) if self._cuda.error == SUCCESS else ()
            raise_for(self._cuda.error)
            if ready or left == 0:
                return bool(ready)

    def take(self, mib: int) -> int:
        result = self._cuda.allocate(mib * MIB)
        if result == SUCCESS:
            self._allocated_mib += mib
        return result

    def take_managed(self, mib: int) -> int:
        return self._cuda.allocate_managed(mib)

    def give_back(self) -> int:
        result = self._cuda.allocate(-self._allocated_mib * MIB)
        if result == SUCCESS:
            self._allocated_mib = 0
        self._cuda.free_managed()
        return result

    def write_badly(self) -> int:
        return self._cuda.fault()

    def renew(self) -> tuple[int, int]:
        self._cuda.synchronize()
        destroyed = self._cuda.destroy_context()
        self._allocated_mib = self._buffers_mib = 0
        return destroyed, self._cuda.create_context(self._device)

    def leave(self) -> None:
        """The card sees the process end."""

    def launch(self, seconds: str) -> None:
        """Pretend kernels, for so long."""
        launches, took_s = self._compute(LAUNCH, float(seconds), ())
        rate = launches / max(took_s, 1e-9)
        in_flight = 1 if self._kernels else IN_FLIGHT
        median_ms = round(1000 * in_flight / rate, 3) if rate else 0.0
        say(launches_per_s=round(rate, 1), n=int(launches), p50_ms=median_ms, p99_ms=median_ms)

    def work(self, seconds: str) -> None:
        ends = time.monotonic() + float(seconds or "inf")
        launches = 0.0
        with terminated() as asked:
            while time.monotonic() < ends and not select.select([asked], [], [], 0)[0]:
                asked_s = min(SAY_EVERY_S, ends - time.monotonic())
                launches += self._compute(LAUNCH, asked_s, [asked])[0]
                say(launches=int(launches), at=round(time.time(), 3))

    def prepare(self, name: str) -> None:
        buffers_mib = 2 * WORKS[name].copied_mib
        if result := self._cuda.allocate((buffers_mib - self._buffers_mib) * MIB):
            raise CannotBegin("prepare", shown(result))
        self._prepared = name
        self._buffers_mib = buffers_mib
        say(prepared=name)

    def measure(self, seconds: str) -> None:
        """Pretend kernels, for so long; nothing of their time is Python's."""
        asked_s = max(float(seconds), 1e-3)
        launches, took_s = self._compute(SPEEDS[self._prepared], asked_s, ())
        sample_launches = 1 if self._kernels else WORKS[self._prepared].sample_launches
        sample_ms = round(1000 * took_s * sample_launches / launches, 3)
        say(
            work=self._prepared,
            seconds=round(took_s, 3),
            launches=round(launches),
            launches_per_s=round(launches / took_s, 1),
            sample_launches=sample_launches,
            p50_ms=sample_ms,
            p99_ms=sample_ms,
            gpu_ms=sample_ms,
        )

    def serve(self, value: str) -> None:
        """Pretend requests. One that comes while others are served waits for as long as their
        number makes it."""
        per_s, seconds = served(value)
        wanted = max(1, round(per_s * seconds))
        launches, took_s = self._compute_short(SPEEDS[self._prepared], max(seconds, 1e-3), ())
        most_per_s = launches / took_s / WORKS[self._prepared].sample_launches
        sample_s = 1 / most_per_s
        behind_s = max(0.0, wanted / most_per_s - seconds)
        say(
            work=self._prepared,
            requests=wanted,
            per_s=round(min(per_s, most_per_s), 1),
            p50_ms=round(1000 * (sample_s + behind_s * 0.50), 3),
            p99_ms=round(1000 * (sample_s + behind_s * 0.99), 3),
        )

    def _compute(
        self, work: SimulatedWork, asked_s: float, files: Sequence[int]
    ) -> tuple[float, float]:
        """Launches in this time, or until a file can be read; and the seconds that they took."""
        if self._kernels:
            return self._compute_ahead(self._kernels, asked_s, files)
        return self._compute_short(work, asked_s, files)

    def _compute_short(
        self, work: SimulatedWork, asked_s: float, files: Sequence[int]
    ) -> tuple[float, float]:
        """Of this work, with a synchronise behind each few.

        What a processor takes to begin and to end them is not among these: rates are a GPU's,
        whatever else runs here.
        """
        context = self._sound(self._cuda.synchronize())
        sms = min(context.sms, work.most_sms or context.sms)
        launches = 0.0
        began = then = time.monotonic()
        while then < began + asked_s:
            self._cuda.compute(
                _busy_sms(work, context), KernelQueue(int((then + _LOOK_EVERY_S) * 1e9))
            )
            asked_to_end = self.watch(files, min(_LOOK_EVERY_S, began + asked_s - then))
            now = time.monotonic()
            launches += (now - then) * work.per_sm * sms * _share(work, context)
            then = now
            if asked_to_end:
                break
        self._cuda.compute(0, KernelQueue(int(then * 1e9)))
        return launches, then - began

    def _compute_ahead(
        self, kernels: KernelsAhead, asked_s: float, files: Sequence[int]
    ) -> tuple[float, float]:
        """With several of these queued all the time; one ends at least, and what is left runs
        on."""
        context = self._sound(self._cuda.check())
        began = now = time.monotonic()
        before = kernels.completed(began)
        while True:
            kernels.fill(now)
            self._cuda.compute(context.sms, kernels.queue)
            first_s = kernels.kernel_s if kernels.completed(now) == before else 0.0
            asked_to_end = self.watch(
                files, min(_LOOK_EVERY_S, max(first_s, began + asked_s - now))
            )
            now = time.monotonic()
            launches = kernels.completed(now) - before
            if asked_to_end or (launches and now >= began + asked_s):
                return launches, now - began

    def _sound(self, result: int) -> SimulatedContext:
        """The context, whose state is this result. CudaError."""
        if self._cuda.context is None or result != SUCCESS:
            raise CudaError(result)
        return self._cuda.context


def _busy_sms(work: SimulatedWork, context: SimulatedContext) -> int:
    """Of what bounds the work, be it memory, as much as so many SMs are of all."""
    if work.bound_by_memory and work.most_sms:
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


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    return run("sim-cuda", sys.argv[1:] if arguments is None else arguments, SimulatedClient)


if __name__ == "__main__":
    sys.exit(main())
