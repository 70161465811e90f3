"""Static SM partitions of a control daemon that was started with -S.

Documented, not observed: played from NVIDIA's pages (Multi-Process Service, release 615), and where these say nothing
from what public code reads of real answers. A partition's name is opaque, and here no two daemons give the same one.
"""

import base64
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mpsd.simulator.gpus import SimulatedGpu

_HEADER = (
    "GPU           Partition                         free    used    free  used  clients\n"
    "                                                chunks  chunks  SM    SM\n"
)


@dataclass(frozen=True, slots=True)
class SmPartition:
    """Some chunks of a GPU, by their numbers."""

    gpu: SimulatedGpu
    name: str
    chunks: tuple[int, ...]

    @property
    def sms(self) -> int:
        return len(self.chunks) * self.gpu.sms_per_chunk


class Partitions:
    """Of all GPUs of a daemon."""

    def __init__(self, gpus: Sequence[SimulatedGpu]) -> None:
        self._gpus = gpus
        self.all: list[SmPartition] = []

    @property
    def sms_by_name(self) -> Mapping[str, int]:
        """By the value of CUDA_MPS_SM_PARTITION."""
        return {f"{one.gpu.uuid}/{one.name}": one.sms for one in self.all}

    def add(self, uuid: str, count: str) -> str:
        gpu = next((gpu for gpu in self._gpus if gpu.uuid == uuid), None)
        free = self._free(gpu) if gpu else []
        if gpu is None or not count.isdecimal() or not 0 < int(count) <= len(free):
            why = "error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
            return f"Failed to fulfill the requested SM partition of {count} chunks, {why}\n"
        name = f"D{base64.b64encode(secrets.token_bytes(24)).decode()[:31]}"
        self.all.append(SmPartition(gpu, name, tuple(free[: int(count)])))
        return f"Partition {uuid}/{name} created\n"

    def remove(self, name: str, in_use: Collection[str]) -> str:
        found = next((one for one in self.all if f"{one.gpu.uuid}/{one.name}" == name), None)
        if found is None:
            return f"Partition {name} not found\n"
        if name in in_use:
            return f"Partition {name} in use. Terminate all clients before removing.\n"
        self.all.remove(found)
        return ""

    def table(self, in_use: Collection[str]) -> str:
        """What `lspart` prints: a row for each GPU, and one for each partition."""
        rows: list[tuple[object, ...]] = []
        for gpu in self._gpus:
            own, free = [one for one in self.all if one.gpu is gpu], self._free(gpu)
            used = sum(len(one.chunks) for one in own)
            used_sms = used * gpu.sms_per_chunk
            rows.append((gpu.uuid[:12], "-", len(free), used, gpu.sms - used_sms, used_sms, "-"))
            for one in own:
                clients = "Yes" if f"{gpu.uuid}/{one.name}" in in_use else "No"
                rows.append((gpu.uuid[:12], one.name, "-", len(one.chunks), "-", one.sms, clients))
        return _HEADER + "".join("{:<14}{:<34}{:<8}{:<8}{:<6}{:<6}{}\n".format(*row) for row in rows)

    def _free(self, gpu: SimulatedGpu) -> list[int]:
        taken = {chunk for one in self.all if one.gpu is gpu for chunk in one.chunks}
        every = range(gpu.sms // gpu.sms_per_chunk if gpu.sms_per_chunk else 0)
        return [chunk for chunk in every if chunk not in taken]
