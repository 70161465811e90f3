"""Which process is meant.

A pid alone proves nothing, since pids are used again; pid, start time and boot id together do.
"""

from dataclasses import dataclass

END_UNKNOWN = "ended"  # how a process ended, where nothing else is known


def killed_by(name: str) -> str:
    """How a process ended, in words. name: of the signal."""
    return f"killed by {name}"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process for ever. start_ticks: field 22 of /proc/PID/stat. boot_id: the kernel's."""

    pid: int
    start_ticks: int
    boot_id: str

    def __str__(self) -> str:
        return f"pid {self.pid}"


@dataclass(frozen=True, slots=True)
class HostContainer:
    """A container that runs here without Kubernetes. root: of its runtime (`--root`); id: unique
    there. name: as people know it, empty where it has none. process: its first one; before that is
    there (is_made False), the runtime's that makes it.
    """

    root: str
    id: str
    name: str
    process: ProcessIdentity
    is_made: bool

    def __str__(self) -> str:
        return f"container {self.name or self.id[:12]}"


def process_of(holder: ProcessIdentity | HostContainer) -> ProcessIdentity:
    """The process that has to live for its grant to last."""
    return holder.process if isinstance(holder, HostContainer) else holder


@dataclass(frozen=True, slots=True)
class PodName:
    """One pod for ever, by its uid; that is empty where it is not known."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
