"""The server's limit of a GPU is its largest grant, whoever is restarted; nobody gets in without
one."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from mpsd.model.client_limits import DENY_MIB
from tests.whole.machine.conftest import parted_on
from tests.whole.machine.machine import Machine, eventually

# Each of them after and before another; the second dies before the first is back. The soak plays
# any order.
_ORDER = ["control", "daemon", "server", "agent", "control"]


@pytest.fixture(scope="module")
def parted() -> Iterator[Machine]:
    """Two A30."""
    yield from parted_on("A30×2")


class Parts:
    """mpsd's two processes on a machine, which are started again once they were killed."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def kill(self, part: str) -> None:
        match part:
            case "daemon":
                self._machine.kill(self._machine.recorded_daemon())
            case "server":
                for server in self._servers():
                    self._machine.kill(server)
            case _:
                self._machine.part(part).kill()

    def start(self, part: str) -> None:
        if part in {"control", "agent"}:
            self._machine.service(part)

    def in_force(self, name: str = "gpu0") -> set[str]:
        """What the daemon says of its servers, and of those to come, in its own words; empty
        without a server."""
        servers = self._machine.ask_daemon("get_server_list", name).split()
        asked = [f"get_device_pinned_mem_limit {server} 0" for server in servers]
        said = self._machine.ask_daemon(
            "\n".join([*asked, "get_default_device_pinned_mem_limit 0"]), name
        ).splitlines()
        return set(said) if len(said) > len(servers) > 0 else set()

    def _servers(self) -> Iterator[int]:
        yield from map(int, self._machine.ask_daemon("get_server_list").split())


def test_it_survives_restarts_of_every_part(apart: Machine) -> None:
    parts = Parts(apart)
    program = apart.run("--gpu-mem 7", "sleep", "600")
    eventually(lambda: apart.holders == {program.pid}, "it has its grant")

    for first, second in pairwise(_ORDER):
        parts.kill(first)
        parts.kill(second)
        parts.start(first)
        parts.start(second)
        eventually(
            lambda: parts.in_force() == {"7G"}, f"it is in force again after {first}, {second}"
        )

    apart.until_ready()
    assert apart.holders == {program.pid}


def test_it_rises_before_a_program_starts_and_falls_after_one_has_ended(apart: Machine) -> None:
    parts = Parts(apart)
    small = apart.run("--gpu-mem 4", "sleep", "600")
    eventually(lambda: apart.holders == {small.pid}, "it has its grant")
    assert parts.in_force() == {"4G"}
    large = apart.client(9, "alloc=20000")
    assert 8 * 1024 < large.heard("alloc_MiB") < 9 * 1024  # the limit was there before it
    assert parts.in_force() == {"9G"}
    assert parts.in_force("gpu1") == {f"{DENY_MIB}M"}
    large.kill()
    eventually(lambda: parts.in_force() == {"4G"}, "the smaller grant is left")
    small.kill()
    eventually(lambda: parts.in_force() == {f"{DENY_MIB}M"}, "nobody is let in")
