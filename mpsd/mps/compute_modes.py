"""Sets the compute mode that the policy wants on a domain's GPUs, and restores the one found. That
one is first written to a file for each GPU, for whoever restores it; where the file cannot be read,
the mode stays as it is."""

import asyncio
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from mpsd.model.grants import is_instance
from mpsd.model.node_view import DomainRecord
from mpsd.model.policy import Policy
from mpsd.mps import control_daemon
from mpsd.mps.control_daemon import ControlPipe
from mpsd.mps.node_gpus import Tools
from mpsd.mps.records import KeptRecord, of_this_boot
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import ControlFailed
from mpsd.platform import processes, records
from mpsd.platform.logs import Logger
from mpsd.platform.nvml import Nvml, NvmlFailed
from mpsd.platform.run_directory import DomainFolder


@dataclass(frozen=True, slots=True)
class FoundMode:
    """What a GPU was set to before mpsd; boot_id: in which boot."""

    gpu: str
    mode: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class FoundModes:
    """The files with the modes of GPUs before mpsd, in the run directory."""

    run_directory: Path

    def file(self, uuid: str) -> Path:
        return self.run_directory / "compute-modes" / f"{uuid}.json"

    def get(self, uuid: str) -> int | None:
        """The mode that was found; None where there is none of this boot. UnreadableRecord."""
        found = records.read(path := self.file(uuid), FoundMode)
        if found and (found.gpu != uuid or found.mode not in _NAMES):
            raise records.UnreadableRecord(path, f"it is of {found.gpu} and mode {found.mode}")
        return found.mode if found and found.boot_id == processes.boot_id() else None

    def put(self, uuid: str, mode: int) -> None:
        """OSError."""
        self.file(uuid).parent.mkdir(exist_ok=True, mode=0o755)
        records.write(self.file(uuid), FoundMode(uuid, mode, processes.boot_id()), mode=0o644)

    def remove(self, uuid: str) -> None:
        with suppress(OSError):
            self.file(uuid).unlink()


def why_unknown(error: records.UnreadableRecord, uuid: str) -> str:
    remedy = (
        f"set the mode yourself (nvidia-smi -i {uuid} -c DEFAULT), then run `rm"
        f" {shlex.quote(str(error.path))}`"
    )
    return f"{error.path} cannot be read: {error.reason}; {remedy}"


class ComputeModes:
    """The compute modes of a domain's GPUs. run_directory: may hold an earlier mpsd's files."""

    def __init__(self, nvml: Nvml, kept: KeptRecord, run_directory: Path, log: Logger) -> None:
        self._nvml = nvml
        self._kept = kept
        self._log = log
        self._files = FoundModes(run_directory)
        # exclusive_process of the policy that was last followed; None before that
        self._asked: bool | None = None

    def is_news(self, policy: Policy) -> bool:
        """Whether the policy differs from the one that was last followed."""
        return self._asked is not None and self._asked is not policy.exclusive_process

    def follow(self, policy: Policy) -> None:
        """Sets the policy's mode; the found ones are on disk before. Not on MIG instances, whose
        GPU can only be Default: there the watchdog alone keeps programs on MPS. NvmlFailed,
        OSError."""
        if not policy.exclusive_process:
            self._asked = False
            self.put_back()
            return
        known = self._known()
        for uuid in (
            one for one in self._kept.now.gpus if one not in known and not is_instance(one)
        ):
            known[uuid] = self._nvml.compute_mode(uuid)
        for uuid, mode in known.items():
            if mode is not None and not self._files.file(uuid).exists():
                self._files.put(uuid, mode)
        self._kept.change(
            compute_modes={uuid: mode for uuid, mode in known.items() if mode is not None}
        )
        self._asked = True
        for uuid, mode in known.items():
            if mode is not None:
                set_mode(self._nvml, uuid, self._nvml.exclusive_process)

    def try_to_follow(self, policy: Policy) -> None:
        """For a daemon that serves already, and continues where the mode cannot be set."""
        try:
            self.follow(policy)
        except (NvmlFailed, OSError) as error:
            self._log.warning("compute mode not set", reason=str(error))

    def put_back(self) -> None:
        """Restores each GPU's mode; what cannot be restored is logged, and stays on disk."""
        left = {}
        for uuid, mode in self._known().items():
            try:
                if mode is None:
                    continue
                if set_mode(self._nvml, uuid, mode):
                    self._log.info("compute mode put back", gpu=uuid, mode=mode)
                self._files.remove(uuid)
            except NvmlFailed as error:
                self._log.warning(
                    "compute mode not put back", gpu=uuid, mode=mode, reason=str(error)
                )
                left[uuid] = mode
        self._kept.change(compute_modes=left)

    def _known(self) -> dict[str, int | None]:
        """The modes that were found, by GPU; None, and logged, where the file cannot be read."""
        known: dict[str, int | None] = {}
        for uuid in self._kept.now.gpus:
            try:
                if (mode := self._files.get(uuid)) is not None:
                    known[uuid] = mode
                elif self._files.file(uuid).exists():  # of another boot
                    self._files.remove(uuid)
            except records.UnreadableRecord as error:
                known[uuid] = None
                self._log.error(
                    "compute mode left as it is", gpu=uuid, reason=why_unknown(error, uuid)
                )
        return known


def set_mode(nvml: Nvml, uuid: str, mode: int) -> bool:
    """Sets a GPU's mode; False where it is set already. NvmlFailed."""
    if nvml.compute_mode(uuid) == mode:
        return False
    nvml.set_compute_mode(uuid, mode)
    return True


# -- what the last mpsd of a node leaves behind: `mpsd control --release` ------------------------

_COMMAND_S = 2.0  # for a command; no policy is read here
_NAMES = {0: "DEFAULT", 1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}  # NVML's


class ReleaseOutcome(StrEnum):
    """What became of a GPU's compute mode."""

    PUT_BACK = "put back"
    WAS_SO = "was so already"
    LEFT = "left as it is"


@dataclass(frozen=True, slots=True)
class Released:
    """gpu, mode: None where the record is unreadable. reason: why it was not restored."""

    domain: str
    gpu: str | None
    mode: str | None
    outcome: ReleaseOutcome
    reason: str = ""


def release(run_directory: Path, find_tools: Callable[[], Tools]) -> tuple[Released, ...]:
    """Restores the modes of all GPUs in records of this boot; GPUs in use keep theirs. The run
    directory must be held. find_tools: called only where needed. NvmlFailed where there is no
    driver."""
    found = []
    done = []
    files = FoundModes(run_directory)
    for folder, record in of_this_boot(run_directory):
        if isinstance(record, records.UnreadableRecord):
            remedy = "set the mode yourself (nvidia-smi -i GPU -c DEFAULT), then remove the file"
            reason = f"{folder.record} cannot be read: {record.reason}; {remedy}"
            done.append(Released(folder.path.name, None, None, ReleaseOutcome.LEFT, reason))
        elif any(files.file(uuid).exists() for uuid in record.gpus):
            found.append((folder, record))
    if not found:
        return tuple(done)
    tools = find_tools()
    tools.nvml.open()
    try:
        for folder, record in found:
            why = asyncio.run(
                _in_use(folder, record, ControlPipe(folder.pipe, tools.environment, _COMMAND_S))
            )
            rows = tuple(_released(record, files, tools.nvml, why))
            back = {row.gpu for row in rows if row.outcome is not ReleaseOutcome.LEFT}
            modes = {uuid: mode for uuid, mode in record.compute_modes.items() if uuid not in back}
            records.write(folder.record, replace(record, compute_modes=modes), mode=0o644)
            done += rows
        return tuple(done)
    finally:
        tools.nvml.close()


def _released(
    record: DomainRecord, files: FoundModes, nvml: Nvml, in_use: str
) -> Iterator[Released]:
    for uuid in record.gpus:
        try:
            mode = files.get(uuid)
        except records.UnreadableRecord as error:
            yield Released(record.domain, None, None, ReleaseOutcome.LEFT, why_unknown(error, uuid))
            continue
        if mode is None:
            continue
        name = _NAMES.get(mode, str(mode))
        if in_use:
            yield Released(record.domain, uuid, name, ReleaseOutcome.LEFT, in_use)
            continue
        try:
            changed = set_mode(nvml, uuid, mode)
        except NvmlFailed as error:
            yield Released(record.domain, uuid, name, ReleaseOutcome.LEFT, str(error))
        else:
            files.remove(uuid)
            yield Released(
                record.domain,
                uuid,
                name,
                ReleaseOutcome.PUT_BACK if changed else ReleaseOutcome.WAS_SO,
            )


async def _in_use(folder: DomainFolder, record: DomainRecord, pipe: ControlPipe) -> str:
    """Why the modes cannot be changed now; empty where no program would be affected."""
    try:
        daemon = control_daemon.listener(folder)
        if daemon is None:
            alive = record.daemon is not None and processes.is_alive(record.daemon)
            return (
                f"its control daemon ({record.daemon}) runs and does not listen; end it first"
                if alive
                else ""
            )
        servers = await pipe.ask(control_protocol.server_list())
        clients = [pid for each in await pipe.clients(servers) for pid in each]
    except (ControlFailed, OSError) as error:
        return f"its control daemon does not report its clients: {error}; end it first"
    if clients:
        return (
            f"its control daemon ({daemon}) has clients: pid {', '.join(map(str, clients))}; end"
            " them first"
        )
    return ""
