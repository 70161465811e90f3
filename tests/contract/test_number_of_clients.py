"""How many clients one GPU takes."""

from tests.contract.results import TOO_MANY_CLIENTS
from tests.contract.world import World


def test_a_gpu_takes_as_many_clients_as_its_facts_say_and_not_one_more(world: World) -> None:
    daemon = world.daemon()
    most = world.gpu.capability.clients
    clients = [daemon.client("linger") for _ in range(most)]
    for client in clients:
        client.next_line("lingering", within_s=60)
    refused = daemon.client().finished()
    assert (refused.line("fail")["fail"], refused.line("fail")["err"]) == (
        "ctx",
        TOO_MANY_CLIENTS,
    )
    assert refused.exit_code() == 3
    assert len(daemon.command(f"get_client_list {daemon.server}").pids) == most
    clients[0].kill()
    clients[0].exit_code()
    assert daemon.client().ended_well()
