"""A control daemon that is not understood is never trusted with programs, and leaves nothing behind."""

from mpsd.model.domain import State
from tests.whole.machine.machine import Machine, eventually

# The daemon itself is the simulated one; what it is told and asked comes to nothing.
_NONSENSE = 'case "$1" in -f) exec "${0%/*}/real" "$@";; esac; cat >/dev/null; echo "all is well"'


def test_a_daemon_that_answers_nonsense_is_never_ready_and_the_answer_is_shown(machine: Machine) -> None:
    machine.replace_control_program(_NONSENSE)
    service = machine.service("up")
    eventually(lambda: service.logged("state", state="starting"), "it is started")
    said = 'nvidia-cuda-mps-control answered "all is well" to "set_default_device_pinned_mem_limit 0 8M"'
    eventually(lambda: said in machine.domain().reason, "the answer is shown")
    refused = machine.run("--gpu-mem 4", "true")
    assert refused.exit_code() == 1
    assert said in refused.errors
    eventually(lambda: machine.domain().restarts > 0, "another daemon is tried")
    assert not service.logged("state", state="ready")


def test_a_daemon_that_never_listens_holds_up_neither_the_others_nor_the_end(pair: Machine) -> None:
    uuid = pair.simulation.gpus[0].uuid
    pair.replace_control_program(f'[ "$CUDA_VISIBLE_DEVICES" = {uuid} ] && exec sleep 600; exec "${{0%/*}}/real" "$@"')
    pair.service("up")
    eventually(lambda: pair.run("--gpu-mem 4 --wait", "true").exit_code() == 0, "the other GPU serves")
    eventually(lambda: "the control socket listens" in pair.domain("gpu0").reason, "what is waited for is said")
    assert pair.domain("gpu0").state is State.STARTING
