"""CUDA_MPS_CLIENT_PRIORITY: what clients that want more than the GPU has get of it, and what the
default decides."""

import os

import pytest

from mpsd.model.cuda_limit_parser import CLIENT_PRIORITY
from tests.contract.processes import Client, Line
from tests.contract.world import Daemon, Environment

SECONDS = 1.0
NORMAL, BELOW = {CLIENT_PRIORITY: "0"}, {CLIENT_PRIORITY: "1"}
UNSET: Environment = {CLIENT_PRIORITY: None}
MORE, SAME = 2.0, 1.2  # times what the other gets


def measured(clients: list[Client]) -> list[Line]:
    for client in clients:
        client.go_on()
    return [client.next_line("launches_per_s") for client in clients]


def times(
    daemon: Daemon, first: Environment, second: Environment, work: str = "arithmetic"
) -> float:
    action = (f"prepare={work}", "step", f"measure={SECONDS}")
    one, two = measured(
        [daemon.ready_client(*action, environment=each) for each in (first, second)]
    )
    return float(one["launches_per_s"] / two["launches_per_s"])


class TestTwoClientsThatFillTheGpu:
    def test_one_below_normal_gets_what_the_other_leaves(self, daemon: Daemon) -> None:
        assert times(daemon, NORMAL, BELOW) > MORE

    @pytest.mark.parametrize("priority", [NORMAL, BELOW])
    def test_equals_get_the_same(self, daemon: Daemon, priority: Environment) -> None:
        assert 1 / SAME < times(daemon, priority, priority) < SAME

    @pytest.mark.parametrize("value", [None, "-1", "2", "abc", ""])
    def test_what_is_no_priority_is_the_default(self, daemon: Daemon, value: str | None) -> None:
        assert times(daemon, {CLIENT_PRIORITY: value}, BELOW) > MORE

    def test_one_below_normal_is_served_at_once_where_there_is_room(self, daemon: Daemon) -> None:
        assert 1 / SAME < times(daemon, NORMAL, BELOW, "small") < SAME


@pytest.mark.skipif(
    os.getuid() != 0, reason="only who started the daemon, or root, may set its defaults"
)
class TestTheDefault:
    def test_it_counts_for_clients_that_name_none_and_one_may_undo_it(self, daemon: Daemon) -> None:
        """Which is why a tenant may not name one."""
        daemon.command("set_default_client_priority 1")
        assert daemon.command("get_default_client_priority").text == "1"
        daemon.start_server()
        assert times(daemon, NORMAL, UNSET) > MORE
        assert times(daemon, NORMAL, BELOW) > MORE


def test_requests_beside_a_client_below_normal_hardly_wait(daemon: Daemon) -> None:
    waits_ms = {}
    for name, priority in ("normal", NORMAL), ("below", BELOW):
        batch = daemon.ready_client("prepare=arithmetic", "step", "measure=3", environment=priority)
        server = daemon.ready_client(
            "prepare=arithmetic", "step", "serve=20,1.5", environment=NORMAL
        )
        batch.go_on()
        server.go_on()
        waits_ms[name] = server.next_line("requests")["p50_ms"]
        batch.next_line("launches_per_s")
        for client in (batch, server):
            client.finished()
    assert waits_ms["below"] < 0.8 * waits_ms["normal"], waits_ms
