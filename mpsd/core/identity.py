"""Which process is meant.

One rule: a pid alone proves nothing, since pids are used again; pid, start time and boot id together do.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process for ever: start_ticks is field 22 of /proc/PID/stat, boot_id the kernel's random id of this boot."""

    pid: int
    start_ticks: int
    boot_id: str

    def __str__(self) -> str:
        return f"pid {self.pid}"


@dataclass(frozen=True, slots=True)
class PodName:
    """One pod for ever: its name may be used again, its uid is not. uid: empty where it is not known."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
