"""How the simulated kubelet speaks with device plugins: each one that registered, and the socket where they register.

One rule: as kubelet's own, it believes whatever registers last, and knows a plugin by the name of its resource.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc

from mpsd.kubelet.api import deviceplugin_pb2 as wire
from mpsd.kubelet.api import deviceplugin_pb2_grpc as services
from mpsd.kubelet.rules.messages import Answer, Device, DeviceNode, Mount

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
        """PluginFailed where nobody answers."""
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
                listed(tuple(Device(device.ID, device.health == "Healthy") for device in answer.devices))
        except grpc.aio.AioRpcError:
            return

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        asked = wire.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        request = wire.PreferredAllocationRequest(container_requests=[asked])
        answer = await _asked(self._stub().GetPreferredAllocation(request))
        return tuple(answer.container_responses[0].deviceIDs) if answer.container_responses else ()

    async def allocate(self, ids: Sequence[str]) -> Answer:
        request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)])
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
        raise PluginFailed(words) from None  # the call ended with the channel, when its plugin's stream had ended


def _answer(said: wire.ContainerAllocateResponse) -> Answer:
    return Answer(
        environment=dict(said.envs),
        mounts=tuple(Mount(each.host_path, each.container_path, each.read_only) for each in said.mounts),
        devices=tuple(DeviceNode(each.host_path, each.container_path, each.permissions) for each in said.devices),
        annotations=dict(said.annotations),
        cdi=tuple(each.name for each in said.cdi_devices),
    )


class Registered(Protocol):
    async def __call__(self, resource: str, socket: Path, options: wire.DevicePluginOptions) -> None:
        """A plugin registers. PluginFailed refuses it."""
        ...


class Registration(services.RegistrationServicer):
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

    async def Register(self, request: wire.RegisterRequest, context: _Context) -> wire.Empty:  # noqa: N802
        if request.version != _VERSION:
            await self._no(context, f"requested API version {request.version!r} is not supported by kubelet")
        if "/" not in request.resource_name or "kubernetes.io/" in request.resource_name:
            await self._no(context, f"the ResourceName {request.resource_name!r} is invalid")
        try:
            await self._registered(request.resource_name, self._socket.parent / request.endpoint, request.options)
        except PluginFailed as error:
            await self._no(context, str(error))
        return wire.Empty()

    async def _no(self, context: _Context, words: str) -> None:
        await context.abort(grpc.StatusCode.UNKNOWN, words)
