"""The agent's calls to kubelet over its Unix sockets: registering, and listing who holds what.

An answer that cannot be read is KubeletUnavailable, never an empty list, which would free every
device.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from mpsd.kubelet.api import deviceplugin_pb2 as plugin_api
from mpsd.kubelet.api import podresources_pb2 as resources_api
from mpsd.kubelet.api.deviceplugin_pb2_grpc import RegistrationStub
from mpsd.kubelet.api.podresources_pb2_grpc import PodResourcesListerStub
from mpsd.kubelet.rules.ledger import ContainerDevices
from mpsd.kubelet.rules.node_pods import ContainerName, Kind, PodKey

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
OPTIONS = plugin_api.DevicePluginOptions(
    pre_start_required=True, get_preferred_allocation_available=True
)
_LONGEST_DETAILS = 300
# 500 pods with 139 devices each are 6 MB where kubelet gives an entry a device, as it does in 1.36.
_LONGEST_ANSWER = 64 * 1024**2


class KubeletUnavailable(Exception):
    """Kubelet does not answer, or refuses the call, as the message says; it may answer again."""


# of one socket file for ever: a restarted kubelet's has another inode or another time
SocketIdentity = tuple[int, int, int]


def identity_of(path: Path) -> SocketIdentity | None:
    """None where there is no such file."""
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_dev, stat.st_ino, stat.st_ctime_ns


async def register(folder: Path, endpoint: str, resource: str, deadline_s: float = 15.0) -> None:
    """Registers the socket `endpoint`, which must answer already, in kubelet's folder for
    `resource`. KubeletUnavailable. A newer kubelet dials the socket before it answers, for 10 s at
    most (client.go of its device manager), hence the deadline."""
    path = folder / KUBELET_SOCKET
    request = plugin_api.RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=resource, options=OPTIONS
    )
    async with dial(path) as channel:
        try:
            await RegistrationStub(channel).Register(request, timeout=deadline_s)
        except grpc.aio.AioRpcError as error:
            raise _error_for(error, path, deadline_s) from None


@dataclass(frozen=True, slots=True)
class DeviceList:
    """Kubelet's list of devices. pods: all that kubelet knows, also those that hold nothing.
    of_others: which of them hold a device of another plugin, with the resource's name."""

    held: tuple[ContainerDevices, ...]
    pods: frozenset[PodKey]
    of_others: frozenset[tuple[PodKey, str]]


async def held_devices(
    socket: Path, resources: Mapping[str, Kind], deadline_s: float = 5.0
) -> DeviceList:
    """What each container holds of `resources`, by their names, sorted. Kubelet does not list init
    containers, except those that it restarts. KubeletUnavailable."""
    async with dial(socket, ("grpc.max_receive_message_length", _LONGEST_ANSWER)) as channel:
        try:
            request = resources_api.ListPodResourcesRequest()
            answer = await PodResourcesListerStub(channel).List(request, timeout=deadline_s)
        except grpc.aio.AioRpcError as error:
            raise _error_for(error, socket, deadline_s) from None
    held = sorted(
        _holding(answer.pod_resources, resources),
        key=lambda one: (one.pod, one.container.container),
    )
    return DeviceList(
        tuple(held),
        frozenset((pod.namespace, pod.name) for pod in answer.pod_resources),
        frozenset(_of_others(answer.pod_resources, resources)),
    )


def _of_others(
    pods: Iterable[resources_api.PodResources], resources: Mapping[str, Kind]
) -> Iterable[tuple[PodKey, str]]:
    for pod in pods:
        for container in pod.containers:
            for entry in container.devices:
                if entry.resource_name not in resources and entry.device_ids:
                    yield (pod.namespace, pod.name), entry.resource_name


def _holding(
    pods: Iterable[resources_api.PodResources], resources: Mapping[str, Kind]
) -> Iterable[ContainerDevices]:
    """Kubelet 1.20 gives one entry a resource, 1.36 one a device and NUMA node: each id counts
    once."""
    for pod in pods:
        for container in pod.containers:
            ids: dict[str, set[str]] = {}
            for entry in container.devices:
                if kind := resources.get(entry.resource_name):
                    new = entry.device_ids
                    # to iterate over one takes four times as long
                    ids.setdefault(kind, set()).update([new[0]] if len(new) == 1 else new)
            if any(ids.values()):
                name = ContainerName(pod.namespace, pod.name, container.name)
                held = {kind: tuple(sorted(some)) for kind, some in ids.items()}
                yield ContainerDevices(name, **held)


def dial(path: Path, *more: tuple[str, int]) -> grpc.aio.Channel:
    """A channel to one Unix socket. more: options of gRPC."""
    # What grpc would send by default, the path in percent signs, is refused by stricter servers:
    # grpc/grpc #38142.
    always = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
    return grpc.aio.insecure_channel(f"unix:{path}", options=[*always, *more])


def _error_for(error: grpc.aio.AioRpcError, path: Path, deadline_s: float) -> KubeletUnavailable:
    code = error.code()
    details = " ".join((error.details() or "").split())[:_LONGEST_DETAILS]
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return KubeletUnavailable(f"kubelet did not answer on {path} within {deadline_s:g} s")
        # cancelled: it stops while it is asked
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return KubeletUnavailable(f"kubelet does not answer on {path}: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return KubeletUnavailable(
                f"the server on {path} does not offer this kubelet API: {details}"
            )
        case _:
            return KubeletUnavailable(f"kubelet refused the call on {path}: {details or code.name}")
