"""What cannot be written down, as on a full /run: supervision goes on, and it is written as soon as
it can be."""

from mpsd.model.domain import State
from tests.whole.machine.machine import Machine, eventually


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
