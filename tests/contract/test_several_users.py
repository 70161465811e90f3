"""Clients of several users: at once with -M, one user after the other without."""

from tests.contract.processes import eventually
from tests.contract.results import SUCCESS
from tests.contract.world import World

QUEUES_S = 0.5  # a client that is served takes 0.1 s


def test_with_m_they_share_one_server(world: World, other_user: int) -> None:
    daemon = world.daemon(("-f", "-M"))
    clients = [daemon.ready_client("hold"), daemon.ready_client("hold", uid=other_user)]
    assert sorted(daemon.command(f"get_client_list {daemon.server}").pids) == sorted(
        client.pid for client in clients
    )


def test_without_m_the_second_waits_until_the_first_has_no_client_left(
    world: World, other_user: int
) -> None:
    daemon = world.daemon(("-f",))
    first = daemon.ready_client("hold")
    server = daemon.server
    second = daemon.client(uid=other_user)
    assert second.is_silent_for(QUEUES_S)
    first.terminate()
    assert second.finished(within_s=30).line("end")["end"] == SUCCESS
    eventually(lambda: daemon.command("get_server_list").pids != [server])
