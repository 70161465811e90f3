"""A connection that says nothing keeps the control daemon from answering anybody, as on an H200."""

import os
import sys

import pytest

from mpsd.model.domain import State
from tests.whole.machine.machine import Machine, eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it becomes another user")
KILLED = 128 + 9
SILENT = """
import os, socket, sys, time
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.setuid(65534)
connection.connect(sys.argv[1])
assert connection.recv(100)
print('{"connected": true}', flush=True)
time.sleep(600)
"""


def test_who_holds_a_daemons_socket_is_ended_and_nobody_else(machine: Machine) -> None:
    service = machine.up()
    neighbour = machine.client(4)
    machine.run_directory.parent.chmod(0o755)
    daemon = machine.recorded_daemon()
    holder = machine.start([sys.executable, "-c", SILENT, machine.folder_of().client / "control"])
    holder.heard("connected")
    waits = machine.run("--gpu-mem 4", "sim-cuda", "alloc=100")

    assert holder.exit_code() == KILLED

    assert waits.exit_code() == 0
    machine.in_state(State.READY)
    assert machine.recorded_daemon() == daemon
    assert neighbour.running
    eventually(lambda: service.logged("client ended", pid=holder.pid), "it is said")
