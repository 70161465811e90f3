"""The card at hand, and what a client on it must see: by mpsd's own facts and reading of the
limits, so that the same tests hold on any GPU, and a wrong figure in mpsd fails here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from mpsd.model.cuda_limit_parser import (
    CUDA_VISIBLE_DEVICES,
    Lifted,
    Limited,
    Unset,
    Unusable,
    memory_limit_as_read,
    thread_percent_as_read,
)
from mpsd.model.gpu_facts import Capability, GpuFacts
from mpsd.platform.limits_files import read_gpu_facts

# MiB: what a context costs is a straight line in the facts, and up to 4 beside it at 42 SMs of an
# H200
NEAR_MIB = 5
NVML_NEAR_MIB = 8  # NVML counts a little more than the limit does


def facts() -> GpuFacts:
    path = Path(__file__).parents[2] / "limits" / "gpus.yaml"
    return read_gpu_facts(yaml.safe_load(path.read_text()), path.name)


def near(mib: int, within: int = NEAR_MIB) -> Any:
    return pytest.approx(mib, abs=within)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client that is alone on its GPU must see."""

    free_mib: int
    sms: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """No context can be made."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card; `memory_mib` is what CUDA calls its total."""

    uuid: str
    name: str
    memory_mib: int
    sms: int
    capability: Capability

    @property
    def alone(self) -> dict[str, str]:
        """The environment of who sees no other."""
        return {CUDA_VISIBLE_DEVICES: self.uuid}

    def context_mib(self, sms: int = 0) -> int:
        """sms: that it may use; 0 for all."""
        return self.capability.context_cost_mib(sms or self.sms)

    def seen(
        self,
        *,
        memory: str | None = None,
        percent: str | None = None,
        visible: Sequence[str] = (),
        ordinal: int = 0,
        server_mib: int | None = None,
        server_percent: int = 100,
    ) -> Seen | OutOfMemory:
        """None: a variable or limit that is not set. visible: what the process sees where that
        is not this one GPU; ordinal: this GPU's place in it."""
        sms = self.capability.sms_given(
            min(int(thread_percent_as_read(percent)), server_percent), self.sms
        )
        card_mib = self.memory_mib - self.capability.server_mib - self.context_mib(sms)
        limits_mib = [] if server_mib is None else [server_mib]
        match memory_limit_as_read(memory, visible or [self.uuid]):
            case Unusable():
                return OutOfMemory()
            case Lifted():
                limits_mib = []
            case Limited(bytes_by_ordinal) if ordinal in bytes_by_ordinal:
                limits_mib.append(bytes_by_ordinal[ordinal] // 1024**2)
            case Limited() | Unset():
                pass
        free_mib = min([limit - self.context_mib(sms) for limit in limits_mib], default=card_mib)
        return Seen(min(free_mib, card_mib), sms) if free_mib > 0 else OutOfMemory()
