"""A CUDA process that does what it is told and prints what it saw: the real twin of the simulator's `sim-cuda`.

One rule: the two have the same command line and print the same lines; tests/contract/README.md has both. It speaks to
the driver alone (libcuda by ctypes) and sets nothing on the card.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Never, Self

MIB = 1024**2
PIECE_MIB = 32
CHECK_EVERY_S = 0.01
SAY_EVERY_S = 0.25  # while it works
LAUNCHES_A_SAMPLE = 10  # p50_ms and p99_ms are of this many launches and one synchronise
MULTIPROCESSOR_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda.h
BAD_ADDRESS = 16

# Old on purpose: any driver turns it into code for its own GPU.
PTX = b"""
.version 6.0
.target sm_50
.address_size 64

.visible .entry multiply_add(.param .u32 rounds)
{
    .reg .pred %again, %never;
    .reg .f32 %value;
    .reg .u32 %left;
    .reg .u64 %nowhere;
    ld.param.u32 %left, [rounds];
    mov.f32 %value, 0f3F800000;
loop:
    fma.rn.f32 %value, %value, 0f3F000000, 0f3F800000;
    sub.u32 %left, %left, 1;
    setp.ne.u32 %again, %left, 0;
    @%again bra loop;
    setp.lt.f32 %never, %value, 0f00000000;
    mov.u64 %nowhere, 0;
    @%never st.global.f32 [%nowhere], %value;
    ret;
}

.visible .entry write_to(.param .u64 address)
{
    .reg .u32 %one;
    .reg .u64 %where;
    ld.param.u64 %where, [address];
    mov.u32 %one, 1;
    st.global.u32 [%where], %one;
    ret;
}
"""

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
    "cuMemFree_v2": [ctypes.c_uint64],
    "cuModuleLoadData": [_OUT, ctypes.c_char_p],
    "cuModuleGetFunction": [_OUT, _POINTER, ctypes.c_char_p],
    "cuLaunchKernel": [_POINTER, *[ctypes.c_uint] * 7, _POINTER, _OUT, _POINTER],
    "cuGetErrorName": [ctypes.c_int, _OUT],
}


class Refused(Exception):
    """The driver's answer to a call was an error; `result` is its CUresult."""

    def __init__(self, result: int) -> None:
        super().__init__(result)
        self.result = result


class Driver:
    """libcuda's functions, with the types that ctypes has to know."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int

    def result(self, function: str, *arguments: object) -> int:
        return int(getattr(self._library, function)(*arguments))

    def __call__(self, function: str, *arguments: object) -> None:
        if result := self.result(function, *arguments):
            raise Refused(result)

    def name(self, result: int) -> str:
        """Such as `2:CUDA_ERROR_OUT_OF_MEMORY`."""
        text = ctypes.c_char_p()
        known = self.result("cuGetErrorName", result, ctypes.byref(text)) == 0
        return f"{result}:{(text.value or b'?').decode() if known else '?'}"


class Input:
    """Lines on standard input, waited for without buffering one too many."""

    def __init__(self) -> None:
        self._unread = b""
        self._ended = False

    def line_or_end_within(self, seconds: float) -> bool:
        if b"\n" not in self._unread and not self._ended and select.select([0], [], [], seconds)[0]:
            read = os.read(0, 4096)
            self._unread += read
            self._ended = not read
        if b"\n" in self._unread:
            self._unread = self._unread.split(b"\n", 1)[1]
            return True
        return self._ended


class Termination:
    """Whether SIGTERM came; outside this block SIGTERM ends the process, as it does any other."""

    came = False

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _note(self, *_: object) -> None:
        self.came = True


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def give_up(code: int, **line: object) -> Never:
    say(**line)
    sys.exit(code)


class Context:
    """One CUDA context on a device that this process sees, by its ordinal."""

    def __init__(self, driver: Driver, ordinal: int, started: float) -> None:
        self._driver = driver
        self._input = Input()
        self._pieces: list[int] = []
        self._handle = ctypes.c_void_p()
        self._device = ctypes.c_int()
        devices = ctypes.c_int()
        try:
            driver("cuInit", 0)
            driver("cuDeviceGetCount", ctypes.byref(devices))
            driver("cuDeviceGet", ctypes.byref(self._device), ordinal)
        except Refused as refused:
            give_up(3, fail="cuInit", err=driver.name(refused.result))
        if result := self._create():
            give_up(3, fail="ctx", err=driver.name(result))
        init_s = round(time.monotonic() - started, 3)
        identity, total = ctypes.create_string_buffer(16), ctypes.c_size_t()
        driver("cuDeviceGetUuid", identity, self._device)
        driver("cuDeviceTotalMem_v2", ctypes.byref(total), self._device)
        say(
            pid=os.getpid(),
            devices=devices.value,
            uuid=f"GPU-{uuid.UUID(bytes=identity.raw)}",
            total_MiB=total.value // MIB,
            **self._figures(),
            init_s=init_s,
        )

    def _create(self) -> int:
        return self._driver.result("cuCtxCreate_v2", ctypes.byref(self._handle), 0, self._device)

    def _memory_mib(self) -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._driver("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value // MIB, total.value // MIB

    def _sms(self) -> int:
        sms = ctypes.c_int()
        self._driver("cuDeviceGetAttribute", ctypes.byref(sms), MULTIPROCESSOR_COUNT, self._device)
        return sms.value

    def _figures(self) -> dict[str, int]:
        free, total = self._memory_mib()
        return {"meminfo_free_MiB": free, "meminfo_total_MiB": total, "sms": self._sms()}

    def _check(self, since: float) -> None:
        self._broke_unless(self._driver.result("cuCtxSynchronize"), since)

    def _broke_unless(self, result: int, since: float) -> None:
        if result:
            give_up(4, broke=self._driver.name(result), after_s=round(time.monotonic() - since, 3))

    def _kernel(self, name: bytes) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._driver("cuModuleLoadData", ctypes.byref(module), PTX)
        self._driver("cuModuleGetFunction", ctypes.byref(function), module, name)
        return function

    def _launch(self, kernel: ctypes.c_void_p, blocks: int, threads: int, argument: "ctypes._SimpleCData[int]") -> int:
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        return self._driver.result("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, None, arguments, None)

    def info(self, _: str) -> None:
        say(**self._figures())

    def alloc(self, mib: str) -> None:
        held_mib, result = 0, 0
        while held_mib < int(mib) and not result:
            piece, piece_mib = ctypes.c_uint64(), min(PIECE_MIB, int(mib) - held_mib)
            result = self._driver.result("cuMemAlloc_v2", ctypes.byref(piece), piece_mib * MIB)
            if not result:
                self._pieces.append(piece.value)
                held_mib += piece_mib
        free, total = self._memory_mib()
        say(alloc_MiB=held_mib, rc=self._driver.name(result), free_after_MiB=free, total_after_MiB=total)

    def free(self, _: str) -> None:
        result = 0
        while self._pieces and not result:
            result = self._driver.result("cuMemFree_v2", self._pieces.pop())
        say(free=self._driver.name(result))

    def hold(self, seconds: str) -> None:
        since = time.monotonic()
        with Termination() as termination:
            say(ready=os.getpid())
            while not termination.came and not (seconds and time.monotonic() - since >= float(seconds)):
                self._check(since)
                time.sleep(CHECK_EVERY_S)

    def step(self, _: str) -> None:
        since = time.monotonic()
        say(ready=os.getpid())
        self._check(since)
        while not self._input.line_or_end_within(CHECK_EVERY_S):
            self._check(since)

    def launch(self, seconds: str) -> None:
        kernel, blocks, rounds = self._kernel(b"multiply_add"), 8 * self._sms(), ctypes.c_uint(4096)
        samples_s: list[float] = []
        since = now = time.monotonic()
        while now - since < float(seconds):
            for _ in range(LAUNCHES_A_SAMPLE):
                self._broke_unless(self._launch(kernel, blocks, 256, rounds), since)
            self._check(since)
            before, now = now, time.monotonic()
            samples_s.append(now - before)
        samples_s.sort()
        launches = LAUNCHES_A_SAMPLE * len(samples_s)
        say(
            launches_per_s=round(launches / (now - since), 1),
            n=launches,
            p50_ms=round(1000 * samples_s[len(samples_s) // 2], 3),
            p99_ms=round(1000 * samples_s[len(samples_s) * 99 // 100], 3),
        )

    def work(self, seconds: str) -> None:
        kernel, blocks, rounds = self._kernel(b"multiply_add"), 8 * self._sms(), ctypes.c_uint(4096)
        since = said = time.monotonic()
        launches = 0
        with Termination() as termination:
            while not termination.came and not (seconds and time.monotonic() - since >= float(seconds)):
                for _ in range(LAUNCHES_A_SAMPLE):
                    self._broke_unless(self._launch(kernel, blocks, 256, rounds), since)
                self._check(since)
                launches += LAUNCHES_A_SAMPLE
                if time.monotonic() - said >= SAY_EVERY_S:
                    said = time.monotonic()
                    say(launches=launches, at=round(time.time(), 3))
        say(launches=launches, at=round(time.time(), 3))

    def fault(self, _: str) -> None:
        result = self._launch(self._kernel(b"write_to"), 1, 1, ctypes.c_uint64(BAD_ADDRESS))
        say(bad=self._driver.name(result or self._driver.result("cuCtxSynchronize")))

    def linger(self, seconds: str) -> None:
        say(lingering=os.getpid())
        if seconds:
            time.sleep(float(seconds))
        else:
            signal.pause()

    def reconnect(self, _: str) -> None:
        destroyed = self._driver.result("cuCtxDestroy_v2", self._handle)
        self._pieces.clear()
        say(destroy=self._driver.name(destroyed), again=self._driver.name(self._create()))

    def end(self) -> None:
        result = self._driver.result("cuCtxSynchronize")
        say(end=self._driver.name(result))
        if not result:
            self._driver.result("cuCtxDestroy_v2", self._handle)


ACTIONS: Mapping[str, Callable[[Context, str], None]] = {
    "alloc": Context.alloc,
    "free": Context.free,
    "hold": Context.hold,
    "step": Context.step,
    "launch": Context.launch,
    "work": Context.work,
    "fault": Context.fault,
    "linger": Context.linger,
    "reconnect": Context.reconnect,
    "info": Context.info,
}


def main() -> int:
    started = time.monotonic()
    words = sys.argv[1:]
    ordinal = int(words.pop(0).removeprefix("device=")) if words and words[0].startswith("device=") else 0
    actions = [(name, value) for name, _, value in (word.partition("=") for word in words)]
    if unknown := [name for name, _ in actions if name not in ACTIONS]:
        print(f"cuda_client: {unknown[0]} is not one of {', '.join(ACTIONS)}", file=sys.stderr)
        return 2
    driver = Driver()
    context = Context(driver, ordinal, started)
    for name, value in actions:
        try:
            ACTIONS[name](context, value)
        except Refused as refused:
            give_up(4, broke=driver.name(refused.result), after_s=round(time.monotonic() - started, 3))
    context.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
