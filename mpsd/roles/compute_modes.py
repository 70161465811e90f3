"""Sets the compute mode that the policy asks for, and puts back what was there.

One rule: what was found is written down before anything is changed, and nothing is changed where the policy says no.
"""

from mpsd.core.node_view import DomainRecord
from mpsd.core.policy import Policy
from mpsd.edge.nvml import Nvml


class ComputeModes:
    """The compute modes of a domain's GPUs."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml

    def take(self, record: DomainRecord, policy: Policy) -> dict[str, int]:
        """What the GPUs are set to, but for those of which an earlier start already wrote it down."""
        if not policy.exclusive_process:
            return record.compute_modes
        return {uuid: self._nvml.compute_mode(uuid) for uuid in record.gpus} | record.compute_modes

    def apply(self, record: DomainRecord, policy: Policy) -> None:
        """EXCLUSIVE_PROCESS on every GPU, where the policy asks for it and it is not so already."""
        if policy.exclusive_process:
            for uuid in record.gpus:
                if self._nvml.compute_mode(uuid) != self._nvml.exclusive_process:
                    self._nvml.set_compute_mode(uuid, self._nvml.exclusive_process)

    def put_back(self, uuid: str, mode: int) -> bool:
        """Sets a GPU back to what was found on it; False where that is what it has."""
        if self._nvml.compute_mode(uuid) == mode:
            return False
        self._nvml.set_compute_mode(uuid, mode)
        return True
