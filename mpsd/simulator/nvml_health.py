# ruff: noqa: N802, N803, N815, ARG002  the names are pynvml's
"""The health of simulated GPUs as NVML tells it: that of an H200 under 580.159.04
(docs/mps-observed.md, section 16), and what a rehearsal puts into a card."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mpsd.simulator.card import CardView


class _Card(Protocol):
    def __call__(self, handle: Any) -> CardView: ...


@dataclass(slots=True)
class EventSet:
    """The GPUs that it has events of, each with the number of those that were read or came
    before."""

    registered: list[tuple[Any, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EventData:
    """An event; of an Xid its number is `eventData`."""

    device: Any
    eventType: int
    eventData: int


@dataclass(frozen=True, slots=True)
class NvmlValue:
    """The union's one member that is used."""

    uiVal: int


@dataclass(frozen=True, slots=True)
class FieldValue:
    """A value by the number of its field; nvmlReturn: 0 where there is one."""

    fieldId: int
    nvmlReturn: int
    value: NvmlValue


class SimulatedHealth:
    """Those functions of `pynvml`."""

    nvmlEventTypeXidCriticalError = 8
    nvmlClocksEventReasonHwThermalSlowdown = 0x40
    nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    NVML_GPU_RECOVERY_ACTION_NONE = 0
    NVML_GPU_RECOVERY_ACTION_GPU_RESET = 1
    NVML_GPU_RECOVERY_ACTION_NODE_REBOOT = 2
    NVMLError_NotSupported: type[Exception]
    NVMLError_Timeout: type[Exception]
    _whole_card: _Card

    def nvmlEventSetCreate(self) -> EventSet:
        return EventSet()

    def nvmlDeviceRegisterEvents(self, handle: Any, eventTypes: int, eventSet: EventSet) -> None:
        """Those that come from now on."""
        eventSet.registered.append((handle, self._whole_card(handle).xids_total))

    def nvmlEventSetWait_v2(self, eventSet: EventSet, timeoutms: int) -> EventData:
        """Of those that came between two calls the last few; it never waits."""
        for place, (handle, read) in enumerate(eventSet.registered):
            if found := self._whole_card(handle).xid_after(read):
                number, xid = found
                eventSet.registered[place] = handle, number
                return EventData(handle, self.nvmlEventTypeXidCriticalError, xid)
        raise self.NVMLError_Timeout

    def nvmlDeviceGetRemappedRows(self, device: Any) -> tuple[int, int, int, int]:
        """By correctable and uncorrectable errors, whether some wait, whether some failed."""
        card = self._whole_card(device)
        return (
            0,
            int(card.remap_pending or card.remap_failed),
            card.remap_pending,
            card.remap_failed,
        )

    def nvmlDeviceGetRetiredPagesPendingStatus(self, device: Any) -> int:
        self._whole_card(device)
        raise self.NVMLError_NotSupported

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, errorType: int, counterType: int) -> int:
        card = self._whole_card(handle)
        return card.uncorrected if errorType == self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED else 0

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        return self._whole_card(handle).brakes

    def nvmlDeviceGetFieldValues(self, handle: Any, fieldIds: Sequence[int]) -> list[FieldValue]:
        """The recovery action; of others that they are Not Supported."""
        card = self._whole_card(handle)
        return [
            FieldValue(one, 0, NvmlValue(card.recovery))
            if one == self.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
            else FieldValue(one, 3, NvmlValue(0))
            for one in fieldIds
        ]
