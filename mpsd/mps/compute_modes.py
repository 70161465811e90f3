"""Sets the compute mode that the policy asks for, and puts back what was there.

One rule: what was found is written down before anything is changed, so that whoever comes next can put it back: a clean
stop, a policy that wants it no more, the next start, or `mpsd control --release`.
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
        self._asked: bool | None = None  # what the policy said when it was last followed; None before that

    def is_news(self, policy: Policy) -> bool:
        """Whether the policy says something else than when it was last followed."""
        return self._asked is not None and self._asked is not policy.exclusive_process

    def follow(self, policy: Policy) -> None:
        """Sets what the policy says; what the GPUs had is on disk before a crash can lose it. NvmlFailed."""
        self._kept.change(compute_modes=self._found(policy))
        self._kept.change(compute_modes=self._apply(policy))

    def try_to_follow(self, policy: Policy) -> None:
        """For a daemon that serves already, and goes on where it cannot be done."""
        try:
            self.follow(policy)
        except NvmlFailed as error:
            self._log.warning("compute mode not set", reason=str(error))

    def _found(self, policy: Policy) -> dict[str, int]:
        """What the GPUs are set to, but for those of which an earlier start already wrote it down. NvmlFailed."""
        record = self._kept.now
        if not policy.exclusive_process:
            return record.compute_modes
        known = {**recorded(self._run_directory), **record.compute_modes}
        return {uuid: known[uuid] if uuid in known else self._nvml.compute_mode(uuid) for uuid in record.gpus}

    def _apply(self, policy: Policy) -> dict[str, int]:
        """Sets what the policy says, where it is not so already; what is to be put back later. NvmlFailed."""
        record, self._asked = self._kept.now, policy.exclusive_process
        if not policy.exclusive_process:
            return self.put_back(record.compute_modes)
        for uuid in record.gpus:
            if self._nvml.compute_mode(uuid) != self._nvml.exclusive_process:
                self._nvml.set_compute_mode(uuid, self._nvml.exclusive_process)
        return record.compute_modes

    def put_back(self, modes: Mapping[str, int]) -> dict[str, int]:
        """Sets each GPU back to what was found on it; those that could not be, which the log names."""
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
    """Sets a GPU back to what was found on it; False where that is what it has. NvmlFailed."""
    if nvml.compute_mode(uuid) == mode:
        return False
    nvml.set_compute_mode(uuid, mode)
    return True


def recorded(run_directory: Path) -> dict[str, int]:
    """What GPUs were set to before mpsd, by every record of this boot that can be read: domains may have changed."""
    modes: dict[str, int] = {}
    for path in sorted(run_directory.glob("gpu*/record.json")):
        try:
            record = records.read(path, DomainRecord)
        except records.UnreadableRecord:
            continue  # whoever keeps that domain says so
        if record and is_of_boot(record, processes.boot_id()):
            modes |= record.compute_modes
    return modes


# What is put back after the last mpsd of a node: `mpsd control --release`.

_COMMAND_S = 2.0
_NAMES = {0: "DEFAULT", 1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}  # NVML's


class ReleaseOutcome(StrEnum):
    """What became of a GPU's compute mode."""

    PUT_BACK = "put back"
    WAS_SO = "was so already"
    LEFT = "left as it is"


@dataclass(frozen=True, slots=True)
class Released:
    """gpu, mode: None where the record cannot be read. mode: the name of what was found before mpsd. reason: why it was
    left as it is; empty where it was not.
    """

    domain: str
    gpu: str | None
    mode: str | None
    outcome: ReleaseOutcome
    reason: str = ""


def release(run_directory: Path, find_tools: Callable[[], Tools]) -> tuple[Released, ...]:
    """What became of every GPU that a record of this boot names; none where nothing was left behind.

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
    """Those of this boot with a mode to put back, and the outcome of each record that cannot be read."""
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
