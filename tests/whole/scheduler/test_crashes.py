"""A scheduler that is cut off anywhere between filter, bind and Allocate: what the next one knows,
and does."""

import asyncio
from dataclasses import replace

import pytest

from mpsd.platform.event_loop import until
from mpsd.platform.kube import Kube
from mpsd.scheduler.rules.capacity import AssignmentSource
from tests.whole.scheduler.between import Between, Cut, between
from tests.whole.scheduler.server_history import overfull
from tests.whole.scheduler.world import DEADLINE_S, GIB, Scheduler, World, gpu_of, uuid

# of a bind that another write comes before
CALLS = (
    "PATCH mpsnodes",
    "GET mpsnodes",
    "PATCH mpsnodes",
    "POST binding",
)
CUTS = [Cut(call, done) for call in range(len(CALLS)) for done in (False, True)]
WRITES = [cut for cut in CUTS if cut.call >= 2]
CARD = {uuid("node1", 0): 23}


async def scheduler_behind(world: World, here: Between, kube: Kube) -> Scheduler:
    """One whose watch of MPSNodes has fallen silent, so that its first write is refused."""
    here.silent.add("mpsnodes")
    scheduler = await world.scheduler(kube)
    await world.tell("node1", used_mib=1)
    return scheduler


async def test_of_two_schedulers_that_write_of_a_pod_the_first_counts(world: World) -> None:
    """The first may have bound it by now, and the second hears of that too late to count it
    there."""
    await world.add_node(gib=(12, 9))
    pods = [await world.add_pod(name, gib) for name, gib in (("a", 4), ("b", 6))]
    first = await world.scheduler()
    with between(world.kubeconfig) as (here, kube):
        here.silent |= {"mpsnodes", "pods"}
        second = await world.scheduler(kube)
        await first.sees(lambda: first.ledger.pod("default", "b"), "the pods are heard of")
        assert await first.bind(pods[0]) == ""
        assert await asyncio.gather(*(second.bind(pod) for pod in reversed(pods))) == ["", ""]
        assert [gpu_of(await world.pod(name)) for name in "ab"] == [
            uuid("node1", 1),
            uuid("node1", 0),
        ]
        await second.die()
    assert overfull(world.api, {uuid("node1", 0): 12, uuid("node1", 1): 9}) == []


@pytest.mark.parametrize("cut", CUTS, ids=str)
async def test_the_ledger_is_right_at_once_after_a_crash(world: World, cut: Cut) -> None:
    await world.add_node(gib=(23,))
    pod = await world.add_pod("a", 7)
    other = await world.scheduler()
    with between(world.kubeconfig) as (here, kube):
        dead = await scheduler_behind(world, here, kube)
        here.cut_at(cut)
        binding = asyncio.create_task(dead.bind(pod))
        await until(here.reached.is_set, DEADLINE_S, "the call came that is cut off")
        assert dead.free() == [16]  # what is decided counts at once
        binding.cancel()
        await asyncio.gather(binding, return_exceptions=True)
        await dead.die()

    reserved, bound = bool(await world.reservations()), bool(gpu_of(await world.pod("a")))
    assert reserved == (cut.call >= 2 and (cut.call, cut.done) != (2, False))
    assert bound == (cut.call == 3 and cut.done)
    new = await world.scheduler()
    assert new.free() == [16 if reserved else 23]
    expected = (
        [AssignmentSource.BOUND] if bound else [AssignmentSource.RESERVED] if reserved else []
    )
    assert [one.source for one in new.node().taken] == expected

    large = await world.add_pod("large", 17)
    for each in (other, new):  # both would give the room away if it looked free
        if reserved:
            assert "gpu0 has 16 of the needed 17 GiB free" in await each.bind(large)
        assert await each.bind(pod) == ""
    assert new.free() == [16]
    assert "gpu0 has 16 of the needed 17 GiB free" in await new.bind(large)
    await world.tell("node1", await world.pod("a"))
    await new.sees(
        lambda: [one.source for one in new.node().taken] == [AssignmentSource.GRANTED],
        "the grant is heard of",
    )
    assert (await world.scheduler()).free() == [16]
    assert overfull(world.api, CARD) == []


@pytest.mark.parametrize("cut", WRITES, ids=str)
async def test_a_lost_answer_is_made_good_by_the_next_try(world: World, cut: Cut) -> None:
    await world.add_node(gib=(23,))
    pod = await world.add_pod("a", 7)
    other = await world.scheduler()
    with between(world.kubeconfig) as (here, kube):
        scheduler = await scheduler_behind(world, here, kube)
        here.cut_at(replace(cut, lost=True))
        why = await scheduler.bind(pod)
        assert (why == "") == bool(gpu_of(await world.pod("a")))
        assert not why or "the Kubernetes API does not answer" in why
        assert bool(await world.reservations()) == ((cut.call, cut.done) != (2, False))
        here.cut_at(None)
        large = await world.add_pod("large", 17)
        answers = await asyncio.gather(other.bind(large), scheduler.bind(pod))
        assert sorted(map(bool, answers)) in ([False, True], [True, True])
        await scheduler.bind(pod)
        assert overfull(world.api, CARD) == []
        await scheduler.die()


async def test_a_scheduler_that_hears_no_pods_gives_no_room_away_twice(world: World) -> None:
    """Its watch has fallen silent, which nobody notices for a while. What it compares and swaps
    tells it all."""
    await world.add_node(gib=(23,))
    with between(world.kubeconfig) as (here, kube):
        here.silent |= {"pods", "mpsnodes"}
        deaf, well = await world.scheduler(kube), await world.scheduler()
        for name in "ab":
            assert await well.bind(await world.add_pod(name, 7)) == ""
        await well.sees(lambda: len(well.ledger.pods_on("node1")) == 2, "both are seen bound")
        await world.tell("node1", await world.pod("b"))
        await well.sees(
            lambda: AssignmentSource.GRANTED in {one.source for one in well.node().taken},
            "it is told",
        )
        c, d = await world.add_pod("c", 2), await world.add_pod("d", 8)
        assert await well.bind(c) == ""  # with that write, the reservation to b goes
        assert len(await world.reservations()) == 2
        assert "gpu0 has 7 of the needed 8 GiB free" in await deaf.bind(d)
        await deaf.die()
    assert overfull(world.api, CARD) == []
    assert well.node().rooms[0].memory_mib == 7 * GIB
