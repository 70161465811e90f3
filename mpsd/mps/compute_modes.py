"""Sets the compute mode of a domain's GPUs that the policy wants, and restores the one that was found.

The mode that was found is recorded before anything is changed, so that whoever comes next can restore it: a clean stop,
a changed policy, the next start, or `mpsd control --release`.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from mpsd.model.node_view import DomainRecord, is_of_boot
from mpsd.model.policy import Policy
from mpsd.mps import control_daemon
from mpsd.mps.control_daemon import ControlFailed, ControlPipe
from mpsd.mps.node import Tools
from mpsd.mps.records import KeptRecord
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import NotUnderstood
from mpsd.platform import processes, records
from mpsd.platform.logs import Logger
from mpsd.platform.nvml import Nvml, NvmlFailed
from mpsd.platform.run_directory import DomainFolder


class ComputeModes:
    """The compute modes of a domain's GPUs. run_directory: where an earlier mpsd may have left records of them."""

    def __init__(self, nvml: Nvml, kept: KeptRecord, run_directory: Path, log: Logger) -> None:
        self._nvml = nvml
        self._kept = kept
        self._run_directory = run_directory
        self._log = log
        self._asked: bool | None = None  # exclusive_process of the policy that was last followed; None before that

    def is_news(self, policy: Policy) -> bool:
        """Whether the policy differs from the one that was last followed."""
        return self._asked is not None and self._asked is not policy.exclusive_process

    def follow(self, policy: Policy) -> None:
        """Sets the policy's mode; the modes that were found are on disk before. NvmlFailed."""
        self._kept.change(compute_modes=self._found(policy))
        self._kept.change(compute_modes=self._apply(policy))

    def try_to_follow(self, policy: Policy) -> None:
        """For a daemon that serves already, and continues where the mode cannot be set."""
        try:
            self.follow(policy)
        except NvmlFailed as error:
            self._log.warning("compute mode not set", reason=str(error))

    def _found(self, policy: Policy) -> dict[str, int]:
        """The modes before mpsd: those of earlier records, else what the GPUs have now. NvmlFailed."""
        record = self._kept.now
        if not policy.exclusive_process:
            return record.compute_modes
        known = {**recorded(self._run_directory), **record.compute_modes}
        return {uuid: known[uuid] if uuid in known else self._nvml.compute_mode(uuid) for uuid in record.gpus}

    def _apply(self, policy: Policy) -> dict[str, int]:
        """Sets the policy's mode where it differs; returns what is to be restored later. NvmlFailed."""
        record, self._asked = self._kept.now, policy.exclusive_process
        if not policy.exclusive_process:
            return self.put_back(record.compute_modes)
        for uuid in record.gpus:
            if self._nvml.compute_mode(uuid) != self._nvml.exclusive_process:
                self._nvml.set_compute_mode(uuid, self._nvml.exclusive_process)
        return record.compute_modes

    def put_back(self, modes: Mapping[str, int]) -> dict[str, int]:
        """Restores each GPU's mode; returns those that could not be restored, which are logged."""
        left = {}
        for uuid, mode in modes.items():
            try:
                if put_back(self._nvml, uuid, mode):
                    self._log.info("compute mode put back", gpu=uuid, mode=mode)
            except NvmlFailed as error:
                self._log.warning("compute mode not put back", gpu=uuid, mode=mode, reason=str(error))
                left[uuid] = mode
        return left


def put_back(nvml: Nvml, uuid: str, mode: int) -> bool:
    """Restores a GPU's mode; False where it is set already. NvmlFailed."""
    if nvml.compute_mode(uuid) == mode:
        return False
    nvml.set_compute_mode(uuid, mode)
    return True


def recorded(run_directory: Path) -> dict[str, int]:
    """The modes of GPUs before mpsd, from every readable record of this boot: domains may have changed."""
    modes: dict[str, int] = {}
    for path in sorted(run_directory.glob("gpu*/record.json")):
        try:
            record = records.read(path, DomainRecord)
        except records.UnreadableRecord:
            continue  # logged by the supervisor of that domain
        if record and is_of_boot(record, processes.boot_id()):
            modes |= record.compute_modes
    return modes


# -- what the last mpsd of a node leaves behind: `mpsd control --release` -----------------------------------------

_COMMAND_S = 2.0
_NAMES = {0: "DEFAULT", 1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}  # NVML's


class ReleaseOutcome(StrEnum):
    """What became of a GPU's compute mode."""

    PUT_BACK = "put back"
    WAS_SO = "was so already"
    LEFT = "left as it is"


@dataclass(frozen=True, slots=True)
class Released:
    """The outcome for one GPU. gpu, mode: None where the record cannot be read. mode: the name of the mode before mpsd.
    reason: why it was not restored, else empty.
    """

    domain: str
    gpu: str | None
    mode: str | None
    outcome: ReleaseOutcome
    reason: str = ""


def release(run_directory: Path, find_tools: Callable[[], Tools]) -> tuple[Released, ...]:
    """Restores the mode of every GPU in a record of this boot; empty where nothing was left behind.

    Nothing is changed under a program: while one is on MPS, or the daemon does not say, its GPUs keep their mode. The
    run directory must be held. find_tools: called where there is something to put back. NvmlFailed where there is no
    driver.
    """
    found, done = _records(run_directory)
    if not found:
        return tuple(done)
    tools = find_tools()
    tools.nvml.open()
    try:
        for folder, record in found:
            why = asyncio.run(_in_use(folder, record, ControlPipe(folder.pipe, tools.environment, _COMMAND_S)))
            rows = tuple(_released(record, tools.nvml, why))
            left = {row.gpu for row in rows if row.outcome is ReleaseOutcome.LEFT}
            modes = {uuid: mode for uuid, mode in record.compute_modes.items() if uuid in left}
            records.write(folder.record, replace(record, compute_modes=modes), mode=0o644)
            done += rows
        return tuple(done)
    finally:
        tools.nvml.close()


def _records(run_directory: Path) -> tuple[list[tuple[DomainFolder, DomainRecord]], list[Released]]:
    """The records of this boot with a mode to restore, and the outcome of each that cannot be read."""
    found, unreadable = [], []
    for path in sorted(run_directory.glob("gpu*/record.json")):
        try:
            record = records.read(path, DomainRecord)
        except records.UnreadableRecord as error:
            remedy = "set the mode yourself (nvidia-smi -i GPU -c DEFAULT), then remove the file"
            reason = f"{path} cannot be read: {error.reason}; {remedy}"
            unreadable.append(Released(path.parent.name, None, None, ReleaseOutcome.LEFT, reason))
            continue
        if record and record.compute_modes and is_of_boot(record, processes.boot_id()):
            found.append((DomainFolder(path.parent), record))
    return found, unreadable


def _released(record: DomainRecord, nvml: Nvml, in_use: str) -> Iterator[Released]:
    for uuid, mode in record.compute_modes.items():
        name = _NAMES.get(mode, str(mode))
        if in_use:
            yield Released(record.domain, uuid, name, ReleaseOutcome.LEFT, in_use)
            continue
        try:
            changed = put_back(nvml, uuid, mode)
        except NvmlFailed as error:
            yield Released(record.domain, uuid, name, ReleaseOutcome.LEFT, str(error))
        else:
            yield Released(record.domain, uuid, name, ReleaseOutcome.PUT_BACK if changed else ReleaseOutcome.WAS_SO)


async def _in_use(folder: DomainFolder, record: DomainRecord, pipe: ControlPipe) -> str:
    """Why the modes cannot be changed now; empty where no program would be affected."""
    try:
        daemon = control_daemon.listener(folder)
        if daemon is None:
            alive = record.daemon is not None and processes.is_alive(record.daemon)
            return f"its control daemon ({record.daemon}) runs and does not listen; end it first" if alive else ""
        servers = await pipe.ask(control_protocol.server_list())
        clients = [pid for each in await pipe.clients(servers) for pid in each]
    except (ControlFailed, NotUnderstood, OSError) as error:
        return f"its control daemon does not report its clients: {error}; end it first"
    if clients:
        return f"its control daemon ({daemon}) has clients: pid {', '.join(map(str, clients))}; end them first"
    return ""
