"""`mpsd status`: the node for people and for machines."""

import json
import signal

import yaml

from tests.whole.machine.machine import MPSD, Machine, Program, eventually

GPUS = "A30×2"
POLICY = {"exclusive_process": False}


def status(machine: Machine, *options: str) -> Program:
    return machine.start([MPSD, "status", *options])


def answered(asked: Program) -> str:
    assert asked.exit_code() == 0
    return asked.output


def test_the_ledger_and_who_uses_what_are_shown(served: Machine) -> None:
    client = served.client(20, "alloc=1000")
    waits = served.run("--gpu-mem 23 --wait", "sim-cuda", "hold")
    waits.heard("ready")
    queued = served.run("--gpu-mem 23 --wait", "true")
    eventually(lambda: served.queue == [queued.pid], "it waits")
    environment = {"MPSD_SIMULATION": str(served.simulation.folder), "CUDA_VISIBLE_DEVICES": "0"}
    foreign = served.start([served.program("sim-cuda"), "hold"], environment)
    foreign.heard("ready")

    as_json = status(served, "-o", "json")
    as_text = status(served)

    assert (as_json.exit_code(), as_text.exit_code()) == (0, 0)
    node = json.loads(as_json.output)
    used = {grant["holderPid"]: grant["usedMiB"] for grant in node["grants"]}
    assert used.keys() == {client.pid, waits.pid}
    assert 1000 < used[client.pid] < 2000
    assert [waiting["holderPid"] for waiting in node["waiting"]] == [queued.pid]
    text = as_text.output
    (gpu_row,) = (line.split() for line in text.splitlines() if line.split()[:1] == ["gpu0"])
    assert gpu_row[:6] == ["gpu0", "A30", "gpu0", "ready", "20/23.4", "GiB"]
    assert f"pid {queued.pid} waits for 23 GiB: true" in text
    assert f"pid {foreign.pid} uses " in text
    assert yaml.safe_load(answered(status(served, "-o", "yaml")))["gpus"] == node["gpus"]


def test_a_watch_outlives_mpsd_and_ends_at_ctrl_c(machine: Machine) -> None:
    running = machine.up()
    watch = status(machine, "-o", "json", "--watch")
    assert len(watch.heard("gpus")) == 1
    running.send(signal.SIGTERM)
    assert running.exit_code() == 0
    assert "mpsd does not run here" in watch.heard("away")
    watch.send(signal.SIGINT)
    assert watch.exit_code() == 130


def test_without_mpsd_the_answer_is_no_and_the_remedy(machine: Machine) -> None:
    alone = status(machine)
    assert alone.exit_code() == 1
    assert "mpsd does not run here" in alone.errors
    assert "start it with `mpsd up`" in alone.errors
