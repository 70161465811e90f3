"""What Prometheus reads of `mpsd up`, and where."""

import http.client
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import psutil
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from mpsd.admission.review_api import WebhookMetrics
from mpsd.model.metrics import Exporter, exported_by
from mpsd.model.node_report import NodeReport
from mpsd.platform.server_metrics import ServerMetrics
from mpsd.scheduler.api import SchedulerMetrics
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


def scrape(machine: Machine, accept: str = "") -> tuple[str, str]:
    """The content type and the text that the socket gives."""
    with closing(http.client.HTTPConnection("localhost")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(20)
        connection.sock.connect(str(machine.run_directory / "mpsd.sock"))
        connection.request("GET", "/metrics", headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.headers["Content-Type"], answer.read().decode()


def values(families: Iterator[Metric], name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Of this metric, by these labels."""
    found = [one for family in families for one in family.samples if one.name == name]
    return {tuple(one.labels[label] for label in labels): one.value for one in found}


def now(machine: Machine, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    return values(read_text(scrape(machine)[1]), name, *labels)


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


def test_the_format_is_the_one_that_is_asked_for(served: Machine) -> None:
    openmetrics = "application/openmetrics-text;"
    assert scrape(served, f"{openmetrics}version=1.0.0")[0].startswith(openmetrics)
    assert scrape(served)[0].startswith("text/plain;")


def test_the_port_that_was_asked_for_tells_the_same(served: Machine) -> None:
    (line,) = served.part("up").logged("serving readers", level="info")
    with urllib.request.urlopen(f"http://127.0.0.1:{line['port']}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    assert values(read_text(text), "mpsd_gpu_memory_bytes", "gpu") == now(
        served, "mpsd_gpu_memory_bytes", "gpu"
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{line['port']}/v1/node", timeout=20) as answer:
        assert msgspec.json.decode(answer.read(), type=NodeReport).driver == served.node().driver


def test_the_port_grants_nothing(served: Machine) -> None:
    (line,) = served.part("up").logged("serving readers", level="info")
    for path in ("/v1/grants", "/v1/containers"):
        asked = urllib.request.Request(
            f"http://127.0.0.1:{line['port']}{path}", data=b"{}", method="POST"
        )
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(asked, timeout=20)


def _registering() -> WebhookMetrics:
    made = WebhookMetrics()
    made.registered(well=True)
    return made


@pytest.mark.parametrize(
    ("exporter", "served"),
    [(Exporter.WEBHOOK, _registering()), (Exporter.SCHEDULER, SchedulerMetrics())],
)
def test_what_servers_of_a_cluster_tell_is_all_that_the_table_has_of_them(
    exporter: Exporter, served: ServerMetrics
) -> None:
    ours = {(one.family, one.type.value, one.help) for one in exported_by(exporter)}
    families = [
        one
        for one in read_openmetrics(openmetrics(served.registry).decode())
        if one.name.startswith("mpsd_")
    ]
    assert {(one.name, one.type, one.documentation) for one in families} == ours


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
