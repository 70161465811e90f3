"""The simulated kubelet as a program: pods come from an API server, and outlive the kubelet that
started them."""

import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mpsd.simulator.programs import wait_until
from tests.simulator.kubelet.world import DEADLINE_S, container, lives

NODE = "gpu-1"


class Api(ThreadingHTTPServer):
    """Just enough of an API server: pods and one node, by path, without versions."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.objects: dict[str, dict[str, Any]] = {}
        self.away = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def pod(self, command: str) -> str:
        """The path of a new pod."""
        name, uid = f"pod-{len(self.objects)}", str(uuid.uuid4())
        path = f"/api/v1/namespaces/default/pods/{name}"
        spec = {"restartPolicy": "Never", "containers": [container("main", {}, command)]}
        self.objects[path] = {
            "metadata": {"namespace": "default", "name": name, "uid": uid},
            "spec": spec,
            "status": {},
        }
        return path

    def phase(self, path: str) -> str:
        return self.objects[path]["status"].get("phase", "")


class Asked(BaseHTTPRequestHandler):
    server: Api

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        pods = [each for path, each in self.server.objects.items() if "/pods/" in path]
        known = self.path == f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}"
        self._answer(404 if not known else 200, {"items": pods})

    def do_PATCH(self) -> None:
        body, path = self._body(), self.path.removesuffix("/status")
        found = self.server.objects.get(path)
        if found and self.headers["Content-Type"] == "application/strategic-merge-patch+json":
            found.setdefault("status", {}).update(body["status"])
        self._answer(200 if found else 404, found or {})

    def do_POST(self) -> None:
        body = self._body()
        self.server.objects[f"{self.path}/{body['metadata']['name']}"] = body
        self._answer(201, body)

    def do_DELETE(self) -> None:
        body, found = self._body(), self.server.objects.get(self.path)
        if (
            found
            and body["preconditions"]["uid"] == found["metadata"]["uid"]
            and body["gracePeriodSeconds"] == 0
        ):
            del self.server.objects[self.path]
        self._answer(200 if found else 404, {})

    def _body(self) -> Any:
        return msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, status: int, body: object) -> None:
        encoded = msgspec.json.encode(body)
        self.send_response(503 if self.server.away else status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def kubelet(folder: Path, api: Api) -> Iterator[subprocess.Popen[bytes]]:
    arguments = ["--dir", str(folder), "--node", NODE, "--api", api.url]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "mpsd.simulator.kubelet.kubelet", *arguments]
    ) as program:
        try:
            yield program
        finally:
            program.send_signal(signal.SIGTERM)
            assert program.wait(DEADLINE_S) == 0


def test_a_pod_of_the_api_runs_outlives_the_kubelet_and_is_gone_when_it_is_deleted(
    api: Api,
) -> None:
    with tempfile.TemporaryDirectory(prefix="kubelet-") as made:
        pod = api.pod("echo $$; exec sleep 60")
        with kubelet(Path(made), api):
            wait_until(lambda: api.phase(pod) == "Running", DEADLINE_S, "it runs")
            assert api.objects[f"/api/v1/nodes/{NODE}"]["status"]["capacity"] == {}
        pid = int(next(Path(made).glob("containers/*/main/0/log")).read_text())
        assert lives(pid)
        api.objects[pod]["metadata"] |= {
            "deletionTimestamp": "now",
            "deletionGracePeriodSeconds": 5,
        }
        with kubelet(Path(made), api):
            wait_until(lambda: pod not in api.objects, DEADLINE_S, "it is gone")
        assert not lives(pid)


def test_an_api_server_that_is_away_for_a_while_misses_nothing(api: Api) -> None:
    with tempfile.TemporaryDirectory(prefix="kubelet-") as made:
        pod = api.pod(f"while [ ! -e {made}/go ]; do sleep 0.01; done; exit 1")
        with kubelet(Path(made), api):
            wait_until(lambda: api.phase(pod) == "Running", DEADLINE_S, "it runs")
            api.away = True
            Path(made, "go").touch()
            wait_until(lambda: '"exit_code": 1' in state_of(Path(made)), DEADLINE_S, "it has ended")
            api.away = False
            wait_until(lambda: api.phase(pod) == "Failed", DEADLINE_S, "the API knows")


def state_of(folder: Path) -> str:
    return next(folder.glob("containers/*/main/0/state.json")).read_text()
