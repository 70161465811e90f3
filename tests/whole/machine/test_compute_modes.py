"""Who puts a compute mode back when mpsd did not end well, or is not wanted to keep it;
test_stopping has the rest."""

import json
import os
import signal
from pathlib import Path

from mpsd.mps.compute_modes import FoundModes
from mpsd.simulator.card import DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED
from tests.whole.machine.machine import MPSD, Machine, Program, eventually


def release(machine: Machine, *options: str, **environment: str) -> Program:
    program = machine.start([MPSD, "control", "--release", *options], environment)
    program.exit_code()
    return program


def crash(machine: Machine) -> None:
    """mpsd and all its daemons are gone at once, as when its container is removed by force."""
    domains = [f"gpu{gpu.ordinal}" for gpu in machine.simulation.gpus]
    control = machine.service("control")
    eventually(lambda: len(control.logged("state", state="ready")) == len(domains), "it serves")
    control.kill()
    for domain in domains:
        machine.kill(machine.recorded_daemon(domain))
    eventually(lambda: not machine.processes_left(), "all of it is gone")


def test_a_policy_that_wants_it_no_more_puts_it_back_and_another_takes_it_again(
    machine: Machine,
) -> None:
    card = machine.card()
    card.compute_mode = PROHIBITED
    service = machine.up()
    client = machine.client(7)
    assert card.compute_mode == EXCLUSIVE_PROCESS
    machine.set_policy(exclusive_process=False)
    eventually(lambda: card.compute_mode == PROHIBITED, "it is put back")
    eventually(lambda: machine.record().compute_modes == {}, "nothing is left to put back")
    machine.set_policy(exclusive_process=True)
    eventually(lambda: card.compute_mode == EXCLUSIVE_PROCESS, "it is taken again")
    assert client.running

    service.kill()
    machine.set_policy(exclusive_process=False)
    machine.up()

    assert card.compute_mode == PROHIBITED
    assert machine.record().compute_modes == {}


def test_what_a_crash_left_behind_is_put_back_once_on_request(pair: Machine) -> None:
    pair.card(0).compute_mode = PROHIBITED
    crash(pair)
    assert (pair.card(0).compute_mode, pair.card(1).compute_mode) == (
        EXCLUSIVE_PROCESS,
        EXCLUSIVE_PROCESS,
    )
    pair.card(1).compute_mode = DEFAULT  # somebody was faster

    first, second = release(pair, "-o", "json"), release(pair)

    rows = [
        (row["domain"], row["gpu"], row["mode"], row["outcome"]) for row in json.loads(first.output)
    ]
    uuids = [gpu.uuid for gpu in pair.simulation.gpus]
    assert rows == [
        ("gpu0", uuids[0], "PROHIBITED", "put back"),
        ("gpu1", uuids[1], "DEFAULT", "was so already"),
    ]
    assert (pair.card(0).compute_mode, pair.card(1).compute_mode) == (PROHIBITED, DEFAULT)
    assert "nothing to restore: no record of this boot in " in second.output
    assert (first.exit_code(), second.exit_code()) == (0, 0)


def test_a_lost_gpu_is_named_and_the_others_are_put_back(pair: Machine) -> None:
    pair.card(0).compute_mode = pair.card(1).compute_mode = PROHIBITED
    crash(pair)
    pair.card(0).lost = True
    (pair.folder_of("gpu0").path / ".record.json.new").mkdir()  # its record cannot be written
    lost, other = (gpu.uuid for gpu in pair.simulation.gpus)

    first, second = release(pair, "-o", "json"), release(pair, "-o", "json")

    rows = [(row["gpu"], row["mode"], row["outcome"]) for row in json.loads(first.output)]
    assert rows == [
        (lost, "PROHIBITED", "left as it is"),
        (other, "PROHIBITED", "put back"),
    ]
    assert "GPU is lost; " in (why := json.loads(first.output)[0]["reason"])
    assert "or reboot" in why
    assert pair.card(1).compute_mode == PROHIBITED
    assert [row["gpu"] for row in json.loads(second.output)] == [lost]
    assert (first.exit_code(), second.exit_code()) == (1, 1)
    pair.card(0).lost = False
    assert release(pair).exit_code() == 0
    assert pair.card(0).compute_mode == PROHIBITED


def test_it_is_refused_while_somebody_would_lose_by_it(machine: Machine) -> None:
    card = machine.card()
    service = machine.up()
    client = machine.client(7)
    refused = release(machine)
    assert refused.exit_code() == 1
    assert "mpsd runs here already" in refused.errors

    service.kill()
    used = release(machine)
    os.kill(machine.recorded_daemon(), signal.SIGSTOP)
    silent = release(machine)
    os.kill(machine.recorded_daemon(), signal.SIGCONT)

    assert (used.exit_code(), silent.exit_code()) == (1, 1)
    assert (
        f"compute mode DEFAULT not restored: its control daemon (pid {machine.recorded_daemon()})"
        " has clients" in (used.output)
    )
    assert (
        "compute mode DEFAULT not restored: its control daemon does not report its clients"
        in silent.output
    )
    assert card.compute_mode == EXCLUSIVE_PROCESS
    client.kill()
    eventually(lambda: release(machine).exit_code() == 0, "nobody is left")
    assert card.compute_mode == DEFAULT
    machine.up()
    assert card.compute_mode == EXCLUSIVE_PROCESS


def mode_file(machine: Machine) -> Path:
    return FoundModes(machine.run_directory).file(machine.simulation.gpus[0].uuid)


def test_a_damaged_file_of_the_mode_leaves_it_as_it_is_and_says_so(machine: Machine) -> None:
    card = machine.card()
    machine.up().kill()
    file = mode_file(machine)
    file.write_bytes(damaged := file.read_bytes()[:-40])
    service = machine.up()
    client = machine.client(7)
    client.kill()
    service.send(signal.SIGTERM)
    assert service.exit_code() == 0
    assert card.compute_mode == EXCLUSIVE_PROCESS
    assert all(str(file) in line["reason"] for line in service.logged("compute mode left as it is"))
    assert service.logged("compute mode left as it is")
    assert file.read_bytes() == damaged

    crash(machine)
    released = release(machine)
    assert released.exit_code() == 1
    assert f"gpu0: compute mode not restored: {file} cannot be read" in released.output
    assert card.compute_mode == EXCLUSIVE_PROCESS
