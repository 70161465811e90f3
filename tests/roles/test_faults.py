"""A program's fault takes the others on its GPU with it, and the GPU back once its process is gone."""

from mpsd.core.domain_states import State
from tests.roles.machine import Machine

ILLEGAL_ADDRESS = "700:CUDA_ERROR_ILLEGAL_ADDRESS"


def test_a_fault_closes_the_domain_until_its_process_is_gone(machine: Machine) -> None:
    machine.up()
    neighbour = machine.client(4)
    culprit = machine.run("--gpu-mem 4", "sim-cuda", "fault", "linger")
    assert neighbour.heard("broke") == ILLEGAL_ADDRESS
    machine.in_state(State.FAULT)
    refused = machine.run("--gpu-mem 4", "true")
    assert refused.exit_code() == 1
    assert "gpu0 is fault: a program's fault has ended every program on the GPU" in refused.errors

    culprit.kill()

    assert machine.in_state(State.READY).reason == ""
    machine.client(4)
    assert machine.domain().restarts == 0
