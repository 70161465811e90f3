"""What each pod of this node has been granted: the books of the device plugin, read back from kubelet.

One rule: a device counts for one pod at most, and kubelet's word goes before the journal's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mpsd.core.allocation import Held
from mpsd.core.domains import Domain
from mpsd.core.grants import Grant
from mpsd.core.node_pods import ContainerName, NodePod
from mpsd.core.policy import Policy


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The device ids that kubelet says a container holds, of both resources."""

    container: ContainerName
    memory: tuple[str, ...] = ()
    percent: tuple[str, ...] = ()


def pod_grants(
    held: Sequence[ContainerDevices],
    journal: Sequence[Held],
    pods: Sequence[NodePod],
    domains: Sequence[Domain],
    policy: Policy,
) -> tuple[Grant, ...]:
    """One grant for each pod that holds memory devices, in the order of their ids.

    held: what kubelet's PodResources say, which leave out init containers. journal: of this boot, for init containers
    and for what was allocated since kubelet was asked.
    """
    raise NotImplementedError
