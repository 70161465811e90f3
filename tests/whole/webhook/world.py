"""A webhook that runs as it would in a cluster: the real command, TLS, and an API server to
register with."""

import base64
import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests import served
from tests.admission import reviews
from tests.manifests.rendering import PLAIN, only
from tests.served import DEADLINE_S, Object, Served, free_port
from tests.whole.webhook.api_server import ApiServer

__all__ = ["DEADLINE_S", "Object", "free_port"]  # which tests of the webhook find here

NAMESPACE, SERVICE = "mpsd-system", "mpsd-webhook"
HOST = f"{SERVICE}.{NAMESPACE}.svc"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/{SERVICE}-certificates"
_GROUP = "/apis/admissionregistration.k8s.io/v1"
VALIDATING = f"{_GROUP}/validatingwebhookconfigurations/{SERVICE}"
MUTATING = f"{_GROUP}/mutatingwebhookconfigurations/{SERVICE}"
CONFIGURATIONS = {
    "ValidatingWebhookConfiguration": VALIDATING,
    "MutatingWebhookConfiguration": MUTATING,
}
SYSTEM, OWN = "/api/v1/namespaces/kube-system", f"/api/v1/namespaces/{NAMESPACE}"


def put_shipped_objects(api: ApiServer) -> None:
    """What `kubectl apply` of the manifests leaves in a cluster, as far as the webhook touches
    it."""
    for path in (SYSTEM, "/api/v1/namespaces/default"):
        api.put(path, {"metadata": {"name": path.rsplit("/", 1)[1]}})
    api.put(OWN, {"metadata": {"name": NAMESPACE, "labels": {"team": "gpu"}}})
    for kind, path in CONFIGURATIONS.items():
        api.put(path, deepcopy(only(PLAIN, kind)))


def webhooks(api: ApiServer) -> list[Object]:
    """Every webhook of both configurations, as they are now."""
    return [webhook for path in CONFIGURATIONS.values() for webhook in api.get(path)["webhooks"]]


def bundles(api: ApiServer) -> list[str]:
    return [
        base64.b64decode(webhook["clientConfig"].get("caBundle", "")).decode()
        for webhook in webhooks(api)
    ]


def is_registered(api: ApiServer) -> bool:
    return all(webhook["failurePolicy"] == "Fail" for webhook in webhooks(api))


@dataclass(frozen=True)
class Answer(served.Answer):
    """To a review."""

    @property
    def response(self) -> Object:
        """The response of an AdmissionReview."""
        review = self.json
        assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        found: Object = review["response"]
        return found


class Webhook(Served):
    """One `mpsd webhook`. flags: such as `drain="0s"` for --drain 0s."""

    def __init__(self, folder: Path, flags: Mapping[str, str]) -> None:
        super().__init__("webhook", folder, {"namespace": NAMESPACE, **flags})

    @contextmanager
    def connect(self, bundle: str, shown: Path | None = None) -> Iterator["Client"]:
        """As an API server would; ssl.SSLError where it would not believe us. shown: a PEM file
        with its key and certificate."""
        client = Client(self.port, bundle, shown)
        try:
            yield client
        finally:
            client.close()

    def serial_number(self, bundle: str) -> str:
        """Of the certificate that is shown now."""
        with self.connect(bundle) as client:
            return client.serial_number

    def review(self, path: str, review: object, bundle: str, shown: Path | None = None) -> Object:
        """The response to one review over a connection of its own."""
        with self.connect(bundle, shown) as client:
            return client.review(path, review).response


class Client:
    """A connection that verifies the webhook as an API server does."""

    def __init__(self, port: int, bundle: str, shown: Path | None = None) -> None:
        context = ssl.create_default_context(cadata=bundle)
        if shown:
            context.load_cert_chain(shown)
        self._socket = context.wrap_socket(
            socket.create_connection(("127.0.0.1", port), DEADLINE_S), server_hostname=HOST
        )
        # as http.client does with its own
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        self._connection.sock = self._socket

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        self._connection.request(
            method, path, body, dict(headers or {"Content-Type": "application/json"})
        )
        answer = self._connection.getresponse()
        return Answer(answer.status, dict(answer.headers), answer.read())

    def review(self, path: str, review: object) -> Answer:
        return self.ask("POST", path, msgspec.json.encode(review))

    @property
    def serial_number(self) -> str:
        certificate = self._socket.getpeercert()
        assert certificate
        return str(certificate["serialNumber"])

    def close(self) -> None:
        self._connection.close()
        self._socket.close()


@contextmanager
def webhook(folder: Path, **flags: str) -> Iterator[Webhook]:
    """Runs one; flags with _ for -. Killed at the end unless it has ended before."""
    running = Webhook(
        folder, {"drain": "0s", **{name.replace("_", "-"): value for name, value in flags.items()}}
    )
    try:
        yield running
    finally:
        running.kill()


def review_of(thing: Object, *, namespace: str = "default", **fields: Any) -> Object:
    """An AdmissionReview about an object, as an API server sends it."""
    return reviews.review_of(thing, namespace=namespace, **fields)


def gpu_pod(*, host_ipc: bool = True) -> Object:
    container = {"name": "main", "image": "i", "resources": {"limits": {"aliyun.com/gpu-mem": 7}}}
    spec = {"containers": [container], **({"hostIPC": True} if host_ipc else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": spec,
    }
