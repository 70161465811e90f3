"""The GPUs of a node, NVML, and the environment of programs, real or simulated."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.grants import Gpu
from mpsd.platform.nvml import Nvml, NvmlFailed

_LAYOUT_S = 2.0  # between two looks at the MIG layouts: a call or two a GPU


@dataclass(slots=True)
class Node:
    """environment: of control daemons and commands. canary: its client. extra, path_first: of
    programs, beside limits. shared, device_lists: of containers: folders of the host, and variables
    for UUIDs; none where GPUs are real."""

    nvml: Nvml
    gpus: tuple[Gpu, ...]
    environment: Mapping[str, str]
    canary: tuple[str, ...]
    extra: dict[str, str]
    path_first: str
    shared: tuple[str, ...] = ()
    device_lists: tuple[str, ...] = ()
    facts: GpuFacts | None = None  # None where the GPUs stay as they are
    _looked_at: float = field(default=float("-inf"), repr=False)

    def look(self) -> None:
        """Finds MIG instances that have come or gone; what NVML does not say changes nothing."""
        now = time.monotonic()
        if self.facts is None or now - self._looked_at < _LAYOUT_S:
            return
        self._looked_at = now
        with suppress(NvmlFailed):
            if set(self.nvml.uuids()) != {gpu.uuid for gpu in self.gpus}:
                self.gpus = self.nvml.gpus(self.facts)


@dataclass(frozen=True, slots=True)
class Tools:
    """NVML, not open yet, and the environment of commands."""

    nvml: Nvml
    environment: Mapping[str, str]
