"""The annotations that say which GPU a pod has: mpsd's own, and gpushare's in their two formats.

One rule: whatever text is in them, reading never raises, and names GPUs of this node or none.
Sources: https://github.com/AliyunContainerService/gpushare-scheduler-extender (v1), the same keys as v2 in
https://github.com/koordinator-sh/koordinator, apis/extension/ack (v2: allocation, assigned, assume-time).
"""

from collections.abc import Mapping, Sequence

from mpsd.core.grants import Gpu
from mpsd.core.node_pods import NodePod
from mpsd.core.pod_grants import ContainerDevices
from mpsd.core.policy import Policy

GPU = "mpsd.io/gpu"  # UUIDs, with commas between


def chosen_gpus(annotations: Mapping[str, str], gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """The UUIDs of the GPUs of this node that the pod's annotations name, in the order of `gpus`; () for none."""
    raise NotImplementedError


def annotations_for(
    pod: NodePod, held: Sequence[ContainerDevices], gpus: Sequence[Gpu], policy: Policy, now_ns: int
) -> dict[str, str]:
    """What is to be written on a pod that holds these devices; {} when all of it is there.

    held: of any containers; those of other pods are passed over. now_ns: nanoseconds since 1970, used where the pod
    has no time of its own yet.
    """
    raise NotImplementedError
