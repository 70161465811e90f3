"""What one scheduler knows of every GPU, whoever put the pods there and whatever became of the API
server."""

import pytest

from mpsd.platform.kube import PatchKind
from mpsd.scheduler.bind import BindFailure
from tests.whole.scheduler.between import Cut, between
from tests.whole.scheduler.world import MPS_NODES, NODES, PODS, World


@pytest.mark.parametrize("became", ["deleted", "finished", "made anew"])
async def test_a_promise_to_a_pod_that_ended_while_no_scheduler_ran_ends_at_once(
    world: World, became: str
) -> None:
    await world.add_node()
    await world.reserve((await world.add_pod("a", 7))["metadata"]["uid"], "a", 7)
    if became == "finished":
        done = {"status": {"phase": "Succeeded"}}
        await world.kube.patch(
            PODS, "a", done, PatchKind.STRATEGIC, "default", subresource="status"
        )
    else:
        await world.end_pod("a")
    if became == "made anew":
        await world.add_pod("a", 7)
    scheduler = await world.scheduler()
    await scheduler.sees_free(23, 23)


async def test_a_promise_counts_whose_pod_the_server_tells_nothing_of(world: World) -> None:
    await world.add_node()
    await world.reserve("7", "never-seen", 7)
    with between(world.kubeconfig) as (here, kube):
        here.cut_at(Cut(0, done=False, lost=True))
        scheduler = await world.scheduler(kube)
        await scheduler.sees(here.reached.is_set, "it has asked")
        assert here.calls == ["GET pods"]
        assert scheduler.free() == [16, 23]
        await scheduler.die()


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
