"""An extender that writes down what a real kube-scheduler asks it, and answers as it was told to.

One rule: what is written down is what was asked, key by key; only the spaces between are ours.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.e2e.cluster import Cluster, Object

Answer = Callable[[Object], Any]


@dataclass(slots=True)
class Recorder:
    """refused: from a pod's name to what is said of every node. victims: from a pod's name to the
    names of the pods that are to go in its favour, in place of those that the scheduler proposes.
    asked: verb, pod's name and request.
    """

    cluster: Cluster
    refused: Mapping[str, str] = field(default_factory=dict)
    victims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    asked: list[tuple[str, str, Object]] = field(default_factory=list)
    port: int = 0

    def heard(self, verb: str, pod: str) -> Object | None:
        """The first request of that kind for the pod."""
        return next((body for said, name, body in self.asked if (said, name) == (verb, pod)), None)

    def answer(self, verb: str, body: Object) -> Any:
        name = body["PodName"] if verb == "bind" else body["Pod"]["metadata"]["name"]
        self.asked.append((verb, name, body))
        answers: dict[str, Answer] = {
            "filter": self._filter,
            "prioritize": self._prioritize,
            "bind": self._bind,
            "preempt": self._preempt,
        }
        return answers[verb](body)

    def _filter(self, body: Object) -> Object:
        reason = self.refused.get(body["Pod"]["metadata"]["name"])
        failed = dict.fromkeys(_names(body), reason) if reason else {}
        if body["NodeNames"] is None:
            return {"Nodes": {"items": []} if reason else body["Nodes"], "FailedNodes": failed}
        return {"NodeNames": [] if reason else body["NodeNames"], "FailedNodes": failed}

    def _prioritize(self, body: Object) -> list[Object]:
        return [{"Host": name, "Score": 5} for name in _names(body)]

    def _bind(self, body: Object) -> Object:
        path = f"/api/v1/namespaces/{body['PodNamespace']}/pods/{body['PodName']}/binding"
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": body["PodName"], "uid": body["PodUID"]},
            "target": {"kind": "Node", "name": body["Node"]},
        }
        said = self.cluster.kubectl("create", "--raw", path, "-f", "-", given=binding)
        return {"Error": "" if said.ok else said.err}

    def _preempt(self, body: Object) -> Object:
        wanted = self.victims.get(body["Pod"]["metadata"]["name"])
        if wanted is None:
            return {"NodeNameToMetaVictims": _met(body)}
        found = [
            self.cluster.get("pod", name, "-n", body["Pod"]["metadata"]["namespace"])
            for name in wanted
        ]
        node = found[0]["spec"]["nodeName"]
        pods = [{"UID": pod["metadata"]["uid"]} for pod in found]
        return {"NodeNameToMetaVictims": {node: {"Pods": pods, "NumPDBViolations": 0}}}


def _names(body: Object) -> list[str]:
    names: list[str] | None = body["NodeNames"]
    return (
        names
        if names is not None
        else [node["metadata"]["name"] for node in body["Nodes"]["items"]]
    )


def _met(body: Object) -> Object:
    """The victims that were proposed, by their uids alone."""
    if met := body["NodeNameToMetaVictims"]:
        return dict(met)
    return {
        node: {
            "Pods": [{"UID": pod["metadata"]["uid"]} for pod in victims["Pods"] or ()],
            "NumPDBViolations": victims["NumPDBViolations"],
        }
        for node, victims in body["NodeNameToVictims"].items()
    }


@contextmanager
def recording(cluster: Cluster) -> Iterator[Recorder]:
    recorder = Recorder(cluster)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps(recorder.answer(self.path.removeprefix("/"), body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
            """Nothing: what was asked is written down."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        recorder.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield recorder
        finally:
            server.shutdown()
            thread.join(timeout=10)
