"""How busy each process keeps the SMs, as NVML's samples say it: of MPS clients it names their
server.

A sample comes when the driver takes one: what must not be seen is looked for while something else
is.
"""

import signal
import time
from collections.abc import Callable

from mpsd.model.cuda_limit_parser import THREAD_PERCENT
from tests.contract.processes import eventually
from tests.contract.world import Daemon, World


def now_us() -> int:
    return time.time_ns() // 1000


class TestWhoComputes:
    def test_what_an_mps_client_computes_is_its_servers_and_who_only_holds_memory_has_nothing(
        self, daemon: Daemon, world: World
    ) -> None:
        idle = daemon.client("alloc=512", "linger")
        idle.next_line("lingering")
        began = now_us()
        daemon.client("alloc=512", "work").next_line("launches")
        eventually(lambda: world.sm_percents(world.gpu, began).get(daemon.server, 0) > 0)
        assert world.sm_percents(world.gpu, began).get(idle.pid, 0) == 0
        eventually(lambda: world.busy_percent(world.gpu) > 0)

    def test_of_two_clients_the_server_has_the_time_in_which_a_kernel_ran(
        self, daemon: Daemon, world: World
    ) -> None:
        """Nobody can say which of them did how much, nor on how many SMs."""
        clients = [daemon.client("work", environment={THREAD_PERCENT: "25"}) for _ in range(2)]
        for client in clients:
            client.next_line("launches")
        began = now_us()
        eventually(lambda: world.sm_percents(world.gpu, began).get(daemon.server, 0) > 50)
        found = world.sm_percents(world.gpu, began)
        assert found.keys().isdisjoint({client.pid for client in clients})
        assert found[daemon.server] <= 100

    def test_a_server_whose_clients_do_nothing_has_no_sample(
        self, daemon: Daemon, world: World
    ) -> None:
        daemon.client("alloc=512", "linger").next_line("lingering")
        server = daemon.server
        beside = world.client("work")
        beside.next_line("launches")
        began = now_us()
        eventually(lambda: world.sm_percents(world.gpu, began).get(beside.pid, 0) > 0)
        assert world.sm_percents(world.gpu, began).get(server, 0) == 0

    def test_what_a_stopped_client_has_queued_is_its_servers_until_it_has_run(
        self, daemon: Daemon, world: World, record_property: Callable[[str, object], None]
    ) -> None:
        client = daemon.client("kernel=1000", "work")
        client.next_line("launches")
        server = daemon.server
        client.send(signal.SIGSTOP)
        stopped = now_us()
        seen: list[tuple[float, int | None]] = []

        def percent() -> int | None:
            """In the last half second, and None where there is no sample."""
            found = world.sm_percents(world.gpu, max(stopped, now_us() - 500_000)).get(server)
            seen.append((round((now_us() - stopped) / 1e6, 2), found))
            return found

        eventually(percent, every_s=0.05)
        eventually(lambda: not percent(), every_s=0.05)
        record_property("server's use by seconds after the stop", seen)

    def test_of_a_time_to_come_there_are_no_samples(self, daemon: Daemon, world: World) -> None:
        daemon.client("work").next_line("launches")
        assert world.sm_percents(world.gpu, now_us() + 3600 * 10**6) == {}
