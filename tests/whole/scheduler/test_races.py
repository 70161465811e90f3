"""Several schedulers in processes of their own give away the same GPUs."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from mpsd.platform.kube import Object
from mpsd.simulator.api_server.kinds import PODS as POD_KIND
from tests.whole.scheduler.server_history import overfull
from tests.whole.scheduler.world import Scheduler, World, gpu_of, uuid

NODES = {"node1": (12, 9), "node2": (8,)}
GIB = {uuid(node, n): each for node, gib in NODES.items() for n, each in enumerate(gib)}
PODS, TRIES = 20, 200
FAIR = (
    "GiB free",
    "bound to node",
    "is gone",
    "changes too often",
    "try again",
    "no answer from the Kubernetes API",
)


@pytest.mark.parametrize("seed", range(2))
async def test_no_gpu_is_ever_given_away_twice(world: World, seed: int) -> None:
    for node, gib in NODES.items():
        await world.add_node(node, gib)
    play = _Play(world, random.Random(seed), [await world.scheduler() for _ in range(2)])
    agents = asyncio.create_task(play.agents())
    await asyncio.gather(*(play.live(n) for n in range(PODS)))
    agents.cancel()
    await asyncio.gather(agents, return_exceptions=True)
    assert overfull(world.api, GIB) == []
    assert play.unfair == []


class _Play:
    """unfair: refusals for a reason that cannot be true, and pods that were never bound."""

    def __init__(self, world: World, dice: random.Random, schedulers: Sequence[Scheduler]) -> None:
        self.unfair: list[str] = []
        self._world = world
        self._dice = dice
        self._schedulers = schedulers
        self._granted: dict[str, dict[str, Object]] = {node: {} for node in NODES}

    async def live(self, number: int) -> None:
        """One pod: the schedulers try until it is bound, and it ends some time later."""
        pod = await self._world.add_pod(f"p{number}", self._dice.randint(1, 6))
        name = pod["metadata"]["name"]
        for _try in range(TRIES):
            # two at once: of two schedulers
            tries = [self._try(pod) for _ in range(self._dice.choice((1, 1, 1, 2)))]
            if "" in await asyncio.gather(*tries):
                break
            await asyncio.sleep(self._dice.uniform(0.02, 0.2))
        else:
            self.unfair.append(f"{name} was never bound")
        where = await self._world.pod(name)
        assert gpu_of(where), "whoever is bound has a GPU written on it"
        await asyncio.sleep(self._dice.uniform(0, 0.1))
        await self._world.end_pod(name)

    async def _try(self, pod: Object) -> str:
        why = await self._dice.choice(self._schedulers).bind(pod, self._dice.choice(list(NODES)))
        if why and not any(words in why for words in FAIR):
            self.unfair.append(why)
        return why

    async def agents(self) -> None:
        """Tell of what kubelet has given and taken back, some of it late."""
        while True:
            for node in NODES:
                await self._tell(node)
            await asyncio.sleep(0.02)

    async def _tell(self, node: str) -> None:
        pods = {pod["metadata"]["uid"]: pod for pod in self._world.api.all(POD_KIND)}
        held = self._granted[node]
        for uid in [uid for uid in held if uid not in pods and self._dice.random() < 0.5]:
            del held[uid]
        for uid, pod in pods.items():
            if pod["spec"].get("nodeName") == node and self._dice.random() < 0.3:
                held[uid] = pod
        await self._world.tell(node, *held.values(), used_mib=self._dice.randint(0, 9))
