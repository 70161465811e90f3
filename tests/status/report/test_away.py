"""An API server that is away, slow, or says no."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mpsd.model.domain import State
from mpsd.model.events import Reason
from mpsd.platform.logs import Line
from tests.status.pod_worlds import client, node
from tests.status.report.test_telling import BUSY, told
from tests.status.report.world import NODE, World, eventually, logged
from tests.told_lines import told_lines

DOWN = replace(
    node(state=State.DOWN, daemon=None, restarts_total=1), grants=BUSY.grants, clients=()
)


async def is_away(world: World) -> bool:
    return world.report.reachability.away_since is not None


async def is_back(world: World) -> bool:
    return world.report.reachability.away_since is None


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    with told_lines() as lines:
        yield lines


async def test_on_return_the_state_of_then_is_told_and_what_happened_in_between_once(
    world: World, lines: list[Line]
) -> None:
    await world.define()
    await world.make_node()
    world.report.report(BUSY)
    await told(world, "True")
    await asyncio.to_thread(world.api.stop)
    for number in range(1, 500):  # an hour of a daemon that ends again and again
        clients = (client("train", number),)
        world.report.report(
            replace(node(restarts_total=number), grants=BUSY.grants, clients=clients)
        )
    world.report.report(replace(DOWN, driver="of the end"))
    await eventually(lambda: is_away(world), "noticed that the server is away")
    await asyncio.to_thread(world.api.start)
    found = await told(world, "False")
    assert found["status"]["driver"] == "of the end"
    await eventually(lambda: is_back(world), "noticed that the server is back")

    async def counted() -> bool:
        events = await world.events()
        return [one[:2] for one in events if one[1] == "MPSDaemonDown"] == [
            (NODE, "MPSDaemonDown"),
            (NODE, "MPSDaemonDown"),  # that it ended, and that there is none
            ("train", "MPSDaemonDown"),
        ]

    await eventually(counted, "three events, whose counts say the rest")
    assert ("train", "MPSDaemonDown", 500) in await world.events()
    assert world.versions("mpsnodes") <= 5
    await world.stop_reporting()
    assert len(logged(lines, "API server away")) == 1
    assert len(logged(lines, "API server back")) == 1


async def test_a_missing_right_is_said_once_and_keeps_nothing_else_from_being_told(
    world: World, lines: list[Line]
) -> None:
    """A cluster that does not know MPSNode refuses in the same way."""
    await world.make_node()
    world.report.report(BUSY)
    world.report.add_event(None, Reason.CORDON_UNKNOWN, "told all the same")

    async def event() -> bool:
        return (NODE, "MPSCordonUnknown", 1) in await world.events()

    await eventually(event, "the event")

    async def refused() -> bool:
        return world.versions("nodes") > 1 and bool(logged(lines, "not reported"))

    await eventually(refused, "the node's condition, and that the rest is refused")
    await world.define()  # and from then on the rest of it
    await told(world, "True")
    await world.stop_reporting()
    said = [line for line in logged(lines, "not reported") if line["what"] == "the MPSNode"]
    assert len(said) == 1
    assert "docs/install.md" in said[0]["reason"]
