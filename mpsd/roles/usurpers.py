"""Who has a domain's GPU for itself while the domain has no MPS server.

One rule: it only says who, and only in compute mode EXCLUSIVE_PROCESS, where no server comes up beside it. To end it is
the agent's business, which knows whose process it is.
"""

from collections.abc import Iterable

from mpsd.core.identity import ProcessIdentity
from mpsd.edge import processes
from mpsd.edge.nvml import Nvml


def usurper(nvml: Nvml, gpus: Iterable[str], daemon: ProcessIdentity) -> str:
    """In words; empty where there is none. daemon: whose server it is not. NvmlFailed."""
    ours: tuple[int, ...] | None = None
    for uuid in gpus:
        if nvml.compute_mode(uuid) != nvml.exclusive_process:
            continue
        on_mps = nvml.mps_pids(uuid)
        for pid, _used in nvml.uses(uuid):
            if ours is None:
                ours = processes.descendants_of(daemon.pid)
            if pid not in on_mps and pid not in ours and processes.identity_of(pid):
                command = processes.command_of(pid)
                return f"no MPS server can start while pid {pid} has {uuid} for itself; end it: {command}"
    return ""
