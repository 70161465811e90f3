"""Serves one resource to kubelet over its device plugin API v1beta1, and keeps it registered.

Kubelet shows the message of an exception in the pod's events. A refused Allocate is final, a
refused PreStartContainer is retried. Kubelet 1.26 to 1.35 may close the connection of one plugin
when another one of the same resource ends (kubernetes issues 121994 and 127803): so a resource is
registered again as soon as either socket has been replaced or kubelet no longer reads its devices.
"""

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
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
from mpsd.platform.logs import Logger, logger

_LONGEST_REFUSAL = 700  # it travels in an HTTP/2 header, percent-encoded, and those end at 8 KiB

UNREGISTERED = "not registered with kubelet"
_BOUNDS = (
    # the bit of no compression: other messages are answered UNIMPLEMENTED, and never unpacked
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.max_receive_message_length", 4 * 1024**2),  # bytes
    ("grpc.max_metadata_size", 16 * 1024),  # bytes of a call's headers
)
_LOOK_S = 0.25  # a stat of two sockets
_RETRY_S = 1.0
# a kubelet that accepted the registration and reads no devices by then has forgotten it
_FIRST_STREAM_S = 10.0

Value = TypeVar("Value")
OnCall: TypeAlias = Callable[[Call, Sequence[str], CallOutcome, float], None]
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # generic in its stubs alone


class StartDeferred(Exception):
    """The message says why. Not a failure, so it is not logged."""


_OUTCOMES = {
    InvalidInput: CallOutcome.REFUSED,
    StartDeferred: CallOutcome.HELD_BACK,
    TimeoutError: CallOutcome.LATE,
}


class Plugin(Protocol):
    """What decides for one resource. Every method may be called several times at once."""

    def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        """All devices, and all of them again whenever one changes."""

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """For one container. Kubelet may take others."""

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """Any exception refuses the pod; InvalidInput is expected."""

    async def pre_start(self, ids: Sequence[str]) -> None:
        """An exception defers the start of the container with these ids: kubelet retries."""


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


class SocketServer(ABC):
    """A gRPC server on a socket that kubelet dials, kept registered there. After `stop` it may be
    started again."""

    def __init__(self, path: Path, stop_within_s: float, log: Logger) -> None:
        self._path = path
        self._stop_within_s = stop_within_s
        self._server: grpc.aio.Server | None = None  # while it does not serve
        self._socket: SocketIdentity | None = None  # likewise
        self.streams: set[_Stream[Any]] = set()  # those that kubelet reads now
        self.trouble = UNREGISTERED  # empty once kubelet has taken it
        self._log = log

    @abstractmethod
    def _add_to(self, server: grpc.aio.Server) -> None:
        """Adds the services."""

    @abstractmethod
    async def _serve(self) -> None:
        """Serves until it has to be registered again, or KubeletUnavailable."""

    async def run(self) -> None:
        """Until it is cancelled; then the socket is removed, by which kubelet learns that it is
        gone."""
        while True:
            try:
                await self._serve()
            except KubeletUnavailable as error:
                self._say(str(error))
                await asyncio.sleep(_RETRY_S)
            finally:
                self.trouble = self.trouble or UNREGISTERED
                await self.stop()

    def _say(self, trouble: str) -> None:
        if not trouble:
            self._log.info("registered")
        elif trouble != self.trouble:
            self._log.warning("not registered", reason=trouble)
        self.trouble = trouble

    @property
    def reachable(self) -> bool:
        """Whether the socket is still there and ours. A kubelet that starts deletes every socket in
        its folder."""
        return self._socket is not None and identity_of(self._path) == self._socket

    async def start(self) -> None:
        """Replaces what lies at the socket's path. KubeletUnavailable where the folder cannot be
        used."""
        # Under a temporary name the socket is never there without answering; gRPC, which deletes
        # that name when it stops, does not delete the socket of another process.
        making = self._path.with_name(f".{secrets.token_hex(4)}")
        server = grpc.aio.server(options=_BOUNDS)
        self._add_to(server)
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
        """Until there is no other value or the server stops."""
        stream = _Stream(values)
        self.streams.add(stream)
        try:
            while (value := await stream.next()) is not None:
                await write(value)
        finally:
            self.streams.discard(stream)
            await stream.close()

    async def stop(self) -> None:
        """Lets the calls under way end, and removes the socket if it is still ours."""
        server = self._server
        self._server = None
        if self.reachable:
            self._path.unlink(missing_ok=True)
        self._socket = None
        if server is not None:
            for stream in self.streams:
                stream.end()
            await server.stop(self._stop_within_s)


class PluginServer(SocketServer, services.DevicePluginServicer):
    """One resource on one socket, with kubelet's calls by their names in its API. endpoint: the
    socket's name in `folder`, kubelet's device-plugins. on_call: called after each call, with its
    devices, its outcome, and how many seconds it took."""

    def __init__(
        self,
        resource: str,
        folder: Path,
        endpoint: str,
        plugin: Plugin,
        on_call: OnCall = lambda *_call: None,
        *,
        answer_within_s: float = 25.0,  # kubelet gives PreStartContainer alone a deadline, of 30 s
        stop_within_s: float = 2.0,
    ) -> None:
        super().__init__(folder / endpoint, stop_within_s, logger(resource=resource))
        self.resource = resource
        self._plugin = plugin
        self._on_call = on_call
        self._answer_within_s = answer_within_s

    def _add_to(self, server: grpc.aio.Server) -> None:
        services.add_DevicePluginServicer_to_server(self, server)

    async def _serve(self) -> None:
        folder = self._path.parent
        kubelet = folder / KUBELET_SOCKET
        before = identity_of(kubelet)
        await self.start()
        await client.register(folder, self._path.name, self.resource)
        try:
            what = f"kubelet, which has registered {self.resource}, reads its devices"
            await until(lambda: self.streams, _FIRST_STREAM_S, what, look_again_s=_LOOK_S)
        except TimeoutError as error:
            raise KubeletUnavailable(str(error)) from None
        self._say("")
        while identity_of(kubelet) == before and self.reachable and self.streams:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)  # mostly files of another process
        reason = "kubelet no longer reads the devices"
        if not self.reachable:
            reason = "socket gone"
        if is_new := identity_of(kubelet) != before:
            reason = "kubelet has restarted"
        self.trouble = UNREGISTERED
        self._log.info("registering again", reason=reason)
        if not is_new:
            await self.stop()
            await asyncio.sleep(_RETRY_S)  # for kubelet to see the end of this one first

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
            await self.send(self._plugin.devices(), write)
        except Exception as error:
            await _refuse(error, context)

    async def GetPreferredAllocation(  # noqa: N802
        self, request: wire.PreferredAllocationRequest, context: _Context
    ) -> wire.PreferredAllocationResponse:
        async def answer() -> list[wire.ContainerPreferredAllocationResponse]:
            chosen = []
            for asked in request.container_requests:
                offer = tuple(asked.available_deviceIDs), tuple(asked.must_include_deviceIDs)
                ids = await self._plugin.preferred(*offer, asked.allocation_size)
                chosen.append(wire.ContainerPreferredAllocationResponse(deviceIDs=ids))
            return chosen

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
                _answer(await self._plugin.allocate(tuple(a.devices_ids)))
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
        await self._in_time(self._plugin.pre_start(ids), context, Call.PRE_START, ids)
        return wire.PreStartContainerResponse()

    async def _in_time(
        self, answer: Awaitable[Value], context: _Context, call: Call, ids: Sequence[str]
    ) -> Value:
        outcome = CallOutcome.ANSWERED
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._answer_within_s):
                return await answer
        except Exception as error:
            outcome = _OUTCOMES.get(type(error), CallOutcome.FAILED)
            if outcome is CallOutcome.LATE and not str(error):
                late = f"mpsd did not answer within {self._answer_within_s:g} s"
                error = TimeoutError(f"{late}; see the log of its agent")
            await _refuse(error, context)
        finally:
            self._on_call(call, ids, outcome, time.monotonic() - began)


async def _refuse(error: Exception, context: _Context) -> NoReturn:
    if type(error) not in _OUTCOMES:
        logger().error("kubelet's call failed", exc_info=error)
    message = reason_of(error)
    if len(message) > _LONGEST_REFUSAL:
        message = message[: _LONGEST_REFUSAL - 1] + "…"
    code = grpc.StatusCode.UNAVAILABLE
    if isinstance(error, InvalidInput):
        code = grpc.StatusCode.INVALID_ARGUMENT
    await context.abort(code, message)


def reason_of(error: Exception) -> str:
    """In one line."""
    return " ".join(str(error).split()) or type(error).__name__


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
