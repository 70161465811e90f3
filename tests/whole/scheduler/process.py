"""`mpsd scheduler` as a process, asked as kube-scheduler asks."""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.served import DEADLINE_S, Answer, Object, Served, ask


class Extender(Served):
    """flags: such as `{"drain": "0s"}` for --drain 0s. context: by which it is asked over TLS; None
    without."""

    def __init__(self, folder: Path, flags: Mapping[str, str]) -> None:
        super().__init__("scheduler", folder, {"metrics-address": "127.0.0.1", **flags})
        self.folder = folder
        self.context: ssl.SSLContext | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """OSError where nobody listens, or where we are not let in."""
        connection = (
            http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=DEADLINE_S, context=self.context
            )
            if self.context
            else http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        )
        return ask(connection, method, path, body, headers)

    def post(self, verb: str, thing: object, prefix: str = "") -> Answer:
        return self.ask("POST", f"{prefix}/{verb}", json.dumps(thing).encode())

    def filter(self, pod: Object, *nodes: str) -> Object:
        answer = self.post("filter", {"Pod": pod, "Nodes": None, "NodeNames": nodes})
        assert answer.status == 200, answer.text
        return answer.json

    def bind(self, pod: Object, node: str) -> str:
        """Why not; empty where it is bound."""
        metadata = pod["metadata"]
        said = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
        }
        return self.post("bind", said | {"Node": node}).json["Error"]


@contextmanager
def extender(folder: Path, kubeconfig: Path, **flags: str) -> Iterator[Extender]:
    """Runs one; flags with _ for -. Killed at the end unless it has ended before."""
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    running = Extender(folder, {"drain": "0s", "kubeconfig": str(kubeconfig), **given})
    try:
        yield running
    finally:
        running.kill()
