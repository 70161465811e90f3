"""NVML: which GPUs there are, what is used of them and by whom. What NVML cannot say is an error
(NvmlFailed), never zero."""

import re
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.gpu_health import GpuHealth
from mpsd.model.grants import Gpu, MigInstance, is_instance
from mpsd.platform.nvml_health import HealthReader

# Pid and bytes of each process; None where NVML knows the process and not its memory.
Uses = tuple[tuple[int, int | None], ...]

_PROFILE = re.compile(r"(?:[0-9]c\.)?[0-9]g\.[0-9]+gb[+.a-z-]*", re.ASCII)


class NvmlFailed(Exception):
    """The message names the call, and the remedy where one is known."""


class Nvml:
    """library: pynvml, or the simulator's object with its functions."""

    def __init__(self, library: Any, sysfs: Path = Path("/sys")) -> None:
        self._library = library
        self._sysfs = sysfs
        self._handles: dict[str, Any] = {}
        self._wholes: dict[int, str] = {}  # the UUID of each GPU, by ordinal
        self._health = HealthReader(library, self._ask_or)
        self.spent_s = 0.0  # of this process's processor time, in its calls so far

    def open(self) -> None:
        try:
            self._ask("nvmlInit")
        except NvmlFailed as error:
            remedy = "no NVIDIA driver answers here; install one, or try mpsd up --simulate H200x2"
            raise NvmlFailed(f"{error}; {remedy}") from None

    def close(self) -> None:
        self._health.forget()
        self._ask("nvmlShutdown")

    def driver(self) -> str:
        return _text(self._ask("nvmlSystemGetDriverVersion"))

    def cuda(self) -> str:
        """The newest CUDA that the driver takes, such as 13.0."""
        version = int(self._ask("nvmlSystemGetCudaDriverVersion_v2"))
        return f"{version // 1000}.{version % 1000 // 10}"

    def gpus(self, facts: GpuFacts) -> tuple[Gpu, ...]:
        """Every GPU, by ordinal; in place of one with MIG instances these. NvmlFailed, also for a
        compute capability that the facts do not list."""
        found: list[Gpu] = []
        for ordinal in range(self.count()):
            found += self._gpus_at(ordinal, facts)
        return tuple(found)

    def _gpus_at(self, ordinal: int, facts: GpuFacts) -> Iterator[Gpu]:
        uuid, name, number = self.found(ordinal)
        handle = self._handles[uuid]
        capability = facts.capability(number)
        if capability is None:
            raise NvmlFailed(
                f"GPU {ordinal} ({name}) has compute capability {number}, which limits/gpus.yaml"
                " does not list; add a row for it under capabilities"
            )
        pci_bus = self._pci_bus(handle)
        bare = Gpu(uuid, ordinal, name, 0, 0, capability, pci_bus, self._numa_node(pci_bus))
        found = [self._instance(bare, part) for part in self._instances(uuid)]
        if not found:
            sms = self._cores(uuid) // capability.cores_per_sm
            yield replace(bare, memory_mib=self._memory_mib(handle), sms=sms)
        yield from sorted(found, key=lambda gpu: (len(gpu.instance), gpu.instance))

    def _cores(self, uuid: str) -> int:
        """0 where MIG is on and NVML does not say: without instances such a GPU serves nothing."""
        try:
            return int(self._ask("nvmlDeviceGetNumGpuCores", self._handles[uuid]))
        except NvmlFailed:
            if self.mig_enabled(uuid):
                return 0
            raise

    def uuids(self) -> tuple[str, ...]:
        """Those of `gpus`, to be asked for before; others once a MIG layout has changed."""
        found: list[str] = []
        for ordinal in range(self.count()):
            whole = self._wholes[ordinal]
            found += self.instances(whole) or (whole,)
        return tuple(found)

    def instances(self, uuid: str) -> tuple[str, ...]:
        """None where MIG is off."""
        return tuple(
            _text(self._ask("nvmlDeviceGetUUID", handle)) for handle in self._instances(uuid)
        )

    def _instances(self, uuid: str) -> Iterator[Any]:
        """The MIG devices, asked for anew each time: a handle may be another's once its instance
        has gone (nvml.h, nvmlDeviceGetMigDeviceHandleByIndex)."""
        if not self.mig_enabled(uuid):
            return
        whole = self._handle(uuid)
        for index in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", whole)):
            function = "nvmlDeviceGetMigDeviceHandleByIndex"
            handle = self._ask_or(None, "NotFound", function, whole, index)
            if handle is not None:
                yield handle

    def _instance(self, whole: Gpu, handle: Any) -> Gpu:
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
        ids = (self._ask(f"nvmlDeviceGet{what}InstanceId", handle) for what in ("Gpu", "Compute"))
        mig = MigInstance(whole.uuid, profile, *ids)
        most = self._ask("nvmlDeviceGetMaxMigDeviceCount", self._handle(whole.uuid))
        self._handles[uuid] = handle
        return replace(
            whole,
            uuid=uuid,
            instance=mig.label,
            name=f"{whole.name} MIG {profile}",
            # the compute instances of one GPU instance share its memory: divided as its slices are
            memory_mib=min(size_mib, self._memory_mib(handle)) * own // of_gpu,
            sms=int(shape.multiprocessorCount),
            capability=whole.capability.of_part(Fraction(own, max(own, most))),
            mig=mig,
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

    def _memory_mib(self, handle: Any) -> int:
        """Without what the driver reserves."""
        memory = self._memory(handle)
        return int(memory.total - memory.reserved) // 1024**2

    def _names(self, handle: Any) -> tuple[str, str]:
        uuid = self._ask("nvmlDeviceGetUUID", handle)
        return _text(uuid), _text(self._ask("nvmlDeviceGetName", handle))

    def count(self) -> int:
        return int(self._ask("nvmlDeviceGetCount"))

    def found(self, ordinal: int) -> tuple[str, str, str]:
        """A GPU's UUID, name and compute capability such as 9.0. NvmlFailed."""
        handle = self._ask("nvmlDeviceGetHandleByIndex", ordinal)
        uuid, name = self._names(handle)
        major, minor = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        self._handles[uuid], self._wholes[ordinal] = handle, uuid
        return uuid, name, f"{major}.{minor}"

    def mps_pids(self, uuid: str) -> frozenset[int]:
        """The clients of MPS on this GPU; of a MIG instance its own alone, as with all lists of
        processes (nvml.h, nvmlDeviceGetMPSComputeRunningProcesses_v3; not observed).

        To be asked before `uses`: then no client that starts or ends meanwhile was seen to look as
        if it ran beside MPS (driver 580.159.04, 1 100 looks at 18 clients).
        """
        listed = self._ask("nvmlDeviceGetMPSComputeRunningProcesses", self._handles[uuid])
        return frozenset(use.pid for use in listed)

    def uses(self, uuid: str) -> Uses:
        """Every process that computes on this GPU: MPS clients and servers, and others."""
        return _uses(self._ask("nvmlDeviceGetComputeRunningProcesses", self._handles[uuid]))

    def drawing(self, uuid: str) -> Uses:
        """Every process with a graphics context on this GPU. One that computes too is in both
        lists, with all that it uses in each."""
        function = "nvmlDeviceGetGraphicsRunningProcesses"
        return _uses(self._ask_or((), "NotSupported", function, self._handles[uuid]))

    def used_mib(self, uuid: str) -> int:
        """By whomever; without what the driver reserves."""
        return int(self._memory(self._handle(uuid)).used) // 1024**2

    def draws(self, uuid: str, pid: int) -> bool:
        return any(found == pid for found, _used in self.drawing(uuid))

    def busy_percent(self, uuid: str) -> int:
        """How much of the last 1/6 to 1 s a kernel ran on this GPU (nvmlUtilization_t). NvmlFailed
        for a MIG instance."""
        return int(self._ask("nvmlDeviceGetUtilizationRates", self._handles[uuid]).gpu)

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
        samples = self._ask_or((), "NotFound", function, self._handles[uuid], since_us)
        fresh = (one for one in samples if one.timeStamp > since_us)
        return sorted(fresh, key=lambda one: one.timeStamp)

    def mig_enabled(self, uuid: str) -> bool:
        """Whether its instances are GPUs in its place."""
        if is_instance(uuid):
            return False
        handle = self._handle(uuid)
        current, _pending = self._ask_or((0, 0), "NotSupported", "nvmlDeviceGetMigMode", handle)
        return bool(current)

    def compute_mode(self, uuid: str) -> int:
        """0 is Default, 3 EXCLUSIVE_PROCESS. Of a MIG instance its parent's."""
        return int(self._ask("nvmlDeviceGetComputeMode", self._whole(uuid)))

    def health(self, uuid: str) -> GpuHealth:
        """Of a MIG instance its parent's. Xids since the last call for it. NvmlFailed."""
        return self._health.read(uuid, self._whole(uuid))

    def _whole(self, uuid: str) -> Any:
        handle = self._handle(uuid)
        if is_instance(uuid):
            handle = self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return handle

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Of a whole GPU. With MIG on it cannot be EXCLUSIVE_PROCESS (NVIDIA/DCGM#82)."""
        self._ask("nvmlDeviceSetComputeMode", self._handle(uuid), mode)

    # -- memory limits of a cgroup
    # nvml.h of release 615: nvmlSetMemoryLimits_v1_t; documented, not observed.

    def has_memory_limits(self, uuid: str, cgroup: Path) -> bool:
        """cgroup: any. NvmlFailed for a GPU that is lost."""
        if not hasattr(self._library, "nvmlDeviceGetMemoryLimits_v1"):
            return False
        try:
            self._memory_limits(uuid, cgroup)
        except NvmlFailed as error:
            if self._means(error, "GpuIsLost"):
                raise
            return not self._means(error, "FunctionNotFound")
        return True

    def memory_limit_mib(self, uuid: str, cgroup: Path) -> int | None:
        """The limit of all processes below this cgroup of v2; None without a limit or such a
        cgroup. NvmlFailed."""
        try:
            hard = int(self._memory_limits(uuid, cgroup).hardLimit)
        except NvmlFailed as error:
            if self._means(error, "NotFound", "NotSupported"):
                return None
            raise
        if hard == self._library.NVML_DEVICE_MEMORY_LIMIT_MAX:
            return None
        return hard // 1024**2

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

    @property
    def exclusive_process(self) -> int:
        return int(self._library.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)

    def _ask(self, function: str, *arguments: Any, **options: Any) -> Any:
        call: Callable[..., Any] = getattr(self._library, function)
        began = time.thread_time()
        try:
            return call(*arguments, **options)
        except self._library.NVMLError as error:
            raise NvmlFailed(f"NVML: {function} failed: {error}") from error
        finally:
            self.spent_s += time.thread_time() - began

    def _ask_or(self, otherwise: Any, kind: str, function: str, *arguments: Any) -> Any:
        """`otherwise` where it fails by this kind of error."""
        try:
            return self._ask(function, *arguments)
        except NvmlFailed as error:
            if self._means(error, kind):
                return otherwise
            raise

    def _means(self, error: NvmlFailed, *kinds: str) -> bool:
        kinds_of = tuple(getattr(self._library, f"NVMLError_{kind}") for kind in kinds)
        return isinstance(error.__cause__, kinds_of)


def _uses(listed: Any) -> Uses:
    return tuple([(use.pid, use.usedGpuMemory) for use in listed])


def _text(value: str | bytes) -> str:
    """Older bindings give bytes."""
    return value.decode() if isinstance(value, bytes) else value
