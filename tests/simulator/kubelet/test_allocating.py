"""Which devices a pod gets, what its containers see of them, and what becomes of a pod that gets
none."""

from collections.abc import Callable

from mpsd.kubelet.rules.allocation import Answer
from mpsd.kubelet.rules.node_pods import ContainerName
from mpsd.model.grants import DeviceNode, HostMount
from mpsd.model.problem import InvalidInput, Problem
from mpsd.simulator.kubelet.pods import NEWEST, OLDEST
from tests.simulator.kubelet.conftest import Story
from tests.simulator.kubelet.world import MEMORY, PERCENT, World, container, play

Tell = Callable[[Story], None]
ALL = tuple(f"{MEMORY}/{number}" for number in range(4))


def refusal() -> InvalidInput:
    return InvalidInput(
        "container", [Problem("two-gpus", "devices", "", "lie on two GPUs", "ask for less")]
    )


def test_kubelet_follows_what_the_plugin_prefers(tell: Tell) -> None:
    async def story(world: World) -> None:
        plugin = await world.plugin(MEMORY, 40)
        plugin.prefers = (f"{MEMORY}/7", f"{MEMORY}/31")
        uid = world.pod({MEMORY: 2})
        await world.phase(uid, "Running")
        asked = [call[:2] for call in world.calls]
        assert asked == [("preferred", MEMORY), ("allocate", MEMORY), ("pre_start", MEMORY)]
        assert {call[2:] for call in world.calls[1:]} == {(f"{MEMORY}/31", f"{MEMORY}/7")}

    tell(story)


def test_a_preference_that_is_no_use_is_made_up_for() -> None:
    async def story(world: World) -> None:
        plugin = await world.plugin(MEMORY, 4)
        plugin.prefers = ("nobody's/0", f"{MEMORY}/2")
        uid = world.pod({MEMORY: 3})
        await world.phase(uid, "Running")
        [held] = await world.held()
        assert len(held.memory) == 3
        assert f"{MEMORY}/2" in held.memory
        assert set(held.memory) < set(ALL)

    play(NEWEST, story)


def test_pods_are_asked_for_one_after_the_other_and_never_share_a_device(tell: Tell) -> None:
    async def story(world: World) -> None:
        plugin = await world.plugin(MEMORY, 4)
        plugin.may_answer.clear()
        first, second = world.pod({MEMORY: 2}), world.pod({MEMORY: 2})
        await world.until(lambda: world.calls, "kubelet asks for one of them")
        assert len(world.calls) == 1
        plugin.may_answer.set()
        for uid in (first, second):
            await world.phase(uid, "Running")
        held = await world.held()
        assert sorted(each for container in held for each in container.memory) == list(ALL)

    tell(story)


def test_resources_are_asked_for_in_any_order_and_what_they_answer_is_merged(tell: Tell) -> None:
    async def story(world: World) -> None:
        memory, percent = await world.plugin(MEMORY, 4), await world.plugin(PERCENT, 100)
        memory.answer = Answer({"LIMIT": "1", "BOTH": MEMORY})
        percent.answer = Answer({"SHARE": "30", "BOTH": PERCENT})
        orders = set()
        for _ in range(40):
            world.calls.clear()
            uid = world.pod({MEMORY: 1, PERCENT: 30}, "exit 0")
            await world.until(
                lambda: len([call for call in world.calls if call[0] == "allocate"]) == 2,
                "both asked",
            )
            orders.add(tuple(call[1] for call in world.calls if call[0] == "allocate"))
            await world.until(
                lambda uid=uid: world.kubelet.containers.all_runs(uid), "it was started"
            )
            environment = world.kubelet.containers.spec(world.run_of(uid))["environment"]
            assert (environment["LIMIT"], environment["SHARE"]) == ("1", "30")
            assert environment["BOTH"] in {MEMORY, PERCENT}
            world.pods.delete(uid, 0)
            await world.gone(uid)
            if len(orders) == 2:
                return
        raise AssertionError(f"always asked in the order {orders}")

    tell(story)


def test_a_refused_allocate_ends_the_pod_for_good_with_the_plugin_s_words(tell: Tell) -> None:
    async def story(world: World) -> None:
        plugin = await world.plugin()
        plugin.refuses["allocate"] = refusal()
        uid = world.pod({MEMORY: 1}, restartPolicy="Always")
        await world.phase(uid, "Failed")
        del plugin.refuses["allocate"]
        status = world.pods.status(uid)
        assert status["reason"] == "UnexpectedAdmissionError"
        words = (
            "rpc error: code = InvalidArgument desc = container: devices: lie on two GPUs; ask for"
            " less"
        )
        assert f"Allocate failed due to {words}, which is unexpected" in status["message"]
        other = world.pod({MEMORY: 4})
        await world.phase(other, "Running")
        assert world.pods.status(uid)["phase"] == "Failed"

    tell(story)


def test_more_than_there_is_ends_the_pod() -> None:
    async def story(world: World) -> None:
        await world.plugin(MEMORY, 4)
        uid = world.pod({MEMORY: 5})
        await world.phase(uid, "Failed")
        assert "Requested: 5, Available: 4" in world.pods.status(uid)["message"]

    play(NEWEST, story)


def test_a_pod_that_is_deleted_while_allocate_runs_gets_its_devices_first_and_gives_them_back(
    tell: Tell,
) -> None:
    async def story(world: World) -> None:
        plugin = await world.plugin(MEMORY, 4)
        plugin.may_answer.clear()
        uid = world.pod({MEMORY: 4})
        await world.until(lambda: world.calls, "kubelet asks for it")
        world.pods.delete(uid, 1)
        plugin.may_answer.set()
        await world.gone(uid)
        assert await world.held() == ()
        other = world.pod({MEMORY: 4})
        await world.phase(other, "Running")

    tell(story)


def test_init_containers_run_first_on_devices_that_their_successors_get_and_are_not_listed(
    tell: Tell,
) -> None:
    async def story(world: World) -> None:
        await world.plugin(MEMORY, 4)
        uid = world.pod({MEMORY: 4}, initContainers=[container("first", {MEMORY: 3}, "exit 0")])
        await world.phase(uid, "Running")
        allocated = [set(call[2:]) for call in world.calls if call[0] == "allocate"]
        assert [len(ids) for ids in allocated] == [3, 4]
        assert allocated[0] < allocated[1]
        held = await world.held()
        name = world.pods.status(uid) and f"pod-{uid[:8]}"
        assert [each.container for each in held] == [ContainerName("default", name, "main")]

    tell(story)


def test_a_container_sees_its_mounts_its_devices_and_its_variables_which_beat_the_plugin_s() -> (
    None
):
    async def story(world: World) -> None:
        plugin = await world.plugin()
        client, gate = world.folder / "client", world.folder / "gate"
        client.mkdir()
        (client / "control").write_text("here\n")
        gate.touch()
        plugin.answer = Answer(
            {"PIPE": "/run/mpsd/client", "LIMIT": "the plugin's"},
            (HostMount(str(client), "/run/mpsd/client", read_only=True),),
            (DeviceNode(str(gate), str(gate), "r"),),
        )
        own = container(
            "main",
            {MEMORY: 1},
            'cat "$PIPE/control" && echo "$LIMIT"',
            env=[{"name": "LIMIT", "value": "mine"}],
        )
        uid = world.pod({}, containers=[own])
        await world.phase(uid, "Succeeded")
        assert world.run_of(uid).log.read_text() == "here\nmine\n"

    play(NEWEST, story)


def test_a_resource_that_no_plugin_ever_had_is_not_kubelet_s_and_its_pod_runs_without() -> None:
    async def story(world: World) -> None:
        uid = world.pod({MEMORY: 1})
        await world.phase(uid, "Running")
        assert await world.held() == ()

    play(OLDEST, story)
