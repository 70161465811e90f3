"""What keeps a domain from serving: whatever stands in the way of its daemon, and whoever keeps its server from a GPU.

One rule: it only says so, with the remedy. To end a process is the agent's business, which knows whose it is.
"""

from collections.abc import Sequence

from mpsd.model.bare_commands import program_of
from mpsd.model.policy import Policy
from mpsd.mps import control_process
from mpsd.mps.domain_daemon import DomainDaemon, Place
from mpsd.platform import processes
from mpsd.platform.nvml import Nvml, NvmlFailed


class DomainObstacles:
    """Every answer is in words; empty when nothing is in the way."""

    def __init__(self, place: Place, gpus: Sequence[str], nvml: Nvml, daemon: DomainDaemon) -> None:
        self._place = place
        self._gpus = gpus
        self._nvml = nvml
        self._daemon = daemon

    def to_daemon(self, policy: Policy) -> str:
        """Why no daemon of ours can serve here."""
        if not control_process.program_found(self._place.environment):
            return "nvidia-cuda-mps-control is not on PATH; install the driver's compute utilities"
        try:
            for uuid in self._gpus:
                if self._nvml.mig_enabled(uuid):
                    return f"MIG is on for {uuid}; switch it off (nvidia-smi -mig 0) or leave this GPU to others"
            unreliable = self._daemon.canary.obstacle(policy)
        except NvmlFailed as error:
            return f"{error}; see that the driver works (nvidia-smi)"
        if self._daemon.foreign:
            whose = f"another control daemon ({self._daemon.identity})"
            return f"{whose} listens in {self._place.folder.pipe} for other GPUs; stop it (quit)"
        return unreliable if self._daemon.alive else ""

    def to_server(self) -> str:
        """Who has a GPU for itself, in compute mode EXCLUSIVE_PROCESS, so that no server comes up beside it."""
        try:
            exclusive = [uuid for uuid in self._gpus if self._nvml.compute_mode(uuid) == self._nvml.exclusive_process]
            found = next(((uuid, pid) for uuid in exclusive for pid in self._beside_mps(uuid)), None)
        except NvmlFailed:
            return ""
        if found is None:
            return ""
        uuid, pid = found
        # The program alone: the whole cluster reads it, and arguments may be secret.
        program = program_of(processes.command_of(pid))
        if processes.identity_of(pid) is None:
            return ""  # it has ended since, and has the GPU no more
        return f"no MPS server can start while pid {pid} has {uuid} for itself; end it: {program}"

    def _beside_mps(self, uuid: str) -> list[int]:
        """The living processes on a GPU that are neither clients of MPS nor our daemon's server. NvmlFailed."""
        on_mps = self._nvml.mps_pids(uuid)
        others = [pid for pid, _used in self._nvml.uses(uuid) if pid not in on_mps and processes.identity_of(pid)]
        daemon = self._daemon.identity
        ours = processes.descendants_of(daemon.pid) if others and daemon else ()
        return [pid for pid in others if pid not in ours]
