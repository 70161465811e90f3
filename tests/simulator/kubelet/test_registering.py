"""How a plugin and kubelet find each other, and find each other again."""

from collections.abc import Callable

import pytest

from mpsd.kubelet.client import KubeletUnavailable, identity_of, register
from mpsd.simulator.kubelet.pods import NEWEST, OLDEST
from tests.simulator.kubelet.conftest import Story
from tests.simulator.kubelet.world import MEMORY, Plugin, World, play

Tell = Callable[[Story], None]


def test_unhealthy_devices_count_as_there_and_cannot_be_had(tell: Tell) -> None:
    async def story(world: World) -> None:
        plugin = await world.plugin(MEMORY, 4)
        await plugin.list(healthy=False)
        await world.until(lambda: world.pods.allocatable == {MEMORY: 0}, "none can be had")
        assert world.pods.capacity == {MEMORY: 4}
        uid = world.pod({MEMORY: 1})
        await world.phase(uid, "Failed")
        await plugin.list(healthy=True)
        await world.until(lambda: world.pods.allocatable == {MEMORY: 4}, "all can be had")

    tell(story)


def test_a_kubelet_that_starts_again_deletes_our_socket_and_has_a_new_one(tell: Tell) -> None:
    async def story(world: World) -> None:
        plugin = await world.plugin()
        [server] = world.servers
        before = identity_of(world.plugins_folder / "kubelet.sock")
        assert server.reachable
        await world.restart_kubelet()
        assert not server.reachable
        assert identity_of(world.plugins_folder / "kubelet.sock") not in {before, None}
        await world.until(lambda: world.pods.allocatable == {MEMORY: 0}, "nothing can be had")
        await server.stop()
        await server.start()
        await register(world.plugins_folder, plugin.endpoint, MEMORY)
        await world.until(lambda: world.pods.allocatable == {MEMORY: 4}, "all can be had again")
        assert len(server.streams) == 1

    tell(story)


def test_an_old_plugin_that_ends_late_takes_a_new_one_with_it_which_can_be_noticed() -> None:
    """Kubernetes issues 121994 and 127803: kubelet finds plugins by the name of their resource
    alone."""

    async def story(world: World) -> None:
        await world.plugin()
        [old] = world.servers
        await world.serve(Plugin(MEMORY, 5, world.calls), "another.sock")
        await world.until(
            lambda: world.pods.allocatable == {MEMORY: 5}, "kubelet has the new one's list"
        )
        await old.stop()
        await world.until(lambda: world.pods.allocatable == {MEMORY: 0}, "nothing can be had")
        uid = world.pod({MEMORY: 1})
        await world.phase(uid, "Failed")
        await register(world.plugins_folder, "another.sock", MEMORY)
        await world.until(lambda: world.pods.allocatable == {MEMORY: 5}, "all can be had again")

    play(NEWEST, story)


def test_the_oldest_kubelet_keeps_to_the_newest_plugin_when_an_older_one_ends() -> None:
    async def story(world: World) -> None:
        plugin = await world.plugin()
        [old] = world.servers
        new = await world.serve(plugin, "another.sock")
        await world.until(
            lambda: (len(old.streams), len(new.streams)) == (1, 1), "kubelet watches both"
        )
        await old.stop()
        uid = world.pod({MEMORY: 1})
        await world.phase(uid, "Running")

    play(OLDEST, story)


def test_only_a_new_kubelet_says_that_it_cannot_reach_us() -> None:
    async def new(world: World) -> None:
        with pytest.raises(KubeletUnavailable, match="failed to dial device plugin"):
            await register(world.plugins_folder, "nobody.sock", MEMORY)

    async def old(world: World) -> None:
        await register(world.plugins_folder, "nobody.sock", MEMORY)

    play(NEWEST, new)
    play(OLDEST, old)


def test_a_name_that_is_no_resource_is_refused() -> None:
    async def story(world: World) -> None:
        with pytest.raises(KubeletUnavailable, match="the ResourceName 'gpu-mem' is invalid"):
            await register(world.plugins_folder, "mem.sock", "gpu-mem")

    play(NEWEST, story)
