"""A CUDA client that makes a context on its first GPU, prints in one JSON line what CUDA reports of
it, and ends.

    {"pid", "devices", "uuid", "total_MiB", "meminfo_free_MiB", "sms", "init_s"}     exit code 0
    {"fail": "libcuda", "cuInit" or "ctx", "err": "2:CUDA_ERROR_OUT_OF_MEMORY"}       exit code 3

Its limits are those of its environment. A program of its own, so that a driver that hangs or
crashes takes nobody with it; `python -m mpsd.mps.cuda_canary` runs it by hand.

It uses only the standard library and the driver (libcuda by ctypes); it sets nothing and waits for
nothing. Function and attribute names and numbers: cuda.h.
"""

import ctypes
import json
import os
import signal
import sys
import time

_MIB = 1024**2
_MULTIPROCESSOR_COUNT = 16
_LONGEST_LIFE_S = 300
_NO_CONTEXT = 3  # the exit code


class CanaryCallFailed(Exception):
    """A call failed: which step of the start that was, and CUDA's result."""

    def __init__(self, step: str, result: int) -> None:
        super().__init__(step, result)
        self.step = step
        self.result = result


class CanaryDriver:
    """libcuda, each of its calls checked."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, step: str, function: str, *arguments: object) -> None:
        result = int(getattr(self._library, function)(*arguments))
        if result:
            raise CanaryCallFailed(step, result)

    def shown(self, result: int) -> str:
        """Such as `2:CUDA_ERROR_OUT_OF_MEMORY`."""
        name = ctypes.c_char_p()
        known = self._library.cuGetErrorName(ctypes.c_int(result), ctypes.byref(name)) == 0
        return f"{result}:{(name.value or b'?').decode() if known else '?'}"


def main() -> int:
    signal.alarm(_LONGEST_LIFE_S)  # its own end, should nobody be left to end it
    line = _outcome(time.monotonic())
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    return _NO_CONTEXT if "fail" in line else 0


def _outcome(began: float) -> dict[str, object]:
    try:
        driver = CanaryDriver()
    except OSError as error:
        return {"fail": "libcuda", "err": f"libcuda.so.1 cannot be loaded: {error}"}
    try:
        return _look(driver, began)
    except CanaryCallFailed as failed:
        return {"fail": failed.step, "err": driver.shown(failed.result)}


def _look(driver: CanaryDriver, began: float) -> dict[str, object]:
    device = ctypes.c_int()
    devices = ctypes.c_int()
    sms = ctypes.c_int()
    free = ctypes.c_size_t()
    total = ctypes.c_size_t()
    identity = ctypes.create_string_buffer(16)
    context = ctypes.c_void_p()
    driver.call("cuInit", "cuInit", ctypes.c_uint(0))
    driver.call("cuInit", "cuDeviceGetCount", ctypes.byref(devices))
    driver.call("cuInit", "cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    # On a MIG instance the older of the two may name the GPU that it is a part of (cuda.h;
    # documented, not observed).
    is_instance = os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-")
    function = "cuDeviceGetUuid"
    if is_instance:
        function += "_v2"
    driver.call("cuInit", function, identity, device)
    driver.call("ctx", "cuCtxCreate_v2", ctypes.byref(context), ctypes.c_uint(0), device)
    init_s = round(time.monotonic() - began, 3)
    driver.call("ctx", "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    attribute = ctypes.c_int(_MULTIPROCESSOR_COUNT)
    driver.call("ctx", "cuDeviceGetAttribute", ctypes.byref(sms), attribute, device)
    driver.call("ctx", "cuCtxDestroy_v2", context)
    digits = identity.raw.hex()
    kind = "GPU"
    if is_instance:
        kind = "MIG"
    return {
        "pid": os.getpid(),
        "devices": devices.value,
        "uuid": "-".join(
            (kind, digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        ),
        "total_MiB": total.value // _MIB,
        "meminfo_free_MiB": free.value // _MIB,
        "sms": sms.value,
        "init_s": init_s,
    }


if __name__ == "__main__":
    sys.exit(main())
