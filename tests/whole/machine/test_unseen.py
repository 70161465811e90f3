"""One GPU of three whose processes NVML does not report while mpsd runs: the two others are granted
and watched as always."""

import signal
from collections.abc import Iterator

import pytest

from mpsd.model.node_report import GpuReport
from tests.whole.machine.conftest import on_machine
from tests.whole.machine.machine import Machine, Program, eventually
from tests.world.fork import MPSD

LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
ESCAPES = f"{LIMIT}=0=0 exec sim-cuda alloc=22000 hold"
KILLED = 128 + signal.SIGKILL
GIB = 20  # of which one fits a GPU


@pytest.fixture
def three() -> Iterator[Machine]:
    for machine in on_machine("A30×3"):
        machine.set_policy(exclusive_process=False)
        machine.up()
        yield machine


def gpus(machine: Machine) -> dict[str, GpuReport]:
    return {gpu.label: gpu for gpu in machine.node().gpus}


def placed(machine: Machine, number: int) -> dict[str, Program]:
    """Clients that fill a GPU each, by its label."""
    clients = [machine.client(GIB) for _ in range(number)]
    return {machine.gpu_of(client): client for client in clients}


def test_grants_and_the_watch_go_on_beside_a_gpu_that_is_lost(three: Machine) -> None:
    clients = placed(three, 3)
    kept = clients["gpu1"].pid
    three.card(1).lost = True
    eventually(lambda: gpus(three)["gpu1"].unseen, "it is unseen")
    for client in clients.values():
        client.kill()
    eventually(lambda: three.holders == {kept}, "the others' grants end")

    escape = three.run(f"--gpu-mem {GIB}", "sh", "-c", ESCAPES)
    assert escape.exit_code() == KILLED
    clients = placed(three, 2)
    assert clients.keys() == {"gpu0", "gpu2"}
    refused = three.run("--gpu-mem 20", "true")
    assert refused.exit_code() == 1
    assert "gpu1 takes no new grant until" in refused.errors
    assert {label: gpu.clients for label, gpu in gpus(three).items()} == {
        **dict.fromkeys(clients, 1),
        "gpu1": None,
    }
    said = three.start([MPSD, "status"], {"COLUMNS": "1000"})
    said.exit_code()
    assert "unknown: which processes use gpu1: NVML: " in said.output
    assert kept in three.holders, "nobody knows whether it has left clients"

    three.card(1).lost = False
    eventually(lambda: kept not in three.holders, "its grant ends")
    assert not gpus(three)["gpu1"].unseen
    three.end_programs()
    three.until_no_grants()
    three.until_ready()
    assert placed(three, 3).keys() == {"gpu0", "gpu1", "gpu2"}
