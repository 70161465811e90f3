"""What the death of a control daemon or of its server costs, and whom."""

import os
import signal

from mpsd.core.domain_states import State
from tests.roles.machine import Machine, eventually

RPC_FAILURE = "806:CUDA_ERROR_MPS_RPC_FAILURE"
OUT_OF_MEMORY = "2:CUDA_ERROR_OUT_OF_MEMORY"


def test_a_killed_daemon_costs_its_own_clients_and_is_replaced(pair: Machine) -> None:
    pair.up()
    hit, neighbour = pair.client(20), pair.client(20)
    assert (pair.gpu_of(hit), pair.gpu_of(neighbour)) == ("gpu0", "gpu1")
    daemon = pair.daemon()

    os.kill(daemon, signal.SIGKILL)

    assert hit.heard("broke") == RPC_FAILURE
    assert hit.exit_code() == 4
    pair.new_daemon(daemon)
    assert (pair.domain("gpu0").restarts, pair.domain("gpu1").restarts) == (1, 0)
    after = pair.client(20, "alloc=24000")
    assert pair.gpu_of(after) == "gpu0"
    assert after.heard("rc") == OUT_OF_MEMORY
    assert after.heard("alloc_MiB") < 20 * 1024
    assert neighbour.running


def test_the_servers_limit_is_back_before_a_client_can_connect(machine: Machine) -> None:
    """A client that asks for no limit of its own is held by the server's alone."""
    service = machine.up()
    machine.client(7)
    daemon = machine.daemon()
    os.kill(daemon, signal.SIGKILL)
    client_directory = machine.folder_of().client
    eventually(lambda: not (client_directory / "control").exists(), "clients are let out")
    eventually((client_directory / "control").exists, "clients are let in")

    lifted = {"CUDA_MPS_PIPE_DIRECTORY": str(client_directory), "MPSD_SIMULATION": str(machine.simulation.folder)}
    early = machine.start([machine.program("sim-cuda"), "alloc=24000"], lifted)

    assert early.exit_code() in {0, 3}
    assert all(line.get("alloc_MiB", 0) < 7 * 1024 for line in early.lines), early
    machine.new_daemon(daemon)
    assert service.logged("state", domain="gpu0", state="down")


def test_how_a_daemon_died_is_said(machine: Machine) -> None:
    service = machine.up()
    daemon = machine.daemon()
    os.kill(daemon, signal.SIGKILL)
    machine.new_daemon(daemon)
    (down,) = service.logged("state", state="down")
    assert down["reason"] == f"the control daemon (pid {daemon}) was killed by signal 9"


def test_a_killed_server_costs_its_clients_and_no_restart(machine: Machine) -> None:
    machine.up()
    hit = machine.client(7)
    (server,) = machine.domain().servers

    os.kill(server, signal.SIGKILL)

    assert hit.heard("broke") == RPC_FAILURE
    after = machine.client(7, "alloc=8000")
    assert after.heard("rc") == OUT_OF_MEMORY
    eventually(lambda: machine.domain().servers not in {(), (server,)}, "the new server is known")
    assert machine.domain().restarts == 0


def test_a_crash_loop_is_reported_with_its_delays_and_ends_with_its_cause(machine: Machine) -> None:
    machine.up()
    machine.replace_control_program('echo "the licence has expired"; exit 1')
    os.kill(machine.daemon(), signal.SIGKILL)

    def backs_off() -> bool:
        domain = machine.domain()
        return domain.state is State.DOWN and "3 times in a row, the next start is in 2 s" in domain.reason

    eventually(backs_off, "the third death in a row is reported")
    assert 'ended with code 1; its last words: "the licence has expired"' in machine.domain().reason
    assert machine.domain().restarts == 3
    refused = machine.run("--gpu-mem 7", "true")
    assert refused.exit_code() == 1
    assert "gpu0 is down: the control daemon" in refused.errors

    machine.restore_control_program()

    machine.in_state(State.READY)
    machine.client(7)
