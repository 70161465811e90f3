"""A bind by one scheduler: what is written, and what is refused."""

import asyncio
from collections import Counter
from functools import partial

from mpsd.kubelet.rules.node_pods import GPU
from mpsd.scheduler.bind import BindFailure
from tests.whole.scheduler.between import between
from tests.whole.scheduler.world import PODS, World, gpu_of, uuid
from tests.whole.scheduler.world import pod as make_pod


async def test_a_pod_is_bound_with_its_gpu_written_on_it(world: World) -> None:
    await world.add_node(gib=(23, 8))
    scheduler = await world.scheduler()
    pod = await world.add_pod("a", 7)
    assert await scheduler.bind(pod) == ""
    bound = await world.pod("a")
    assert bound["spec"]["nodeName"] == "node1"
    written = bound["metadata"]["annotations"]
    assert written.pop("ALIYUN_COM_GPU_MEM_ASSUME_TIME").isdecimal()
    assert written == {
        GPU: uuid("node1", 1),
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "7",
        "ALIYUN_COM_GPU_MEM_DEV": "8",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
    }
    assert scheduler.free() == [23, 1]


async def test_pods_that_cannot_be_bound_are_refused_with_the_reason(world: World) -> None:
    await world.add_node()
    await world.add_node("node2")
    scheduler = await world.scheduler()
    pod = await world.add_pod("a", 7)
    assert await scheduler.bind(pod, "node3") == BindFailure.NO_GPUS.format(node="node3")
    assert await scheduler.bind(pod, "node2") == ""
    assert await scheduler.bind(pod) == BindFailure.ELSEWHERE.format(pod="default/a", node="node2")
    await world.end_pod("a")
    assert await scheduler.bind(pod) == BindFailure.GONE.format(pod="default/a")
    again = await world.add_pod("a", 7)
    await scheduler.sees(partial(scheduler.ledger.pod, "default", "a"), "its namesake is heard of")
    assert await scheduler.bind(pod) == BindFailure.REPLACED.format(pod="default/a")
    assert await world.reservations() == {}
    assert await scheduler.bind(again) == ""
    assert len(await world.reservations()) == 1


async def test_who_comes_late_is_told_what_is_left(world: World) -> None:
    await world.add_node(gib=(4, 3))
    scheduler = await world.scheduler()
    large, small = await world.add_pod("large", 7), await world.add_pod("small", 4)
    full = BindFailure.NO_ROOM.format(node="node1", why="gpu0 has 4 of the needed 7 GiB")
    assert (await scheduler.bind(large)).startswith(full)
    assert await scheduler.bind(small) == ""
    late = await world.add_pod("late", 4)
    overtaken = BindFailure.OVERTAKEN.format(node="node1", why="gpu0 has 0 of the needed 4 GiB")
    assert (await scheduler.bind(late)).startswith(overtaken)
    assert list(await world.reservations()) == [small["metadata"]["uid"]]


async def test_binds_that_wait_for_one_that_writes_are_written_together(world: World) -> None:
    await world.add_node(gib=(40, 9))
    with between(world.kubeconfig) as (here, kube):
        scheduler = await world.scheduler(kube)
        pods = [await world.add_pod(f"p{n}", 7) for n in range(7)]
        await scheduler.sees(lambda: scheduler.ledger.pod("default", "p6"), "the pods are heard of")
        binds = asyncio.gather(*(scheduler.bind(pod) for pod in pods))
        await asyncio.sleep(0)
        assert scheduler.free() == [5, 2], "they count before they are written"
        answers = await binds
        assert sorted(map(bool, answers)) == [False] * 6 + [True]
        assert (here.calls.count("PATCH mpsnodes"), here.calls.count("POST binding")) == (2, 6)
        await scheduler.die()
    gpus = [gpu for each in pods if (gpu := gpu_of(await world.pod(each["metadata"]["name"])))]
    assert Counter(gpus) == {uuid("node1", 0): 5, uuid("node1", 1): 1}


async def test_a_pod_keeps_the_gpu_that_it_was_promised(world: World) -> None:
    await world.add_node()
    pod = await world.add_pod("a", 7)
    await world.reserve(pod["metadata"]["uid"], "a", 7, ordinal=1)
    scheduler = await world.scheduler()
    assert await scheduler.bind(pod) == ""
    assert gpu_of(await world.pod("a")) == uuid("node1", 1)


async def test_a_full_reserved_gpu_refuses_until_the_reservation_ends(world: World) -> None:
    """Another scheduler may have bound it there by now."""
    await world.add_node(gib=(23, 8))
    pod = await world.add_pod("a", 9)
    await world.reserve(pod["metadata"]["uid"], "a", 7, ordinal=1)
    scheduler = await world.scheduler()
    assert await scheduler.bind(pod) == BindFailure.HELD.format(node="node1")
    world.pass_time()
    assert await scheduler.bind(pod) == ""
    assert gpu_of(await world.pod("a")) == uuid("node1", 0)


async def test_unused_gpus_are_reserved_to_be_joined(world: World) -> None:
    await world.add_node(gib=(23, 23, 23), kind="alone")
    scheduler = await world.scheduler()
    assert await scheduler.bind(await world.add_pod("small", 7)) == ""
    assert await scheduler.bind(await world.add_pod("two", 7, gpus=2)) == ""
    assert gpu_of(await world.pod("two")) == f"{uuid('node1', 1)},{uuid('node1', 2)}"
    await scheduler.sees_free(16)
    why = await scheduler.bind(await world.add_pod("large", 20))
    assert "gpu1 is kept for pod default/two, for which gpu1 and gpu2 are joined" in why
    why = await scheduler.bind(await world.add_pod("more", 7, gpus=2))
    assert "needs 2 GPUs of one domain" in why


async def test_a_pod_without_a_gpu_is_bound_and_an_unreadable_one_is_not(world: World) -> None:
    await world.add_node()
    scheduler = await world.scheduler()
    assert await scheduler.bind(await world.add_pod("a", 0)) == ""
    bound = await world.pod("a")
    assert bound["spec"]["nodeName"] == "node1"
    assert gpu_of(bound) == ""
    odd = make_pod("odd", 7)
    odd["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu-mem": "7Gi"}}
    said = await scheduler.bind(await world.kube.create(PODS, odd, "default"))
    assert said.endswith('is "7Gi": has a unit, and the unit is already GiB; write 7')
    assert await world.reservations() == {}


async def test_a_promise_that_cannot_be_kept_is_taken_back(world: World) -> None:
    await world.add_node()
    await world.add_node("node2")
    scheduler, other = await world.scheduler(), await world.scheduler()
    pod = await world.add_pod("a", 7)
    for heard in (scheduler.ledger, other.ledger):
        await scheduler.sees(partial(heard.pod, "default", "a"), "the pod is heard of")
    answers = await asyncio.gather(scheduler.bind(pod, "node1"), other.bind(pod, "node2"))
    assert sorted(map(bool, answers)) == [False, True]
    won, lost = ("node1", "node2") if answers[0] == "" else ("node2", "node1")
    assert BindFailure.ELSEWHERE.format(pod="default/a", node=won) in answers
    assert len(await world.reservations(won)) == 1
    assert await world.reservations(lost) == {}
    for each in (scheduler, other):
        await each.sees_free(16, 23, node=won)
        await each.sees_free(23, 23, node=lost)
