"""Whose a process of this machine is, and which pod it is in.

One rule: its cgroup says so, which is the kernel's word; what a process carries or claims counts for nothing.
"""

from pathlib import Path
from typing import Protocol

from mpsd.platform.rules.cgroups import PodCgroup, node_cgroup, pod_of_cgroup

_PROC = Path("/proc")


class Whereabouts(Protocol):
    """`PodProcesses` beside a kubelet, `ContainerProcesses` on a machine of its own."""

    def owner_of(self, pid: int) -> str | None:
        """The uid in the cgroup of the pod that the process is in, or the grant of its container; None where it is in
        none that can be told."""


class PodProcesses:
    """The processes of this node's pods, those of nested pid namespaces too: pids are those that mpsd sees."""

    def __init__(self) -> None:
        self._node = node_cgroup((_PROC / "self/cgroup").read_text())

    def owner_of(self, pid: int) -> str | None:
        """The uid in its pod's cgroup."""
        pod = self.pod_of(pid)
        return pod.uid if pod else None

    def pod_of(self, pid: int) -> PodCgroup | None:
        """None for a process of the host, one that nobody can place, and one that is gone.

        A process stays in the pod that it began in, so this need be asked once for each.
        """
        try:
            text = (_PROC / str(pid) / "cgroup").read_text(errors="surrogateescape")
        except (FileNotFoundError, ProcessLookupError):
            return None
        return pod_of_cgroup(text, self._node)
