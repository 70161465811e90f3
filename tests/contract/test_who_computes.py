"""How busy each process keeps the SMs, as NVML's samples say it.

One rule: a sample comes when the driver takes one, so what must be seen is waited for, and what must not be is looked
for while something else is seen.
"""

import time

from mpsd.core.limits_as_read import THREAD_PERCENT
from tests.contract.processes import eventually
from tests.contract.world import Daemon, World


def now_us() -> int:
    return time.time_ns() // 1000


class TestWhoComputes:
    def test_who_computes_has_a_percentage_and_who_only_holds_memory_has_none(
        self, daemon: Daemon, world: World
    ) -> None:
        idle = daemon.client("alloc=512", "linger")
        idle.next_line("lingering")
        began = now_us()
        busy = daemon.client("alloc=512", "work")
        busy.next_line("launches")
        eventually(lambda: world.sm_percents(world.gpu, began).get(busy.pid, 0) > 0)
        assert world.sm_percents(world.gpu, began).get(idle.pid, 0) == 0

    def test_two_who_compute_are_told_apart_and_neither_has_more_than_all(self, daemon: Daemon, world: World) -> None:
        began = now_us()
        clients = [daemon.client("work", environment={THREAD_PERCENT: percent}) for percent in ("25", "50")]
        for client in clients:
            client.next_line("launches")
        pids = {client.pid for client in clients}
        found: list[dict[int, int]] = []

        def seen() -> bool:
            found.append(world.sm_percents(world.gpu, began))
            return pids <= found[-1].keys()

        eventually(seen)
        assert all(1 <= found[-1][pid] <= 100 for pid in pids)

    def test_of_a_time_to_come_there_are_no_samples(self, daemon: Daemon, world: World) -> None:
        daemon.client("work").next_line("launches")
        assert world.sm_percents(world.gpu, now_us() + 3600 * 10**6) == {}
