"""Pods created without pause as dry runs, each answer looked at."""

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection

import msgspec

from tests.e2e.cluster import Cluster, Object, kubectl_program
from tests.e2e.objects import environment, pod

_BETWEEN_S = 0.02  # a load, not an attack: some forty pods a second from two threads


@dataclass(slots=True)
class Load:
    asked: int = 0
    failed: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, trouble: str) -> None:
        with self._lock:
            self.asked += 1
            self.failed += [trouble] if trouble else []


@contextmanager
def loading(cluster: Cluster, namespace: str, threads: int = 2) -> Iterator[Load]:
    load, over = Load(), threading.Event()
    with proxied(cluster) as port:
        workers = [
            threading.Thread(target=_work, args=(port, namespace, load, over), daemon=True)
            for _ in range(threads)
        ]
        for worker in workers:
            worker.start()
        try:
            yield load
        finally:
            over.set()
            for worker in workers:
                worker.join(timeout=30)


@contextmanager
def proxied(cluster: Cluster) -> Iterator[int]:
    """The API without TLS and credentials, whatever kind of both the kubeconfig holds. Gives its
    port."""
    command = [kubectl_program(), "--kubeconfig", str(cluster.kubeconfig), "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            said = process.stdout.readline()
            found = re.search(r":(\d+)$", said.strip())
            assert found, said
            yield int(found[1])
        finally:
            process.terminate()


def _work(port: int, namespace: str, load: Load, over: threading.Event) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    number = 0
    while not over.wait(_BETWEEN_S):
        number += 1
        try:
            connection.request("POST", path, msgspec.json.encode(pod(f"load-{number}")), headers)
            answer = connection.getresponse()
            trouble = _trouble(answer.status, answer.read())
        except OSError as error:
            connection.close()
            trouble = repr(error)
        load.note(trouble)
    connection.close()


def _trouble(status: int, body: bytes) -> str:
    """Empty where the pod was admitted and changed, which shows that both webhooks may be asked and
    one answered."""
    if status != 201:
        return f"{status}: {body[:500].decode(errors='replace')}"
    created: Object = msgspec.json.decode(body)
    return "" if environment(created).get("NVIDIA_VISIBLE_DEVICES") == "void" else "not changed"
