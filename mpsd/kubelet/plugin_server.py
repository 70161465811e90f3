"""Serves one resource to kubelet over its device plugin API v1beta1, and keeps it registered.

A `Plugin` decides and answers in plain values. Kubelet shows the message of an exception in the
pod's events. A refused Allocate is final, a refused PreStartContainer is retried.

Kubelet 1.26 to 1.35 may close the connection of one plugin when another one of the same resource
ends, since it knows plugins by resource only (kubernetes issues 121994 and 127803). So a resource
is registered again as soon as either socket has been replaced or kubelet no longer reads its
devices.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeAlias, TypeVar

import grpc

from mpsd.kubelet import client
from mpsd.kubelet.api import deviceplugin_pb2 as wire
from mpsd.kubelet.api import deviceplugin_pb2_grpc as services
from mpsd.kubelet.client import KUBELET_SOCKET, KubeletUnavailable, SocketIdentity, identity_of
from mpsd.kubelet.rules.allocation import Answer, Device
from mpsd.model.metrics import Call, CallOutcome
from mpsd.model.problem import InvalidInput
from mpsd.platform.event_loop import until
from mpsd.platform.logs import logger

_LONGEST_REFUSAL = 700  # it travels in an HTTP/2 header, percent-encoded, and those end at 8 KiB

_LOOK_S = 0.25  # a stat of two sockets
_RETRY_S = 1.0
# a kubelet that accepted the registration and reads no devices by then has forgotten it
_FIRST_STREAM_S = 10.0

Value = TypeVar("Value")
OnCall: TypeAlias = Callable[[Call, Sequence[str], CallOutcome, float], None]
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # generic in its stubs alone


class StartDeferred(Exception):
    """The plugin refuses a start, for now or for good; the message says why. Not a failure, so it
    is not logged."""


_OUTCOMES = {
    InvalidInput: CallOutcome.REFUSED,
    StartDeferred: CallOutcome.HELD_BACK,
    TimeoutError: CallOutcome.LATE,
}


class Plugin(Protocol):
    """What decides for one resource. Every method may be called several times at once."""

    def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        """All devices at once, then all of them again whenever one changes."""

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """The ids that kubelet should take for one container. It may take others."""

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """What the container that receives these ids gets. Any exception refuses the pod;
        InvalidInput is expected."""

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Returns if the container with these ids may start. An exception defers it: kubelet
        retries."""


class _Stream(Generic[Value]):
    """The values that one kubelet reads. It ends while the next one is waited for, never in a
    write: gRPC breaks a call that returns with one under way."""

    def __init__(self, values: AsyncIterator[Value]) -> None:
        self._values = values
        self._waiting: asyncio.Timeout | None = None  # None while no value is waited for
        self._ended = False

    async def next(self) -> Value | None:
        """The next value, or None where there is no other."""
        if self._ended:
            return None
        self._waiting = waiting = asyncio.timeout(None)
        try:
            async with waiting:
                return await anext(self._values, None)
        except TimeoutError:
            if not waiting.expired():
                raise
            return None
        finally:
            self._waiting = None

    def end(self) -> None:
        if self._waiting and not self._ended:
            self._waiting.reschedule(0)  # now
        self._ended = True

    async def close(self) -> None:
        if isinstance(self._values, AsyncGenerator):
            await self._values.aclose()


class SocketServer:
    """A gRPC server on a socket that kubelet dials. After `stop` it may be started again."""

    def __init__(self, path: Path, stop_within_s: float) -> None:
        self._path = path
        self._stop_within_s = stop_within_s
        self._server: grpc.aio.Server | None = None  # while it does not serve
        self._socket: SocketIdentity | None = None  # likewise
        self.streams: set[_Stream[Any]] = set()  # those that kubelet reads now

    @property
    def reachable(self) -> bool:
        """Whether the socket is still there and ours. A kubelet that starts deletes every socket in
        its folder."""
        return self._socket is not None and identity_of(self._path) == self._socket

    async def start(self, add: Callable[[grpc.aio.Server], None]) -> None:
        """Replaces what lies at the socket's path. add: registers the services. KubeletUnavailable
        where the folder cannot be used."""
        # Created under a temporary name, so that the socket is never there without answering; and
        # gRPC, which deletes the name that it created when it stops, then does not delete the
        # socket of another process.
        making = self._path.with_name(f".{secrets.token_hex(4)}")
        server = grpc.aio.server()
        add(server)
        try:
            server.add_insecure_port(f"unix:{making}")
            making.chmod(0o600)
            await server.start()
            making.rename(self._path)
        except (RuntimeError, OSError) as error:
            await server.stop(grace=None)
            raise KubeletUnavailable(
                f"cannot create a socket in {self._path.parent}: {error}"
            ) from None
        self._server = server
        self._socket = identity_of(self._path)
        self.streams = set()  # what an earlier start served may not have ended yet

    async def send(
        self, values: AsyncIterator[Value], write: Callable[[Value], Awaitable[None]]
    ) -> None:
        """Writes one value after the other, until there is none or the server stops."""
        stream = _Stream(values)
        self.streams.add(stream)
        try:
            while (value := await stream.next()) is not None:
                await write(value)
        finally:
            self.streams.discard(stream)
            await stream.close()

    async def stop(self) -> None:
        """Ends the streams, lets the calls under way end, and removes the socket if it is still
        ours."""
        server = self._server
        self._server = None
        if self.reachable:
            self._path.unlink(missing_ok=True)
        self._socket = None
        if server is not None:
            for stream in self.streams:
                stream.end()
            await server.stop(self._stop_within_s)


@dataclass(eq=False)
class PluginServer(services.DevicePluginServicer):
    """One resource on one socket, with kubelet's calls by their names in its API. After `stop` it
    may be started again. endpoint: the socket's name in `folder`, kubelet's device-plugins.
    on_call: called after each call, with its devices, its outcome, and how many seconds it took."""

    folder: Path
    endpoint: str
    plugin: Plugin
    answer_within_s: float = 25.0  # kubelet has a deadline for PreStartContainer alone, of 30 s
    stop_within_s: float = 2.0
    on_call: OnCall = lambda *_call: None

    def __post_init__(self) -> None:
        self._socket = SocketServer(self.folder / self.endpoint, self.stop_within_s)

    @property
    def reachable(self) -> bool:
        return self._socket.reachable

    @property
    def watchers(self) -> int:
        """How many streams of devices kubelet reads now; 0 some seconds after `register` means to
        register again."""
        return len(self._socket.streams)

    async def start(self) -> None:
        await self._socket.start(
            lambda server: services.add_DevicePluginServicer_to_server(self, server)
        )

    async def stop(self) -> None:
        await self._socket.stop()

    async def GetDevicePluginOptions(  # noqa: N802
        self, _request: wire.Empty, _context: _Context
    ) -> wire.DevicePluginOptions:
        return client.OPTIONS

    async def ListAndWatch(self, _request: wire.Empty, context: _Context) -> None:  # noqa: N802
        async def write(devices: tuple[Device, ...]) -> None:
            listed = [
                wire.Device(ID=one.id, health="Healthy" if one.healthy else "Unhealthy")
                for one in devices
            ]
            await context.write(wire.ListAndWatchResponse(devices=listed))

        try:
            await self._socket.send(self.plugin.devices(), write)
        except Exception as error:
            await _refuse(error, context)

    async def GetPreferredAllocation(  # noqa: N802
        self, request: wire.PreferredAllocationRequest, context: _Context
    ) -> wire.PreferredAllocationResponse:
        async def answer() -> list[wire.ContainerPreferredAllocationResponse]:
            chosen = [
                await self.plugin.preferred(
                    tuple(asked.available_deviceIDs),
                    tuple(asked.must_include_deviceIDs),
                    asked.allocation_size,
                )
                for asked in request.container_requests
            ]
            return [wire.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in chosen]

        ids = [
            each for asked in request.container_requests for each in asked.must_include_deviceIDs
        ]
        found = await self._in_time(answer(), context, Call.PREFER, ids)
        return wire.PreferredAllocationResponse(container_responses=found)

    async def Allocate(  # noqa: N802
        self, request: wire.AllocateRequest, context: _Context
    ) -> wire.AllocateResponse:
        async def answer() -> list[wire.ContainerAllocateResponse]:
            return [
                _answer(await self.plugin.allocate(tuple(a.devices_ids)))
                for a in request.container_requests
            ]

        ids = [each for asked in request.container_requests for each in asked.devices_ids]
        return wire.AllocateResponse(
            container_responses=await self._in_time(answer(), context, Call.ALLOCATE, ids)
        )

    async def PreStartContainer(  # noqa: N802
        self, request: wire.PreStartContainerRequest, context: _Context
    ) -> wire.PreStartContainerResponse:
        ids = tuple(request.devices_ids)
        await self._in_time(self.plugin.pre_start(ids), context, Call.PRE_START, ids)
        return wire.PreStartContainerResponse()

    async def _in_time(
        self, answer: Awaitable[Value], context: _Context, call: Call, ids: Sequence[str]
    ) -> Value:
        outcome = CallOutcome.ANSWERED
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.answer_within_s):
                return await answer
        except Exception as error:
            outcome = _OUTCOMES.get(type(error), CallOutcome.FAILED)
            late = (
                f"mpsd did not answer within {self.answer_within_s:g} s; see the log of its agent"
            )
            await _refuse(
                error if str(error) or outcome is not CallOutcome.LATE else TimeoutError(late),
                context,
            )
        finally:
            self.on_call(call, ids, outcome, time.monotonic() - began)


async def _refuse(error: Exception, context: _Context) -> NoReturn:
    if type(error) not in _OUTCOMES:
        logger().error("kubelet's call failed", exc_info=error)
    message = " ".join(str(error).split()) or type(error).__name__
    code = (
        grpc.StatusCode.INVALID_ARGUMENT
        if isinstance(error, InvalidInput)
        else grpc.StatusCode.UNAVAILABLE
    )
    await context.abort(
        code, message if len(message) <= _LONGEST_REFUSAL else message[: _LONGEST_REFUSAL - 1] + "…"
    )


def _answer(answer: Answer) -> wire.ContainerAllocateResponse:
    return wire.ContainerAllocateResponse(
        envs=answer.environment,
        mounts=[
            wire.Mount(host_path=m.source, container_path=m.inside, read_only=m.read_only)
            for m in answer.mounts
        ],
        devices=[
            wire.DeviceSpec(
                host_path=node.source, container_path=node.inside, permissions=node.access
            )
            for node in answer.devices
        ],
        annotations=answer.annotations,
        cdi_devices=[wire.CDIDevice(name=name) for name in answer.cdi],
    )


class PluginService:
    """One resource, kept registered. folder, endpoint, plugin, on_call: as `PluginServer` has
    them."""

    def __init__(
        self, resource: str, folder: Path, endpoint: str, plugin: Plugin, on_call: OnCall
    ) -> None:
        self.resource = resource
        self._kubelet = folder / KUBELET_SOCKET
        self._server = PluginServer(folder, endpoint, plugin, on_call=on_call)
        self._log = logger(resource=resource)
        self._trouble = ""
        self.registered = False

    async def run(self) -> None:
        """Until it is cancelled; then the socket is removed, by which kubelet learns that the
        resource is gone."""
        while True:
            try:
                await self._serve()
            except KubeletUnavailable as error:
                self._report(str(error))
                await asyncio.sleep(_RETRY_S)
            finally:
                self.registered = False
                await self._server.stop()

    async def _serve(self) -> None:
        """Serves and registers, until the resource has to be registered again."""
        server = self._server
        before = identity_of(self._kubelet)
        await server.start()
        await client.register(server.folder, server.endpoint, self.resource)
        try:
            what = f"kubelet, which has registered {self.resource}, reads its devices"
            await until(lambda: server.watchers, _FIRST_STREAM_S, what, look_again_s=_LOOK_S)
        except TimeoutError as error:
            raise KubeletUnavailable(str(error)) from None
        self.registered = True
        self._report("")
        while not (reason := self._lost(before)):  # noqa: ASYNC110  mostly files of another process
            await asyncio.sleep(_LOOK_S)
        self.registered = False
        self._log.info("registering again", reason=reason)
        if identity_of(self._kubelet) == before:
            await server.stop()
            await asyncio.sleep(_RETRY_S)  # for kubelet to see the end of this one first

    def _lost(self, kubelet: SocketIdentity | None) -> str:
        """Why the resource has to be registered again; empty while it need not."""
        if identity_of(self._kubelet) != kubelet:
            return "kubelet has restarted"
        if not self._server.reachable:
            return "socket gone"
        return "" if self._server.watchers else "kubelet no longer reads the devices"

    def _report(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            self._log.warning("not registered", reason=trouble)
        if not trouble:
            self._log.info("registered")
        self._trouble = trouble
