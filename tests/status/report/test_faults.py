"""A fault is told once, however many agents come upon it."""

from dataclasses import replace
from pathlib import Path

from mpsd.model.domain import State
from mpsd.model.node_view import Fault, FaultHit, NodeView
from tests.model.worlds import NOW, identity
from tests.simulated_api import SimulatedApi
from tests.status.pod_worlds import held, node, pod
from tests.status.report.world import NODE, World, eventually, run

FIRST = Fault(NOW, (FaultHit(identity(1), "train", pod("train").uid),))


def seen(*faults: Fault, state: State = State.READY, later_s: float = 0.0) -> NodeView:
    return node(
        grants=(held("train"),),
        state=state,
        faults=faults,
        faults_total=len(faults),
        now=NOW + later_s,
    )


async def told(world: World, *expected: tuple[str, str, int]) -> None:
    async def look() -> bool:
        return await world.events() == sorted(expected)

    await eventually(look, f"the events {expected}")


def test_a_fault_is_told_once_and_a_second_one_again_though_agents_come_and_go(
    api: SimulatedApi, tmp_path: Path
) -> None:
    async def one_agent(world: World) -> None:
        await world.make_node()
        world.report.report(seen())
        world.report.report(seen(FIRST, state=State.FAULT))
        await told(world, (NODE, "MPSFault", 1), ("train", "MPSFault", 1))

    async def the_next_finds_it_open_and_sees_it_heal(world: World) -> None:
        world.report.report(seen(FIRST, state=State.FAULT, later_s=5))
        world.report.report(seen(replace(FIRST, healed_at=NOW + 6), later_s=6))
        await told(world, (NODE, "MPSFault", 1), (NODE, "MPSReady", 1), ("train", "MPSFault", 1))

    async def a_third_finds_it_healed_and_sees_another(world: World) -> None:
        healed = replace(FIRST, healed_at=NOW + 6)
        world.report.report(seen(healed, later_s=10))
        second = Fault(NOW + 20, FIRST.hit)
        world.report.report(seen(healed, second, state=State.FAULT, later_s=20))
        again = ("train", "MPSFault", 1)  # with another message: present at 2 of 2
        both = [(NODE, "MPSFault", 1), (NODE, "MPSFault", 1)]
        await told(world, *both, (NODE, "MPSReady", 1), ("train", "MPSFault", 1), again)

    for agent in (
        one_agent,
        the_next_finds_it_open_and_sees_it_heal,
        a_third_finds_it_healed_and_sees_another,
    ):
        run(api, tmp_path, agent)
