"""The canary's client under each of the canary's limits.

On the simulator `sim-cuda` stands in for it, as in mpsd; with --gpu it is mpsd's own.
"""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from mpsd.model import client_limits
from mpsd.model.grants import Gpu
from mpsd.mps import canary as canary_client
from mpsd.mps.rules import canary
from mpsd.mps.rules.canary import (
    DENIAL,
    OWN_LIMIT,
    SERVER_LIMIT,
    NoContext,
    Outcome,
    ProbeResult,
    Trial,
)
from tests.contract.processes import SOON_S
from tests.contract.world import Daemon, World


@pytest.fixture(scope="class")
def program(request: pytest.FixtureRequest) -> Sequence[str]:
    return canary_client.PROGRAM if request.config.getoption("--gpu") else ("sim-cuda",)


@pytest.fixture(scope="class")
def under_server_limit(world: World) -> Daemon:
    daemon = world.daemon()
    daemon.command(f"set_default_device_pinned_mem_limit 0 {SERVER_LIMIT.limit_mib}M")
    daemon.start_server()
    return daemon


class TestTheCanary:
    def test_a_driver_that_obeys_passes(
        self, world: World, under_server_limit: Daemon, program: Sequence[str]
    ) -> None:
        outcomes = self._run(world, under_server_limit, program, SERVER_LIMIT, OWN_LIMIT)
        gpu = self._gpu(world)
        found = canary.finding(gpu, outcomes)
        assert (found.problem, found.warning) == ("", "")
        assert found.sms == gpu.capability.sms_given(canary.PERCENT, gpu.sms)
        assert found.context_mib == pytest.approx(gpu.capability.context_cost_mib(found.sms), abs=5)
        for trial, outcome in outcomes.items():
            assert isinstance(outcome, ProbeResult)
            assert found.context_mib is not None
            assert outcome.free_mib == pytest.approx(trial.limit_mib - found.context_mib, abs=2)

    def test_nobody_gets_a_context_under_denial(
        self, world: World, under_server_limit: Daemon, program: Sequence[str]
    ) -> None:
        server = under_server_limit.server
        under_server_limit.command(
            f"set_device_pinned_mem_limit {server} 0 {client_limits.DENY_MIB}M"
        )
        (outcome,) = self._run(world, under_server_limit, program, DENIAL).values()
        assert isinstance(outcome, NoContext)
        assert canary.denial_problem(self._gpu(world), outcome) == ""

    def test_a_client_beside_mps_is_found_out(self, world: World, program: Sequence[str]) -> None:
        """As one would be under a driver that does not hold limits."""
        environment = world.environment_in(
            world.nowhere, SERVER_LIMIT.environment(world.gpu.uuid, str(world.nowhere))
        )
        outcome = asyncio.run(canary_client.run(program, environment, SOON_S))
        found = canary.finding(self._gpu(world), {SERVER_LIMIT: outcome})
        assert "this driver does not enforce memory limits" in found.problem

    def _run(
        self, world: World, daemon: Daemon, program: Sequence[str], *trials: Trial
    ) -> Mapping[Trial, Outcome]:
        async def all_at_once() -> list[Outcome]:
            environments = [trial.environment(world.gpu.uuid, str(daemon.pipe)) for trial in trials]
            runs = [
                canary_client.run(program, world.environment_in(daemon.pipe, changes), SOON_S)
                for changes in environments
            ]
            return list(await asyncio.gather(*runs))

        return dict(zip(trials, asyncio.run(all_at_once()), strict=True))

    def _gpu(self, world: World) -> Gpu:
        gpu = world.gpu
        return Gpu(gpu.uuid, 0, gpu.name, gpu.memory_mib, gpu.sms, gpu.capability)
