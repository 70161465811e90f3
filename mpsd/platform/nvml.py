"""NVML: which GPUs there are, what is used of them and by whom. What NVML cannot say is an error
(NvmlFailed), never zero."""

import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from mpsd.model.gpu_health import GpuHealth
from mpsd.model.grants import is_instance
from mpsd.model.seen_gpus import SeenGpu, SeenInstance
from mpsd.platform.nvml_health import NOT_SUPPORTED, HealthReader

# Pid and bytes of each process; None where NVML knows the process and not its memory.
Uses = tuple[tuple[int, int | None], ...]

_PROFILE = re.compile(r"(?:[0-9]c\.)?[0-9]g\.[0-9]+gb[+.a-z-]*", re.ASCII)


# nvmlReturn_t of nvml.h
_NOT_FOUND = 6
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15
_MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH


class NvmlFailed(Exception):
    """The message names the call, and the remedy where one is known. code: NVML's; None where it
    has given none."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_loss(self) -> bool:
        """Whether NVML itself says that the GPU is lost."""
        return self.code == _GPU_IS_LOST


EXCLUSIVE_PROCESS = 3  # NVML_COMPUTEMODE_EXCLUSIVE_PROCESS of nvml.h
# seconds for an answer: to what is asked at each look of the watchdog, and to everything else
LOOK_S = 0.1
CALL_S = 1.0
OPEN_S = 5.0  # with the first call, in which a driver without persistence mode starts a GPU


class Readers(Protocol):
    """As of `nvml_readers.GpuReaders`."""

    @property
    def spent_s(self) -> float: ...
    def ask(self, method: str, *arguments: object, within_s: float) -> Any: ...
    def look_at(self, ordinal: int, *, first_within_s: float, within_s: float) -> SeenGpu: ...
    def close(self) -> None: ...


Method = TypeVar("Method", bound=Callable[..., Any])


def _by_reader(within_s: float) -> Callable[[Method], Method]:
    """A reader is asked instead, where there are readers: the one of the GPU that is asked about,
    or of the machine any."""

    def with_readers(method: Method) -> Method:
        @wraps(method)
        def asked(nvml: "Nvml", *arguments: Any) -> Any:
            if nvml.readers is None:
                return method(nvml, *arguments)
            return nvml.readers.ask(method.__name__, *arguments, within_s=within_s)

        return cast("Method", asked)

    return with_readers


class NvmlLate(NvmlFailed):
    """It has not answered in time; it may yet."""


class Nvml:
    """library: pynvml, or the simulator's object with its functions; None where readers call it."""

    def __init__(
        self, library: Any, sysfs: Path = Path("/sys"), readers: Readers | None = None
    ) -> None:
        self._library = library
        self.readers = readers
        self._sysfs = sysfs
        self._handles: dict[str, Any] = {}
        self._described: dict[str, SeenGpu] = {}  # by UUID
        self._health = HealthReader(library, self._ask_or)

    @property
    def spent_s(self) -> float:
        """Processor time of the readers so far."""
        return 0.0 if self.readers is None else self.readers.spent_s

    def open(self) -> None:
        if self.readers is not None:
            self.count()  # a reader opens it with its first question
            return
        try:
            self._ask("nvmlInit")
        except NvmlFailed as error:
            remedy = "no NVIDIA driver answers here; install one, or try mpsd up --simulate H200x2"
            if error.code == _MISMATCH:
                remedy = (
                    "the driver's library and its kernel module are of two versions; reboot, or"
                    " reload the module"
                )
            raise NvmlFailed(f"{error}; {remedy}", error.code) from None

    def close(self) -> None:
        self._health.forget()
        if self.readers is None:
            self._ask("nvmlShutdown")
        else:
            self.readers.close()

    @_by_reader(CALL_S)
    def driver(self) -> str:
        return _text(self._ask("nvmlSystemGetDriverVersion"))

    @_by_reader(CALL_S)
    def cuda(self) -> str:
        """The newest CUDA that the driver takes, such as 13.0."""
        version = int(self._ask("nvmlSystemGetCudaDriverVersion_v2"))
        return f"{version // 1000}.{version % 1000 // 10}"

    def at(self, ordinal: int) -> SeenGpu:
        """What NVML says of the GPU with this ordinal, asked for anew. NvmlFailed."""
        if self.readers is None:
            return self._at(ordinal)
        return self.readers.look_at(ordinal, first_within_s=OPEN_S, within_s=CALL_S)

    def _at(self, ordinal: int) -> SeenGpu:
        handle = self._ask("nvmlDeviceGetHandleByIndex", ordinal)
        uuid, name = self._names(handle)
        self._handles[uuid] = handle
        if uuid not in self._described:
            self._described[uuid] = self._description(ordinal, uuid, name, handle)
        most = 0
        mig = self.mig_enabled(uuid)
        if mig:
            most = self._ask("nvmlDeviceGetMaxMigDeviceCount", handle)
        return replace(
            self._described[uuid],
            memory_mib=self._memory_mib(handle),
            mig=mig,
            most_instances=most,
            instances=tuple(map(self._instance, self._instances(handle, most))),
        )

    def _description(self, ordinal: int, uuid: str, name: str, handle: Any) -> SeenGpu:
        """What does not change of a GPU."""
        major, minor = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        pci_bus = self._pci_bus(handle)
        return SeenGpu(
            ordinal,
            uuid,
            name,
            f"{major}.{minor}",
            cores=self._ask_or(None, NOT_SUPPORTED, "nvmlDeviceGetNumGpuCores", handle),
            pci_bus=pci_bus,
            numa_node=self._numa_node(pci_bus),
        )

    def _instances(self, whole: Any, most: int) -> Iterator[Any]:
        """The MIG devices, asked for anew each time: a handle may be another's once its instance
        has gone (nvml.h, nvmlDeviceGetMigDeviceHandleByIndex)."""
        for index in range(most):
            function = "nvmlDeviceGetMigDeviceHandleByIndex"
            handle = self._ask_or(None, _NOT_FOUND, function, whole, index)
            if handle is not None:
                yield handle

    def _instance(self, handle: Any) -> SeenInstance:
        """Documented, not observed."""
        uuid, name = self._names(handle)
        shape = self._ask("nvmlDeviceGetAttributes_v2", handle)
        own = int(shape.computeInstanceSliceCount)
        of_gpu = int(shape.gpuInstanceSliceCount)
        size_mib = int(shape.memorySizeMB)
        profile = f"{of_gpu}g.{-(-size_mib // 1024)}gb"
        if own != of_gpu:
            profile = f"{own}c.{profile}"
        if found := _PROFILE.search(name):
            profile = found[0]
        memory_mib = self._memory_mib(handle)
        if memory_mib is not None:
            size_mib = min(size_mib, memory_mib)
        self._handles[uuid] = handle
        ids = [self._ask(f"nvmlDeviceGet{what}InstanceId", handle) for what in ("Gpu", "Compute")]
        return SeenInstance(
            uuid, profile, size_mib, int(shape.multiprocessorCount), own, of_gpu, *ids
        )

    def _pci_bus(self, handle: Any) -> str:
        """NVML writes the domain with eight digits, the kernel with four or more."""
        try:
            bus = _text(self._ask("nvmlDeviceGetPciInfo", handle).busId).lower()
            domain, _colon, rest = bus.partition(":")
            return f"{int(domain, 16):04x}:{rest}"
        except (NvmlFailed, ValueError):
            return ""

    def _numa_node(self, pci_bus: str) -> int | None:
        with suppress(OSError, ValueError):
            node = int((self._sysfs / "bus/pci/devices" / pci_bus / "numa_node").read_text())
            if node >= 0:  # -1 is the kernel's word for none
                return node
        return None

    def _memory(self, handle: Any) -> Any:
        return self._ask("nvmlDeviceGetMemoryInfo", handle, version=self._library.nvmlMemory_v2)

    def _memory_mib(self, handle: Any) -> int | None:
        """Without what the driver reserves; None where NVML does not support telling it."""
        try:
            memory = self._memory(handle)
        except NvmlFailed as error:
            if error.code == NOT_SUPPORTED:
                return None
            raise
        return int(memory.total - memory.reserved) // 1024**2

    def _names(self, handle: Any) -> tuple[str, str]:
        uuid = self._ask("nvmlDeviceGetUUID", handle)
        return _text(uuid), _text(self._ask("nvmlDeviceGetName", handle))

    @_by_reader(OPEN_S)
    def count(self) -> int:
        return int(self._ask("nvmlDeviceGetCount"))

    @_by_reader(LOOK_S)
    def mps_pids(self, uuid: str) -> frozenset[int]:
        """The clients of MPS on this GPU; of a MIG instance its own alone, as with all lists of
        processes (nvml.h, nvmlDeviceGetMPSComputeRunningProcesses_v3; not observed).

        To be asked before `uses`: then no client that starts or ends meanwhile was seen to look as
        if it ran beside MPS (driver 580.159.04, 1 100 looks at 18 clients).
        """
        listed = self._ask("nvmlDeviceGetMPSComputeRunningProcesses", self._handle(uuid))
        return frozenset(use.pid for use in listed)

    @_by_reader(LOOK_S)
    def uses(self, uuid: str) -> Uses:
        """Every process that computes on this GPU: MPS clients and servers, and others."""
        return _uses(self._ask("nvmlDeviceGetComputeRunningProcesses", self._handle(uuid)))

    @_by_reader(LOOK_S)
    def in_use(self, uuid: str) -> tuple[Uses, int]:
        """`uses` and `used_mib`, by one question."""
        return self.uses(uuid), self.used_mib(uuid)

    @_by_reader(LOOK_S)
    def everything_in_use(self, uuid: str) -> tuple[frozenset[int], Uses, Uses, int]:
        """`mps_pids`, `uses`, `drawing` and `used_mib`, in this order, by one question."""
        on_mps = self.mps_pids(uuid)
        return on_mps, self.uses(uuid), self.drawing(uuid), self.used_mib(uuid)

    @_by_reader(LOOK_S)
    def drawing(self, uuid: str) -> Uses:
        """Every process with a graphics context on this GPU. One that computes too is in both
        lists, with all that it uses in each."""
        function = "nvmlDeviceGetGraphicsRunningProcesses"
        return _uses(self._ask_or((), NOT_SUPPORTED, function, self._handle(uuid)))

    @_by_reader(LOOK_S)
    def used_mib(self, uuid: str) -> int:
        """By whomever; without what the driver reserves."""
        return int(self._memory(self._handle(uuid)).used) // 1024**2

    def draws(self, uuid: str, pid: int) -> bool:
        return any(found == pid for found, _used in self.drawing(uuid))

    @_by_reader(LOOK_S)
    def busy_percent(self, uuid: str) -> int:
        """How much of the last 1/6 to 1 s a kernel ran on this GPU (nvmlUtilization_t). NvmlFailed
        for a MIG instance."""
        return int(self._ask("nvmlDeviceGetUtilizationRates", self._handle(uuid)).gpu)

    @_by_reader(LOOK_S)
    def sm_percents(self, uuid: str, since_us: int) -> Mapping[int, int | None]:
        """How much of the time each process computes on this GPU, by its newest sample after
        `since_us` (microseconds since 1970); the driver takes one every second or more often. What
        clients of MPS do is their server's (driver 580.159.04). A process without a sample has done
        nothing since. None: a sample that cannot be, as drivers gave of processes that ended.
        """
        found: dict[int, int | None] = {}
        for one in self._samples(uuid, since_us):
            found[one.pid] = None
            if one.smUtil <= 100:
                found[one.pid] = one.smUtil
        return found

    @_by_reader(LOOK_S)
    def use_samples(
        self, uuid: str, pids: Container[int], since_us: int
    ) -> tuple[tuple[int, int], ...]:
        """The samples of these processes, the oldest first: when, in microseconds since 1970, and
        the larger of the use of SMs and memory bandwidth, in percent. None of a MIG instance
        (nvml.h)."""
        if is_instance(uuid):
            return ()
        fresh = [one for one in self._samples(uuid, since_us) if one.pid in pids]
        return tuple([(one.timeStamp, max(one.smUtil, one.memUtil)) for one in fresh])

    def _samples(self, uuid: str, since_us: int) -> list[Any]:
        function = "nvmlDeviceGetProcessUtilization"
        # NotFound: nobody has one
        samples = self._ask_or((), _NOT_FOUND, function, self._handle(uuid), since_us)
        fresh = (one for one in samples if one.timeStamp > since_us)
        return sorted(fresh, key=lambda one: one.timeStamp)

    @_by_reader(CALL_S)
    def mig_enabled(self, uuid: str) -> bool:
        """Whether its instances are GPUs in its place."""
        if is_instance(uuid):
            return False
        handle = self._handle(uuid)
        current, _pending = self._ask_or((0, 0), NOT_SUPPORTED, "nvmlDeviceGetMigMode", handle)
        return bool(current)

    @_by_reader(CALL_S)
    def compute_mode(self, uuid: str) -> int:
        """0 is Default. Of a MIG instance its parent's."""
        return int(self._ask("nvmlDeviceGetComputeMode", self._whole(uuid)))

    @_by_reader(CALL_S)
    def health(self, uuid: str) -> GpuHealth:
        """Of a MIG instance its parent's. Xids since the last call for it. NvmlFailed."""
        return self._health.read(uuid, self._whole(uuid))

    def _whole(self, uuid: str) -> Any:
        handle = self._handle(uuid)
        if is_instance(uuid):
            handle = self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return handle

    @_by_reader(CALL_S)
    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Of a whole GPU. With MIG on it cannot be EXCLUSIVE_PROCESS (NVIDIA/DCGM#82)."""
        self._ask("nvmlDeviceSetComputeMode", self._handle(uuid), mode)

    # -- memory limits of a cgroup
    # nvml.h of release 615: nvmlSetMemoryLimits_v1_t; documented, not observed.

    @_by_reader(CALL_S)
    def has_memory_limits(self, uuid: str, cgroup: Path) -> bool:
        """cgroup: any. NvmlFailed for a GPU that is lost."""
        if not hasattr(self._library, "nvmlDeviceGetMemoryLimits_v1"):
            return False
        try:
            self._memory_limits(uuid, cgroup)
        except NvmlFailed as error:
            if error.is_loss:
                raise
            return error.code != _FUNCTION_NOT_FOUND
        return True

    @_by_reader(CALL_S)
    def memory_limit_mib(self, uuid: str, cgroup: Path) -> int | None:
        """The limit of all processes below this cgroup of v2; None without a limit or such a
        cgroup. NvmlFailed."""
        try:
            hard = int(self._memory_limits(uuid, cgroup).hardLimit)
        except NvmlFailed as error:
            if error.code in {_NOT_FOUND, NOT_SUPPORTED}:
                return None
            raise
        if hard == self._library.NVML_DEVICE_MEMORY_LIMIT_MAX:
            return None
        return hard // 1024**2

    @_by_reader(CALL_S)
    def limit_memory(self, uuid: str, cgroup: Path, memory_mib: int | None) -> None:
        """None takes it away. cgroup: its folder. NvmlFailed, also for a MIG instance."""
        limits = self._library.c_nvmlSetMemoryLimits_v1_t()
        limits.nameSpace = str(cgroup).encode()
        limits.softLimit = 0
        limits.hardLimit = self._library.NVML_DEVICE_MEMORY_LIMIT_MAX
        if memory_mib is not None:
            limits.hardLimit = memory_mib * 1024**2
        self._ask("nvmlDeviceSetMemoryLimits_v1", self._handle(uuid), limits)

    def _memory_limits(self, uuid: str, cgroup: Path) -> Any:
        limits = self._library.c_nvmlGetMemoryLimits_v1_t()
        limits.nameSpace = str(cgroup).encode()
        self._ask("nvmlDeviceGetMemoryLimits_v1", self._handle(uuid), limits)
        return limits

    def _handle(self, uuid: str) -> Any:
        """Also of a GPU that nobody has asked for with `gpus`."""
        if uuid not in self._handles:
            self._handles[uuid] = self._ask("nvmlDeviceGetHandleByUUID", uuid)
        return self._handles[uuid]

    def _ask(self, function: str, *arguments: Any, **options: Any) -> Any:
        call: Callable[..., Any] = getattr(self._library, function)
        try:
            return call(*arguments, **options)
        except self._library.NVMLError as error:
            raise NvmlFailed(f"NVML: {function} failed: {error}", error.value) from error

    def _ask_or(self, otherwise: Any, code: int, function: str, *arguments: Any) -> Any:
        """`otherwise` where it fails by this code."""
        try:
            return self._ask(function, *arguments)
        except NvmlFailed as error:
            if error.code == code:
                return otherwise
            raise


def _uses(listed: Any) -> Uses:
    return tuple([(use.pid, use.usedGpuMemory) for use in listed])


def _text(value: str | bytes) -> str:
    """Older bindings give bytes."""
    return value.decode() if isinstance(value, bytes) else value
