"""What NVML says of a GPU's health. The calls take 0.002 to 0.012 ms each (docs/mps-observed.md,
section 16); none waits."""

from typing import Any, Protocol

from mpsd.model.gpu_health import GpuHealth

# nvmlReturn_t of nvml.h
NOT_SUPPORTED = 3
_TIMEOUT = 10
_MOST_XIDS = 64  # of one look, so that it ends; the rest comes with the next

# nvml.h, nvmlClocksEventReasonHw…; what a policy or a power cap does is no trouble
_BRAKES = {
    "nvmlClocksEventReasonHwThermalSlowdown": "thermal slowdown by its hardware",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake from outside",
}
# nvml.h, nvmlDeviceGpuRecoveryAction_t. Draining peer-to-peer traffic and recovering an IMEX domain
# are other GPUs' matters.
_RECOVERIES = {
    "NVML_GPU_RECOVERY_ACTION_GPU_RESET": "a reset of the GPU",
    "NVML_GPU_RECOVERY_ACTION_NODE_REBOOT": "a reboot of the node",
    "NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET": "a drain, and a reset of the GPU",
    "NVML_GPU_RECOVERY_ACTION_BUS_RESET": "a reset of its bus",
    "NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT": "a reboot of the node",
}


class Asks(Protocol):
    """Calls a function of NVML. NvmlFailed; `otherwise` where it fails by this nvmlReturn_t."""

    def __call__(self, otherwise: Any, code: int, function: str, *arguments: Any) -> Any: ...


class HealthReader:
    """library: as of Nvml. ask: calls it."""

    def __init__(self, library: Any, ask: Asks) -> None:
        self._library = library
        self._ask = ask
        self._events: dict[str, Any] = {}  # by UUID, the set that its Xids come into

    def read(self, uuid: str, handle: Any) -> GpuHealth:
        """handle: of the whole GPU. NvmlFailed."""
        rows = self._supported("nvmlDeviceGetRemappedRows", handle)
        corrected, uncorrected, pending, failed = rows or (0, 0, None, None)
        remapped = None
        if rows is not None:
            remapped = corrected + uncorrected
        return GpuHealth(
            xids=self._xids(uuid, handle),
            uncorrected=self._supported(
                "nvmlDeviceGetTotalEccErrors",
                handle,
                self._library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                self._library.NVML_VOLATILE_ECC,
            ),
            remapped_rows=remapped,
            remap_pending=pending,
            remap_failed=failed,
            pages_pending=self._supported("nvmlDeviceGetRetiredPagesPendingStatus", handle),
            brakes=self._brakes(handle),
            recovery=self._recovery(handle),
        )

    def forget(self) -> None:
        """NVML is closed, and its event sets with it."""
        self._events.clear()

    def _supported(self, function: str, *arguments: Any) -> Any:
        """None where this GPU or this driver has no such thing."""
        if not hasattr(self._library, function):
            return None
        return self._ask(None, NOT_SUPPORTED, function, *arguments)

    def _xids(self, uuid: str, handle: Any) -> tuple[int, ...]:
        """Those since the last call; before the first nobody asked for any."""
        if uuid not in self._events:
            self._events[uuid] = self._registered(handle)
        events = self._events[uuid]
        found: list[int] = []
        while events is not None and len(found) < _MOST_XIDS:
            event = self._ask(None, _TIMEOUT, "nvmlEventSetWait_v2", events, 0)
            if event is None:
                break
            found.append(int(event.eventData))
        return tuple(found)

    def _registered(self, handle: Any) -> Any:
        """None where this GPU gives no events."""
        events = self._ask(None, NOT_SUPPORTED, "nvmlEventSetCreate")
        if events is None:
            return None
        kind = self._library.nvmlEventTypeXidCriticalError
        refused = object()
        function = "nvmlDeviceRegisterEvents"
        if self._ask(refused, NOT_SUPPORTED, function, handle, kind, events) is refused:
            return None
        return events

    def _brakes(self, handle: Any) -> tuple[str, ...] | None:
        reasons = self._supported("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:
            return None
        return tuple(
            words for name, words in _BRAKES.items() if reasons & getattr(self._library, name)
        )

    def _recovery(self, handle: Any) -> str | None:
        number = getattr(self._library, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        if number is None:
            return None
        (value,) = self._ask((None,), NOT_SUPPORTED, "nvmlDeviceGetFieldValues", handle, [number])
        if value is None or value.nvmlReturn:  # of this field alone, such as Not Supported
            return None
        asked = int(value.value.uiVal)
        for name, words in _RECOVERIES.items():
            if asked == getattr(self._library, name, None):
                return words
        return ""
