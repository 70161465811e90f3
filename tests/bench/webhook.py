"""What an admission review costs, beside a handler that does nothing on the same server in the same
run.

The load is open: requests leave when they are due, whether or not earlier ones are answered, and
are timed from then. The server has one core to itself and the load generator another.
"""

import asyncio
import base64
import json
import os
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import yaml
from aiohttp import web

import mpsd.cli
from mpsd.admission.rules.review import AdmissionAnswer
from mpsd.admission.settings import WebhookSettings, webhook_settings
from mpsd.admission.webhook import WebhookRole
from mpsd.platform import event_loop, life, logs
from mpsd.platform.event_loop import until
from mpsd.platform.kube_access import open_kube
from mpsd.platform.limits_files import LimitsFiles
from mpsd.platform.listener import json_answer

if TYPE_CHECKING:
    from tests.bench.rows import Row
    from tests.whole.webhook.api_server import ApiServer

RATE, HELD_S, WARM_S, ROUNDS, CONNECTIONS = 500, 6.0, 1.0, 6, 20
_OBJECT_BYTES, _VARIABLES = 10_000, 16
_NAMESPACE = "mpsd-system"
_NAME = f"mpsd-webhook.{_NAMESPACE}.svc"
_FIRST_LINES = "Host: x\r\nContent-Type: application/json\r\n"


def webhook() -> Iterator[tuple[str, "Row"]]:
    """p99 and CPU of a review, medians over rounds in turns with the handler that does nothing;
    resident memory."""
    # Not where the server runs, whose memory is measured: they bring pytest.
    from tests.whole.webhook.api_server import api_server
    from tests.whole.webhook.world import put_shipped_objects

    with api_server() as api, tempfile.TemporaryDirectory(prefix="mpsd-bench-") as folder:
        put_shipped_objects(api)
        kubeconfig = api.kubeconfig(Path(folder))
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, "serve", str(kubeconfig)], stdout=subprocess.PIPE
        )
        try:
            assert server.stdout
            port = int(server.stdout.readline())
            yield from _rows(psutil.Process(server.pid), port, _bundle(api, Path(folder)))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
            if server.stdout:
                server.stdout.close()


def _bundle(api: "ApiServer", folder: Path) -> Path:
    """The authorities as the API server was told them."""
    configuration = api.get(
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/mpsd-webhook"
    )
    path = folder / "bundle.pem"
    path.write_bytes(base64.b64decode(configuration["webhooks"][0]["clientConfig"]["caBundle"]))
    return path


def _rows(server: psutil.Process, port: int, bundle: Path) -> Iterator[tuple[str, "Row"]]:
    from tests.bench.rows import Row, median_row

    figures: dict[str, list[dict[str, float]]] = {"/nothing": [], "/validate": []}
    for path in figures:
        _load(server, port, bundle, path, WARM_S)
    for _round in range(ROUNDS):
        for path, found in figures.items():
            found.append(_load(server, port, bundle, path, HELD_S))

    def median(path: str, what: str) -> float:
        return statistics.median(found[what] for found in figures[path])

    about = (
        f"{RATE} reviews/s of a {_OBJECT_BYTES // 1000} kB Job for {HELD_S:g} s on one core;"
        " baseline: all allowed"
    )
    p99, nothing = median("/validate", "p99_ms"), median("/nothing", "p99_ms")
    yield "review_p99", Row(p99, "ms", None, nothing, f"p99 of {about}")
    yield (
        "review_p50",
        Row(
            median("/validate", "p50_ms"),
            "ms",
            None,
            median("/nothing", "p50_ms"),
            f"p50 of {about}",
        ),
    )
    ratios = [
        own["p99_ms"] / beside["p99_ms"]
        for own, beside in zip(figures["/validate"], figures["/nothing"], strict=True)
    ]
    yield (
        "review_p99_ratio",
        median_row(ratios, "×", 2, None, "the p99 above, by its baseline, of each round"),
    )
    cpu = median("/validate", "cpu_us"), median("/nothing", "cpu_us")
    yield "review_cpu", Row(cpu[0], "µs", None, cpu[1], "CPU of a review, TLS and HTTP included")
    memory = server.memory_info().rss / 1024**2
    yield "webhook_memory", Row(memory, "MiB", 64, None, "mpsd webhook after that load, resident")


def _load(
    server: psutil.Process, port: int, bundle: Path, path: str, held_s: float
) -> dict[str, float]:
    command = [sys.executable, "-m", __name__, "load", str(port), str(bundle), path, str(held_s)]
    before = server.cpu_times()
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    after = server.cpu_times()
    found: dict[str, float] = json.loads(said)
    spent_s = after.user - before.user + after.system - before.system
    return found | {"cpu_us": spent_s / found["answered"] * 1e6}


def review(*, asks: bool = True) -> bytes:
    """A review of the sample Job as a cluster has it: with some options, what kubectl notes down
    beside every object (the whole of it again, and who owns which field), and annotations up to the
    size that is measured. asks: for a GPU."""
    job: Any = yaml.safe_load((Path(mpsd.cli.__file__).parent / "mps-sample.yaml").read_text())
    template = job["spec"]["template"]
    template["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    (container,) = template["spec"]["containers"]
    container["env"] = [
        {"name": f"OPTION_{number}", "value": "x" * 40} for number in range(_VARIABLES)
    ]
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    if not asks:
        del container["resources"], template["spec"]["hostIPC"], template["spec"]["hostPID"]
    owned = {f"f:{path}": {} for path in _paths(job)}
    applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(job)}
    job["metadata"] |= {"namespace": "default", "annotations": applied, "uid": "0" * 36}
    job["metadata"]["managedFields"] = [
        {"manager": "kubectl", "operation": "Update", "fieldsV1": owned}
    ]
    applied["note"] = "x" * (_OBJECT_BYTES - len(json.dumps(job)) - len(', "note": ""'))
    assert len(json.dumps(job)) == _OBJECT_BYTES
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "batch", "version": "v1", "kind": "Job"},
        "resource": {"group": "batch", "version": "v1", "resource": "jobs"},
        "name": "mps-sample",
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "someone", "groups": ["system:authenticated"]},
        "object": job,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    ).encode()


def _paths(thing: Any, path: str = "") -> Iterator[str]:
    """Every field below a thing."""
    for key, value in thing.items() if isinstance(thing, dict) else enumerate(thing):
        yield f"{path}.{key}"
        if isinstance(value, dict | list):
            yield from _paths(value, f"{path}.{key}")


class _Asked(msgspec.Struct):
    uid: str


class _Question(msgspec.Struct):
    """As little of an AdmissionReview as can be read by whoever has to answer it; msgspec skips
    over the rest."""

    request: _Asked


class _Server(WebhookRole):
    """The webhook, and beside it a handler that allows everything: it answers with the uid, as
    every handler must."""

    def routes(self) -> Any:
        return {**super().routes(), "POST /nothing": self._nothing}

    async def _nothing(self, request: web.Request) -> web.Response:
        question = msgspec.json.decode(await request.read(), type=_Question)
        return json_answer(AdmissionAnswer(question.request.uid).record())


async def _serve(settings: WebhookSettings) -> int:
    assert settings.kubeconfig
    role = _Server(settings, LimitsFiles(None), open_kube(settings.kubeconfig))
    stop = event_loop.until_signalled(role.hurry)
    running = asyncio.create_task(role.run(stop))
    await until(lambda: role.is_registered, 20, "the webhook is registered", 0.05)
    print(role.server.port, flush=True)
    await running
    return 0


class _Connection(asyncio.Protocol):
    """One kept connection. done: called with the answer's first line once the whole answer is
    there."""

    def __init__(self, load: "_Load") -> None:
        self._load = load
        self._received = b""
        self.due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def ask(self, due: float, request: bytes) -> None:
        self.due = due
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if found and len(body) >= int(
            head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        ):
            self._received = b""
            self._load.answered(
                self, good=head.startswith(b"HTTP/1.1 200") and b'"allowed":true' in body
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.lost += 1


class _Load:
    """Requests at a fixed rate. A core is spent on keeping time, so that only the server's delays
    are seen."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._free: deque[_Connection] = deque()
        self._waiting: deque[float] = deque()
        self.took_s: list[float] = []
        self.bad = self.lost = 0

    async def run(self, port: int, context: ssl.SSLContext, held_s: float) -> None:
        loop = asyncio.get_running_loop()
        for _connection in range(CONNECTIONS):
            _transport, connection = await loop.create_connection(
                lambda: _Connection(self), "127.0.0.1", port, ssl=context, server_hostname=_NAME
            )
            self._free.append(connection)
        began, wanted = time.perf_counter(), int(RATE * held_s)
        due = began
        while len(self.took_s) < wanted and time.perf_counter() < began + held_s + 10:
            while due <= time.perf_counter() and due < began + held_s:
                self._send(due)
                due += 1 / RATE
            await asyncio.sleep(0)

    def _send(self, due: float) -> None:
        if self._free:
            self._free.popleft().ask(due, self._request)
        else:
            self._waiting.append(due)

    def answered(self, connection: _Connection, *, good: bool) -> None:
        self.took_s.append(time.perf_counter() - connection.due)
        self.bad += not good
        if self._waiting:
            connection.ask(self._waiting.popleft(), self._request)
        else:
            self._free.append(connection)


def _generate(port: int, bundle: str, path: str, held_s: float) -> None:
    body = review()
    head = f"POST {path} HTTP/1.1\r\n{_FIRST_LINES}Content-Length: {len(body)}\r\n\r\n"
    load = _Load(head.encode() + body)
    asyncio.run(load.run(port, ssl.create_default_context(cafile=bundle), held_s))
    took = sorted(load.took_s)
    if load.bad or load.lost or len(took) < int(RATE * held_s):
        sys.exit(
            f"{path}: {load.bad} bad answers, {load.lost} lost connections, {len(took)} answers"
        )
    found = {f"p{part}_ms": took[len(took) * part // 100] * 1000 for part in (50, 99)}
    print(json.dumps(found | {"answered": len(took)}))


def main() -> None:
    cores = sorted(os.sched_getaffinity(0))
    role, *rest = sys.argv[1:]
    os.sched_setaffinity(0, {cores[0] if role == "serve" else cores[-1]})
    if role == "serve":
        logs.configure("json", "info")
        flags = {
            "kubeconfig": rest[0],
            "namespace": _NAMESPACE,
            "port": "0",
            "metrics_port": "0",
            "drain": "0s",
        }
        settings = webhook_settings(flags | {"address": "127.0.0.1"})
        sys.exit(life.run("webhook", lambda: _serve(settings)))
    _generate(int(rest[0]), rest[1], rest[2], float(rest[3]))


if __name__ == "__main__":
    main()
