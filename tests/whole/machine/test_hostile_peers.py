"""Forty connections send what they like to every port of `mpsd up`, by a new seed each time, which
a failure prints (MPSD_FUZZ_SEED repeats it)."""

from tests.fuzz.control_socket import a_seed
from tests.fuzz.ports import most_memory_mib, speaking, status_of, tcp, unix
from tests.served import free_port
from tests.whole.machine.machine import Machine, eventually

_TALKS = 400
_MOST_MIB = 256  # what the agent's container gets
_PATHS = ("/v1/node", "/metrics", "/v1/page")


def test_whatever_is_sent_to_the_ports_others_are_answered_and_get_grants(pair: Machine) -> None:
    seed = a_seed()
    port = free_port()
    up = pair.service("up", {"MPSD_LISTEN": f"127.0.0.1:{port}"})
    pair.until_ready()
    ports = (unix(pair.run_directory / "mpsd.sock"), tcp(port))
    answers = set()
    with speaking(ports, seed) as speakers:
        while speakers.count < _TALKS:
            for connect in ports:
                answers |= {status_of(connect, path) for path in _PATHS}
        client = pair.client(2, "alloc=100")
    assert answers == {200}, f"seed {seed}"
    assert client.running
    assert not up.logged("request failed"), f"seed {seed}"
    assert most_memory_mib(up.pid) < _MOST_MIB, f"seed {seed}"
    eventually(lambda: pair.node().grants, "its grant is seen still")
