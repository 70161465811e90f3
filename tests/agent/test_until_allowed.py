"""When a container that starts waits for the agent's next cycle, and when what is known is enough.

Nobody runs cycles here, so whoever is answered has not waited for one.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mpsd.agent.agent import AgentRole
from mpsd.kubelet.ledger import KubeletGrants
from mpsd.model.domain import State
from mpsd.model.node_view import DomainRecord, DomainView, HeldGrant, LedgerView, ServerLimit
from mpsd.mps.node_gpus import Node, NodeGpus
from mpsd.mps.records import NodeDomains
from mpsd.platform import clock, processes, records
from mpsd.platform.limits_files import load_limits
from mpsd.platform.logs import logger
from mpsd.platform.nvml import Nvml
from mpsd.platform.settings import settings
from mpsd.simulator.node import cards_asked, create_node
from mpsd.simulator.nvml import SimulatedNvml
from tests.model.worlds import POLICY, grant, record, view

_HELD_GIB, _ADMITTED_GIB = 4, 8
_DEADLINE_S = 0.05  # of who would wait for ever


class World:
    """A domain whose servers are known to admit 8 GiB, and a ledger with one grant there, of 4
    GiB."""

    def __init__(self, folder: Path) -> None:
        limits = load_limits(None)
        self._settings = settings(run_directory=str(folder / "run"), environment={})
        machine = create_node(
            folder / "simulation", cards_asked("A30", limits.facts), limits.facts.capabilities
        )
        nvml = Nvml(SimulatedNvml(machine.folder))
        nvml.open()
        self.stack = ExitStack()
        self.stack.callback(nvml.close)
        self.runner = self.stack.enter_context(asyncio.Runner())
        node = Node(nvml, NodeGpus(nvml, limits.facts).now.gpus, {}, (), {}, "")
        domains = NodeDomains(self._settings.run_directory, node.gpus, POLICY, logger())
        pods, nowhere = cast("Any", None), folder / "nowhere"
        self.ledger = KubeletGrants(nowhere, nowhere, pods, domains, lambda: POLICY, logger())
        self.hold(HeldGrant(grant("held", _HELD_GIB), holder_alive=True))
        self.agent = AgentRole(
            self._settings, node, lambda: POLICY, self.ledger, domains, asyncio.Event()
        )
        daemon = processes.identity_of(1)
        assert daemon
        here = replace(record(), daemon=daemon, boot_id=daemon.boot_id)
        self.record = replace(here, gpus=(node.gpus[0].uuid,), servers=(500,))
        self.write(self.record)
        # as of the last cycle
        self.agent.view = replace(view(), domains=(DomainView(self.record, frozenset()),))
        self.confirm(_ADMITTED_GIB, clock.boot_s())

    def hold(self, *held: HeldGrant, unknown: tuple[str, ...] = ()) -> None:
        self.ledger.view = LedgerView(held, unknown)

    def write(self, seen: DomainRecord) -> None:
        path = self._settings.domain(seen.domain).record
        path.parent.mkdir(parents=True, exist_ok=True)
        records.write(path, seen)

    def confirm(self, gib: int, at: float) -> None:
        """The limit that was read back last."""
        limits = {(server, 0): (ServerLimit(server, 0, gib * 1024), at) for server in (None, 500)}
        self.agent._limits._confirmed["gpu0"] = self.record.daemon, limits

    def why_not(self, gib: int = _HELD_GIB) -> str:
        """Why a container of this size would wait for a cycle; empty where it would not."""
        return self.runner.run(self.agent.until_allowed("gpu0", gib * 1024, _DEADLINE_S))


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="mpsd-") as folder:
        made = World(Path(folder))
        yield made
        made.stack.close()


def test_what_the_limit_in_force_admits_and_the_ledger_holds_waits_for_no_cycle(
    world: World,
) -> None:
    assert world.why_not() == ""
    assert world.why_not(_HELD_GIB - 1) == ""


def test_what_the_ledger_does_not_hold_waits_for_the_cycle_in_which_limits_may_be_lowered(
    world: World,
) -> None:
    assert world.why_not(_HELD_GIB + 1)
    world.hold()
    assert world.why_not()


def test_beside_grants_that_end_or_are_not_known_a_cycle_is_waited_for(world: World) -> None:
    world.hold(HeldGrant(grant("held", _HELD_GIB), holder_alive=False))
    assert world.why_not()
    world.hold(
        HeldGrant(grant("held", _HELD_GIB), holder_alive=True),
        unknown=("kubelet has not answered yet",),
    )
    assert world.why_not()


def test_a_limit_that_is_lower_or_was_read_back_long_ago_is_waited_for(world: World) -> None:
    world.confirm(_HELD_GIB - 1, clock.boot_s())
    assert world.why_not()
    world.confirm(_ADMITTED_GIB, clock.boot_s() - 1000)
    assert world.why_not()


@pytest.mark.parametrize(
    "change",
    [{"state": State.WEDGED}, {"servers": (500, 501)}, {"daemon": None, "servers": ()}],
    ids=["not served", "a server whose limit is not known", "no daemon"],
)
def test_a_domain_that_has_changed_since_the_last_cycle_is_waited_for(
    world: World, change: dict[str, Any]
) -> None:
    world.write(replace(world.record, **change))
    assert world.why_not()


def test_a_domain_that_mpsd_tries_first_is_waited_for(world: World) -> None:
    tried = replace(world.record, held_until_s=clock.boot_s() + 60)
    world.write(tried)
    world.agent.view = replace(view(), domains=(DomainView(tried, frozenset()),))
    assert world.why_not()


def test_before_the_first_cycle_one_is_waited_for(world: World) -> None:
    world.agent.view = None
    assert world.why_not()


def test_while_a_cycle_is_under_way_its_end_is_waited_for(world: World) -> None:
    async def story() -> str:
        async with world.agent.cycle_lock:
            return await world.agent.until_allowed("gpu0", _HELD_GIB * 1024, _DEADLINE_S)

    assert world.runner.run(story())
