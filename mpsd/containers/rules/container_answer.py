"""What goes into the bundle of a container that was granted its part of GPUs.

One rule: it is what kubelet is told for a pod's, so that both are held by the same things.
"""

from mpsd.grants.rules.container_messages import BundleDevice, BundleMount, ContainerAnswer
from mpsd.kubelet.rules.allocation import Allocation
from mpsd.kubelet.rules.device_answer import Surroundings, memory_answer
from mpsd.model.grants import Grant


def container_answer(
    grant: Grant, around: Surroundings, messages: tuple[str, ...] = (), *, with_gate: bool
) -> ContainerAnswer:
    """with_gate: whether gates can be made here; without one, a container that is started while its domain does not
    serve comes up without a GPU.
    """
    given = memory_answer(Allocation(grant.domain, grant.gpus, grant.memory_mib, grant.thread_percent), around)
    devices = given.devices if with_gate else ()
    return ContainerAnswer(
        grant=grant.id,
        environment=dict(given.environment),
        mounts=tuple(BundleMount(mount.host, mount.inside, mount.read_only) for mount in given.mounts),
        devices=tuple(BundleDevice(device.host, device.inside, device.permissions) for device in devices),
        messages=messages,
    )
