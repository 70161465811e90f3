"""The server's limit of a GPU is its largest grant, whoever is restarted."""

from itertools import pairwise

from tests.whole.machine.machine import Machine, eventually

# Each of them after and before another; the second dies before the first is back. The soak plays
# any order.
_ORDER = ["control", "daemon", "server", "agent", "control"]


def kill(machine: Machine, part: str) -> None:
    match part:
        case "daemon":
            machine.kill(machine.recorded_daemon())
        case "server":
            for server in machine.ask_daemon("get_server_list").split():
                machine.kill(int(server))
        case _:
            machine.part(part).kill()


def in_force(machine: Machine) -> set[str]:
    """What the daemon says of its servers, and of those to come, in its own words; empty without a
    server."""
    servers = machine.ask_daemon("get_server_list").split()
    asked = [f"get_device_pinned_mem_limit {server} 0" for server in servers]
    said = machine.ask_daemon("\n".join([*asked, "get_default_device_pinned_mem_limit 0"]))
    found = said.splitlines()
    return set(found) if len(found) > len(servers) > 0 else set()


def test_it_survives_restarts_of_every_part(apart: Machine) -> None:
    program = apart.run("--gpu-mem 7", "sleep", "600")
    eventually(lambda: apart.holders == {program.pid}, "it has its grant")

    for first, second in pairwise(_ORDER):
        for part in (first, second):
            kill(apart, part)
        for part in (first, second):
            if part in {"control", "agent"}:
                apart.service(part)
        eventually(lambda: in_force(apart) == {"7G"}, f"it is in force after {first}, {second}")

    apart.until_ready()
    assert apart.holders == {program.pid}
