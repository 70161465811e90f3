"""What a container gets for the devices that kubelet chose for it, or every reason why it cannot have it.

One rule: the ids alone say which GPU and how much memory, so a wrong guess at the pod can never lift a memory limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mpsd.core.domains import Domain
from mpsd.core.node_pods import ContainerName, NodePod
from mpsd.core.policy import Policy
from mpsd.core.share_request import ContainerRequest

Asking = tuple[NodePod, ContainerRequest]


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a container gets of each of `gpus` (UUIDs of one domain, in the domain's order).

    thread_percent None: the container asks for percent, and that resource's answer says how much.
    """

    domain: str
    gpus: tuple[str, ...]
    memory_mib: int
    thread_percent: int | None


@dataclass(frozen=True, slots=True)
class Held:
    """One entry of the journal: what was answered to one Allocate.

    pod None: nobody knew whom it was for. thread_percent None: no cap was answered. at: seconds since 1970. uid: of
    the pod, so that a pod of the same name that comes later is not taken for it.
    """

    resource: Literal["memory", "percent"]
    ids: tuple[str, ...]
    pod: ContainerName | None
    thread_percent: int | None
    boot_id: str
    at: float
    uid: str = ""


def allocate_memory(ids: Sequence[str], pod: Asking | None, domains: Sequence[Domain], policy: Policy) -> Allocation:
    """What the memory devices are worth. InvalidInput with every reason why no container can have them together.

    pod None: nobody knows whom they are for.
    """
    raise NotImplementedError


def allocate_percent(ids: Sequence[str], pod: Asking | None, policy: Policy) -> int:
    """The cap, 1 to 100, on each GPU of the container. InvalidInput where there can be none.

    pod None: nobody knows whom it is for; then it has one GPU.
    """
    raise NotImplementedError
