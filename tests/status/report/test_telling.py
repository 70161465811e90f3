"""What is told of a node, pod by pod and object by object."""

from dataclasses import replace
from pathlib import Path

from mpsd.model.domain import State
from mpsd.model.events import Reason
from mpsd.model.identity import PodName
from mpsd.model.node_report import SeenViolations, ViolationsReport
from mpsd.model.times import stamp, utc
from mpsd.platform.kube import Object, PatchKind
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node
from mpsd.status.rules import mpsnode
from mpsd.status.rules.pods import PodAnnotations
from tests.model.worlds import UUIDS
from tests.simulated_api import SimulatedApi
from tests.status.pod_worlds import client, held, node
from tests.status.report.world import MPS_NODES, NODE, NODES, PODS, World, eventually, in_world
from tests.status.test_node_labels import OURS

BUSY = node(grants=(held("train"),), clients=(client("train", 7),))


def ready_of(thing: Object) -> Object | None:
    conditions = thing.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == "MPSReady"), None)


async def told(world: World, status: str) -> Object:
    """The MPSNode once its condition is this one."""

    async def look() -> Object | None:
        found = await world.mpsnode()
        condition = ready_of(found)
        return found if condition and condition["status"] == status else None

    found: Object = await eventually(look, f"MPSReady {status}")
    return found


async def test_a_node_gets_its_mpsnode_its_condition_and_its_number_of_gpus(world: World) -> None:
    await world.define()
    made = await world.make_node()
    world.report.report(BUSY)
    found = await told(world, "True")
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", made["metadata"]["uid"])
    assert found["status"]["grants"][0]["pod"] == "default/train"

    async def is_counted() -> bool:
        seen = await world.kube.get(NODES, NODE)
        return bool(
            seen.get("status", {}).get("capacity", {}).get("aliyun.com/gpu-count") == "2"
            and ready_of(seen)
        )

    await eventually(is_counted, "the node's own condition and its number of GPUs")


async def test_an_mpsnode_goes_with_its_node_and_comes_back_with_it(world: World) -> None:
    await world.define()
    await world.make_node()
    world.report.report(BUSY)
    await told(world, "True")
    await world.kube.delete(NODES, NODE)

    async def is_gone() -> bool:
        return not await world.mpsnode()

    await eventually(is_gone, "the MPSNode gone")
    again = await world.make_node()
    world.report.report(replace(BUSY, driver="another"))
    found = await told(world, "True")
    assert found["metadata"]["ownerReferences"][0]["uid"] == again["metadata"]["uid"]


async def test_since_when_it_is_so_outlives_the_agent(world: World) -> None:
    await world.define()
    await world.make_node()
    condition = {
        "type": "MPSReady",
        "status": "True",
        "lastTransitionTime": "2020-01-01T00:00:00Z",
    }
    patch = {"status": {"conditions": [condition]}}
    await world.kube.patch(NODES, NODE, patch, PatchKind.STRATEGIC, subresource="status")
    world.report.report(BUSY)

    async def is_taken_over() -> bool:
        seen = ready_of(await world.kube.get(NODES, NODE))
        return bool(
            seen
            and seen.get("reason") == "AllServe"
            and seen["lastTransitionTime"].startswith("2020")
        )

    await eventually(is_taken_over, "the time of the earlier agent")


async def test_annotations_are_written_on_the_very_pod_and_others_are_left(world: World) -> None:
    await world.make_node()
    made = await world.make_pod("train")
    await world.kube.patch(
        PODS,
        "train",
        {"metadata": {"annotations": {"theirs": "1"}}},
        PatchKind.MERGE,
        "default",
    )
    name = PodName("default", "train", made["metadata"]["uid"])
    other = PodName("default", "train", "of-another-time")
    wants = {"mpsd.io/gpu": UUIDS[0]}
    world.report.report(
        BUSY, [PodAnnotations(other, {}, {"wrong": "1"}), PodAnnotations(name, {}, wants)]
    )

    async def annotations() -> dict[str, str] | None:
        found: dict[str, str] = (await world.kube.get(PODS, "train", "default"))["metadata"][
            "annotations"
        ]
        return found if "mpsd.io/gpu" in found else None

    assert await eventually(annotations, "the annotation") == wants | {"theirs": "1"}


async def test_each_agent_counts_on_what_those_before_it_told(
    api: SimulatedApi, tmp_path: Path
) -> None:
    down = replace(
        node(state=State.DOWN, daemon=None, restarts_total=1, reason="killed by signal 9"),
        grants=BUSY.grants,
    )

    async def agent(number: int) -> None:
        async with in_world(api, tmp_path) as world:
            if number == 1:
                await world.make_node()
            world.report.report(BUSY)
            world.report.report(down)
            told = [(NODE, "MPSDaemonDown", number), ("train", "MPSDaemonDown", number)]

            async def counted() -> bool:
                return await world.events() == told

            await eventually(counted, f"{told}")

    for number in (1, 2):
        await agent(number)


async def test_what_is_no_longer_known_goes_from_an_mpsnode_also_what_an_earlier_agent_reported(
    world: World,
) -> None:
    of_before = {"violations": {"since": stamp(1.0), "pods": 3}, "summary": {"violations": 7}}
    quiet = SeenViolations(ViolationsReport(since=utc(BUSY.now)), {})
    await world.define()
    made = await world.make_node()
    await world.kube.create(MPS_NODES, mpsnode.mpsnode_for(NODE, made["metadata"]["uid"]))
    await world.kube.patch(
        MPS_NODES, NODE, {"status": of_before}, PatchKind.MERGE, subresource="status"
    )
    world.report.report(BUSY)  # without a watchdog
    status: Object = (await told(world, "True"))["status"]
    assert "violations" not in status
    assert "violations" not in status["summary"]
    world.report.report(replace(BUSY, grants=(), grants_known=False), violations=quiet)

    async def are_gone() -> bool:
        found: Object = (await world.mpsnode())["status"]
        is_seen = "violations" in found and "pods" not in found["violations"]
        return is_seen and "grants" not in found and "pods" not in found["summary"]

    await eventually(are_gone, "an end of the grants and of their numbers")


async def test_a_node_says_when_memory_was_given_back_after_it_has_told_of_the_room(
    world: World,
) -> None:
    """A change of what a Node has to allocate makes kube-scheduler try waiting pods again; its
    MPSNode changes none."""
    await world.define()
    await world.make_node()

    async def at() -> int:
        seen = await world.kube.get(NODES, NODE)
        return int(seen.get("status", {}).get("allocatable", {}).get(mpsnode.GIVEN_BACK, 0))

    world.report.report(BUSY)
    began: int = await eventually(
        at, "something from the start, since an earlier agent may have told of less room"
    )
    world.report.report(replace(BUSY, grants=(*BUSY.grants, held("more"))))
    await eventually(lambda: granted_gib(world, 14), "the second grant")
    assert await at() == began, "less room is no news for those who wait"
    world.report.report(node())

    async def is_said() -> bool:
        return await at() > began and await granted_gib(world, 0)

    await eventually(is_said, "that memory was given back")


async def granted_gib(world: World, gib: int) -> bool:
    return bool(
        sum(gpu["grantedMiB"] for gpu in (await world.mpsnode())["status"]["gpus"]) == gib * 1024
    )


async def test_what_happened_last_is_told_before_the_agent_ends_but_for_what_is_refused(
    world: World,
) -> None:
    await world.define()
    await world.make_node()
    world.report.report(BUSY)
    lost = PodName("no-such-namespace", "lost", "uid")
    world.report.add_event(lost, Reason.EVICTED, "it is gone")
    world.report.add_event(PodName("default", "a", "uid"), Reason.EVICTED, "in the last moment")
    await world.stop_reporting()
    assert await world.events() == [("a", "MPSEvicted", 1)]


async def test_nobody_is_told_of_a_node_that_was_never_looked_at(world: World) -> None:
    await world.define()
    await world.make_node()
    written = world.versions("nodes")
    await world.stop_reporting()
    assert world.versions("nodes") == written
    assert await world.mpsnode() == {}


async def test_a_node_is_labelled_again_where_its_gpus_or_its_labels_have_changed(
    world: World,
) -> None:
    async def labels(world: World) -> dict[str, str]:
        found: dict[str, str] = (await world.kube.get(NODES, NODE))["metadata"].get("labels", {})
        return found

    await world.make_node()
    world.report.report(BUSY)
    assert await labels(world) == {}, "nothing is written over what was not seen"
    await world.kube.patch(NODES, NODE, {"metadata": {"labels": {"team": "a"}}}, PatchKind.MERGE)
    world.report.see(read_kubernetes_node(await world.kube.get(NODES, NODE)))

    async def is_labelled() -> bool:
        return await labels(world) == OURS | {"team": "a"}

    await eventually(is_labelled, "its labels beside the others")
    world.report.report(
        replace(BUSY, gpus=(BUSY.gpus[0], replace(BUSY.gpus[1], name="NVIDIA A40")))
    )

    async def is_mixed() -> bool:
        mixed = {name: value for name, value in OURS.items() if name != "mpsd.io/gpu.product"}
        return await labels(world) == mixed | {"team": "a"}

    await eventually(is_mixed, "no product, as they differ")
    world.report.report(replace(BUSY, gpus=()))

    async def is_bare() -> bool:
        return await labels(world) == {"team": "a"}

    await eventually(is_bare, "no label of ours without a GPU")
