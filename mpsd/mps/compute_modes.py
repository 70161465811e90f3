"""Sets the compute mode that the policy asks for, and puts back what was there.

One rule: what was found is written down before anything is changed, so that whoever comes next can put it back: a clean
stop, a policy that wants it no more, the next start, or `mpsd control --release`.
"""

from collections.abc import Mapping
from pathlib import Path

from mpsd.model.node_view import DomainRecord, is_of_boot
from mpsd.model.policy import Policy
from mpsd.mps.records import KeptRecord
from mpsd.platform import processes, records
from mpsd.platform.logs import Logger
from mpsd.platform.nvml import Nvml, NvmlFailed


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
