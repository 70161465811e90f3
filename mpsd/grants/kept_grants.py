"""The grants that `mpsd up` keeps on disk: a program's and a container's. A pod's is for kubelet to keep.

One rule: what must be known of a holder after a restart is in its grant.
"""

from dataclasses import dataclass

from mpsd.model.grants import Grant
from mpsd.model.identity import HostContainer, ProcessIdentity
from mpsd.platform.rules.cgroups import Cgroup


@dataclass(frozen=True, slots=True)
class ProgramGrant(Grant):
    """A grant to a program of this machine."""

    holder: ProcessIdentity


@dataclass(frozen=True, slots=True)
class ContainerGrant(Grant):
    """A grant to a container without Kubernetes.

    oom_script: called before a process of it is ended for its memory; empty for none. runtime: the program that made
    the container. cgroups: those that it has to itself; none before it is made.
    """

    holder: HostContainer
    oom_script: str = ""
    runtime: str = "runc"
    cgroups: tuple[Cgroup, ...] = ()


KeptGrant = ProgramGrant | ContainerGrant
