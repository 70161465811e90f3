"""What a watchdog lives on: who lifts his limit or leaves MPS is seen, and his memory comes back
when he is killed."""

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT
from tests.contract.gpus import NVML_NEAR_MIB, near
from tests.contract.processes import Client, eventually
from tests.contract.results import SUCCESS
from tests.contract.world import Daemon, World

LIMIT_MIB, TAKEN_MIB = 2048, 4096
LIMIT = {MEMORY_LIMIT: f"0={LIMIT_MIB}M"}
BACK_S = 0.3  # 50 to 66 ms on an H200


@pytest.fixture(scope="class")
def neighbour(daemon: Daemon) -> Client:
    client = daemon.client("alloc=512", "work", environment=LIMIT)
    client.next_line("launches")
    return client


class TestWhoEscapes:
    @pytest.mark.parametrize("value", ["0=0", "5=1G", "garbage"])
    def test_who_lifts_his_limit_is_listed_on_mps_with_more_than_it(
        self, daemon: Daemon, world: World, neighbour: Client, value: str
    ) -> None:
        tenant = daemon.ready_client(
            f"lift={value}", f"alloc={TAKEN_MIB}", "hold", environment=LIMIT
        )
        self._has_taken(tenant, world, world.mib_on_mps()[tenant.pid])
        self._gives_it_back_when_killed(tenant, world, neighbour)

    def test_who_finds_no_daemon_is_listed_beside_mps_with_more_than_his_limit(
        self, world: World, neighbour: Client
    ) -> None:
        tenant = world.client(
            f"alloc={TAKEN_MIB}", "hold", environment=LIMIT, directory=world.nowhere
        )
        tenant.next_line("ready")
        assert tenant.pid not in world.mib_on_mps()
        self._has_taken(tenant, world, world.mib_on()[tenant.pid])
        self._gives_it_back_when_killed(tenant, world, neighbour)

    def test_who_does_not_lift_his_limit_stays_within_it(
        self, daemon: Daemon, world: World
    ) -> None:
        tenant = daemon.ready_client(f"alloc={TAKEN_MIB}", "hold", environment=LIMIT)
        assert 0 < world.mib_on_mps()[tenant.pid] <= LIMIT_MIB + NVML_NEAR_MIB

    def _has_taken(self, tenant: Client, world: World, listed_mib: int) -> None:
        assert tenant.result == SUCCESS
        assert listed_mib > LIMIT_MIB
        assert listed_mib == near(TAKEN_MIB + world.gpu.context_mib(), within=16)

    def _gives_it_back_when_killed(self, tenant: Client, world: World, neighbour: Client) -> None:
        gpu = world.gpu
        with_him_mib = world.used_mib(gpu)
        launches = neighbour.next_line("launches")["launches"]
        tenant.kill()
        eventually(lambda: world.used_mib(gpu) <= with_him_mib - TAKEN_MIB, BACK_S, every_s=0.002)
        eventually(lambda: tenant.pid not in world.mib_on(gpu), BACK_S)
        computed = [neighbour.next_line("launches")["launches"] for _ in range(2)]
        assert launches < computed[0] < computed[1]
