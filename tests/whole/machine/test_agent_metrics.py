"""What Prometheus reads of `mpsd up`, and where."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families as read_text

from mpsd.model.node_report import NodeReport
from mpsd.platform import local_api
from tests.whole.machine.conftest import on_machine
from tests.whole.machine.machine import Machine, eventually

MIB = 1024**2
LISTEN = "MPSD_LISTEN"


@pytest.fixture(scope="module")
def serving() -> Iterator[Machine]:
    """Two A30, on which `mpsd up` runs and serves metrics on a port of the kernel's choice."""
    for made in on_machine("A30×2"):
        made.service("up", {LISTEN: "127.0.0.1:0"})
        made.until_ready()
        yield made


def scrape(machine: Machine) -> str:
    status, body = local_api.ask(machine.run_directory / "mpsd.sock", "GET", "/metrics")
    assert status == 200
    return body.decode()


def values(families: Iterator[Metric], name: str, *labels: str) -> dict[tuple[str, ...], float]:
    found = [one for family in families for one in family.samples if one.name == name]
    return {tuple(one.labels[label] for label in labels): one.value for one in found}


def now(machine: Machine, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    return values(read_text(scrape(machine)), name, *labels)


def test_the_socket_tells_what_is_granted_and_used_and_no_longer_than_it_is(
    served: Machine,
) -> None:
    first, _second = served.client(7, "alloc=1024"), served.client(2)
    gpu = served.gpu_of(first)
    eventually(
        lambda: now(served, "mpsd_grant_clients", "gpu", "holder") == {(gpu, "program"): 2},
        "both clients are told",
    )
    status = served.node()
    used = {(one.label,): one.used_mib * MIB for one in status.gpus if one.used_mib is not None}
    assert now(served, "mpsd_gpu_used_bytes", "gpu") == used
    assert now(served, "mpsd_gpu_granted_bytes", "gpu")[gpu,] == 9 * 1024 * MIB
    assert now(served, "mpsd_grant_limit_bytes", "gpu") == {(gpu,): 9 * 1024 * MIB}
    assert now(served, "mpsd_grant_used_bytes", "gpu")[gpu,] == used[gpu,]
    assert now(served, "mpsd_domain_state", "domain", "state")["gpu1", "ready"] == 1

    served.end_programs()

    eventually(
        lambda: not now(served, "mpsd_grant_limit_bytes", "gpu"), "the series end with their grants"
    )
    assert set(now(served, "mpsd_gpu_granted_bytes", "gpu").values()) == {0}


def test_the_port_that_was_asked_for_tells_the_same_and_grants_nothing(served: Machine) -> None:
    (line,) = served.part("up").logged("serving readers", level="info")
    port = f"http://127.0.0.1:{line['port']}"
    with urllib.request.urlopen(f"{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    assert values(read_text(text), "mpsd_gpu_memory_bytes", "gpu") == now(
        served, "mpsd_gpu_memory_bytes", "gpu"
    )
    with urllib.request.urlopen(f"{port}/v1/node", timeout=20) as answer:
        assert msgspec.json.decode(answer.read(), type=NodeReport).driver == served.node().driver
    for path in ("/v1/grants", "/v1/containers"):
        asked = urllib.request.Request(f"{port}{path}", data=b"{}", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(asked, timeout=20)


def test_no_port_is_open_unless_somebody_asks(machine: Machine) -> None:
    # a Python of its own, for what it has loaded
    service = machine.service("up", {"PYTHONPATH": str(Path.cwd())})
    machine.until_ready()
    process = psutil.Process(service.pid)
    assert process.net_connections("tcp") == []
    assert not [one.path for one in process.memory_maps() if "cryptography" in one.path], (
        "who serves nobody needs none"
    )
    assert now(machine, "mpsd_domain_servers", "domain").keys() == {("gpu0",)}


def test_a_port_that_is_taken_is_refused_before_anything_starts(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = machine.service("up", {LISTEN: f"127.0.0.1:{taken.getsockname()[1]}"})
        assert service.exit_code() == 1
    assert service.errors.startswith("mpsd: --listen: cannot listen on 127.0.0.1:")
    assert not (machine.run_directory / "mpsd.sock").exists()
    assert not (machine.run_directory / "gpu0" / "pipe" / "control").exists()
