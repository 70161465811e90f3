"""What kubelet says of the devices that containers hold is summed as it comes, and never
guessed."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import grpc
import pytest

from mpsd.kubelet.api import podresources_pb2 as wire
from mpsd.kubelet.api.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from mpsd.kubelet.client import KubeletUnavailable, held_devices
from mpsd.kubelet.ledger import KubeletGrants
from mpsd.kubelet.rules.ledger import ContainerDevices
from mpsd.kubelet.rules.node_pods import ContainerName, read_node_pod
from mpsd.model.domain import Domain
from mpsd.platform.logs import logger
from tests.model.worlds import POLICY
from tests.status.node_worlds import container, pod_object

T = TypeVar("T")
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
    return asked(socket, answer, lambda: held_devices(socket, RESOURCES)).held


def asked(
    socket: Path,
    answer: Callable[[], wire.ListPodResourcesResponse],
    question: Callable[[], Coroutine[Any, Any, T]],
) -> T:
    async def conversation() -> T:
        server = grpc.aio.server()
        add_PodResourcesListerServicer_to_server(Lister(answer), server)
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        try:
            return await question()
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


def test_a_grant_has_the_memory_and_the_threads_that_kubelet_lists(socket: Path) -> None:
    listed = answer("train", "main", (MEMORY, ["GPU-0/0", "GPU-0/1"]), (PERCENT, ["percent/7"]))
    pods = cast("Any", SimpleNamespace(objects=tuple, synced=False))
    domains = cast("Any", SimpleNamespace(every=(Domain("gpu0", ("GPU-0",)),)))
    journal = socket.with_name("journal")
    ledger = KubeletGrants(socket, journal, pods, domains, lambda: POLICY, logger())
    asked(socket, lambda: listed, ledger.refresh_now)
    (held,) = ledger.view.held
    assert (held.grant.memory_mib, held.grant.reserved_percent) == (2 * 1024, 1)


def test_whom_kubelet_lists_no_device_for_is_known_to_hold_none(socket: Path) -> None:
    resources = {"limits": {"nvidia.com/gpu": 1}}
    names = ("other", "forged")
    things = [pod_object(one, container(resources=resources), phase="Running") for one in names]
    rows = tuple(read_node_pod(thing, POLICY) for thing in things)
    listed = wire.ListPodResourcesResponse(
        pod_resources=[
            *answer("other", "main", ("nvidia.com/gpu", ["GPU-9"])).pod_resources,
            *answer("forged", "main", ("nvidia.com/gpu", [])).pod_resources,
        ]
    )
    mirror = {"objects": lambda: rows, "synced": True, "out_of_sync_since": None}
    pods = cast("Any", SimpleNamespace(**mirror))
    domains = cast("Any", SimpleNamespace(every=()))
    journal = socket.with_name("journal")
    ledger = KubeletGrants(socket, journal, pods, domains, lambda: POLICY, logger())
    ledger.count()
    assert not ledger.view.ungranted
    asked(socket, lambda: listed, ledger.refresh_now)
    assert {pod.name for pod in ledger.view.ungranted.values()} == {"forged"}


def test_each_device_of_ours_counts_once_in_whatever_order_it_is_listed(socket: Path) -> None:
    """A device is listed for each of its NUMA nodes."""
    entries = [(MEMORY, ["GPU-0/0"]), (MEMORY, ["GPU-0/0"]), ("example.com/nic", ["nic/0"])]
    pods = [answer(pod, "main", *entries).pod_resources[0] for pod in "abc"]
    pods.append(answer("other", "main", entries[-1], (MEMORY, [])).pod_resources[0])
    there = ask(socket, lambda: wire.ListPodResourcesResponse(pod_resources=pods))
    back = ask(socket, lambda: wire.ListPodResourcesResponse(pod_resources=pods[::-1]))
    assert there == back
    assert [(one.container.pod, one.memory) for one in there] == [
        (pod, ("GPU-0/0",)) for pod in "abc"
    ]


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
