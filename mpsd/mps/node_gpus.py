"""The GPUs of a node, NVML, and the environment of programs, real or simulated."""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.grants import Gpu
from mpsd.model.seen_gpus import (
    KnownGpus,
    SeenGpu,
    UnreadGpu,
    gpus_of,
    known_after,
    never_read,
    trouble_of,
)
from mpsd.mps.records import RecordFile
from mpsd.platform import processes
from mpsd.platform.logs import logger
from mpsd.platform.nvml import Nvml, NvmlFailed, NvmlLate

_LOOK_S = 2.0  # between two looks: a dozen calls a GPU
KNOWN_FILE = "known-gpus.json"  # in the run directory


@dataclass(frozen=True, slots=True)
class ServedGpus:
    """Every GPU, by ordinal; in place of one with MIG instances these. troubles: by UUID, why no
    program can be given it now."""

    gpus: tuple[Gpu, ...]
    troubles: Mapping[str, str] = field(default_factory=dict)


class NodeGpus:
    """Looks at the GPUs one by one: what one does not say leaves the others as they are. known: the
    file of what was told of them in this boot, by which one is known that is lost; None: no file.
    NvmlFailed where NVML does not even count them."""

    def __init__(self, nvml: Nvml, facts: GpuFacts, known: Path | None = None) -> None:
        self._nvml = nvml
        self._facts = facts
        self._known = KnownGpus(processes.boot_id())
        self._file: RecordFile[KnownGpus] | None = None
        if known:
            self._file = RecordFile(known, KnownGpus, logger())
        self._said: Mapping[int, SeenGpu | UnreadGpu] = {}  # at the last look, by ordinal
        self._looked_at = time.monotonic()
        self.now = self._look()

    def look(self) -> ServedGpus:
        """The same tuple of GPUs while none has changed."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S:
            return self.now
        self._looked_at = now
        found = self._look()
        if found.gpus == self.now.gpus:
            found = replace(found, gpus=self.now.gpus)
        self.now = found
        return found

    def _look(self) -> ServedGpus:
        ordinals: Iterable[int] = self._said
        try:
            ordinals = range(self._nvml.count())
        except NvmlFailed:  # as when every GPU hangs
            if not self._said:
                raise
        self._said = {ordinal: self._ask(ordinal) for ordinal in ordinals}
        seen = [one for one in self._said.values() if isinstance(one, SeenGpu)]
        if self._file and (known := self._file.read()):
            self._known = known
        self._known = known_after(self._known, seen)
        if self._file:
            with suppress(OSError):  # such as a full disk: at the next look
                if self._known != self._file.read():
                    self._file.write(self._known, mode=0o644)
        driver = ""
        with suppress(NvmlFailed):
            driver = self._nvml.driver()
        found: list[Gpu] = []
        troubles: dict[str, str] = {}
        for ordinal, said in self._said.items():
            one = self._known.at(ordinal) or never_read(ordinal)
            gpus = gpus_of(one, self._facts)
            found += gpus
            why = trouble_of(one, said, driver, self._facts)
            if why:
                troubles |= dict.fromkeys([gpu.uuid for gpu in gpus], why)
        return ServedGpus(tuple(found), troubles)

    def _ask(self, ordinal: int) -> SeenGpu | UnreadGpu:
        try:
            return self._nvml.at(ordinal)
        except NvmlLate as error:  # it may answer yet
            return self._said.get(ordinal, UnreadGpu(str(error)))
        except NvmlFailed as error:
            return UnreadGpu(str(error), error.is_loss)


@dataclass(slots=True)
class Node:
    """environment: of control daemons and commands. canary: its client. extra, path_first: of
    programs, beside limits. shared, device_lists: of containers: folders of the host, and variables
    for UUIDs; none where GPUs are real. troubles: as of `ServedGpus`."""

    nvml: Nvml
    gpus: tuple[Gpu, ...]
    environment: Mapping[str, str]
    canary: tuple[str, ...]
    extra: dict[str, str]
    path_first: str
    shared: tuple[str, ...] = ()
    device_lists: tuple[str, ...] = ()
    watched: NodeGpus | None = None  # None where the GPUs stay as they are
    troubles: Mapping[str, str] = field(default_factory=dict)

    def look(self) -> None:
        """Finds what has come, gone, or changed; what NVML does not say changes nothing."""
        if self.watched:
            seen = self.watched.look()
            self.gpus = seen.gpus
            self.troubles = seen.troubles


@dataclass(frozen=True, slots=True)
class Tools:
    """NVML, not open yet, and the environment of commands."""

    nvml: Nvml
    environment: Mapping[str, str]
