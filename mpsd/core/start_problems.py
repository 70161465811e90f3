"""Why a container may not start on the devices it holds: the check that Allocate could not make.

One rule: what is wrong for good is told from what passes by itself, because the first ends the pod and the second
only makes it wait. What cannot be known (no journal since a reboot, no word from the API) is no reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mpsd.core.allocation import Held
from mpsd.core.grants import Gpu
from mpsd.core.node_pods import NodePod
from mpsd.core.node_view import DomainRecord
from mpsd.core.pod_grants import ContainerDevices
from mpsd.core.policy import Policy


@dataclass(frozen=True, slots=True)
class StartProblem:
    """One reason. rule: its stable name. waits: kubelet is to try again; else the pod is to be evicted."""

    rule: str
    sentence: str
    waits: bool


@dataclass(frozen=True, slots=True)
class Holdings:
    """Everything that a start is held against. held: of all containers of the node. journal: of this boot.

    records: one a domain that `mpsd control` has; pods: those of this node that ask for a GPU, as far as is known.
    """

    gpus: tuple[Gpu, ...]
    records: tuple[DomainRecord, ...]
    held: tuple[ContainerDevices, ...]
    journal: tuple[Held, ...]
    pods: tuple[NodePod, ...]


def starting_container(ids: Sequence[str], node: Holdings) -> ContainerDevices | None:
    """The container that kubelet is about to start with these devices of one resource; None where nobody knows.

    kubelet's PodResources leave out init containers, whose devices later containers of the pod use again.
    """
    raise NotImplementedError


def start_problems(starting: ContainerDevices, node: Holdings, policy: Policy) -> tuple[StartProblem, ...]:
    """Every reason why this container may not start; none where it may."""
    raise NotImplementedError
