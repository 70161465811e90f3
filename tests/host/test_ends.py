"""Containers that end beside others on a GPU: clients of MPS are stopped, and killed once their queues have run."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import local_api, processes
from tests.host.container import Container, ended
from tests.host.engines import Containerd, Docker, Engine, Podman, PodmanOnCrun
from tests.host.host import Host, host_of
from tests.whole.machine.machine import Line, eventually

TWO = {"ALIYUN_COM_GPU_MEM_CONTAINER": "2", "ALIYUN_COM_GPU_MEM_DEV": "15", "NVIDIA_VISIBLE_DEVICES": "0"}
UNHANDLED = ("sim-cuda", "kernel=100", "launch=600")  # it would die of a SIGTERM
HANDLED = ("sim-cuda", "kernel=100", "work")
# Who passes a SIGTERM on, and ends as its client does: by a handler, as torchrun, and by sigwait(3), as tini.
BY_HANDLER = (
    "sh",
    "-c",
    "trap 'kill -TERM $client' TERM; sim-cuda kernel=100 launch=600 & client=$!; wait $client; exit $?",
)
_BY_SIGWAIT = """
import signal, subprocess, sys
both = [signal.SIGTERM, signal.SIGCHLD]
signal.pthread_sigmask(signal.SIG_BLOCK, both)
unblock = lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
client = subprocess.Popen(["sim-cuda", "kernel=100", "launch=600"], preexec_fn=unblock)
signal.sigwait(both)
client.terminate()
sys.exit(128 - client.wait())
"""
BY_SIGWAIT = (os.path.realpath(sys.executable), "-c", _BY_SIGWAIT)
KILLED = 128 + signal.SIGKILL


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    """On which a client is stopped for as long as a test needs to see it, since its neighbour never rests."""
    yield from host_of("T4", graces={"end_drain_s": 1})


@pytest.fixture
def neighbour(host: Host) -> Iterator[Container]:
    """Who computes on the same card, and must do so to the end."""
    made = _started(host, *HANDLED)
    yield made
    made.send(signal.SIGTERM)
    made.until_stopped()
    assert [line["end"] for line in made.lines if "end" in line] == ["0:CUDA_SUCCESS"], made


def _started(host: Host, *command: str) -> Container:
    """A container whose client has a context."""
    made = host.container(TWO, *command)
    for done in (made.create(), made.start()):
        assert done.code == 0, done
    made.heard("devices")
    return made


def _client(host: Host, container: Container) -> ProcessIdentity:
    """The one client of this container."""
    grant = host.granted_to(container).id
    (pid,) = (client.pid for client in host.node().clients or () if client.grant == grant)
    found = processes.identity_of(pid)
    assert found
    return found


def _stopped(host: Host) -> list[Line]:
    """The clients that mpsd has stopped."""
    return host.part("up").logged("client stopped")


@pytest.fixture(params=[Containerd, Docker, Podman, PodmanOnCrun], ids=lambda kind: kind.__name__)
def engine(host: Host, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made: Engine = request.param(host)
    try:
        yield made
        made.stop()
    finally:
        made.destroy()


def test_an_engine_that_kills_a_container_harms_no_other(engine: Engine, host: Host, neighbour: Container) -> None:
    before = len(_stopped(host))
    assert engine.detach(TWO, *UNHANDLED, name="train").code == 0
    eventually(lambda: len(host.node().clients or ()) == 2, "it is on the card")
    assert engine.kill("train").code == 0
    assert engine.exit_code("train") == KILLED
    assert len(_stopped(host)) == before + 1
    engine.remove("train")


def test_docker_stop_kills_after_its_grace_and_harms_no_other(host: Host, neighbour: Container) -> None:
    docker = Docker(host)
    try:
        before = len(_stopped(host))
        for name, command in (("train", UNHANDLED), ("serve", BY_SIGWAIT), ("batch", HANDLED)):
            assert docker.detach(TWO, *command, name=name).code == 0
        eventually(lambda: len(host.node().clients or ()) == 4, "they are on the card")
        assert docker.docker("stop", "--time", "1", "train", "serve").code == 0
        assert docker.docker("stop", "--time", "60", "batch").code == 0  # it leaves long before
        assert [docker.exit_code(name) for name in ("train", "serve", "batch")] == [KILLED, KILLED, 0]
        assert len(_stopped(host)) == before + 2
        docker.stop()
    finally:
        docker.destroy()


def test_a_signal_that_every_client_handles_is_passed_on_at_once(host: Host, neighbour: Container) -> None:
    before = len(_stopped(host))
    made = _started(host, *HANDLED)
    assert made.send(signal.SIGTERM).code == 0
    made.until_stopped()
    assert len(_stopped(host)) == before


def test_an_init_that_would_not_hear_a_signal_keeps_it_from_its_clients(host: Host, neighbour: Container) -> None:
    before = len(_stopped(host))
    made = _started(host, "sh", "-c", "sim-cuda kernel=100 launch=600; :")
    assert made.send(signal.SIGTERM).code == 0
    assert host.runtime_events[-1]["ended"] == 0
    assert (made.status, len(_stopped(host))) == ("running", before)
    assert made.delete(force=True).code == 0
    assert len(_stopped(host)) == before + 1


@pytest.mark.parametrize("command", [BY_HANDLER, BY_SIGWAIT])
def test_clients_that_an_init_would_pass_a_signal_on_to_are_ended_first(
    host: Host, neighbour: Container, command: tuple[str, ...]
) -> None:
    before = len(_stopped(host))
    made = _started(host, *command)
    sent = made.send(signal.SIGTERM)
    assert sent.code == 0 or "container not running" in sent.errors  # it may end with its client, before the signal
    made.until_stopped()
    assert len(_stopped(host)) == before + 1


def test_a_paused_container_that_has_run_dry_gets_its_signal_at_once(host: Host) -> None:
    before = len(_stopped(host))
    neighbour, made = host.holding(TWO), _started(host, *UNHANDLED)
    assert ended(made.command("pause", made.name), host.environment).code == 0
    eventually(lambda: _utilisation(host) == 0, "what it had queued has run")
    assert made.send(signal.SIGKILL).code == 0
    made.until_stopped()
    assert len(_stopped(host)) == before
    neighbour.send(signal.SIGTERM)
    neighbour.until_stopped()
    assert [line["end"] for line in neighbour.lines if "end" in line] == ["0:CUDA_SUCCESS"], neighbour


def _utilisation(host: Host) -> int:
    """Of its card, in percent."""
    done = host.asked("smi", "-o", "json")
    assert done.code == 0, done
    return int(json.loads(done.output)["gpus"][0]["sm_percent"])


def test_without_mpsd_a_container_gets_its_signal_at_once(host: Host) -> None:
    made = host.holding(TWO)
    host.part("up").kill()
    try:
        assert made.send(signal.SIGKILL).code == 0
        made.until_stopped()
    finally:
        host.up()


def test_an_end_goes_on_where_the_runtime_s_caller_waits_for_less_long(host: Host, neighbour: Container) -> None:
    made = _started(host, "sh", "-c", "sim-cuda kernel=100 launch=600 & wait $!; exec sleep 600")
    client = _client(host, made)
    call = subprocess.Popen(made.command("kill", made.name, "KILL"), env=host.environment)
    eventually(lambda: processes.is_stopped(client), "the client is stopped")
    call.kill()
    call.wait()
    eventually(lambda: not processes.is_alive(client), "the client is killed")
    eventually(lambda: not (host.run_directory / "ends").exists(), "its end is over")
    assert made.status == "running", "the runtime did not come to send the signal"


def test_mpsd_stop_leaves_a_container_to_its_engine(host: Host) -> None:
    made = host.holding(TWO)
    refused = host.asked("stop", made.name)
    assert refused.code == 1
    assert f"docker stop {made.name}" in refused.errors
    assert made.status == "running"


@pytest.mark.parametrize(
    ("signum", "status"), [(0, 400), (65, 400), ("KILL", 400), (9, 404)], ids=["none", "too large", "name", "unknown"]
)
def test_a_signal_that_is_none_and_a_container_that_is_not_there_are_refused(
    host: Host, signum: object, status: int
) -> None:
    asks = {"root": str(host.root), "id": "nobody", "signum": signum}
    code, _body = local_api.ask(host.run_directory / "mpsd.sock", "POST", "/v1/containers/end", asks)
    assert code == status
