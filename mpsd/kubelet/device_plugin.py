"""Serves one resource to kubelet, as its device plugin API v1beta1 wants it, on a socket beside kubelet's own.

One rule: no decision here; a `Plugin` answers in plain values, and whatever it raises reaches kubelet as one sentence.
Kubelet shows it in the pod's events. A refused Allocate is final, a refused PreStartContainer is tried again.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

import grpc

from mpsd.kubelet.api import deviceplugin_pb2 as wire
from mpsd.kubelet.api import deviceplugin_pb2_grpc as services
from mpsd.kubelet.kubelet_socket import KubeletUnavailable, SocketIdentity, dial, error_for, identity_of
from mpsd.kubelet.rules.messages import Answer, Device
from mpsd.kubelet.rules.plugin_calls import Call, CallOutcome
from mpsd.model.problem import InvalidInput
from mpsd.platform.logs import logger

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
OPTIONS = wire.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

_ANSWER_WITHIN_S = 25.0  # kubelet gives up on PreStartContainer after 30 s, and on nothing else
_STOP_WITHIN_S = 2.0
_LONGEST_REFUSAL = 700  # it travels in an HTTP/2 header, percent-encoded, and those end at 8 KiB

Value = TypeVar("Value")
OnCall: TypeAlias = Callable[[Call, Sequence[str], CallOutcome, float], None]
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # only its stubs know what it holds


class StartDeferred(Exception):
    """A plugin's no, for now or at all; the message says why. No fault, so the log keeps no trace of it."""


_OUTCOMES = {InvalidInput: CallOutcome.REFUSED, StartDeferred: CallOutcome.HELD_BACK}


class Plugin(Protocol):
    """What decides. Every method may be called several times at once."""

    def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        """All devices at once, then all of them again whenever one changes."""
        ...

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """The ids that kubelet had best take for one container. It does not promise to."""
        ...

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """What the one container gets that these ids go to. InvalidInput, or any other exception, refuses the pod."""
        ...

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Returns where the container with these ids may start. An exception holds it back: kubelet tries again."""
        ...


class PluginServer:
    """One resource on one socket. After `stop` it may be started again.

    endpoint: the socket's name in kubelet's device-plugins folder. on_call: told of each call that has ended: the
    devices that it was about, what came of it, and how many seconds it took.
    """

    def __init__(
        self,
        folder: Path,
        endpoint: str,
        plugin: Plugin,
        *,
        answer_within_s: float = _ANSWER_WITHIN_S,
        stop_within_s: float = _STOP_WITHIN_S,
        on_call: OnCall = lambda *_call: None,
    ) -> None:
        self._path = folder / endpoint
        self._stop_within_s = stop_within_s
        self._service = _Service(plugin, answer_within_s, on_call)
        self._server: grpc.aio.Server | None = None  # while it does not serve
        self._socket: SocketIdentity | None = None  # likewise

    @property
    def reachable(self) -> bool:
        """Whether the socket is still there and ours. A kubelet that starts deletes every socket in its folder."""
        return self._socket is not None and identity_of(self._path) == self._socket

    @property
    def watchers(self) -> int:
        """How many kubelets read the devices now.

        0 some seconds after `register` means to register again. Kubelet finds its plugins by resource name (handler.go
        of its device manager): one that is slow to see the end of our last stream hangs up on the new one instead.
        """
        return self._service.watchers

    async def start(self) -> None:
        """Replaces what lies at the socket's path. KubeletAway where the folder is not there or cannot be used."""
        # Made under a name that nobody asks for, so that it is never there without being ours alone and answering;
        # and gRPC, which deletes the name that it made when it stops, then deletes nothing of whoever came after us.
        making = self._path.with_name(f".{secrets.token_hex(4)}")
        server = grpc.aio.server()
        services.add_DevicePluginServicer_to_server(self._service, server)
        try:
            server.add_insecure_port(f"unix:{making}")
            making.chmod(0o600)
            await server.start()
            making.rename(self._path)
        except (RuntimeError, OSError) as error:
            await server.stop(grace=None)
            raise KubeletUnavailable(f"no socket can be made in {self._path.parent}: {error}") from None
        self._server, self._socket = server, identity_of(self._path)

    async def stop(self) -> None:
        """Ends every stream of devices, lets the calls under way end, and removes the socket if it is still ours."""
        server, self._server = self._server, None
        if self.reachable:
            self._path.unlink(missing_ok=True)
        self._socket = None
        if server is not None:
            self._service.end_streams()
            await server.stop(self._stop_within_s)


async def register(folder: Path, endpoint: str, resource: str, deadline_s: float = 15.0) -> None:
    """Tells kubelet that the socket `endpoint` in its folder serves `resource`; the socket must answer already.

    KubeletAway where to try again may help, KubeletRefused where kubelet said no. A newer kubelet dials the socket
    before it answers, for 10 s at most (client.go of kubelet's device manager), hence the deadline.
    """
    path = folder / KUBELET_SOCKET
    request = wire.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=OPTIONS)
    async with dial(path) as channel:
        try:
            await services.RegistrationStub(channel).Register(request, timeout=deadline_s)
        except grpc.aio.AioRpcError as error:
            raise error_for(error, path, deadline_s) from None


class _Stream:
    """The lists of devices that one kubelet reads.

    It ends while the next list is waited for, never in a write: gRPC breaks a call that returns with one under way.
    """

    def __init__(self, lists: AsyncIterator[tuple[Device, ...]]) -> None:
        self._lists = lists
        self._waiting: asyncio.Timeout | None = None  # while no list is waited for
        self._ended = False

    async def next(self) -> tuple[Device, ...] | None:
        """The next list, or None where there is no other."""
        if self._ended:
            return None
        self._waiting = waiting = asyncio.timeout(None)
        try:
            async with waiting:
                return await anext(self._lists, None)
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
        if isinstance(self._lists, AsyncGenerator):
            await self._lists.aclose()


class _Service(services.DevicePluginServicer):
    """The calls of kubelet, in its words."""

    def __init__(self, plugin: Plugin, answer_within_s: float, on_call: OnCall) -> None:
        self._plugin = plugin
        self._answer_within_s = answer_within_s
        self._on_call = on_call
        self._streams: set[_Stream] = set()

    @property
    def watchers(self) -> int:
        return len(self._streams)

    def end_streams(self) -> None:
        for stream in self._streams:
            stream.end()

    async def GetDevicePluginOptions(self, _request: wire.Empty, _context: _Context) -> wire.DevicePluginOptions:  # noqa: N802
        return OPTIONS

    async def ListAndWatch(self, _request: wire.Empty, context: _Context) -> None:  # noqa: N802
        stream = _Stream(self._plugin.devices())
        self._streams.add(stream)
        try:
            while (devices := await stream.next()) is not None:
                await context.write(_list(devices))
        except Exception as error:
            await _refuse(error, context)
        finally:
            self._streams.discard(stream)
            await stream.close()

    async def GetPreferredAllocation(  # noqa: N802
        self, request: wire.PreferredAllocationRequest, context: _Context
    ) -> wire.PreferredAllocationResponse:
        async def answer() -> list[wire.ContainerPreferredAllocationResponse]:
            return [await self._preferred(asked) for asked in request.container_requests]

        ids = [each for asked in request.container_requests for each in asked.must_include_deviceIDs]
        found = await self._in_time(answer(), context, Call.PREFER, ids)
        return wire.PreferredAllocationResponse(container_responses=found)

    async def _preferred(
        self, asked: wire.ContainerPreferredAllocationRequest
    ) -> wire.ContainerPreferredAllocationResponse:
        available, must_include = tuple(asked.available_deviceIDs), tuple(asked.must_include_deviceIDs)
        ids = await self._plugin.preferred(available, must_include, asked.allocation_size)
        return wire.ContainerPreferredAllocationResponse(deviceIDs=ids)

    async def Allocate(self, request: wire.AllocateRequest, context: _Context) -> wire.AllocateResponse:  # noqa: N802
        async def answer() -> list[wire.ContainerAllocateResponse]:
            return [_answer(await self._plugin.allocate(tuple(a.devices_ids))) for a in request.container_requests]

        ids = [each for asked in request.container_requests for each in asked.devices_ids]
        return wire.AllocateResponse(container_responses=await self._in_time(answer(), context, Call.ALLOCATE, ids))

    async def PreStartContainer(  # noqa: N802
        self, request: wire.PreStartContainerRequest, context: _Context
    ) -> wire.PreStartContainerResponse:
        ids = tuple(request.devices_ids)
        await self._in_time(self._plugin.pre_start(ids), context, Call.PRE_START, ids)
        return wire.PreStartContainerResponse()

    async def _in_time(self, answer: Awaitable[Value], context: _Context, call: Call, ids: Sequence[str]) -> Value:
        outcome, began = CallOutcome.ANSWERED, time.monotonic()
        try:
            async with asyncio.timeout(self._answer_within_s):
                return await answer
        except TimeoutError as error:
            outcome = CallOutcome.LATE
            words = str(error) or f"mpsd has found no answer within {self._answer_within_s:g} s; see its log"
            await _refuse(TimeoutError(words), context)
        except Exception as error:
            outcome = _OUTCOMES.get(type(error), CallOutcome.FAILED)
            await _refuse(error, context)
        finally:
            self._on_call(call, ids, outcome, time.monotonic() - began)


async def _refuse(error: Exception, context: _Context) -> NoReturn:
    """Ends the call with the words of the error."""
    expected = isinstance(error, InvalidInput | TimeoutError | StartDeferred)
    if not expected:
        logger().error("kubelet's call failed", exc_info=error)
    words = " ".join(str(error).split()) or type(error).__name__
    code = grpc.StatusCode.INVALID_ARGUMENT if isinstance(error, InvalidInput) else grpc.StatusCode.UNAVAILABLE
    await context.abort(code, words if len(words) <= _LONGEST_REFUSAL else words[: _LONGEST_REFUSAL - 1] + "…")


def _list(devices: Iterable[Device]) -> wire.ListAndWatchResponse:
    return wire.ListAndWatchResponse(
        devices=[wire.Device(ID=device.id, health="Healthy" if device.healthy else "Unhealthy") for device in devices]
    )


def _answer(answer: Answer) -> wire.ContainerAllocateResponse:
    return wire.ContainerAllocateResponse(
        envs=answer.environment,
        mounts=[wire.Mount(host_path=m.host, container_path=m.inside, read_only=m.read_only) for m in answer.mounts],
        devices=[
            wire.DeviceSpec(host_path=node.host, container_path=node.inside, permissions=node.permissions)
            for node in answer.devices
        ],
        annotations=answer.annotations,
        cdi_devices=[wire.CDIDevice(name=name) for name in answer.cdi],
    )
