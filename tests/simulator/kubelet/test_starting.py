"""What is asked before a container starts, again and again; and what a restarted kubelet does not
ask."""

from collections.abc import Callable

import pytest

from mpsd.kubelet.rules.allocation import Answer
from mpsd.model.grants import DeviceNode
from mpsd.simulator.kubelet.pods import NEWEST, OLDEST
from tests.simulator.kubelet.conftest import Story
from tests.simulator.kubelet.world import MEMORY, World, lives, play

Tell = Callable[[Story], None]


def test_a_start_that_is_held_back_is_tried_again_and_says_why(tell: Tell) -> None:
    async def story(world: World) -> None:
        plugin = await world.plugin()
        plugin.refuses["pre_start"] = TimeoutError("domain gpu0 is starting; kubelet tries again")
        uid = world.pod({MEMORY: 1})
        message = await world.waits(uid, "CreateContainerConfigError")
        assert "PreStartContainer rpc failed" in message
        assert message.endswith("domain gpu0 is starting; kubelet tries again")
        await world.until(lambda: plugin.times("pre_start") > 1, "kubelet tries again")
        assert world.pods.status(uid)["phase"] == "Pending"
        del plugin.refuses["pre_start"]
        await world.phase(uid, "Running")
        assert plugin.times("allocate") == 1

    tell(story)


def test_a_device_node_that_is_not_there_holds_a_container_back_until_it_is(tell: Tell) -> None:
    async def story(world: World) -> None:
        plugin = await world.plugin()
        gate = world.folder / "gate"
        plugin.answer = Answer(devices=(DeviceNode(str(gate), "/dev/mpsd-gate", "r"),))
        uid = world.pod({MEMORY: 1})
        assert f"lstat {gate}: no such file" in await world.waits(uid, "CreateContainerError")
        gate.touch()
        await world.phase(uid, "Running")

    tell(story)


def test_a_container_that_restarts_is_asked_about_and_not_allocated_for(tell: Tell) -> None:
    async def story(world: World) -> None:
        plugin = await world.plugin()
        uid = world.pod({MEMORY: 1}, "sleep 0.05; exit 1", restartPolicy="Always")
        await world.until(lambda: plugin.times("pre_start") > 2, "it was started three times")
        assert plugin.times("allocate") == 1
        assert (
            world.pods.status(uid)["containerStatuses"][0]["lastState"]["terminated"]["exitCode"]
            == 1
        )

    tell(story)


@pytest.mark.parametrize("restart", ["Never", "Always"])
def test_a_kubelet_that_starts_again_leaves_what_runs_alone_and_keeps_its_devices(
    tell: Tell, restart: str
) -> None:
    async def story(world: World) -> None:
        plugin = await world.plugin()
        uid = world.pod({MEMORY: 2}, restartPolicy=restart)
        await world.phase(uid, "Running")
        pid, before = world.pid(uid), await world.held()
        await world.restart_kubelet()
        await world.until(lambda: world.kubelet.has_heard, "kubelet has let in again what runs")
        await world.phase(uid, "Running")
        assert (world.pid(uid), await world.held()) == (pid, before)
        assert plugin.times("allocate") == plugin.times("pre_start") == 1
        world.pods.delete(uid, 5)
        await world.gone(uid)
        assert not lives(pid)

    tell(story)


def test_after_a_restart_of_kubelet_a_container_starts_unasked_at_first(
    tell: Tell,
) -> None:
    """PreStartContainer is skipped for a plugin that has not said its options yet; Allocate is not
    called again."""

    async def story(world: World) -> None:
        plugin = await world.plugin()
        gate = world.folder / "gate"
        gate.touch()
        plugin.answer = Answer(devices=(DeviceNode(str(gate), "/dev/mpsd-gate", "r"),))
        uid = world.pod({MEMORY: 2}, "[ ! -e /dev/mpsd-gate ] || sleep 60", restartPolicy="Always")
        await world.phase(uid, "Running")
        before = await world.held()
        await world.restart_kubelet()
        await world.until(lambda: world.kubelet.has_heard, "kubelet has let in again what runs")
        gate.unlink()
        world.kill(uid)
        await world.waits(uid, "CreateContainerError")
        gate.touch()
        await world.until(lambda: "running" in world.state(uid), "it runs again")
        assert await world.held() == before
        assert plugin.times("allocate") == plugin.times("pre_start") == 1
        await world.serve(plugin)
        world.kill(uid)
        await world.until(lambda: plugin.times("pre_start") == 2, "kubelet asks again")

    tell(story)


def test_a_kubelet_that_has_just_started_lists_nothing_until_it_has_heard_of_its_pods(
    tell: Tell,
) -> None:
    """It answers from its list of pods, which comes from the API server; its checkpoint has only
    their uids."""

    async def story(world: World) -> None:
        await world.plugin()
        uid = world.pod({MEMORY: 2})
        await world.phase(uid, "Running")
        before = await world.held()
        world.pods.away = True
        await world.restart_kubelet()
        assert await world.held() == ()
        assert lives(world.pid(uid))
        world.pods.away = False
        await world.until(lambda: world.kubelet.has_heard, "kubelet has heard of its pods")
        assert await world.held() == before

    tell(story)


def test_a_pod_that_comes_while_its_plugin_is_away_has_failed_for_good(tell: Tell) -> None:
    async def story(world: World) -> None:
        plugin = await world.plugin()
        await world.restart_kubelet()
        uid = world.pod({MEMORY: 1})
        await world.phase(uid, "Failed")
        assert world.pods.status(uid)["reason"] == "UnexpectedAdmissionError"
        await world.serve(plugin)
        await world.until(lambda: world.pods.allocatable == {MEMORY: 4}, "the plugin is back")
        assert world.pods.status(uid)["phase"] == "Failed"

    tell(story)


def test_a_pod_that_waited_at_a_restart_is_let_in_by_the_oldest_kubelet_alone() -> None:
    async def after_a_reboot(world: World) -> str:
        await world.plugin()
        uid = world.pod({MEMORY: 1}, restartPolicy="Always")
        await world.phase(uid, "Running")
        await world.reboot()
        return uid

    async def oldest(world: World) -> None:
        uid = await after_a_reboot(world)
        await world.until(
            lambda: world.pods.status(uid)["containerStatuses"][0]["restartCount"] == 1,
            "it runs again",
        )

    async def newest(world: World) -> None:
        uid = await after_a_reboot(world)
        await world.phase(uid, "Failed")
        assert "no healthy devices present" in world.pods.status(uid)["message"]

    play(OLDEST, oldest)
    play(NEWEST, newest)


def test_a_pod_that_was_let_in_without_devices_never_starts_once_its_plugin_is_there(
    tell: Tell,
) -> None:
    async def story(world: World) -> None:
        uid = world.pod({MEMORY: 1}, restartPolicy="Always")
        await world.phase(uid, "Running")
        await world.plugin()
        world.kill(uid)
        assert "no devices found allocated" in await world.waits(uid, "CreateContainerConfigError")

    tell(story)
