"""What a second mpsd finds of the first: daemons, records and grants, and what is none of its
business."""

import signal

from mpsd.model.domain import State
from mpsd.mps import control_daemon
from mpsd.simulator.card import EXCLUSIVE_PROCESS
from tests.whole.machine.machine import CONTROL, Machine, Program, eventually

GPUS = "A30×2"


def daemon_by_hand(machine: Machine, gpu: int) -> Program:
    """For this GPU, in the pipe directory of gpu0."""
    folder = machine.folder_of()
    folder.make()
    flags = ["-f", "-M"] if control_daemon.multi_user() else ["-f"]
    daemon = machine.start(
        [machine.program(CONTROL), *flags],
        {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder.pipe),
            "CUDA_VISIBLE_DEVICES": machine.simulation.gpus[gpu].uuid,
        },
    )
    eventually(lambda: control_daemon.listener(folder), "the daemon listens")
    return daemon


def client_by_hand(machine: Machine) -> Program:
    """Of whatever daemon listens in the pipe directory of gpu0."""
    client = machine.start(
        [machine.program("sim-cuda"), "hold"],
        {"CUDA_MPS_PIPE_DIRECTORY": str(machine.folder_of().pipe)},
    )
    client.heard("ready")
    return client


def test_daemons_grants_and_limits_are_found_again_and_no_client_is_lost(served: Machine) -> None:
    clients = [served.client(20), served.client(18)]
    before = served.node()
    served.part("up").kill()

    served.up()

    after = served.node()
    assert [(one.daemon_pid, one.servers, one.restarts) for one in after.domains] == [
        (one.daemon_pid, one.servers, one.restarts) for one in before.domains
    ]
    assert after.grants == before.grants
    assert (served.limit_mib("gpu0"), served.limit_mib("gpu1")) == (20 * 1024, 18 * 1024)
    assert all(client.running for client in clients)


def test_a_daemon_that_was_started_by_hand_is_adopted_with_its_clients(machine: Machine) -> None:
    daemon = daemon_by_hand(machine, gpu=0)
    client = client_by_hand(machine)
    card = machine.card()

    service = machine.up()

    assert machine.daemon() == daemon.pid
    assert client.running
    assert card.compute_mode == EXCLUSIVE_PROCESS
    client.kill()
    service.send(signal.SIGTERM)
    assert service.exit_code() == 0
    assert daemon.exit_code() == 0


def test_a_daemon_for_other_gpus_is_refused_until_it_is_gone(pair: Machine) -> None:
    daemon = daemon_by_hand(pair, gpu=1)
    client = client_by_hand(pair)
    pair.service("up")
    pair.until_known()

    refused = pair.in_state(State.REFUSED)

    assert (
        f"another control daemon (pid {daemon.pid}) listens in {pair.folder_of().pipe}"
        in refused.reason
    )
    assert refused.reason.endswith("stop it (quit)")
    assert client.running
    client.kill()
    pair.ask_daemon("quit")
    assert daemon.exit_code() == 0
    pair.in_state(State.READY)
    assert pair.domain().restarts == 0


def test_a_daemon_for_other_gpus_is_left_alone_at_the_end(pair: Machine) -> None:
    daemon = daemon_by_hand(pair, gpu=1)
    client = client_by_hand(pair)
    service = pair.service("up")
    eventually(lambda: service.logged("state", domain="gpu0", state="refused"), "it is refused")

    service.send(signal.SIGTERM)

    assert service.exit_code() == 0
    assert client.running
    assert daemon.running
    client.kill()
    daemon.kill()
    pair.folder_of().clear(with_pipe=True)
