"""A CUDA process that does what it is told and prints what it saw: for `mpsd bench`, and for tests
on a real GPU.

    cuda_client.py [device=N] [lift=VALUE] [threads=PERCENT] [kernel=MS | gemm=N] [ACTION ...]

    device=N        choose among the GPUs it sees; else 0
    lift=VALUE      give itself this CUDA_MPS_PINNED_DEVICE_MEM_LIMIT first, as a tenant would who
                    lifts his limit
    threads=PERCENT the same of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
    kernel=MS       each kernel of work, launch and measure lasts so long, and several are always
                    queued, for half a second, two at least. Without it they are short, and a
                    synchronise comes behind each few
    gemm=N          the same with products of N × N halves, by cuBLAS

Each action, and below it what it prints:

    always first    make a context on that GPU
        {"pid", "devices", "uuid", "total_MiB", "meminfo_free_MiB", "meminfo_total_MiB", "sms",
        "init_s"}
    alloc=MIB       take memory, 32 MiB at a time, until it has that or is refused
        {"alloc_MiB", "rc", "free_after_MiB", "total_after_MiB"}
    managed=MIB     take managed memory in one piece, and write to all of it
        {"managed_MiB", "rc", "meminfo_free_MiB", "meminfo_total_MiB", "sms"}
    free            give it back
        {"free": result}
    info            look again
        {"meminfo_free_MiB", "meminfo_total_MiB", "sms"}
    hold[=SEC]      synchronise about every 10 ms until SIGTERM (or for so long)
        {"ready": pid}
    step            the same until a line, or the end, of standard input
        {"ready": pid}
    prepare=WORK    load arithmetic, small or bandwidth (WORKS below), take the memory it needs, run
                    it a few times
        {"prepared": WORK}
    measure=SEC     run what was prepared for so long, in samples of some launches and one
                    synchronise; p50 and p99 are of a sample, gpu_ms is the GPU's, by its events
        {"work", "seconds", "launches", "launches_per_s", "sample_launches", "p50_ms", "p99_ms",
        "gpu_ms"}
    serve=N,SEC     begin a sample of what was prepared N times a second for so long, whether or not
                    the one before has ended, as requests come; p50 and p99 are of a request, from
                    when it came to its end
        {"work", "requests", "per_s", "p50_ms", "p99_ms"}
    launch=SEC      run kernels; p50 and p99 are of ten and a synchronise, with kernel= or gemm= of
                    one
        {"launches_per_s", "n", "p50_ms", "p99_ms"}
    work[=SEC]      run kernels until SIGTERM (or for so long); printed four times a second
        {"launches", "at"}
    fault           write to a bad address, and go on
        {"bad": "700:CUDA_ERROR_ILLEGAL_ADDRESS"}
    linger[=SEC]    leave CUDA alone for ever (or for so long); SIGTERM ends it
        {"lingering": pid}
    exit            end at once by _exit, whatever is queued
    reconnect       destroy the context and make another
        {"destroy": result, "again": result}
    always last
        {"end": result}

One JSON object a line; a result is such as "0:CUDA_SUCCESS". Exit codes: 0; 2 for arguments that
make no sense, before anything is done; 3 where it cannot begin: {"fail": "libcuda", "cuInit",
"ctx", "gemm" or "prepare", "err": result, or which library cannot be loaded}; 4 where a context
breaks that it looks at: {"broke": result, "after_s"}.

It is a program of its own, with kernels.ptx beside it: nothing but the standard library and the
driver (libcuda by ctypes; for gemm= cuBLAS, the system's or that of a PyTorch that pip or conda
installed), and it sets nothing on the card. The simulator's `sim-cuda` is the same `CudaClient` on
a simulated device.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

MIB = 1024**2
PIECE_MIB = 32
CHECK_EVERY_S = 0.01
SAY_EVERY_S = 0.25  # while it works
LAUNCHES_A_SAMPLE = 10  # p50_ms and p99_ms are of this many launches and one synchronise
MULTIPROCESSOR_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda.h
MEM_ATTACH_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL, cuda.h
BAD_ADDRESS = 16
LIFTED = {
    "lift": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "threads": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
}
CHOICES = {"device", "kernel", "gemm", *LIFTED}
THREADS = 256  # a block; eight of them fill an SM
WARM_UP_SAMPLES = 5
AHEAD_S = 0.5  # what is queued with kernel= and gemm=
FEWEST_AHEAD, MOST_AHEAD = 2, 512  # a driver's queue holds about a thousand launches
# by choice: its type, the most that it may be, and what it is in words
KERNELS_OF_CHOICE: Mapping[str, tuple[Callable[[str], float], int, str]] = {
    "kernel": (float, 60_000, "above 0 and up to 60000 ms; write it like kernel=100"),
    "gemm": (int, 65_536, "a whole number from 1 to 65536; write it like gemm=4096"),
}
UNKNOWN = 999  # CUDA_ERROR_UNKNOWN, cuda.h
GEMM_MEASURED = 3  # products, to know how long one lasts
BLOCKING_SYNC = 1  # CU_EVENT_BLOCKING_SYNC, cuda.h: who waits sleeps
COPIED_MIB = 512
COPIED_AT_ONCE = 16  # bytes

KERNELS = Path(__file__).with_name("kernels.ptx")


@dataclass(frozen=True)
class LaunchShape:
    """One launch of what `measure` measures, whatever the card or the client's share of it, and how
    many a sample."""

    kernel: bytes
    blocks: int
    sample_launches: int
    rounds: int = 0  # of a multiply_add
    copied_mib: int = 0  # from one buffer into another


WORKS: Mapping[str, LaunchShape] = {
    # 64 times what the largest card (132 SMs) runs at once: a last turn that is not full costs
    # under 1.6 %. About 0.6 ms on all of an H200, and so many a sample that what a synchronise
    # costs (0.03 ms, now and then more) is nothing of it: it would slow a program with all SMs more
    # than one with few.
    "arithmetic": LaunchShape(b"multiply_add", blocks=132 * 8 * 64, sample_launches=16, rounds=590),
    # 0.017 ms on an H200, which stays nearly empty.
    "small": LaunchShape(b"multiply_add", blocks=8, sample_launches=10, rounds=4096),
    # Each thread copies 16 times.
    "bandwidth": LaunchShape(b"copy", blocks=8192, sample_launches=4, copied_mib=COPIED_MIB),
}

_POINTER = ctypes.c_void_p
_OUT = ctypes.c_void_p  # the address of what the driver fills in
_SIGNATURES: dict[str, list[type]] = {
    "cuInit": [ctypes.c_uint],
    "cuDeviceGetCount": [_OUT],
    "cuDeviceGet": [_OUT, ctypes.c_int],
    "cuDeviceGetUuid": [_OUT, ctypes.c_int],
    "cuDeviceTotalMem_v2": [_OUT, ctypes.c_int],
    "cuDeviceGetAttribute": [_OUT, ctypes.c_int, ctypes.c_int],
    "cuCtxCreate_v2": [_OUT, ctypes.c_uint, ctypes.c_int],
    "cuCtxDestroy_v2": [_POINTER],
    "cuCtxSynchronize": [],
    "cuMemGetInfo_v2": [_OUT, _OUT],
    "cuMemAlloc_v2": [_OUT, ctypes.c_size_t],
    "cuMemAllocManaged": [_OUT, ctypes.c_size_t, ctypes.c_uint],
    "cuMemsetD8_v2": [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t],
    "cuMemFree_v2": [ctypes.c_uint64],
    "cuModuleLoadData": [_OUT, ctypes.c_char_p],
    "cuModuleGetFunction": [_OUT, _POINTER, ctypes.c_char_p],
    "cuLaunchKernel": [_POINTER, *[ctypes.c_uint] * 7, _POINTER, _OUT, _POINTER],
    "cuEventCreate": [_OUT, ctypes.c_uint],
    "cuEventRecord": [_POINTER, _POINTER],
    "cuEventSynchronize": [_POINTER],
    "cuEventQuery": [_POINTER],
    "cuEventElapsedTime": [_OUT, _POINTER, _POINTER],
    "cuEventDestroy_v2": [_POINTER],
    "cuGetErrorName": [ctypes.c_int, _OUT],
}


class CudaError(Exception):
    """The driver's answer to a call was an error; `result` is its CUresult."""

    def __init__(self, result: int) -> None:
        super().__init__(result)
        self.result = result


def raise_for(result: int) -> None:
    """CudaError, unless the result is success."""
    if result:
        raise CudaError(result)


# -- the command line, on whichever device


class CannotBegin(Exception):
    """A step that everything else needs was refused."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(step, why)
        self.step = step
        self.why = why


def say(**line: object) -> None:
    sys.stdout.write(f"{json.dumps(line)}\n")  # in one piece: others may write to the same file
    sys.stdout.flush()


@contextmanager
def terminated() -> Iterator[int]:
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


class CudaClient(ABC):
    """The actions of the command line. Of a device, real or simulated, it asks for what is abstract
    here, and for the actions that compute: prepare, measure, serve, launch, work.

    A method that is told of a broken context raises CudaError.
    """

    def __init__(self, chosen: Mapping[str, str]) -> None:
        """chosen: of CHOICES. CannotBegin without a context."""
        self.chosen = chosen
        self._read_ahead = b""

    @abstractmethod
    def identity(self) -> Mapping[str, object]:
        """Its GPU: `devices` that this process sees, `uuid` and `total_MiB`."""

    @abstractmethod
    def figures(self) -> Mapping[str, int]:
        """`meminfo_free_MiB`, `meminfo_total_MiB` and `sms`, as they are now."""

    @abstractmethod
    def load_kernels(self) -> None:
        """Those that were chosen, and the memory for them. CannotBegin."""

    @abstractmethod
    def name(self, result: int) -> str:
        """Such as `2:CUDA_ERROR_OUT_OF_MEMORY`."""

    @abstractmethod
    def synchronize(self) -> int:
        """The result."""

    @abstractmethod
    def watch(self, files: Sequence[int], timeout_s: float | None) -> bool:
        """Look at the context until one of the files can be read, or the time is up; whether one
        can be."""

    @abstractmethod
    def take(self, mib: int) -> int:
        """Allocate; the result."""

    @abstractmethod
    def take_managed(self, mib: int) -> int:
        """Allocate managed memory and write to it; the result."""

    @abstractmethod
    def give_back(self) -> int:
        """Free everything that was taken; the result."""

    @abstractmethod
    def write_badly(self) -> int:
        """Write to an address that is not there; the result."""

    @abstractmethod
    def renew(self) -> tuple[int, int]:
        """Destroy the context and make another; both results."""

    @abstractmethod
    def leave(self) -> None:
        """Destroy the context at the end."""

    def info(self, _: str) -> None:
        say(**self.figures())

    def alloc(self, mib: str) -> None:
        held_mib = 0
        result = 0
        while held_mib < int(mib) and not result:
            piece_mib = min(PIECE_MIB, int(mib) - held_mib)
            result = self.take(piece_mib)
            if not result:
                held_mib += piece_mib
        memory = self.figures()
        say(
            alloc_MiB=held_mib,
            rc=self.name(result),
            free_after_MiB=memory["meminfo_free_MiB"],
            total_after_MiB=memory["meminfo_total_MiB"],
        )

    def managed(self, mib: str) -> None:
        result = self.take_managed(int(mib))
        say(managed_MiB=0 if result else int(mib), rc=self.name(result), **self.figures())

    def free(self, _: str) -> None:
        say(free=self.name(self.give_back()))

    def hold(self, seconds: str) -> None:
        with terminated() as asked:
            say(ready=os.getpid())
            self.synchronize()
            self.watch([asked], float(seconds) if seconds else None)

    def step(self, _: str) -> None:
        say(ready=os.getpid())
        self.synchronize()
        while b"\n" not in self._read_ahead:
            self.watch([0], None)
            self._read_ahead += os.read(0, 4096) or b"\n"  # the end of the input ends every step
        self._read_ahead = self._read_ahead.partition(b"\n")[2]

    def fault(self, _: str) -> None:
        say(bad=self.name(self.write_badly()))

    def linger(self, seconds: str) -> None:
        say(lingering=os.getpid())
        if seconds:
            time.sleep(float(seconds))
        else:
            signal.pause()

    def exit(self, _: str) -> None:
        os._exit(0)

    def reconnect(self, _: str) -> None:
        destroyed, created = self.renew()
        say(destroy=self.name(destroyed), again=self.name(created))
        if not created:
            self.load_kernels()

    def end(self) -> None:
        result = self.synchronize()
        say(end=self.name(result))
        if not result:
            self.leave()


# each a method of a client
ACTIONS = (
    *("alloc", "managed", "free", "hold", "step", "prepare", "measure", "serve", "launch", "work"),
    *("fault", "linger", "exit", "reconnect", "info"),
)


def served(value: str) -> tuple[float, float]:
    """Requests a second, and the seconds, of `serve`."""
    per_s, _, seconds = value.partition(",")
    return float(per_s), float(seconds)


def percentile(figures: Sequence[float], percent: int) -> float:
    """Of at least one figure, under 100 %; to a thousandth."""
    return round(sorted(figures)[len(figures) * percent // 100], 3)


def in_ms(took_s: Sequence[float]) -> Mapping[str, float]:
    """p50 and p99 of at least one time."""
    took_ms = [1000 * one_s for one_s in took_s]
    return {"p50_ms": percentile(took_ms, 50), "p99_ms": percentile(took_ms, 99)}


def complaint(actions: Sequence[tuple[str, str]]) -> str:
    """What makes no sense in these actions and values; "" where all of it does."""
    prepared = False
    for name, value in actions:
        if name in CHOICES:
            return f"{name}={value} is after the first action; write {name}= before the actions"
        if name not in ACTIONS:
            return f"{name} is not one of {', '.join(ACTIONS)}"
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


def complaint_of_kernels(chosen: Mapping[str, str]) -> str:
    """What makes no sense in `kernel=` and `gemm=`; "" where both do, or are not there."""
    if "kernel" in chosen and "gemm" in chosen:
        both = f"kernel={chosen['kernel']} and gemm={chosen['gemm']}"
        return f"{both} are kernels of two kinds; write one of them"
    for name, (number, most, what) in KERNELS_OF_CHOICE.items():
        value = chosen.get(name, "1")
        try:
            sound = value.isascii() and 0 < number(value) <= most
        except ValueError:
            sound = False
        if not sound:
            return f"{name}={value} is not {what}"
    return ""


def run(
    program: str, words: Sequence[str], opened: Callable[[Mapping[str, str]], CudaClient]
) -> int:
    """The exit code. program: how it calls itself; opened: makes its client, once the words make
    sense."""
    started = time.monotonic()
    actions = []
    for word in words:
        name, _, value = word.partition("=")
        actions.append((name, value))
    chosen = {"device": "0"}
    while actions and actions[0][0] in CHOICES:
        name, chosen[name] = actions.pop(0)
    if wrong := complaint_of_kernels(chosen) or complaint(actions):
        sys.stderr.write(f"{program}: {wrong}\n")
        return 2
    for name, variable in LIFTED.items():
        if name in chosen:
            os.environ[variable] = chosen[name]
    try:
        client = opened(chosen)
        init_s = round(time.monotonic() - started, 3)
        say(pid=os.getpid(), **client.identity(), **client.figures(), init_s=init_s)
        return act(client, actions)
    except CannotBegin as refused:
        say(fail=refused.step, err=refused.why)
        return 3


def act(client: CudaClient, actions: Sequence[tuple[str, str]]) -> int:
    """The exit code. CannotBegin."""
    began = time.monotonic()
    try:
        client.load_kernels()
        for name, value in actions:
            began = time.monotonic()
            getattr(client, name)(value)
    except CudaError as broke:
        say(broke=client.name(broke.result), after_s=round(time.monotonic() - began, 3))
        return 4
    client.end()
    return 0


# -- libcuda


class CudaDriver:
    """libcuda's functions, with the types that ctypes has to know."""

    def __init__(self) -> None:
        """CannotBegin without a libcuda."""
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            why = f"libcuda.so.1 cannot be loaded: {error}"
            raise CannotBegin("libcuda", why) from None
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes = arguments
            function.restype = ctypes.c_int

    def result(self, function: str, *arguments: object) -> int:
        return int(getattr(self._library, function)(*arguments))

    def __call__(self, function: str, *arguments: object) -> None:
        raise_for(self.result(function, *arguments))

    def name(self, result: int) -> str:
        """Such as `2:CUDA_ERROR_OUT_OF_MEMORY`."""
        text = ctypes.c_char_p()
        known = self.result("cuGetErrorName", result, ctypes.byref(text)) == 0
        return f"{result}:{(text.value or b'?').decode() if known else '?'}"


class Launch:
    """A kernel of this context with its grid and its arguments, which stay where the driver reads
    them.

    Of an argument the driver reads as many bytes as the kernel says, the low ones first: 64 bits
    hold any of them.
    """

    def __init__(
        self,
        driver: CudaDriver,
        kernel: bytes,
        blocks: int,
        threads: int,
        *arguments: ctypes.c_uint64,
    ) -> None:
        self._driver = driver
        self._blocks = blocks
        self._threads = threads
        self._arguments = arguments
        self._places = (ctypes.c_void_p * len(arguments))(
            *[ctypes.addressof(argument) for argument in arguments]
        )
        module = ctypes.c_void_p()
        self._function = ctypes.c_void_p()
        driver("cuModuleLoadData", ctypes.byref(module), KERNELS.read_bytes())
        driver("cuModuleGetFunction", ctypes.byref(self._function), module, kernel)

    def __call__(self) -> int:
        """The result of one."""
        grid = (self._blocks, 1, 1, self._threads, 1, 1)
        return self._driver.result(
            "cuLaunchKernel", self._function, *grid, 0, None, self._places, None
        )


@dataclass(frozen=True)
class Prepared:
    """A work that is ready to be measured, and the memory it holds."""

    name: str
    launch: Launch
    buffers: Sequence[int]


class Gemm:
    """The product of two N × N matrices of halves, summed up in 32 bits as PyTorch does."""

    HALVES, IN_32_BITS, DEFAULT = 2, 68, -1  # CUDA_R_16F, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT
    LIBRARIES = ("libcublas.so.13", "libcublas.so.12", "libcublas.so.11")
    FOLDERS = ("nvidia/cu13/lib", "nvidia/cublas/lib", "torch/lib")  # below a folder of sys.path

    def __init__(self, driver: CudaDriver, size: int) -> None:
        """CudaError; CannotBegin without a cuBLAS."""
        self._driver = driver
        self._cublas, self._handle = self._opened()
        matrices = [ctypes.c_uint64() for _ in range(3)]
        for matrix in matrices:
            driver("cuMemAlloc_v2", ctypes.byref(matrix), 2 * size**2)
            driver("cuMemsetD8_v2", matrix.value, 0x2C, 2 * size**2)  # 0.065 each
        left, right, product = (ctypes.c_void_p(matrix.value) for matrix in matrices)
        one = ctypes.byref(ctypes.c_float(1))
        nothing = ctypes.byref(ctypes.c_float(0))
        self._arguments = (
            *(self._handle, 0, 0, size, size, size),
            *(one, left, self.HALVES, size, right, self.HALVES, size),
            *(nothing, product, self.HALVES, size, self.IN_32_BITS, self.DEFAULT),
        )

    def __call__(self) -> int:
        """The result of one. Where cuBLAS fails, what the context says."""
        if not self._cublas.cublasGemmEx(*self._arguments):
            return 0
        return self._driver.result("cuCtxSynchronize") or UNKNOWN

    def measured_s(self) -> float:
        """How long one lasts; the first loads its code."""
        events = Events(self._driver)
        steps: list[Callable[[], int]] = [self, events.begin, *[self] * GEMM_MEASURED, events.end]
        for step in steps:
            raise_for(step())
        self._driver("cuCtxSynchronize")
        took_s = events.ms() / 1000
        events.destroy()
        return took_s / GEMM_MEASURED

    def _opened(self) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
        """The newest that works with this driver."""
        for library in self._found():
            handle = ctypes.c_void_p()
            if not library.cublasCreate_v2(ctypes.byref(handle)):
                return library, handle
        wanted = ", ".join(self.LIBRARIES)
        why = f"no {wanted} that works, of the system or beside a PyTorch of {sys.executable}"
        raise CannotBegin("gemm", why)

    def _found(self) -> Iterator[ctypes.CDLL]:
        below = [f"{path}/{folder}/" for path in sys.path for folder in self.FOLDERS]
        for name in self.LIBRARIES:
            for folder in ("", *below, f"{sys.prefix}/lib/"):
                try:
                    if folder:  # it needs this one, and need not look for it beside itself
                        ctypes.CDLL(f"{folder}{name.replace('cublas', 'cublasLt')}")
                    yield ctypes.CDLL(f"{folder}{name}")
                except OSError:
                    continue


class Events:
    """What the GPU itself took from `begin` to `end`, to be asked once both are past."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._begin, self._end = ctypes.c_void_p(), ctypes.c_void_p()
        for event in (self._begin, self._end):
            driver("cuEventCreate", ctypes.byref(event), 0)

    def begin(self) -> int:
        return self._driver.result("cuEventRecord", self._begin, None)

    def end(self) -> int:
        return self._driver.result("cuEventRecord", self._end, None)

    def ms(self) -> float:
        took = ctypes.c_float()
        self._driver("cuEventElapsedTime", ctypes.byref(took), self._begin, self._end)
        return took.value

    def destroy(self) -> None:
        for event in (self._begin, self._end):
            self._driver("cuEventDestroy_v2", event)


class Samples:
    """Some launches and a synchronise, which leaves nothing queued. events: to know what the GPU
    took."""

    def __init__(
        self, driver: CudaDriver, launch: Launch, launches: int, events: Events | None = None
    ) -> None:
        self._driver = driver
        self._launch = launch
        self.launches = launches
        self._events = events

    def __call__(self) -> int:
        """The result of one sample."""
        result = self._events.begin() if self._events else 0
        for _ in range(self.launches):
            result = result or self._launch()
        if self._events:
            result = result or self._events.end()
        return result or self._driver.result("cuCtxSynchronize")

    def gpu_ms(self) -> float:
        return self._events.ms() if self._events else 0.0


class Ahead:
    """Launches of which several are always queued: who waits for the oldest leaves the others
    there."""

    launches = 1  # a sample

    def __init__(self, driver: CudaDriver, launch: Launch | Gemm, launch_s: float) -> None:
        self._driver = driver
        self._launch = launch
        self._most = max(FEWEST_AHEAD, min(MOST_AHEAD, round(AHEAD_S / launch_s)))
        self._queued: deque[ctypes.c_void_p] = deque()  # an event behind each
        self._free = [self._event() for _ in range(self._most)]
        self._last = self._event()
        driver("cuEventRecord", self._last, None)
        self._gpu_ms = 0.0

    def begun(self) -> Self:
        """Without those that ended while none was waited for: they would seem to take no time."""
        while self._queued and not self._driver.result("cuEventQuery", self._queued[0]):
            self._free.append(self._last)
            self._last = self._queued.popleft()
        return self

    def __call__(self) -> int:
        """Launch as many as there is room for, and wait for the oldest; the result."""
        while len(self._queued) < self._most:
            event = self._free.pop()
            if result := self._launch() or self._driver.result("cuEventRecord", event, None):
                return result
            self._queued.append(event)
        oldest = self._queued.popleft()
        if result := self._driver.result("cuEventSynchronize", oldest):
            return result
        took = ctypes.c_float()
        self._driver("cuEventElapsedTime", ctypes.byref(took), self._last, oldest)
        self._free.append(self._last)
        self._last = oldest
        self._gpu_ms = took.value
        return 0

    def gpu_ms(self) -> float:
        """From the end of the one before to that of the last."""
        return self._gpu_ms

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._driver("cuEventCreate", ctypes.byref(event), BLOCKING_SYNC)
        return event


class LibcudaClient(CudaClient):
    """One CUDA context on a device that this process sees, by its ordinal."""

    def __init__(self, chosen: Mapping[str, str]) -> None:
        super().__init__(chosen)
        self._driver = driver = CudaDriver()
        self._ahead: Ahead | None = None  # None: short kernels, and a synchronise behind each few
        self._pieces: list[int] = []
        self._prepared: Prepared | None = None  # nothing yet, or not in this context
        self._handle = ctypes.c_void_p()
        self._device = ctypes.c_int()
        self._devices = ctypes.c_int()
        with self._needed("cuInit"):
            driver("cuInit", 0)
            driver("cuDeviceGetCount", ctypes.byref(self._devices))
            driver("cuDeviceGet", ctypes.byref(self._device), int(chosen["device"]))
        with self._needed("ctx"):
            raise_for(self._create())

    @contextmanager
    def _needed(self, step: str) -> Iterator[None]:
        """CannotBegin in place of CudaError."""
        try:
            yield
        except CudaError as refused:
            raise CannotBegin(step, self.name(refused.result)) from None

    def identity(self) -> Mapping[str, object]:
        identity = ctypes.create_string_buffer(16)
        total = ctypes.c_size_t()
        # as in mpsd/mps/cuda_canary.py
        is_instance = os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-")
        self._driver(f"cuDeviceGetUuid{'_v2' if is_instance else ''}", identity, self._device)
        self._driver("cuDeviceTotalMem_v2", ctypes.byref(total), self._device)
        gpu = f"{'MIG' if is_instance else 'GPU'}-{uuid.UUID(bytes=identity.raw)}"
        return {"devices": self._devices.value, "uuid": gpu, "total_MiB": total.value // MIB}

    def load_kernels(self) -> None:
        if "kernel" in self.chosen:
            kernel_s = float(self.chosen["kernel"]) / 1000
            launch = Launch(
                self._driver,
                b"last",
                8 * self._sms(),
                THREADS,
                ctypes.c_uint64(int(kernel_s * 1e9)),
            )
            self._ahead = Ahead(self._driver, launch, kernel_s)
        if "gemm" in self.chosen:
            with self._needed("gemm"):
                gemm = Gemm(self._driver, int(self.chosen["gemm"]))
                self._ahead = Ahead(self._driver, gemm, gemm.measured_s())

    def name(self, result: int) -> str:
        return self._driver.name(result)

    def figures(self) -> Mapping[str, int]:
        free = ctypes.c_size_t()
        total = ctypes.c_size_t()
        self._driver("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        mib = {"meminfo_free_MiB": free.value // MIB, "meminfo_total_MiB": total.value // MIB}
        return {**mib, "sms": self._sms()}

    def synchronize(self) -> int:
        return self._driver.result("cuCtxSynchronize")

    def watch(self, files: Sequence[int], timeout_s: float | None) -> bool:
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._driver("cuCtxSynchronize")
            if select.select(files, [], [], CHECK_EVERY_S)[0]:
                return True
            if ends is not None and time.monotonic() >= ends:
                return False

    def take(self, mib: int) -> int:
        address = ctypes.c_uint64()
        result = self._driver.result("cuMemAlloc_v2", ctypes.byref(address), mib * MIB)
        if not result:
            self._pieces.append(address.value)
        return result

    def take_managed(self, mib: int) -> int:
        address = ctypes.c_uint64()
        try:
            self._driver("cuMemAllocManaged", ctypes.byref(address), mib * MIB, MEM_ATTACH_GLOBAL)
            self._pieces.append(address.value)
            self._driver("cuMemsetD8_v2", address.value, 1, mib * MIB)
            self._driver("cuCtxSynchronize")
        except CudaError as refused:
            return refused.result
        return 0

    def give_back(self) -> int:
        result = 0
        while self._pieces and not result:
            result = self._driver.result("cuMemFree_v2", self._pieces.pop())
        return result

    def write_badly(self) -> int:
        result = Launch(self._driver, b"write_to", 1, 1, ctypes.c_uint64(BAD_ADDRESS))()
        return result or self._driver.result("cuCtxSynchronize")

    def renew(self) -> tuple[int, int]:
        self._driver.result("cuCtxSynchronize")
        destroyed = self._driver.result("cuCtxDestroy_v2", self._handle)
        self._pieces.clear()
        self._prepared = self._ahead = None
        return destroyed, self._create()

    def leave(self) -> None:
        self._driver.result("cuCtxDestroy_v2", self._handle)

    def _create(self) -> int:
        return self._driver.result("cuCtxCreate_v2", ctypes.byref(self._handle), 0, self._device)

    def _sms(self) -> int:
        sms = ctypes.c_int()
        self._driver("cuDeviceGetAttribute", ctypes.byref(sms), MULTIPROCESSOR_COUNT, self._device)
        return sms.value

    def _multiply_add(self, blocks: int, rounds: int) -> Launch:
        return Launch(self._driver, b"multiply_add", blocks, THREADS, ctypes.c_uint64(rounds))

    def _memory(self, mib: int) -> int:
        """The address of new memory."""
        address = ctypes.c_uint64()
        self._driver("cuMemAlloc_v2", ctypes.byref(address), mib * MIB)
        return address.value

    def launch(self, seconds: str) -> None:
        samples = self._samples()
        samples_s, _ = self._timed(samples, float(seconds))
        launches = samples.launches * len(samples_s)
        say(launches_per_s=round(launches / sum(samples_s), 1), n=launches, **in_ms(samples_s))

    def _timed(
        self, samples: Samples | Ahead, seconds: float
    ) -> tuple[Sequence[float], Sequence[float]]:
        """What each took, in s, and of that the GPU, in ms; for so long, one at least."""
        samples_s: list[float] = []
        gpu_ms: list[float] = []
        since = now = time.monotonic()
        while not samples_s or now - since < seconds:
            raise_for(samples())
            before = now
            now = time.monotonic()
            samples_s.append(now - before)
            gpu_ms.append(samples.gpu_ms())
        return samples_s, gpu_ms

    def _samples(self) -> Samples | Ahead:
        """What `launch` and `work` do again and again."""
        if self._ahead:
            return self._ahead.begun()
        return Samples(self._driver, self._multiply_add(8 * self._sms(), 4096), LAUNCHES_A_SAMPLE)

    def prepare(self, name: str) -> None:
        work = WORKS[name]
        buffers = [] if self._prepared is None else [*self._prepared.buffers]
        self._prepared = None
        with self._needed("prepare"):
            while buffers:
                self._driver("cuMemFree_v2", buffers.pop())
            if work.copied_mib:
                buffers = [self._memory(work.copied_mib), self._memory(work.copied_mib)]
                figures = (*buffers, work.copied_mib * MIB // COPIED_AT_ONCE)
            else:
                figures = (work.rounds,)
            arguments = [ctypes.c_uint64(figure) for figure in figures]
            launch = Launch(self._driver, work.kernel, work.blocks, THREADS, *arguments)
            for _ in range(WARM_UP_SAMPLES * work.sample_launches):
                raise_for(launch())
            self._driver("cuCtxSynchronize")
        self._prepared = Prepared(name, launch, buffers)
        say(prepared=name)

    def measure(self, seconds: str) -> None:
        assert self._prepared is not None, "the arguments were looked at"
        events = Events(self._driver)
        samples: Samples | Ahead
        if self._ahead:
            samples = self._ahead.begun()
        else:
            in_a_sample = WORKS[self._prepared.name].sample_launches
            samples = Samples(self._driver, self._prepared.launch, in_a_sample, events)
        samples_s, gpu_ms = self._timed(samples, float(seconds))
        events.destroy()
        took_s = sum(samples_s)
        launches = samples.launches * len(samples_s)
        say(
            work=self._prepared.name,
            seconds=round(took_s, 3),
            launches=launches,
            launches_per_s=round(launches / took_s, 1),
            sample_launches=samples.launches,
            **in_ms(samples_s),
            gpu_ms=percentile(gpu_ms, 50),
        )

    def serve(self, value: str) -> None:
        """One after the other, so a request that comes while another is served waits for it."""
        assert self._prepared is not None, "the arguments were looked at"
        launch = self._prepared.launch
        in_a_sample = WORKS[self._prepared.name].sample_launches
        per_s, seconds = served(value)
        took_s: list[float] = []
        since = time.monotonic()
        for request in range(max(1, round(per_s * seconds))):
            comes = since + request / per_s
            time.sleep(max(0.0, comes - time.monotonic()))
            for _ in range(in_a_sample):
                raise_for(launch())
            self._driver("cuCtxSynchronize")
            took_s.append(time.monotonic() - comes)
        say(
            work=self._prepared.name,
            requests=len(took_s),
            per_s=round(len(took_s) / (time.monotonic() - since), 1),
            **in_ms(took_s),
        )

    def work(self, seconds: str) -> None:
        samples = self._samples()
        since = said = time.monotonic()
        launches = 0
        with terminated() as asked:
            while not select.select([asked], [], [], 0)[0]:
                if seconds and time.monotonic() - since >= float(seconds):
                    break
                raise_for(samples())
                launches += samples.launches
                if time.monotonic() - said >= SAY_EVERY_S:
                    said = time.monotonic()
                    say(launches=launches, at=round(time.time(), 3))
        say(launches=launches, at=round(time.time(), 3))


def main() -> int:
    """The exit code."""
    return run("cuda_client", sys.argv[1:], LibcudaClient)


if __name__ == "__main__":
    sys.exit(main())
