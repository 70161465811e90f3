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
from mpsd.mps.records import KeptRecord, of_this_boot, read_of_this_boot
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import ControlFailed
from mpsd.platform import processes, records
from mpsd.platform.logs import Logger
from mpsd.platform.nvml import EXCLUSIVE_PROCESS, Nvml, NvmlFailed
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
        found = read_of_this_boot(self.file(uuid), FoundMode)
        if found is None:
            return None
        if found.gpu != uuid or found.mode not in _NAMES:
            why = f"it is of {found.gpu} and mode {found.mode}"
            raise records.UnreadableRecord(self.file(uuid), why)
        return found.mode

    def put(self, uuid: str, mode: int) -> None:
        """OSError."""
        self.file(uuid).parent.mkdir(exist_ok=True, mode=0o755)
        records.write(self.file(uuid), FoundMode(uuid, mode, processes.boot_id()), mode=0o644)

    def remove(self, uuid: str) -> None:
        with suppress(OSError):
            self.file(uuid).unlink()


def why_unknown(error: records.UnreadableRecord, uuid: str) -> str:
    by_hand = f"set the mode yourself (nvidia-smi -i {uuid} -c DEFAULT)"
    remedy = f"{by_hand}, then run `rm {shlex.quote(str(error.path))}`"
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
        found: dict[str, int] = {}
        new: dict[str, int] = {}
        for uuid in self._kept.now.gpus:
            try:
                mode = self._files.get(uuid)
            except records.UnreadableRecord as error:
                self._log_left(uuid, why_unknown(error, uuid))
                continue
            if mode is None and not is_instance(uuid):
                mode = self._nvml.compute_mode(uuid)
                new[uuid] = mode
            if mode is not None:
                found[uuid] = mode
        for uuid, mode in new.items():  # once all are known: a mode that is kept is of this moment
            self._files.put(uuid, mode)
        self._kept.change(compute_modes=found)
        self._asked = True
        for uuid in found:
            set_mode(self._nvml, uuid, EXCLUSIVE_PROCESS)

    def try_to_follow(self, policy: Policy) -> None:
        """For a daemon that serves already, and continues where the mode cannot be set."""
        try:
            self.follow(policy)
        except (NvmlFailed, OSError) as error:
            self._log.warning("compute mode not set", reason=str(error))

    def put_back(self) -> None:
        """Restores each GPU's mode; what cannot be restored is logged, and stays on disk."""
        left = {}
        for uuid in self._kept.now.gpus:
            try:
                if (mode := self._files.get(uuid)) is None:
                    self._files.remove(uuid)  # of another boot
                    continue
                if set_mode(self._nvml, uuid, mode):
                    self._log.info("compute mode put back", gpu=uuid, mode=mode)
                self._files.remove(uuid)
            except records.UnreadableRecord as error:
                self._log_left(uuid, why_unknown(error, uuid))
            except NvmlFailed as error:
                about = {"gpu": uuid, "mode": mode}
                self._log.warning("compute mode not put back", **about, reason=str(error))
                left[uuid] = mode
        self._kept.change(compute_modes=left)

    def _log_left(self, uuid: str, reason: str) -> None:
        self._log.error("compute mode left as it is", gpu=uuid, reason=reason)


def set_mode(nvml: Nvml, uuid: str, mode: int) -> bool:
    """Sets a GPU's mode; False where it is set already. NvmlFailed."""
    if nvml.compute_mode(uuid) == mode:
        return False
    nvml.set_compute_mode(uuid, mode)
    return True


# -- what the last mpsd of a node leaves behind: `mpsd control --release`

_COMMAND_S = 2.0  # for a command; no policy is read here
_ONCE_IT_ANSWERS = (
    "run this again once nvidia-smi lists the GPU, or reboot: then every GPU is DEFAULT"
)
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

    @property
    def is_left(self) -> bool:
        return self.outcome is ReleaseOutcome.LEFT


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
            pipe = ControlPipe(folder.pipe, tools.environment, _COMMAND_S)
            why = asyncio.run(_in_use(folder, record, pipe))
            modes = dict(record.compute_modes)
            for row in _released(record, files, tools.nvml, why):
                done.append(row)
                if not row.is_left:
                    modes.pop(row.gpu or "", None)
            # such as a full disk: the files of the modes count, and the other domains go on
            with suppress(OSError):
                records.write(folder.record, replace(record, compute_modes=modes), mode=0o644)
        return tuple(done)
    finally:
        tools.nvml.close()


def _released(
    record: DomainRecord, files: FoundModes, nvml: Nvml, in_use: str
) -> Iterator[Released]:
    left = ReleaseOutcome.LEFT
    for uuid in record.gpus:
        try:
            mode = files.get(uuid)
        except records.UnreadableRecord as error:
            yield Released(record.domain, None, None, left, why_unknown(error, uuid))
            continue
        if mode is None:
            continue
        name = _NAMES[mode]
        if in_use:
            yield Released(record.domain, uuid, name, left, in_use)
            continue
        outcome = ReleaseOutcome.WAS_SO
        try:
            if set_mode(nvml, uuid, mode):
                outcome = ReleaseOutcome.PUT_BACK
        except NvmlFailed as error:
            yield Released(record.domain, uuid, name, left, f"{error}; {_ONCE_IT_ANSWERS}")
        else:
            files.remove(uuid)
            yield Released(record.domain, uuid, name, outcome)


async def _in_use(folder: DomainFolder, record: DomainRecord, pipe: ControlPipe) -> str:
    """Why the modes cannot be changed now; empty where no program would be affected."""
    try:
        daemon = control_daemon.listener(folder)
        if daemon is None:
            if record.daemon is None or not processes.is_alive(record.daemon):
                return ""
            return f"its control daemon ({record.daemon}) runs and does not listen; end it first"
        servers = await pipe.ask(control_protocol.server_list())
        clients = await pipe.clients(servers)
    except (ControlFailed, OSError) as error:
        return f"its control daemon does not report its clients: {error}; end it first"
    if not clients:
        return ""
    pids = ", ".join(map(str, clients))
    return f"its control daemon ({daemon}) has clients: pid {pids}; end them first"
