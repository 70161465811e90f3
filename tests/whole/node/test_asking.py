"""When kubelet is asked who holds what: soon after any change, and seldom while there is none."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import cast

import grpc
import pytest

from mpsd.agent.agent import AgentRole
from mpsd.kubelet import device_plugins, ledger
from mpsd.kubelet.api import podresources_pb2 as wire
from mpsd.kubelet.api.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from mpsd.kubelet.device_plugins import MemoryPlugin, NodeDevices
from mpsd.kubelet.ledger import KubeletGrants
from mpsd.kubelet.plugin_server import StartDeferred
from mpsd.kubelet.rules.allocation import DeviceListStrategy, NodeConditions, gpu_of, memory_devices
from mpsd.kubelet.rules.ledger import JournalEntry
from mpsd.kubelet.rules.node_pods import ASSIGNED, NodePod, read_node_pod
from mpsd.mps.node_gpus import Node
from mpsd.mps.records import NodeDomains
from mpsd.platform import processes, records
from mpsd.platform.event_loop import until
from mpsd.platform.kube import PODS, Object
from mpsd.platform.kube_access import open_kube
from mpsd.platform.kube_mirror import Mirror, Selection
from mpsd.platform.logs import logger
from mpsd.platform.nvml import Nvml
from mpsd.simulator.api_server.kinds import PODS as PODS_KIND
from mpsd.watchdog.watchdog import ClusterReporter
from tests.model.worlds import GPUS, POLICY, UUIDS
from tests.simulated_api import SimulatedApi, simulated_api
from tests.status.node_worlds import (
    MEM,
    PERCENT,
    container,
    mem_ids,
    named,
    percent_ids,
    pod_object,
)

DEADLINE_S = 20.0


class Kubelet(PodResourcesListerServicer):
    """Says that one pod holds 7 devices, and counts how often it was asked. late: what its next
    answer waits for."""

    def __init__(self, socket: Path) -> None:
        self.asked = 0
        self.name = "train-0"
        self.held = mem_ids(7)
        self.percent: Sequence[str] = ()
        self.late: asyncio.Event | None = None
        self._socket = socket

    async def List(self, _request: object, _context: object) -> wire.ListPodResourcesResponse:  # noqa: N802
        self.asked += 1
        devices = [
            wire.ContainerDevices(resource_name=resource, device_ids=ids)
            for resource, ids in ((MEM, self.held), (PERCENT, self.percent))
        ]
        main = wire.ContainerResources(name="main", devices=devices)
        pod = wire.PodResources(name=self.name, namespace="default", containers=[main])
        late, self.late = self.late, None
        if late:
            await late.wait()
        return wire.ListPodResourcesResponse(pod_resources=[pod])

    async def start(self) -> None:
        self._server = grpc.aio.server()
        add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)


class World:
    """A ledger beside a kubelet and an API server, which have one pod."""

    def __init__(
        self, api: SimulatedApi, kubelet: Kubelet, ledger: KubeletGrants, pods: Mirror[NodePod]
    ) -> None:
        self.api = api
        self.kubelet = kubelet
        self.ledger = ledger
        self.pods = pods

    async def asks(self, looks: int) -> int:
        """How often kubelet is asked at so many looks, one right after the other."""
        before = self.kubelet.asked
        for _look in range(looks):
            await self.ledger.refresh()
        return self.kubelet.asked - before

    def create(self, pod: Mapping[str, object]) -> None:
        self.api.do(lambda: self.api.cluster.objects.create(PODS_KIND, "default", dict(pod)))

    async def change(self, edit: Callable[[Object], None]) -> None:
        """The pod that was there first, until that is seen."""
        before, objects = self.pods.objects(), self.api.cluster.objects
        key = objects.key(PODS_KIND, "default", "train-0")
        self.api.do(lambda: objects.change(key, edit))
        await until(lambda: self.pods.objects() != before, DEADLINE_S, "the change is seen")

    async def calm(self) -> None:
        """Until what changed last is long ago."""
        async with asyncio.timeout(DEADLINE_S):
            while await self.asks(1):  # noqa: ASYNC110  only time passes
                await asyncio.sleep(0.01)


@pytest.fixture
def world() -> Iterator[AbstractAsyncContextManager[World]]:
    with tempfile.TemporaryDirectory(prefix="mpsd-") as folder, simulated_api() as api:
        yield _world(Path(folder), api)


@asynccontextmanager
async def _world(folder: Path, api: SimulatedApi) -> AsyncIterator[World]:
    kube, kubelet = open_kube(api.kubeconfig(folder)), Kubelet(folder / "kubelet.sock")
    pods = Mirror[NodePod](
        kube, Selection(PODS), lambda thing: read_node_pod(thing, POLICY), lambda: None
    )
    domains = NodeDomains(folder, GPUS, POLICY, logger())
    ledger = KubeletGrants(
        folder / "kubelet.sock", folder / "agent/journal", pods, domains, lambda: POLICY, logger()
    )
    world = World(api, kubelet, ledger, pods)
    world.create(pod_object("train-0", container(mem=7)))
    await kubelet.start()
    await ledger.refresh()
    assert not ledger.view.ungranted
    assert ledger.view.by_place == {}  # the grant is known, and not yet whose processes have it
    mirroring = asyncio.create_task(pods.run())
    try:
        await until(
            lambda: pods.synced and pods.out_of_sync_since is None,
            DEADLINE_S,
            "the pods are mirrored",
        )
        yield world
    finally:
        mirroring.cancel()
        await asyncio.gather(mirroring, return_exceptions=True)
        await kubelet.stop()
        kube.close()


@pytest.fixture(autouse=True)
def _soon_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_NEWS_S", 0.5)
    monkeypatch.setattr(ledger, "_NEWS_PAUSE_S", 0.0)


async def test_an_unreadable_journal_is_unknown_until_kubelet_makes_up_for_it(world: World) -> None:
    """An init container's devices, for example, are in no list of kubelet's."""
    world.kubelet.name = "another"
    await world.ledger.refresh_now()
    journal = world.ledger._journal
    before = world.ledger.entries
    journal.parent.mkdir(exist_ok=True)
    journal.write_text('{"entries": [')
    world.ledger.load()
    await world.ledger.refresh_now()
    (unknown,) = world.ledger.view.unknown
    assert str(journal) in unknown
    assert journal.read_text() == '{"entries": ['
    world.kubelet.name = "train-0"
    await world.ledger.refresh_now()
    assert world.ledger.view.unknown == ()
    assert [held.grant.memory_mib for held in world.ledger.view.held] == [7 * 1024]
    assert records.read(journal, dict) is not None
    assert world.ledger.entries == before == ()


async def test_while_nothing_changes_kubelet_is_asked_seldom(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await world.asks(2) == 2  # whoever has just begun does not know yet what is changing
    await world.calm()
    assert await world.asks(3) == 0
    monkeypatch.setattr(ledger, "_QUIET_S", 0.0)
    assert await world.asks(3) == 3


async def test_a_changed_pod_and_an_answer_have_kubelet_asked_again(world: World) -> None:
    await world.calm()
    await world.change(lambda pod: pod["metadata"].update(annotations={ASSIGNED: "false"}))
    assert await world.asks(1) == 1
    await world.calm()
    world.kubelet.held = ()
    assert await world.asks(1) == 0
    await world.ledger.refresh_now()  # as before each start of a container
    assert world.ledger.view.held == ()
    assert await world.asks(1) == 1, "more may follow of what nobody else tells"
    await world.calm()
    given = JournalEntry(
        "memory", mem_ids(2, first=20), named("train-0"), 100, processes.boot_id(), 1.0
    )
    world.ledger.note(given)
    assert await world.asks(1) == 1


async def test_a_kubelet_that_is_away_is_asked_at_every_look(world: World) -> None:
    await world.calm()
    await world.kubelet.stop()
    await world.ledger.refresh_now()
    # its last word stands
    assert [one.grant.memory_mib for one in world.ledger.view.held] == [7 * 1024]
    await world.kubelet.start()
    assert await world.asks(1) == 1


async def test_while_the_api_is_away_kubelet_is_asked_and_nobody_new_has_none(world: World) -> None:
    """Nobody else would tell of the end of a pod."""
    world.create(pod_object("web", container()))
    await until(lambda: len(world.pods.objects()) == 2, DEADLINE_S, "it is seen")
    await world.calm()
    before = dict(world.ledger.view.ungranted)
    world.api.stop()
    await until(lambda: world.pods.out_of_sync_since, DEADLINE_S, "the API server is missed")
    assert await world.asks(3) == 3
    world.kubelet.held = ()
    await world.ledger.refresh_now()
    assert world.ledger.view.ungranted == before
    assert {pod.name for pod in before.values()} == {"web"}


async def test_devices_are_chosen_by_what_kubelet_says_now(world: World) -> None:
    """Of two pods that ask for as many percent, the older was not the one that kubelet asked for
    first."""
    world.create(pod_object("older", container(mem=4, percent=60), age=9))
    world.create(pod_object("newer", container(mem=7, percent=60)))
    await until(lambda: len(world.ledger.pods_seen) == 3, DEADLINE_S, "they are seen")
    boot, ids = processes.boot_id(), percent_ids(60)
    world.ledger.note(JournalEntry("percent", ids, named("older"), 60, boot, 1.0, "uid-of-older"))
    world.ledger.note(
        JournalEntry("memory", mem_ids(7), named("newer"), None, boot, 2.0, "uid-of-newer")
    )
    world.kubelet.name, world.kubelet.percent = "newer", ids
    available = [one for one in memory_devices(GPUS, POLICY) if one not in mem_ids(7)]
    chosen = await _plugin(world.ledger).preferred(available, (), 4)
    # both on the first would have 120 percent of its threads
    assert set(map(gpu_of, chosen)) == {UUIDS[1]}


def _plugin(ledger: KubeletGrants) -> MemoryPlugin:
    """What chooses devices; who looks at the GPUs is not asked for that."""
    node = Node(cast("Nvml", None), GPUS, {}, (), {}, "")
    devices = NodeDevices(node, ledger._domains, cast("AgentRole", None), ledger, lambda: POLICY)

    async def evict(pod: object, why: str) -> None:
        raise AssertionError(f"{pod}: {why}")

    around = NodeConditions("/run/mpsd", DeviceListStrategy.ENVVAR, {})
    return MemoryPlugin(
        devices, around, ClusterReporter(lambda _pod, _reason, _message: None, evict)
    )


async def test_an_older_word_of_kubelet_that_comes_late_undoes_no_newer_one(world: World) -> None:
    world.kubelet.late = late = asyncio.Event()
    first = asyncio.create_task(world.ledger.refresh_now())
    await until(lambda: world.kubelet.late is None, DEADLINE_S, "kubelet is asked")
    world.kubelet.held = mem_ids(3)
    await world.ledger.refresh_now()
    late.set()
    await first
    assert [one.grant.memory_mib for one in world.ledger.view.held] == [3 * 1024]


async def test_no_container_starts_before_kubelet_says_what_it_holds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_plugins, "_ANSWER_S", 0.3)
    await world.kubelet.stop()
    with pytest.raises(StartDeferred, match="kubelet does not list who holds which device"):
        await _plugin(world.ledger).pre_start(mem_ids(7))
    waiting = asyncio.create_task(world.ledger.until_answered(DEADLINE_S))
    await world.kubelet.start()
    assert await waiting == ""
