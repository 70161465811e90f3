"""Which pod a process belongs to, by its cgroup.

One rule: the outermost pod counts. A container that may make cgroups of its own (Docker or kind inside a pod) writes
whatever names it likes below its pod, and nothing above it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodCgroup:
    """uid: of the pod, in the API's form; of a static pod, 32 hexadecimal digits. container_id: empty where the
    process is in none of the pod's containers."""

    uid: str
    container_id: str


def pod_of_cgroup(text: str) -> PodCgroup | None:
    """The pod in the text of /proc/PID/cgroup (v1 or v2); None for a process of the host, or one nobody can place."""
    raise NotImplementedError
