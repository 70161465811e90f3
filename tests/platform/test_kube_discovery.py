"""Which kinds a cluster has: each once, as its server says, and what did not answer is named."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import urllib3

from mpsd.platform.kube import Access, Kube, deletable_kinds

ALL = ["create", "delete", "get", "list"]


def resource(
    name: str, kind: str, verbs: list[str] = ALL, *, namespaced: bool = True
) -> dict[str, Any]:
    return {"name": name, "kind": kind, "namespaced": namespaced, "verbs": verbs}


def group(name: str, version: str) -> dict[str, Any]:
    return {
        "name": name,
        "preferredVersion": {"groupVersion": f"{name}/{version}", "version": version},
    }


SAID = {
    "/api/v1": {
        "groupVersion": "v1",
        "resources": [
            resource("pods", "Pod"),
            resource("pods/status", "Pod"),
            resource("bindings", "Binding", ["create"]),
            resource("namespaces", "Namespace", namespaced=False),
        ],
    },
    "/apis": {
        "groups": [
            group("apps", "v1"),
            group("metrics.k8s.io", "v1beta1"),
            group("gone.example.com", "v1"),
        ]
    },
    "/apis/apps/v1": {
        "groupVersion": "apps/v1",
        "resources": [resource("daemonsets", "DaemonSet")],
    },
}


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = SAID.get(self.path)
        missing = {"message": "the server is currently unable to handle the request"}
        body = json.dumps(found or missing).encode()
        self.send_response(200 if found else 503 if "metrics" in self.path else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(10)


def test_what_can_be_listed_and_deleted_is_found_and_what_is_down_is_said(port: int) -> None:
    async def main() -> Any:
        kube = Kube(Access(f"http://127.0.0.1:{port}", urllib3.PoolManager(), dict))
        try:
            return await deletable_kinds(kube)
        finally:
            kube.close()

    kinds, unseen = asyncio.run(main())
    assert [(kind.resource.api, kind.resource.plural, kind.name) for kind in kinds] == [
        ("v1", "pods", "Pod"),
        ("v1", "namespaces", "Namespace"),
        ("apps/v1", "daemonsets", "DaemonSet"),
    ]
    assert unseen == [
        "get /apis/metrics.k8s.io/v1beta1: the server is currently unable to handle the request",
        "get /apis/gone.example.com/v1: the server is currently unable to handle the request",
    ]
