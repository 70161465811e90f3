"""What a plugin answers reaches whoever dials its socket; what it raises reaches them as one
sentence."""

import asyncio
import contextlib
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from mpsd.kubelet.api import deviceplugin_pb2 as wire
from mpsd.kubelet.api.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from mpsd.kubelet.client import KUBELET_SOCKET, KubeletUnavailable, dial, identity_of, register
from mpsd.kubelet.plugin_server import PluginServer, StartDeferred
from mpsd.kubelet.rules.allocation import Answer, Device
from mpsd.model.grants import DeviceNode, HostMount
from mpsd.model.metrics import Call, CallOutcome
from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform.event_loop import until

KUBELETS_LONGEST_MESSAGE = 4 * 1024**2  # the default of grpc-go, which kubelet does not change
_GATE = "/run/mpsd/gpu0/gate"
FULL = Answer(
    {"CUDA_MPS_PIPE_DIRECTORY": "/run/mpsd/client"},
    (HostMount("/run/mpsd/gpu0/client", "/run/mpsd/client", True),),
    (DeviceNode(_GATE, _GATE, "r"),),
    {"mpsd.io/gpu": "GPU-0"},
    ("nvidia.com/gpu=0",),
)


class Told:
    """A plugin that does as it is told, and writes down what it was asked."""

    def __init__(
        self, devices: tuple[Device, ...] = (Device("a/0", True), Device("a/1", False))
    ) -> None:
        self.listed = devices
        self.streams: list[asyncio.Queue[tuple[Device, ...]]] = []
        self.asked: list[object] = []
        self.refusal: Exception | None = None
        self.wait_s = 0.0

    def list(self, *devices: Device) -> None:
        for stream in self.streams:
            stream.put_nowait(devices)

    async def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        stream: asyncio.Queue[tuple[Device, ...]] = asyncio.Queue()
        self.streams.append(stream)
        try:
            yield self.listed
            while True:
                yield await stream.get()
        finally:
            self.streams.remove(stream)

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        self.asked.append((tuple(available), tuple(must_include), size))
        return [*must_include, *(each for each in available if each not in must_include)][:size]

    async def allocate(self, ids: Sequence[str]) -> Answer:
        self.asked.append(tuple(ids))
        await self._obey()
        return FULL

    async def pre_start(self, ids: Sequence[str]) -> None:
        self.asked.append(("start", *ids))
        await self._obey()

    async def _obey(self) -> None:
        await asyncio.sleep(self.wait_s)
        if self.refusal:
            raise self.refusal


@pytest.fixture
def folder() -> Iterator[Path]:
    # short: a socket's path ends at 107 characters
    with tempfile.TemporaryDirectory(prefix="kubelet-") as made:
        yield Path(made)


def ask(
    folder: Path,
    plugin: Told,
    question: Callable[[DevicePluginStub], Awaitable[object]],
    **how: Any,
) -> object:
    """What the plugin's socket answers to one question."""

    async def conversation() -> object:
        server = PluginServer("gpu", folder, "mem.sock", plugin, **how)
        await server.start()
        try:
            async with dial(folder / "mem.sock") as channel:
                return await question(DevicePluginStub(channel))
        finally:
            await server.stop()

    return asyncio.run(conversation())


def refusal_of(folder: Path, error: Exception, **how: float) -> grpc.aio.AioRpcError:
    plugin = Told()
    plugin.refusal = error
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        ask(folder, plugin, lambda stub: stub.Allocate(allocate(("a/0",))), **how)
    return caught.value


def allocate(*containers: tuple[str, ...]) -> wire.AllocateRequest:
    return wire.AllocateRequest(
        container_requests=[wire.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
    )


@pytest.mark.parametrize("packing", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_packed_message_is_refused_and_reaches_no_plugin(
    folder: Path, packing: grpc.Compression
) -> None:
    plugin = Told()
    bomb = allocate(("a" * 3_000_000,))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        ask(folder, plugin, lambda stub: stub.Allocate(bomb, compression=packing))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not plugin.asked


def test_a_message_of_more_than_4_mib_is_refused(folder: Path) -> None:
    plugin = Told()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        ask(folder, plugin, lambda stub: stub.Allocate(allocate(("a" * 4 * 1024**2,))))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not plugin.asked


def test_every_list_of_devices_reaches_kubelet_with_their_health(folder: Path) -> None:
    plugin = Told()

    async def read_two(stub: DevicePluginStub) -> list[list[tuple[str, str]]]:
        stream = stub.ListAndWatch(wire.Empty())
        first = await stream.read()
        plugin.list(Device("a/0", False))
        return [
            [(each.ID, each.health) for each in seen.devices]
            for seen in (first, await stream.read())
        ]

    assert ask(folder, plugin, read_two) == [
        [("a/0", "Healthy"), ("a/1", "Unhealthy")],
        [("a/0", "Unhealthy")],
    ]


Stream = Any  # of lists of devices


@contextlib.asynccontextmanager
async def listening(
    folder: Path, plugin: Told, stop_within_s: float = 2.0
) -> AsyncIterator[tuple[PluginServer, Stream]]:
    """A server and what a kubelet that asks it for its devices reads."""
    server = PluginServer("gpu", folder, "mem.sock", plugin, stop_within_s=stop_within_s)
    await server.start()
    async with dial(folder / "mem.sock") as channel:
        yield server, DevicePluginStub(channel).ListAndWatch(wire.Empty())


def test_a_server_that_stops_ends_the_stream_and_removes_its_socket(folder: Path) -> None:
    async def conversation() -> tuple[object, int]:
        plugin = Told()
        async with listening(folder, plugin) as (server, stream):
            await stream.read()
            await server.stop()
            return await stream.read(), len(plugin.streams)

    assert asyncio.run(conversation()) == (grpc.aio.EOF, 0)
    assert list(folder.iterdir()) == []


class Restless(Told):
    """A plugin whose devices change all the time, and are more than a socket takes at once."""

    def __init__(self) -> None:
        super().__init__(tuple(Device(f"a/{number}", True) for number in range(20_000)))
        self.under_way = asyncio.Event()

    async def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        # whoever waits for this runs when the write of the first list has begun
        self.under_way.set()
        while True:
            yield self.listed


async def test_a_server_that_stops_lets_the_list_end_that_it_is_sending(folder: Path) -> None:
    plugin = Restless()
    async with listening(folder, plugin, stop_within_s=20) as (server, stream):
        await plugin.under_way.wait()
        stopping = asyncio.create_task(server.stop())
        assert len((await stream.read()).devices) == len(plugin.listed)
        assert await stream.read() is grpc.aio.EOF
        await stopping


async def test_a_stop_does_not_wait_for_a_kubelet_that_reads_no_more(folder: Path) -> None:
    plugin = Restless()
    async with listening(folder, plugin, stop_within_s=0.1) as (server, stream):
        await plugin.under_way.wait()
        async with asyncio.timeout(10):
            await server.stop()
        await until(lambda: not server.streams, 5, "the stream has ended")
        stream.cancel()


async def test_a_kubelet_that_hangs_up_ends_its_stream_alone(folder: Path) -> None:
    plugin = Told()
    async with listening(folder, plugin) as (server, staying):
        await staying.read()
        async with dial(folder / "mem.sock") as leaves:
            await DevicePluginStub(leaves).ListAndWatch(wire.Empty()).read()
            assert len(server.streams) == 2
        await until(
            lambda: len(server.streams) == len(plugin.streams) == 1, 5, "one stream is left"
        )
        plugin.list(Device("b/0", True))
        assert [each.ID for each in (await staying.read()).devices] == ["b/0"]
    await server.stop()


def test_each_container_of_one_call_is_answered_with_all_that_it_gets(folder: Path) -> None:
    plugin = Told()
    answer = ask(folder, plugin, lambda stub: stub.Allocate(allocate(("a/0", "a/1"), ("a/2",))))
    assert plugin.asked == [("a/0", "a/1"), ("a/2",)]
    expected = wire.ContainerAllocateResponse(
        envs=FULL.environment,
        mounts=[
            wire.Mount(
                container_path="/run/mpsd/client", host_path="/run/mpsd/gpu0/client", read_only=True
            )
        ],
        devices=[wire.DeviceSpec(container_path=_GATE, host_path=_GATE, permissions="r")],
        annotations=FULL.annotations,
        cdi_devices=[wire.CDIDevice(name="nvidia.com/gpu=0")],
    )
    assert answer == wire.AllocateResponse(container_responses=[expected, expected])


def test_preferred_devices_are_asked_with_all_that_kubelet_says(folder: Path) -> None:
    plugin = Told()
    asked = wire.ContainerPreferredAllocationRequest(
        available_deviceIDs=["a/0", "a/1", "a/2"], must_include_deviceIDs=["a/2"], allocation_size=2
    )
    request = wire.PreferredAllocationRequest(container_requests=[asked])
    answer = ask(folder, plugin, lambda stub: stub.GetPreferredAllocation(request))
    assert plugin.asked == [(("a/0", "a/1", "a/2"), ("a/2",), 2)]
    expected = wire.ContainerPreferredAllocationResponse(deviceIDs=["a/2", "a/0"])
    assert answer == wire.PreferredAllocationResponse(container_responses=[expected])


def test_a_refusal_is_told_in_its_own_words_on_one_line(folder: Path) -> None:
    problem = Problem("no-room", "devices", "3", "lie on two\nGPUs", "ask for less")
    refused = refusal_of(folder, InvalidInput("container main", [problem]))
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.details() == "container main: devices is 3: lie on two GPUs; ask for less"


def test_a_refusal_without_end_is_cut_and_one_without_words_has_a_name(folder: Path) -> None:
    details = refusal_of(folder, OSError("é" * 10_000)).details()
    assert details is not None
    assert len(details) == 700
    assert details.endswith("é…")
    assert refusal_of(folder, ZeroDivisionError()).details() == "ZeroDivisionError"


def test_a_plugin_that_finds_no_answer_is_given_up_before_kubelet_gives_up(folder: Path) -> None:
    plugin = Told()
    plugin.wait_s = 30
    start = wire.PreStartContainerRequest(devices_ids=["a/0"])
    with pytest.raises(grpc.aio.AioRpcError, match=r"did not answer within 0\.1 s"):
        ask(folder, plugin, lambda stub: stub.PreStartContainer(start), answer_within_s=0.1)


_WRONG = InvalidInput("a pod", [Problem("rule", "where", "value", "is wrong", "write another")])


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, CallOutcome.ANSWERED),
        (_WRONG, CallOutcome.REFUSED),
        (StartDeferred("gpu0 is starting"), CallOutcome.HELD_BACK),
        (TimeoutError("no answer"), CallOutcome.LATE),
        (ValueError("a fault of ours"), CallOutcome.FAILED),
    ],
)
def test_what_came_of_each_call_is_told_with_its_devices(
    folder: Path, error: Exception | None, outcome: CallOutcome
) -> None:
    plugin = Told()
    plugin.refusal = error
    told: list[tuple[Call, Sequence[str], CallOutcome, float]] = []

    async def questions(stub: DevicePluginStub) -> None:
        prefer = wire.ContainerPreferredAllocationRequest(
            available_deviceIDs=["a/0", "a/1"], must_include_deviceIDs=["a/1"], allocation_size=1
        )
        await stub.GetPreferredAllocation(
            wire.PreferredAllocationRequest(container_requests=[prefer])
        )
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stub.Allocate(allocate(("a/0", "a/1"), ("b/0",)))
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stub.PreStartContainer(wire.PreStartContainerRequest(devices_ids=["a/0"]))

    ask(folder, plugin, questions, on_call=lambda *call: told.append(call))
    assert [(call, tuple(ids), what) for call, ids, what, _took_s in told] == [
        (Call.PREFER, ("a/1",), CallOutcome.ANSWERED),
        (Call.ALLOCATE, ("a/0", "a/1", "b/0"), outcome),
        (Call.PRE_START, ("a/0",), outcome),
    ]
    assert all(took_s >= 0 for *_what, took_s in told)


def test_eight_gpus_of_139_gib_and_their_percent_fit_one_message_of_kubelet(folder: Path) -> None:
    gpus = [f"GPU-{number:08x}-1234-1234-1234-123456789abc" for number in range(8)]
    memory = tuple(Device(f"{gpu}/{unit}", False) for gpu in gpus for unit in range(139))
    percent = tuple(Device(f"percent/{number}", False) for number in range(800))
    for devices in (memory, percent):
        listed = ask(folder, Told(devices), lambda stub: stub.ListAndWatch(wire.Empty()).read())
        assert isinstance(listed, wire.ListAndWatchResponse)
        assert len(listed.devices) == len(devices)
        assert listed.ByteSize() < KUBELETS_LONGEST_MESSAGE / 40


def test_the_socket_is_for_root_alone_and_replaces_a_stale_one(folder: Path) -> None:
    (folder / "mem.sock").write_text("left by a process that was killed")
    mode = []

    async def look(stub: DevicePluginStub) -> None:
        mode.append((folder / "mem.sock").stat().st_mode)
        await stub.GetDevicePluginOptions(wire.Empty())

    ask(folder, Told(), look)
    assert [stat.S_ISSOCK(seen) and stat.S_IMODE(seen) for seen in mode] == [0o600]


async def test_a_socket_that_was_deleted_or_replaced_is_noticed_and_what_replaced_it_is_left_alone(
    folder: Path,
) -> None:
    first, second = (
        PluginServer("gpu", folder, "mem.sock", Told()),
        PluginServer("gpu", folder, "mem.sock", Told()),
    )
    assert not first.reachable
    await first.start()
    assert first.reachable
    (folder / "mem.sock").unlink()
    assert not first.reachable
    await second.start()
    assert not first.reachable
    await first.stop()
    assert second.reachable
    async with dial(folder / "mem.sock") as channel:
        await DevicePluginStub(channel).GetDevicePluginOptions(wire.Empty())
    await second.stop()


def test_a_folder_that_is_not_there_means_that_kubelet_is_away(folder: Path) -> None:
    with pytest.raises(KubeletUnavailable, match=r"cannot create a socket in .*/device-plugins"):
        asyncio.run(PluginServer("gpu", folder / "device-plugins", "mem.sock", Told()).start())
    assert identity_of(folder / "device-plugins" / KUBELET_SOCKET) is None


class Kubelet(RegistrationServicer):
    """The half of kubelet that is registered with."""

    def __init__(self, refusal: str = "", wait_s: float = 0) -> None:
        self.registered: list[wire.RegisterRequest] = []
        self.refusal, self.wait_s = refusal, wait_s

    async def Register(  # noqa: N802
        self, request: wire.RegisterRequest, context: grpc.aio.ServicerContext
    ) -> wire.Empty:
        self.registered.append(request)
        await asyncio.sleep(self.wait_s)
        if self.refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        return wire.Empty()


def register_with(kubelet: Kubelet, folder: Path, **how: float) -> None:
    async def conversation() -> None:
        server = grpc.aio.server()
        add_RegistrationServicer_to_server(kubelet, server)
        server.add_insecure_port(f"unix:{folder / KUBELET_SOCKET}")
        await server.start()
        try:
            await register(folder, "mem.sock", "aliyun.com/gpu-mem", **how)
        finally:
            await server.stop(None)

    asyncio.run(conversation())


def test_registering_says_all_that_an_old_kubelet_asks_nowhere_else(folder: Path) -> None:
    kubelet = Kubelet()
    register_with(kubelet, folder)
    options = wire.DevicePluginOptions(
        pre_start_required=True, get_preferred_allocation_available=True
    )
    assert kubelet.registered == [
        wire.RegisterRequest(
            version="v1beta1",
            endpoint="mem.sock",
            resource_name="aliyun.com/gpu-mem",
            options=options,
        )
    ]


def test_a_kubelet_that_is_away_silent_or_says_no_is_told_apart(folder: Path) -> None:
    with pytest.raises(KubeletUnavailable, match=f"does not answer on {folder}/kubelet.sock"):
        asyncio.run(register(folder, "mem.sock", "aliyun.com/gpu-mem"))
    with pytest.raises(KubeletUnavailable, match=r"did not answer on .* within 0\.2 s"):
        register_with(Kubelet(wait_s=30), folder, deadline_s=0.2)
    with pytest.raises(
        KubeletUnavailable, match=r"kubelet refused the call on .*: the resource name is invalid"
    ):
        register_with(Kubelet(refusal="the resource name is invalid"), folder)


def test_a_kubelet_that_starts_again_is_another_one_by_its_socket(folder: Path) -> None:
    path = folder / KUBELET_SOCKET
    register_with(Kubelet(), folder)
    assert identity_of(path) is None
    path.touch()
    first = identity_of(path)
    assert first == identity_of(path)
    path.unlink()
    path.touch()
    assert identity_of(path) not in {first, None}
