"""What one scheduler knows of every GPU, whoever put the pods there and whatever became of the API
server."""

from pathlib import Path

from mpsd.kubelet.rules.gpu_choice import GPU
from mpsd.scheduler.bind import BindFailure
from mpsd.scheduler.rules.capacity import AssignmentSource
from tests.simulated_api import SimulatedApi
from tests.whole.scheduler.world import GIB, MPS_NODES, NODES, World, run, uuid


def test_pods_of_other_schedulers_count(api: SimulatedApi, tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.add_node()
        scheduler = await world.scheduler()
        await world.add_pod("said", 7, node="node1", annotations={GPU: uuid("node1", 1)})
        await scheduler.sees_free(23, 16)
        await world.add_pod("unsaid", 5, node="node1")
        await scheduler.sees_free(23, 11)
        assert {one.pod.name: one.source for one in scheduler.node().taken} == {
            "said": AssignmentSource.BOUND,
            "unsaid": AssignmentSource.GUESSED,
        }
        assert {pod.name.name for pod in scheduler.ledger.pods_on("node1")} == {"said", "unsaid"}

    run(api, tmp_path, test)


def test_a_granted_pod_needs_no_promise_any_more(api: SimulatedApi, tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.add_node()
        scheduler = await world.scheduler()
        assert await scheduler.bind(await world.add_pod("a", 7)) == ""
        assert await scheduler.bind(await world.add_pod("b", 7)) == ""
        a, b = await world.pod("a"), await world.pod("b")
        assert set(await world.reservations()) == {a["metadata"]["uid"], b["metadata"]["uid"]}
        await world.tell("node1", a)
        c = await world.add_pod("c", 7)
        assert await scheduler.bind(c) == ""
        assert set(await world.reservations()) == {b["metadata"]["uid"], c["metadata"]["uid"]}
        assert scheduler.free() == [2, 23]

    run(api, tmp_path, test)


def test_the_room_of_a_pod_that_ends_is_free(api: SimulatedApi, tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.add_node()
        scheduler = await world.scheduler()
        assert await scheduler.bind(await world.add_pod("a", 7)) == ""
        await world.end_pod("a")
        await scheduler.sees_free(23, 23)
        b = await world.add_pod("b", 7)
        assert await scheduler.bind(b) == ""
        assert list(await world.reservations()) == [b["metadata"]["uid"]]

    run(api, tmp_path, test)


def test_a_promise_to_a_pod_that_nobody_binds_ends(api: SimulatedApi, tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.add_node()
        uid = (await world.add_pod("a", 7))["metadata"]["uid"]
        await world.reserve(uid, "a", 7)
        scheduler = await world.scheduler()
        await scheduler.sees_free(16, 23)
        assert set(scheduler.ledger.reserved_for(uid)) == {"node1"}
        assert [room.memory_mib for room in scheduler.ledger.reserved_for(uid)["node1"].rooms] == [
            23 * GIB
        ] * 2
        world.pass_time(149)
        assert scheduler.free() == [16, 23]
        world.pass_time(2)
        assert scheduler.free() == [23, 23]

    run(api, tmp_path, test)


def test_a_scheduler_that_lost_its_watches_lists_again(api: SimulatedApi, tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.add_node()
        scheduler = await world.scheduler()
        for name in "ab":
            assert await scheduler.bind(await world.add_pod(name, 7)) == ""
        await scheduler.sees(
            lambda: len(scheduler.ledger.pods_on("node1")) == 2, "both are seen bound"
        )
        api.stop()
        await scheduler.sees(
            lambda: any(one.out_of_sync_since for one in scheduler.ledger.mirrors),
            "the API is away",
        )
        assert scheduler.ledger.trouble == ""
        assert scheduler.free() == [9, 23]
        await world.end_pod("a")
        api.forget_history()
        api.start()
        await scheduler.sees_free(16, 23)
        assert [pod.name.name for pod in scheduler.ledger.pods_on("node1")] == ["b"]

    run(api, tmp_path, test)


def test_nothing_is_bound_while_the_api_has_been_away_for_long(
    api: SimulatedApi, tmp_path: Path
) -> None:
    async def test(world: World) -> None:
        await world.add_node()
        scheduler = await world.scheduler(out_of_sync_s=0.1)
        pod = await world.add_pod("a", 7)
        api.stop()
        await scheduler.sees(lambda: scheduler.ledger.trouble, "the API has been away for long")
        assert (
            "mpsd's scheduler does not know the free capacity: no news of"
            in await scheduler.bind(pod)
        )
        api.start()
        await scheduler.is_ready()
        assert await scheduler.bind(pod) == ""

    run(api, tmp_path, test)


def test_a_node_that_is_gone_takes_no_pods(api: SimulatedApi, tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.add_node()
        scheduler = await world.scheduler()
        assert await scheduler.bind(await world.add_pod("a", 7)) == ""
        await world.kube.delete(MPS_NODES, "node1")
        await scheduler.sees(lambda: not scheduler.ledger.table.nodes, "it has no row")
        assert await scheduler.bind(await world.add_pod("b", 7)) == BindFailure.NO_GPUS.format(
            node="node1"
        )
        await world.kube.delete(NODES, "node1")
        await world.end_pod("a")
        await scheduler.sees(
            lambda: scheduler.ledger.known("node1") is None, "nothing of it is kept"
        )

    run(api, tmp_path, test)


def test_what_says_nothing_of_room_writes_no_row(api: SimulatedApi, tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.add_node()
        scheduler = await world.scheduler()
        row = scheduler.node()
        known = scheduler.ledger.known("node1")
        assert known
        assert known.reported
        version = known.reported.version
        await world.tell("node1", used_mib=4711)
        await scheduler.sees(
            lambda: known.reported and known.reported.version != version, "it is heard of"
        )
        assert scheduler.node() is row

    run(api, tmp_path, test)
