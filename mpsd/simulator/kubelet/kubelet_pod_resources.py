"""The PodResources API of the simulated kubelet.

One rule: it says no more than kubelet's does: nothing of init containers, and nothing of what was not allocated.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grpc

from mpsd.kubelet.api import podresources_pb2 as wire
from mpsd.kubelet.api import podresources_pb2_grpc as services
from mpsd.model.container import Role
from mpsd.simulator.kubelet.kubelet_devices import DeviceManager
from mpsd.simulator.kubelet.kubelet_version import Version
from mpsd.simulator.kubelet.pods import SimPod


class PodResources(services.PodResourcesListerServicer):
    """pods: those that kubelet knows, of 1.36 only those that have not ended."""

    def __init__(
        self, socket: Path, version: Version, devices: DeviceManager, pods: Callable[[], Iterable[SimPod]]
    ) -> None:
        self._socket = socket
        self._version = version
        self._devices = devices
        self._pods = pods
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        services.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def List(  # noqa: N802
        self, _request: wire.ListPodResourcesRequest, _context: object
    ) -> wire.ListPodResourcesResponse:
        self._devices.free_ended()
        return wire.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._pods()])

    def _pod(self, pod: SimPod) -> wire.PodResources:
        listed = {Role.MAIN, Role.SIDECAR} if self._version.lists_sidecars else {Role.MAIN}
        containers = [
            wire.ContainerResources(name=container.name, devices=self._entries(pod.uid, container.name))
            for container in pod.containers
            if container.role in listed
        ]
        return wire.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)

    def _entries(self, uid: str, container: str) -> Iterator[wire.ContainerDevices]:
        for resource, ids in self._devices.held(uid, container).items():
            for entry in [[each] for each in ids] if self._version.entry_a_device else [ids]:
                yield wire.ContainerDevices(resource_name=resource, device_ids=entry)
