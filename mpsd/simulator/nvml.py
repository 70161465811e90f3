# ruff: noqa: N802, N803, N815  the names are pynvml's
"""NVML on the simulated machine: an object with those functions of the module `pynvml` that mpsd
uses.

Names, arguments, attributes and errors are pynvml's (nvidia-ml-py), so that nothing that uses it
can tell the difference.
"""

import ctypes
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mpsd.simulator import card
from mpsd.simulator.card import CardView, ProcessHolding, Quirk
from mpsd.simulator.gpus import MIB, SimulatedGpu, card_path, gpus_path, read_gpus
from mpsd.simulator.memory_limits import UNLIMITED, MemoryLimits, cgroup_path
from mpsd.simulator.nvml_health import SimulatedHealth

# Of the MPS server's own memory this much is in no process list: 76 MiB gone, 66 listed (driver
# 580.159.04).
UNLISTED_SERVER_MIB = 10
HANGS_S = 0.05  # between two looks whether a GPU hangs still
KEPT_NS = 4_000_000_000  # how long after its last kernel a server has samples


class NVMLError(Exception):
    """As pynvml's: `value` is NVML's return code, which has a class of its own."""

    value: ClassVar[int] = 999
    _words: ClassVar[str] = "Unknown Error"

    def __str__(self) -> str:
        return self._words


def _error(value: int, words: str) -> type[NVMLError]:
    return type("NVMLError", (NVMLError,), {"value": value, "_words": words})


NVMLError_Uninitialized = _error(1, "Uninitialized")
NVMLError_InvalidArgument = _error(2, "Invalid Argument")
NVMLError_NotSupported = _error(3, "Not Supported")
NVMLError_NoPermission = _error(4, "Insufficient Permissions")
NVMLError_NotFound = _error(6, "Not Found")
NVMLError_Timeout = _error(10, "Timeout")
NVMLError_FunctionNotFound = _error(13, "Function Not Found")
NVMLError_GpuIsLost = _error(15, "GPU is lost")
NVMLError_LibRmVersionMismatch = _error(18, "RM has detected an NVML/RM version mismatch.")


@dataclass(frozen=True, slots=True)
class Handle:
    """A GPU, as the functions take it. instance: of a MIG device its UUID, else empty."""

    ordinal: int
    instance: str = ""


@dataclass(frozen=True, slots=True)
class DeviceAttributes:
    """Those of a MIG device that mpsd reads, with the names of `c_nvmlDeviceAttributes`."""

    multiprocessorCount: int
    gpuInstanceSliceCount: int
    computeInstanceSliceCount: int
    memorySizeMB: int


@dataclass(frozen=True, slots=True)
class NvmlMemoryInfo:
    """Bytes; in the first version of the call `used` holds what is reserved, and `reserved` is not
    to be relied on."""

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


@dataclass(frozen=True, slots=True)
class ProcessUtilization:
    """What a process did of late. timeStamp: microseconds since 1970."""

    pid: int
    timeStamp: int
    smUtil: int
    memUtil: int = 0


@dataclass(frozen=True, slots=True)
class Utilization:
    """How much of the last time a kernel ran, and memory was read or written, in percent."""

    gpu: int
    memory: int


class SetMemoryLimits(ctypes.Structure):
    """nameSpace: the folder of a cgroup. Limits in bytes."""

    _fields_ = [
        ("nameSpace", ctypes.c_char_p),
        ("softLimit", ctypes.c_ulonglong),
        ("hardLimit", ctypes.c_ulonglong),
    ]


class GetMemoryLimits(ctypes.Structure):
    """The same, and what is used."""

    _fields_ = [*SetMemoryLimits._fields_, ("currentUsed", ctypes.c_ulonglong)]


class SimulatedNvml(SimulatedHealth):
    """The module `pynvml`, on the machine in `folder`."""

    nvmlMemory_v2 = 0x02000028
    NVML_COMPUTEMODE_DEFAULT = card.DEFAULT
    NVML_COMPUTEMODE_PROHIBITED = card.PROHIBITED
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = card.EXCLUSIVE_PROCESS
    MOST_INSTANCES = 7  # of the GPUs with MIG that limits/gpus.yaml lists instances of
    NVML_DEVICE_MEMORY_LIMIT_MAX = UNLIMITED
    driver = "580.159.04"
    c_nvmlSetMemoryLimits_v1_t = SetMemoryLimits
    c_nvmlGetMemoryLimits_v1_t = GetMemoryLimits
    NVMLError = NVMLError
    NVMLError_FunctionNotFound = NVMLError_FunctionNotFound
    NVMLError_GpuIsLost = NVMLError_GpuIsLost
    NVMLError_InvalidArgument = NVMLError_InvalidArgument
    NVMLError_LibRmVersionMismatch = NVMLError_LibRmVersionMismatch
    NVMLError_NoPermission = NVMLError_NoPermission
    NVMLError_NotFound = NVMLError_NotFound
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_Timeout = NVMLError_Timeout
    NVMLError_Uninitialized = NVMLError_Uninitialized

    def __init__(self, folder: Path) -> None:
        self._folder, self._limits = folder, MemoryLimits(folder)
        self._gpus: tuple[SimulatedGpu, ...] = ()
        self._cards: list[CardView] = []
        self._users = 0
        self._layout: tuple[int, ...] = ()  # the file that the instances were read from
        self._instances: dict[str, tuple[SimulatedGpu, CardView]] = {}  # by UUID

    def nvmlInit(self) -> None:
        """As after an upgrade of the driver without a reboot where a rehearsal has made the
        machine's file `mismatch`."""
        if (self._folder / "mismatch").exists():
            raise NVMLError_LibRmVersionMismatch
        if not self._users:
            self._gpus = tuple(gpu for gpu in read_gpus(self._folder) if not gpu.parent)
            self._cards = [CardView(card_path(self._folder, gpu)) for gpu in self._gpus]
        self._users += 1

    def nvmlShutdown(self) -> None:
        self._require_init()
        self._users -= 1
        if not self._users:
            for opened in (*self._cards, *(view for _gpu, view in self._instances.values())):
                opened.close()
            self._gpus = ()
            self._cards = []
            self._instances = {}
            self._layout = ()

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
        for gpu in (*self._gpus, *self._parts()):
            if gpu.uuid == uuid:
                return Handle(gpu.ordinal, uuid) if gpu.parent else self._present(gpu.ordinal)
        raise NVMLError_NotFound

    def nvmlDeviceGetUUID(self, handle: Handle) -> str:
        return self._gpu(handle).uuid

    def nvmlDeviceGetName(self, handle: Handle) -> str:
        return self._gpu(handle).name

    # -- MIG: nvml.h (documented, not observed)

    def nvmlDeviceGetMigMode(self, device: Handle) -> list[int]:
        """[current, pending]; before compute capability 8.0 there is none."""
        if self.nvmlDeviceGetCudaComputeCapability(device) < (8, 0):
            raise NVMLError_NotSupported
        if device.instance:
            raise NVMLError_InvalidArgument
        return [int(self._card(device).mig)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Handle) -> int:
        return self.MOST_INSTANCES if self.nvmlDeviceGetMigMode(device)[0] else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Handle, index: int) -> Handle:
        own = [gpu for gpu in self._parts() if gpu.parent == self._gpu(device).uuid]
        if index >= len(own) or not self._card(device).mig:
            raise NVMLError_NotFound
        return Handle(device.ordinal, own[index].uuid)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: Handle) -> Handle:
        self._instance(migDevice)
        return self._present(migDevice.ordinal)

    def nvmlDeviceGetGpuInstanceId(self, device: Handle) -> int:
        return self._instance(device).gpu_instance

    def nvmlDeviceGetComputeInstanceId(self, device: Handle) -> int:
        return self._instance(device).compute_instance

    def nvmlDeviceGetAttributes_v2(self, device: Handle) -> DeviceAttributes:
        gpu = self._instance(device)
        return DeviceAttributes(gpu.sms, gpu.of_slices, gpu.slices, gpu.memory_mib)

    def _instance(self, device: Handle) -> SimulatedGpu:
        if not device.instance:
            raise NVMLError_InvalidArgument
        return self._gpu(device)

    def _parts(self) -> list[SimulatedGpu]:
        """The MIG instances of now."""
        self._require_init()
        status = gpus_path(self._folder).stat()
        if (layout := (status.st_ino, status.st_mtime_ns)) != self._layout:
            now = {gpu.uuid: gpu for gpu in read_gpus(self._folder) if gpu.parent}
            for uuid in self._instances.keys() - now.keys():
                self._instances.pop(uuid)[1].close()
            for uuid, gpu in now.items():
                view = (
                    self._instances[uuid][1]
                    if uuid in self._instances
                    else CardView(card_path(self._folder, gpu))
                )
                self._instances[uuid] = gpu, view
            self._layout = layout
        return [gpu for gpu, _view in self._instances.values()]

    def nvmlDeviceGetNumGpuCores(self, device: Handle) -> int:
        gpu = self._gpu(device)
        return gpu.sms * gpu.cores_per_sm

    def nvmlDeviceGetCudaComputeCapability(self, handle: Handle) -> tuple[int, int]:
        major, minor = self._gpu(handle).compute_capability.split(".")
        return int(major), int(minor)

    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None) -> NvmlMemoryInfo:
        gpu = self._gpu(handle)
        if Quirk.TELLS_NO_MEMORY in self._card(handle).quirks:
            raise NVMLError_NotSupported
        reserved = gpu.reserved_mib * MIB
        free = self._card(handle).free_bytes()
        used = gpu.memory_mib * MIB - free
        total = gpu.memory_mib * MIB + reserved
        if not version:
            return NvmlMemoryInfo(total=total, free=free, used=used + reserved)
        return NvmlMemoryInfo(total=total, free=free, used=used, reserved=reserved)

    def nvmlDeviceGetComputeMode(self, handle: Handle) -> int:
        return self._whole_card(handle).compute_mode

    def nvmlDeviceSetComputeMode(self, handle: Handle, mode: int) -> None:
        """With MIG on only Default is taken (NVIDIA/DCGM#82; documented, not observed)."""
        if mode not in {card.DEFAULT, card.PROHIBITED, card.EXCLUSIVE_PROCESS}:
            raise NVMLError_InvalidArgument
        if mode != card.DEFAULT and self._whole_card(handle).mig:
            raise NVMLError_NotSupported
        self._whole_card(handle).compute_mode = mode

    def _whole_card(self, handle: Handle) -> CardView:
        """A compute mode is of a whole GPU."""
        if handle.instance:
            raise NVMLError_InvalidArgument
        return self._card(handle)

    # -- memory limits of cgroups: nvml.h of release 615 (documented, not observed)

    def nvmlDeviceSetMemoryLimits_v1(self, device: Handle, limits: SetMemoryLimits) -> None:
        self._require_memory_limits(device)
        if os.geteuid():
            raise NVMLError_NoPermission
        try:
            self._limits.put(
                self._gpu(device).uuid, Path(os.fsdecode(limits.nameSpace)), *_bounds(limits)
            )
        except FileNotFoundError:
            raise NVMLError_NotFound from None

    def nvmlDeviceGetMemoryLimits_v1(self, device: Handle, limits: GetMemoryLimits) -> None:
        self._require_memory_limits(device)
        cgroup = Path(os.fsdecode(limits.nameSpace))
        try:
            limits.softLimit, limits.hardLimit = self._limits.get(self._gpu(device).uuid, cgroup)
        except FileNotFoundError:
            raise NVMLError_NotFound from None
        limits.currentUsed = self._limits.used(self._card(device), cgroup_path(cgroup))

    def _require_memory_limits(self, device: Handle) -> None:
        """MIG handles are rejected, and a driver before 615 has no such functions."""
        if int(self.nvmlSystemGetDriverVersion().partition(".")[0]) < 615:
            raise NVMLError_FunctionNotFound
        if device.instance:
            raise NVMLError_InvalidArgument

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[ProcessInfo]:
        """MPS clients, MPS servers and processes outside MPS: all of them."""
        return [one for one, kind in self._processes(handle) if kind != card.GRAPHICS]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Handle) -> list[ProcessInfo]:
        return [one for one, kind in self._processes(handle) if kind == card.GRAPHICS]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Handle) -> list[ProcessInfo]:
        return [one for one, kind in self._processes(handle) if kind == card.MPS_CLIENT]

    def _processes(self, handle: Handle) -> list[tuple[ProcessInfo, int]]:
        """Those of a MIG device by its own handle; by that of its GPU those of every instance
        (nvml.h, nvmlDeviceGetComputeRunningProcesses_v3; documented, not
        observed)."""
        parts = [handle]
        if not handle.instance and self._card(handle).mig:
            own = [gpu for gpu in self._parts() if gpu.ordinal == handle.ordinal]
            parts = [Handle(gpu.ordinal, gpu.uuid) for gpu in own]
        return [
            (_listed(holding), holding.kind)
            for part in parts
            for holding in self._card(part).holdings()
        ]

    def nvmlDeviceGetProcessUtilization(
        self, handle: Handle, timeStamp: int
    ) -> list[ProcessUtilization]:
        """Those that compute now, of an MPS server's clients the server in their place, also while
        what a stopped one had queued runs on. Who does nothing has no sample, but for a server
        whose clients did something some seconds ago: 0. Where no process has a sample it is Not
        Found.

        The driver keeps the samples of some seconds; here there are none but this moment's. It
        counts time in which a kernel ran, on however many SMs.
        """
        self._refuse_with_mig(handle)
        now_us = time.time_ns() // 1000
        now_ns = time.monotonic_ns()
        holdings = self._card(handle).holdings()
        servers = [one.pid for one in holdings if one.kind == card.MPS_SERVER][:1]
        busy = [one for one in holdings if one.computes(now_ns)]
        beside = [one.pid for one in busy if one.kind != card.MPS_CLIENT]
        by_server = servers if len(beside) < len(busy) else []
        computing = [*beside, *by_server]
        samples = [ProcessUtilization(pid, now_us, 100 // len(computing)) for pid in computing]
        of_late = [
            one
            for one in holdings
            if one.kind == card.MPS_CLIENT and one.queue.runs(now_ns - KEPT_NS)
        ]
        if of_late and not by_server:
            samples += [ProcessUtilization(pid, now_us, 0) for pid in servers]
        if not samples or now_us <= timeStamp:
            raise NVMLError_NotFound
        return samples

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> Utilization:
        """How much of the time a kernel runs, as of this moment."""
        self._refuse_with_mig(handle)
        now_ns = time.monotonic_ns()
        return Utilization(
            gpu=100 * any(one.computes(now_ns) for one in self._card(handle).holdings()), memory=0
        )

    def _refuse_with_mig(self, handle: Handle) -> None:
        """How busy a GPU with MIG is NVML does not say (nvml.h; documented, not observed)."""
        if handle.instance or self._card(handle).mig:
            raise NVMLError_NotSupported

    def _require_init(self) -> None:
        if not self._users:
            raise NVMLError_Uninitialized

    def _present(self, ordinal: int) -> Handle:
        path = card_path(self._folder, self._gpus[ordinal])
        # the holder of the machine was restarted, and made it anew
        if self._cards[ordinal].is_replaced(path):
            self._cards[ordinal].close()
            self._cards[ordinal] = CardView(path)
        while Quirk.HANGS in self._cards[ordinal].quirks:
            time.sleep(HANGS_S)
        if self._cards[ordinal].lost:
            raise NVMLError_GpuIsLost
        return Handle(ordinal)

    def _card(self, handle: Handle) -> CardView:
        self._require_init()
        whole = self._cards[self._present(handle.ordinal).ordinal]
        if not handle.instance:
            return whole
        self._parts()
        if handle.instance not in self._instances:  # its handle is no good any more
            raise NVMLError_InvalidArgument
        return self._instances[handle.instance][1]

    def _gpu(self, handle: Handle) -> SimulatedGpu:
        self._card(handle)
        return (
            self._instances[handle.instance][0] if handle.instance else self._gpus[handle.ordinal]
        )


def _bounds(limits: SetMemoryLimits) -> tuple[int, int]:
    return int(limits.softLimit), int(limits.hardLimit)


def _listed(holding: ProcessHolding) -> ProcessInfo:
    unlisted = UNLISTED_SERVER_MIB * MIB if holding.kind == card.MPS_SERVER else 0
    return ProcessInfo(holding.pid, holding.held_bytes - unlisted)


if __name__ == "__main__":
    from mpsd.platform.nvml import Nvml
    from mpsd.platform.nvml_reader import serve

    serve(lambda: Nvml(SimulatedNvml(Path(sys.argv[1])), Path(sys.argv[1]) / "sys"))
