"""What kubelet and a device plugin say to each other, in plain values: the wire's own types stay in `edge`.

One rule: a path is one of the host or one inside the container, and its name says which.
Source of the fields: https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a resource. A container keeps a device that becomes unhealthy; no other one gets it."""

    id: str
    healthy: bool


@dataclass(frozen=True, slots=True)
class HostMount:
    """A folder or a file of the host that the container sees at `inside`."""

    host: str
    inside: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node of the host. Where `host` does not exist, no container starts.

    permissions: of the device cgroup, some of r, w and m (mknod).
    """

    host: str
    inside: str
    permissions: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a container gets because of its devices. cdi: names such as `vendor.com/class=name`."""

    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[HostMount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()
