"""What one scheduler knows of every GPU, whoever put the pods there and whatever became of the API
server."""

from mpsd.scheduler.bind import BindFailure
from tests.whole.scheduler.world import MPS_NODES, NODES, World


async def test_a_scheduler_that_lost_its_watches_lists_again(world: World) -> None:
    await world.add_node()
    scheduler = await world.scheduler()
    for name in "ab":
        assert await scheduler.bind(await world.add_pod(name, 7)) == ""
    await scheduler.sees(lambda: len(scheduler.ledger.pods_on("node1")) == 2, "both are seen bound")
    world.api.stop()
    await scheduler.sees(
        lambda: any(one.out_of_sync_since for one in scheduler.ledger.mirrors),
        "the API is away",
    )
    assert scheduler.ledger.trouble == ""
    assert scheduler.free() == [9, 23]
    await world.end_pod("a")
    world.api.forget_history()
    world.api.start()
    await scheduler.sees_free(16, 23)
    assert [pod.name.name for pod in scheduler.ledger.pods_on("node1")] == ["b"]


async def test_nothing_is_bound_while_the_api_has_been_away_for_long(world: World) -> None:
    await world.add_node()
    scheduler = await world.scheduler(out_of_sync_s=0.1)
    pod = await world.add_pod("a", 7)
    world.api.stop()
    await scheduler.sees(lambda: scheduler.ledger.trouble, "the API has been away for long")
    assert "mpsd's scheduler does not know the free capacity: no news of" in await scheduler.bind(
        pod
    )
    world.api.start()
    await scheduler.is_ready()
    assert await scheduler.bind(pod) == ""


async def test_a_node_that_is_gone_takes_no_pods(world: World) -> None:
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
    await scheduler.sees(lambda: scheduler.ledger.known("node1") is None, "nothing of it is kept")
