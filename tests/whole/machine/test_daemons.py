"""Control daemons that die, hang, answer nonsense or find their GPU taken, and whom that costs
what."""

import os
import signal
import struct

import pytest

from mpsd.model.domain import State
from mpsd.simulator.gpus import MIB, card_path
from tests.whole.machine.machine import Line, Machine, Program, Service, eventually
from tests.whole.machine.test_agent_metrics import now

RPC_FAILURE = "806:CUDA_ERROR_MPS_RPC_FAILURE"
OUT_OF_MEMORY = "2:CUDA_ERROR_OUT_OF_MEMORY"
GPUS = "A30×2"
# no death of a daemon counts as one of several in a row
POLICY = {"restarts": {"stable_after_s": 0.001}}


def restarts(machine: Machine) -> tuple[int, int]:
    return machine.domain("gpu0").restarts, machine.domain("gpu1").restarts


def said_of(machine: Machine, daemon: int) -> list[Line]:
    """What the log says of the end of this daemon of gpu0."""
    downs = machine.part("up").logged("state", domain="gpu0", state="down")
    return [down for down in downs if f"(pid {daemon})" in down["reason"]]


def test_a_killed_daemon_costs_its_own_clients_and_is_replaced(served: Machine) -> None:
    hit, neighbour = served.client(20), served.client(20)
    assert (served.gpu_of(hit), served.gpu_of(neighbour)) == ("gpu0", "gpu1")
    daemon, before = served.daemon(), restarts(served)

    os.kill(daemon, signal.SIGKILL)

    assert hit.heard("broke") == RPC_FAILURE
    assert hit.exit_code() == 4
    served.new_daemon(daemon)
    assert restarts(served) == (before[0] + 1, before[1])
    after = served.client(20, "alloc=24000")
    assert served.gpu_of(after) == "gpu0"
    assert after.heard("rc") == OUT_OF_MEMORY
    assert after.heard("alloc_MiB") < 20 * 1024
    assert neighbour.running


def test_the_servers_limit_is_back_before_a_client_can_connect(served: Machine) -> None:
    """A client that asks for no limit of its own is held by the server's alone."""
    served.client(7)
    daemon = served.daemon()
    os.kill(daemon, signal.SIGKILL)
    client_directory = served.folder_of().client
    eventually(lambda: not (client_directory / "control").exists(), "clients are let out")
    eventually((client_directory / "control").exists, "clients are let in")

    lifted = {
        "CUDA_MPS_PIPE_DIRECTORY": str(client_directory),
        "MPSD_SIMULATION": str(served.simulation.folder),
    }
    early = served.start([served.program("sim-cuda"), "alloc=24000"], lifted)

    assert early.exit_code() in {0, 3}
    assert all(line.get("alloc_MiB", 0) < 7 * 1024 for line in early.lines), early
    served.new_daemon(daemon)
    assert said_of(served, daemon)


_STOPPED = "was stopped by a signal"


def test_a_stopped_daemon_is_wedged_and_serves_again_once_it_goes_on(machine: Machine) -> None:
    machine.up()
    client = machine.client(4)
    daemon = machine.daemon()

    os.kill(daemon, signal.SIGSTOP)

    wedged = machine.in_state(State.WEDGED)
    assert f"pid {daemon} {_STOPPED}" in wedged.reason
    refused = machine.run("--gpu-mem 4", "true")
    assert refused.exit_code() == 1
    assert f"gpu0 is wedged: pid {daemon} {_STOPPED}" in refused.errors
    assert now(machine, "mpsd_domain_commands_unanswered_total", "domain")["gpu0",] >= 3

    os.kill(daemon, signal.SIGCONT)

    assert machine.in_state(State.READY).reason == ""
    assert client.running
    assert machine.daemon() == daemon
    machine.client(4)


def test_a_daemon_that_never_listens_holds_up_neither_the_others_nor_the_end(pair: Machine) -> None:
    uuid = pair.simulation.gpus[0].uuid
    pair.replace_control_program(
        f'[ "$CUDA_VISIBLE_DEVICES" = {uuid} ] && exec sleep 600; exec "${{0%/*}}/real" "$@"'
    )
    pair.service("up")
    eventually(
        lambda: pair.run("--gpu-mem 4 --wait", "true").exit_code() == 0, "the other GPU serves"
    )
    eventually(
        lambda: "the control socket listens" in pair.domain("gpu0").reason,
        "what is waited for is said",
    )
    assert pair.domain("gpu0").state == State.STARTING


@pytest.fixture
def control(machine: Machine) -> Service:
    machine.set_policy(canary="skip")
    control, _agent = machine.apart()
    return control


def usurper(machine: Machine, control: Service, *victims: int) -> Program:
    """A process beside MPS that came between the end of these and the next server."""
    control.send(signal.SIGSTOP)
    for victim in victims:
        machine.kill(victim)
    beside = {**machine.simulation.environment, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
    # It may come before the server's death is known.
    for _ in range(100):
        took = machine.start([machine.program("sim-cuda"), "hold"], beside)
        eventually(lambda took=took: took.lines or not took.running, "it has tried")
        if "fail" not in took.lines[0]:
            break
    took.heard("ready")
    control.send(signal.SIGCONT)
    return took


def test_a_usurper_is_named_while_nothing_starts_and_its_end_lets_the_domain_serve(
    machine: Machine, control: Service
) -> None:
    took = usurper(machine, control, machine.recorded_daemon())

    starting = machine.in_state(State.STARTING)
    eventually(
        lambda: f"while pid {took.pid} uses " in machine.record().reason, "the usurper is named"
    )
    assert starting.restarts == 1
    refused = machine.run("--gpu-mem 4", "true")
    assert refused.exit_code() == 1
    assert f"gpu0 is starting: no MPS server can start while pid {took.pid} uses " in refused.errors

    took.kill()
    machine.in_state(State.READY)
    assert machine.record().reason == ""
    machine.client(4).kill()
    assert machine.record().restarts_total == 1
    named = [
        line for line in control.logged("no server") if f"pid {took.pid} uses " in line["reason"]
    ]
    assert len(named) == 1  # whoever tried before it and was too late may have been seen, too


def test_a_server_that_dies_at_each_start_is_told_with_the_logs_line_and_path(
    machine: Machine,
) -> None:
    service = machine.up()
    with card_path(machine.simulation.folder, machine.simulation.gpus[0]).open("r+b") as card:
        card.write(struct.pack("<Q", 8 * MIB))  # no context has room there
    (server,) = machine.record().servers
    machine.kill(server)

    log = str(machine.folder_of().log)
    words = '"Failed to create server context with status 2" (' + log
    eventually(lambda: words in machine.record().reason, "it is said while it starts")
    killed = eventually(
        lambda: [one for one in service.logged("state", state="down") if words in one["reason"]],
        "and why the daemon was ended",
    )
    assert "by mpsd: it could not be made ready: " in killed[0]["reason"]


def test_a_record_that_cannot_be_written_ends_nothing_and_is_written_later(
    machine: Machine,
) -> None:
    service = machine.up()
    beside = machine.run_directory / "gpu0" / ".record.json.new"
    beside.mkdir()  # nothing can be written there now, not even by root
    machine.kill(machine.daemon())
    eventually(lambda: service.logged("record not written", reason="Is a directory"), "it is said")
    eventually(lambda: service.logged("state", state="starting")[1:], "the daemon is started again")
    beside.rmdir()
    eventually(lambda: service.logged("record written again"), "it is written")
    eventually(lambda: machine.domain("gpu0").state == State.READY, "it serves")
    assert len(service.logged("record not written")) == 1
    assert service.running
    machine.client(4)
