# ruff: noqa: N801, N802, N803, N815  the names are pynvml's
"""NVML on the simulated machine: an object with those functions of the module `pynvml` that mpsd uses.

Names, arguments, attributes and errors are pynvml's (nvidia-ml-py), so that nothing that uses it can tell
the difference.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mpsd.simulator import card
from mpsd.simulator.card import CardView, ProcessHolding
from mpsd.simulator.gpus import MIB, SimulatedGpu, card_path, read_gpus

# Of the MPS server's own memory this much is in no process list: 76 MiB gone, 66 listed (driver 580.159.04).
UNLISTED_SERVER_MIB = 10


class NVMLError(Exception):
    """As pynvml's: `value` is NVML's return code, and the class is the one for that code."""

    value: int
    _words: ClassVar[str] = "Unknown Error"

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return self._words


class NVMLError_Uninitialized(NVMLError):
    _words = "Uninitialized"

    def __init__(self) -> None:
        super().__init__(1)


class NVMLError_InvalidArgument(NVMLError):
    _words = "Invalid Argument"

    def __init__(self) -> None:
        super().__init__(2)


class NVMLError_NotSupported(NVMLError):
    _words = "Not Supported"

    def __init__(self) -> None:
        super().__init__(3)


class NVMLError_NotFound(NVMLError):
    _words = "Not Found"

    def __init__(self) -> None:
        super().__init__(6)


class NVMLError_GpuIsLost(NVMLError):
    _words = "GPU is lost"

    def __init__(self) -> None:
        super().__init__(15)


@dataclass(frozen=True, slots=True)
class Handle:
    """A GPU, as the functions take it."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class NvmlMemoryInfo:
    """Bytes; in the first version of the call `used` holds what is reserved, and `reserved` is not to be relied on."""

    total: int
    free: int
    used: int
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class PciInfo:
    """Where a GPU is."""

    busId: str


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process that holds memory of a GPU."""

    pid: int
    usedGpuMemory: int
    gpuInstanceId: int = 0xFFFFFFFF
    computeInstanceId: int = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class ProcessUtilization:
    """What a process did of late. timeStamp: microseconds since 1970."""

    pid: int
    timeStamp: int
    smUtil: int
    memUtil: int = 0
    encUtil: int = 0
    decUtil: int = 0


@dataclass(frozen=True, slots=True)
class Utilization:
    """How much of the last time a kernel ran, and memory was read or written, in percent."""

    gpu: int
    memory: int


class SimulatedNvml:
    """The module `pynvml`, on the machine in `folder`."""

    nvmlMemory_v2 = 0x02000028
    NVML_COMPUTEMODE_DEFAULT = card.DEFAULT
    NVML_COMPUTEMODE_PROHIBITED = card.PROHIBITED
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = card.EXCLUSIVE_PROCESS
    NVML_DEVICE_MIG_DISABLE = 0
    NVML_DEVICE_MIG_ENABLE = 1
    driver = "580.159.04"
    NVMLError = NVMLError
    NVMLError_GpuIsLost = NVMLError_GpuIsLost
    NVMLError_InvalidArgument = NVMLError_InvalidArgument
    NVMLError_NotFound = NVMLError_NotFound
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_Uninitialized = NVMLError_Uninitialized

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gpus: tuple[SimulatedGpu, ...] = ()
        self._cards: list[CardView] = []
        self._users = 0

    def nvmlInit(self) -> None:
        if not self._users:
            self._gpus = read_gpus(self._folder)
            self._cards = [CardView(card_path(self._folder, gpu)) for gpu in self._gpus]
        self._users += 1

    def nvmlShutdown(self) -> None:
        self._require_init()
        self._users -= 1
        if not self._users:
            for opened in self._cards:
                opened.close()
            self._gpus, self._cards = (), []

    def nvmlSystemGetDriverVersion(self) -> str:
        """What a rehearsal has written into the machine's file `driver`, where it has."""
        self._require_init()
        rehearsed = self._folder / "driver"
        return rehearsed.read_text().strip() if rehearsed.exists() else self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        self._require_init()
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        self._require_init()
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        self._require_init()
        if not 0 <= index < len(self._gpus):
            raise NVMLError_InvalidArgument
        return self._present(index)

    def nvmlDeviceGetPciInfo(self, handle: Handle) -> PciInfo:
        return PciInfo(self._gpu(handle).pci_id)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle:
        self._require_init()
        found = [gpu.ordinal for gpu in self._gpus if gpu.uuid == uuid]
        if not found:
            raise NVMLError_NotFound
        return self._present(found[0])

    def nvmlDeviceGetUUID(self, handle: Handle) -> str:
        return self._gpu(handle).uuid

    def nvmlDeviceGetName(self, handle: Handle) -> str:
        return self._gpu(handle).name

    def nvmlDeviceGetIndex(self, handle: Handle) -> int:
        return self._gpu(handle).ordinal

    def nvmlDeviceGetNumGpuCores(self, device: Handle) -> int:
        gpu = self._gpu(device)
        return gpu.sms * gpu.cores_per_sm

    def nvmlDeviceGetCudaComputeCapability(self, handle: Handle) -> tuple[int, int]:
        major, minor = self._gpu(handle).compute_capability.split(".")
        return int(major), int(minor)

    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None) -> NvmlMemoryInfo:
        gpu = self._gpu(handle)
        reserved = gpu.reserved_mib * MIB
        free = self._card(handle).free_bytes()
        used = gpu.memory_mib * MIB - free
        total = gpu.memory_mib * MIB + reserved
        if not version:
            return NvmlMemoryInfo(total=total, free=free, used=used + reserved)
        return NvmlMemoryInfo(total=total, free=free, used=used, reserved=reserved)

    def nvmlDeviceGetComputeMode(self, handle: Handle) -> int:
        return self._card(handle).compute_mode

    def nvmlDeviceSetComputeMode(self, handle: Handle, mode: int) -> None:
        if mode not in {card.DEFAULT, card.PROHIBITED, card.EXCLUSIVE_PROCESS}:
            raise NVMLError_InvalidArgument
        self._card(handle).compute_mode = mode

    def nvmlDeviceGetMigMode(self, device: Handle) -> list[int]:
        """[current, pending]; before compute capability 8.0 there is none."""
        if self.nvmlDeviceGetCudaComputeCapability(device) < (8, 0):
            raise NVMLError_NotSupported
        return [int(self._card(device).mig)] * 2

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[ProcessInfo]:
        """MPS clients, MPS servers and processes outside MPS: all of them."""
        return [_listed(holding) for holding in self._card(handle).holdings() if holding.kind != card.GRAPHICS]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Handle) -> list[ProcessInfo]:
        return [_listed(holding) for holding in self._card(handle).holdings() if holding.kind == card.GRAPHICS]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Handle) -> list[ProcessInfo]:
        return [_listed(holding) for holding in self._card(handle).holdings() if holding.kind == card.MPS_CLIENT]

    def nvmlDeviceGetProcessUtilization(self, handle: Handle, timeStamp: int) -> list[ProcessUtilization]:
        """Those that compute now, of an MPS server's clients the server in their place: who does nothing has no sample,
        and where no process has one it is Not Found.

        The driver keeps the samples of some seconds; here there are none but this moment's. It counts time in which a
        kernel ran, on however many SMs.
        """
        now = time.time_ns() // 1000
        holdings = self._card(handle).holdings()
        servers = [one.pid for one in holdings if one.kind == card.MPS_SERVER]
        busy = [one for one in holdings if one.busy_sms]
        beside = [one.pid for one in busy if one.kind != card.MPS_CLIENT]
        by_server = servers[:1] if len(beside) < len(busy) else []
        if not (beside or by_server) or now <= timeStamp:
            raise NVMLError_NotFound
        return [ProcessUtilization(pid, now, 100 // len([*beside, *by_server])) for pid in (*beside, *by_server)]

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> Utilization:
        """How much of the time a kernel runs, as of this moment."""
        return Utilization(gpu=100 * any(one.busy_sms for one in self._card(handle).holdings()), memory=0)

    def _require_init(self) -> None:
        if not self._users:
            raise NVMLError_Uninitialized

    def _present(self, ordinal: int) -> Handle:
        path = card_path(self._folder, self._gpus[ordinal])
        if self._cards[ordinal].is_replaced(path):  # the holder of the machine was restarted, and made it anew
            self._cards[ordinal].close()
            self._cards[ordinal] = CardView(path)
        if self._cards[ordinal].lost:
            raise NVMLError_GpuIsLost
        return Handle(ordinal)

    def _card(self, handle: Handle) -> CardView:
        self._require_init()
        return self._cards[self._present(handle.ordinal).ordinal]

    def _gpu(self, handle: Handle) -> SimulatedGpu:
        self._card(handle)
        return self._gpus[handle.ordinal]


def _listed(holding: ProcessHolding) -> ProcessInfo:
    unlisted = UNLISTED_SERVER_MIB * MIB if holding.kind == card.MPS_SERVER else 0
    return ProcessInfo(pid=holding.pid, usedGpuMemory=holding.held_bytes - unlisted)
