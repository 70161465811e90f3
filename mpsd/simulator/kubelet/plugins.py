"""How the simulated kubelet speaks with device plugins: each one that registered, and the socket
where they register.

As kubelet's own, it believes whatever registers last, and knows a plugin by the name of its
resource.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc

from mpsd.kubelet.api import deviceplugin_pb2 as wire
from mpsd.kubelet.api import deviceplugin_pb2_grpc as services
from mpsd.kubelet.rules.allocation import Answer, Device
from mpsd.model.grants import DeviceNode, HostMount
from mpsd.simulator.kubelet.pods import KubeletPace, Version

_VERSION = "v1beta1"
_PRE_START_S = 30.0

Value = TypeVar("Value")
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class PluginFailed(Exception):
    """A plugin refused, or did not answer, in the words that kubelet passes on."""


class Endpoint:
    """One plugin that registered. options: None where it has never said them."""

    def __init__(self, resource: str, socket: Path | None) -> None:
        self.resource = resource
        self.socket = socket
        self.options: wire.DevicePluginOptions | None = None
        self.stopped: float | None = None if socket else time.monotonic()
        self._channel: grpc.aio.Channel | None = None

    async def dial(self, deadline_s: float) -> None:
        """PluginFailed where there is no answer."""
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(f"unix:{self.socket}", options=options)
        try:
            async with asyncio.timeout(deadline_s):
                await self._channel.channel_ready()
        except TimeoutError:
            await self.hang_up()
            raise PluginFailed("failed to dial device plugin: context deadline exceeded") from None

    async def ask_options(self) -> None:
        self.options = await _asked(self._stub().GetDevicePluginOptions(wire.Empty()))

    async def watch(self, listed: Callable[[tuple[Device, ...]], None]) -> None:
        """Passes on every list of devices, and returns when the stream has ended, however."""
        try:
            async for answer in self._stub().ListAndWatch(wire.Empty()):
                listed(
                    tuple(
                        Device(device.ID, device.health == "Healthy") for device in answer.devices
                    )
                )
        except grpc.aio.AioRpcError:
            return

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        asked = wire.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        request = wire.PreferredAllocationRequest(container_requests=[asked])
        answer = await _asked(self._stub().GetPreferredAllocation(request))
        return tuple(answer.container_responses[0].deviceIDs) if answer.container_responses else ()

    async def allocate(self, ids: Sequence[str]) -> Answer:
        request = wire.AllocateRequest(
            container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)]
        )
        answer = await _asked(self._stub().Allocate(request))
        if not answer.container_responses:
            raise PluginFailed("no containers return in allocation response")
        return _answer(answer.container_responses[0])

    async def pre_start(self, ids: Sequence[str]) -> None:
        request = wire.PreStartContainerRequest(devices_ids=ids)
        await _asked(self._stub().PreStartContainer(request, timeout=_PRE_START_S))

    def stop(self) -> None:
        """It is asked nothing from now on."""
        self.stopped = self.stopped or time.monotonic()

    async def hang_up(self) -> None:
        self.stop()
        if self._channel is not None:
            await self._channel.close()

    def _stub(self) -> Any:
        if self.stopped is not None or self._channel is None:
            raise PluginFailed(f"endpoint {self.resource} has been stopped")
        return services.DevicePluginStub(self._channel)


async def _asked(call: Awaitable[Value]) -> Value:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        code = error.code().name.title().replace("_", "")  # as Go writes it
        raise PluginFailed(f"rpc error: code = {code} desc = {error.details()}") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        words = "rpc error: code = Canceled desc = grpc: the client connection is closing"
        # the call ended with the channel, when its plugin's stream had ended
        raise PluginFailed(words) from None


def _answer(said: wire.ContainerAllocateResponse) -> Answer:
    return Answer(
        environment=dict(said.envs),
        mounts=tuple(
            HostMount(each.host_path, each.container_path, each.read_only) for each in said.mounts
        ),
        devices=tuple(
            DeviceNode(each.host_path, each.container_path, each.permissions)
            for each in said.devices
        ),
        annotations=dict(said.annotations),
        cdi=tuple(each.name for each in said.cdi_devices),
    )


class Registered(Protocol):
    async def __call__(
        self, resource: str, socket: Path, options: wire.DevicePluginOptions
    ) -> None:
        """A plugin registers. PluginFailed refuses it."""
        ...


class PluginSocket(services.RegistrationServicer):
    """The socket where plugins register."""

    def __init__(self, socket: Path, registered: Registered) -> None:
        self._socket = socket
        self._registered = registered
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        services.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def Register(  # noqa: N802
        self, request: wire.RegisterRequest, context: _Context
    ) -> wire.Empty:
        if request.version != _VERSION:
            await self._no(
                context, f"requested API version {request.version!r} is not supported by kubelet"
            )
        if "/" not in request.resource_name or "kubernetes.io/" in request.resource_name:
            await self._no(context, f"the ResourceName {request.resource_name!r} is invalid")
        try:
            await self._registered(
                request.resource_name, self._socket.parent / request.endpoint, request.options
            )
        except PluginFailed as error:
            await self._no(context, str(error))
        return wire.Empty()

    async def _no(self, context: _Context, words: str) -> None:
        await context.abort(grpc.StatusCode.UNKNOWN, words)


# -- which device plugins kubelet knows, and the devices they listed
# It does what kubelet's does, its mistakes among it: names in brackets are functions of kubelet's
# device manager, in pkg/kubelet/cm/devicemanager/manager.go where no file is named.


class PluginTable:
    """By resource. changed: called when a list of devices has come."""

    def __init__(self, version: Version, changed: Callable[[], None], pace: KubeletPace) -> None:
        self._version = version
        self._changed = changed
        self._pace = pace
        self._endpoints: dict[str, Endpoint] = {}
        # of 1.36: those whose stream has not ended, the oldest first
        self._clients: dict[str, list[Endpoint]] = {}
        self._watched: set[Endpoint] = set()  # of 1.20
        self._streams: set[asyncio.Task[None]] = set()
        self._healthy: dict[str, set[str]] = {}
        self._unhealthy: dict[str, set[str]] = {}

    @property
    def resources(self) -> Iterable[str]:
        """Those that some plugin has listed devices of."""
        return self._healthy.keys()

    def healthy(self, resource: str) -> set[str]:
        return self._healthy.get(resource, set())

    def endpoint(self, resource: str) -> Endpoint:
        """PluginFailed where there has never been one."""
        if resource not in self._endpoints:
            raise PluginFailed(f"endpoint not found in cache for a registered resource: {resource}")
        return self._endpoints[resource]

    def expect(self, resources: Iterable[str]) -> None:
        """What an earlier kubelet knew: none of it can be had until its plugin registers.
        [readCheckpoint]"""
        for resource in resources:
            self._endpoints[resource] = Endpoint(resource, None)
            self._healthy[resource], self._unhealthy[resource] = set(), set()

    async def register(
        self, resource: str, socket: Path, options: wire.DevicePluginOptions
    ) -> None:
        """PluginFailed where the plugin is to be told that it cannot be reached."""
        endpoint = Endpoint(resource, socket)
        if self._version.dials_before_it_answers:
            await self._connect(endpoint)
        else:
            endpoint.options = options
            self._in_background(self._add(endpoint))

    async def _add(self, endpoint: Endpoint) -> None:
        """Of 1.20: an older plugin of the resource goes on listing its devices, too. [addEndpoint,
        runEndpoint]"""
        try:
            await endpoint.dial(self._pace.dial_s)
        except PluginFailed:
            return
        self._watched.add(endpoint)
        self._endpoints[endpoint.resource] = endpoint
        await self._watch(endpoint)
        self._watched.discard(endpoint)
        await endpoint.hang_up()
        if self._endpoints.get(endpoint.resource) is endpoint:
            self._mark_unhealthy(endpoint.resource)

    async def _connect(self, endpoint: Endpoint) -> None:
        """Of 1.36. [connectClient in plugin/v1beta1/handler.go, PluginConnected]"""
        clients = self._clients.setdefault(endpoint.resource, [])
        if not self._version.knows_plugins_by_socket:
            clients.clear()
        clients.append(endpoint)
        try:
            await endpoint.dial(self._pace.dial_s)
            await endpoint.ask_options()
        except PluginFailed:
            clients.remove(endpoint)
            raise
        self._endpoints[endpoint.resource] = endpoint
        self._in_background(self._run(endpoint))

    async def _run(self, endpoint: Endpoint) -> None:
        """Of 1.36: a stream that ends stops the plugin that the resource has by then; 1.30 even
        hangs up on it.

        [runClient in plugin/v1beta1/handler.go, PluginDisconnected; kubernetes issues 121994 and
        127803]
        """
        await self._watch(endpoint)
        clients = self._clients[endpoint.resource]
        if self._version.knows_plugins_by_socket:
            ended = next((client for client in clients if client.socket == endpoint.socket), None)
        else:
            ended = clients[-1] if clients else None
        if ended is None:
            return
        clients.remove(ended)
        await ended.hang_up()
        if endpoint.resource in self._endpoints:
            self._mark_unhealthy(endpoint.resource)
            self._endpoints[endpoint.resource].stop()

    async def _watch(self, endpoint: Endpoint) -> None:
        await endpoint.watch(lambda devices: self._listed(endpoint.resource, devices))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)

    def _listed(self, resource: str, devices: Iterable[Device]) -> None:
        """[genericDeviceUpdateCallback]"""
        self._healthy[resource], self._unhealthy[resource] = set(), set()
        for device in devices:
            (self._healthy if device.healthy else self._unhealthy)[resource].add(device.id)
        self._changed()

    def _mark_unhealthy(self, resource: str) -> None:
        self._unhealthy.setdefault(resource, set()).update(self._healthy.get(resource, ()))
        self._healthy[resource] = set()

    def amounts(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """The node's capacity, and what of it can be allocated. [GetCapacity]"""
        for resource in [each for each in self._healthy if self._is_long_gone(each)]:
            del self._endpoints[resource], self._healthy[resource], self._unhealthy[resource]
            self._changed()
        allocatable = {resource: len(ids) for resource, ids in self._healthy.items()}
        return {
            resource: count + len(self._unhealthy[resource])
            for resource, count in allocatable.items()
        }, allocatable

    def _is_long_gone(self, resource: str) -> bool:
        stopped = self._endpoints[resource].stopped
        return stopped is not None and time.monotonic() - stopped > self._pace.forget_plugin_s

    async def stop(self) -> None:
        for task in list(self._streams):
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        clients = (client for some in self._clients.values() for client in some)
        for endpoint in {*self._endpoints.values(), *self._watched, *clients}:
            await endpoint.hang_up()
