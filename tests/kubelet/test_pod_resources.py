"""What kubelet says of the devices that containers hold is summed as it comes, and never
guessed."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from mpsd.kubelet.api import podresources_pb2 as wire
from mpsd.kubelet.api.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from mpsd.kubelet.client import KubeletUnavailable, held_devices
from mpsd.kubelet.rules.ledger import ContainerDevices
from mpsd.kubelet.rules.node_pods import ContainerName

MEMORY, PERCENT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
RESOURCES = {MEMORY: "memory", PERCENT: "percent"}


class Lister(PodResourcesListerServicer):
    def __init__(self, answer: Callable[[], wire.ListPodResourcesResponse]) -> None:
        self._answer = answer

    async def List(  # noqa: N802
        self, _request: wire.ListPodResourcesRequest, context: object
    ) -> wire.ListPodResourcesResponse:
        return self._answer()


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kubelet-") as made:
        yield Path(made) / "kubelet.sock"


def ask(
    socket: Path, answer: Callable[[], wire.ListPodResourcesResponse]
) -> tuple[ContainerDevices, ...]:
    async def conversation() -> tuple[ContainerDevices, ...]:
        server = grpc.aio.server()
        add_PodResourcesListerServicer_to_server(Lister(answer), server)
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        try:
            return (await held_devices(socket, RESOURCES)).held
        finally:
            await server.stop(None)

    return asyncio.run(conversation())


def answer(
    pod: str, container: str, *entries: tuple[str, list[str]]
) -> wire.ListPodResourcesResponse:
    devices = [wire.ContainerDevices(resource_name=name, device_ids=ids) for name, ids in entries]
    held = wire.ContainerResources(name=container, devices=devices)
    return wire.ListPodResourcesResponse(
        pod_resources=[wire.PodResources(name=pod, namespace="default", containers=[held])]
    )


def test_an_entry_a_resource_and_an_entry_a_device_say_the_same(socket: Path) -> None:
    as_1_20 = answer("train", "main", (MEMORY, ["GPU-0/1", "GPU-0/0"]), (PERCENT, ["percent/7"]))
    as_1_36 = answer(
        "train", "main", (MEMORY, ["GPU-0/1"]), (PERCENT, ["percent/7"]), (MEMORY, ["GPU-0/0"])
    )
    expected = ContainerDevices(
        ContainerName("default", "train", "main"), ("GPU-0/0", "GPU-0/1"), ("percent/7",)
    )
    assert ask(socket, lambda: as_1_20) == ask(socket, lambda: as_1_36) == (expected,)


def test_a_device_that_is_listed_for_each_numa_node_counts_once(socket: Path) -> None:
    [held] = ask(
        socket, lambda: answer("train", "main", (MEMORY, ["GPU-0/0"]), (MEMORY, ["GPU-0/0"]))
    )
    assert held.memory == ("GPU-0/0",)


def test_the_order_that_kubelet_happens_to_say_things_in_makes_no_difference(socket: Path) -> None:
    pods = [
        answer(pod, "main", (MEMORY, [f"GPU-0/{n}"])).pod_resources[0]
        for n, pod in enumerate("abc")
    ]
    there = ask(socket, lambda: wire.ListPodResourcesResponse(pod_resources=pods))
    back = ask(socket, lambda: wire.ListPodResourcesResponse(pod_resources=pods[::-1]))
    assert there == back
    assert [one.container.pod for one in there] == ["a", "b", "c"]


def test_containers_with_nothing_of_ours_are_left_out(socket: Path) -> None:
    assert (
        ask(socket, lambda: answer("train", "main", ("example.com/nic", ["nic/0"]), (MEMORY, [])))
        == ()
    )


def test_500_pods_with_all_devices_of_a_gpu_are_read_an_entry_a_device(socket: Path) -> None:
    ids = [f"GPU-12345678-1234-1234-1234-123456789abc/{unit}" for unit in range(139)]
    entries = [wire.ContainerDevices(resource_name=MEMORY, device_ids=[each]) for each in ids]
    main = wire.ContainerResources(name="main", devices=entries)
    pods = [
        wire.PodResources(name=f"train-{n}", namespace="default", containers=[main])
        for n in range(500)
    ]
    answered = wire.ListPodResourcesResponse(pod_resources=pods)
    assert answered.ByteSize() > 4 * 1024**2  # what gRPC would take by default
    held = ask(socket, lambda: answered)
    assert len(held) == 500
    assert all(each.memory == tuple(sorted(ids)) for each in held)


def test_a_kubelet_that_is_away_or_fails_is_never_an_empty_answer(socket: Path) -> None:
    with pytest.raises(KubeletUnavailable, match=f"does not answer on {socket}"):
        asyncio.run(held_devices(socket, RESOURCES))

    def fail() -> wire.ListPodResourcesResponse:
        raise RuntimeError("rejected by rate limit")

    with pytest.raises(KubeletUnavailable, match="rejected by rate limit"):
        ask(socket, fail)
