"""A resource stays registered, whatever becomes of kubelet and of the sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from mpsd.kubelet.client import register
from mpsd.kubelet.plugin_server import PluginServer
from mpsd.simulator.kubelet.pods import CONFUSED
from tests.simulator.kubelet.conftest import Story
from tests.simulator.kubelet.world import MEMORY, Plugin, World, play

Tell = Callable[[Story], None]


@asynccontextmanager
async def service(world: World, plugin: Plugin) -> AsyncIterator[PluginServer]:
    kept = PluginServer(MEMORY, world.folder / "device-plugins", plugin.endpoint, plugin)
    running = asyncio.create_task(kept.run())
    try:
        await all_can_be_had(world)
        await world.until(lambda: not kept.trouble, "it is registered")
        yield kept
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def all_can_be_had(world: World) -> None:
    await world.until(lambda: world.pods.allocatable == {MEMORY: 4}, "all devices can be had")


async def is_back(world: World, plugin: Plugin) -> None:
    await world.until(lambda: plugin.streams > 1, "kubelet asks for the devices again")
    await all_can_be_had(world)
    await world.phase(world.pod({MEMORY: 1}), "Running")


def test_it_registers_with_a_kubelet_that_starts_again(tell: Tell) -> None:
    async def story(world: World) -> None:
        plugin = Plugin(MEMORY, 4, world.calls)
        async with service(world, plugin):
            await world.restart_kubelet()
            await is_back(world, plugin)

    tell(story)


def test_it_serves_again_where_its_socket_is_deleted(tell: Tell) -> None:
    async def story(world: World) -> None:
        plugin = Plugin(MEMORY, 4, world.calls)
        async with service(world, plugin):
            (world.plugins_folder / plugin.endpoint).unlink()
            await is_back(world, plugin)

    tell(story)


def test_it_registers_again_where_a_plugin_that_ends_late_has_taken_it_along() -> None:
    """As in a roll-out of the agent whose old pod ends after the new one began."""

    async def story(world: World) -> None:
        late = PluginServer(MEMORY, world.plugins_folder, "old.sock", Plugin(MEMORY, 4, []))
        await late.start()
        await register(world.plugins_folder, "old.sock", MEMORY)
        plugin = Plugin(MEMORY, 4, world.calls)
        async with service(world, plugin):
            await late.stop()
            await is_back(world, plugin)

    play(CONFUSED, story)


def test_it_takes_its_socket_along_when_it_ends(tell: Tell) -> None:
    async def story(world: World) -> None:
        async with service(world, Plugin(MEMORY, 4, world.calls)) as kept:
            pass
        assert kept.trouble
        assert [path.name for path in world.plugins_folder.glob("*.sock")] == ["kubelet.sock"]
        await world.until(lambda: world.pods.allocatable == {MEMORY: 0}, "no device can be had")

    tell(story)
