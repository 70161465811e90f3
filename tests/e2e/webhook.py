"""Two replicas of `mpsd webhook` beside the cluster, with the rights of their service account and
nothing more."""

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from tests.e2e.balancer import Backend, balancing
from tests.e2e.cluster import Cluster, Object, listed
from tests.e2e.waiting import eventually
from tests.manifests.helm import rendered_by_helm, values
from tests.manifests.rendering import called
from tests.served import free_port

NAME, SYSTEM = "mpsd-webhook", "mpsd-system"
KINDS = ("validatingwebhookconfiguration", "mutatingwebhookconfiguration")
_PATHS = {"ValidatingWebhookConfiguration": "/validate", "MutatingWebhookConfiguration": "/mutate"}
_NOWHERE = {"mpsd.io/e2e": "nowhere"}
# Certificates live for seconds here, so that every test runs through their renewals.
_LIVES = ("--serving-life", "15s", "--authority-life", "45s", "--settle", "2s", "--drain", "2s")


@dataclass(slots=True)
class Replica:
    process: subprocess.Popen[bytes]
    backend: Backend
    log: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)


@dataclass(slots=True)
class Webhook:
    cluster: Cluster
    folder: Path
    url: str = ""
    replicas: list[Replica] = field(default_factory=list)
    _started: int = 0

    def objects(self) -> list[Object]:
        """What `helm template` makes, but asked by url, and with no pods: here the replicas are
        programs of the test.

        tests/e2e/node runs all of them as pods. What the API server judges itself, test_modern puts
        beside it.
        """
        made = rendered_by_helm(
            values(createNamespace=True, nodeSelector=_NOWHERE), self.cluster.version
        )
        things = deepcopy(
            [thing for thing in made if not thing["kind"].startswith("ValidatingAdmissionPolicy")]
        )
        for thing in things:
            if called(thing) == f"Deployment {NAME}":
                thing["spec"]["replicas"] = 0
            if thing["kind"] in _PATHS:
                (webhook,) = thing["webhooks"]
                webhook["clientConfig"] = {"url": f"{self.url}{_PATHS[thing['kind']]}"}
                webhook.pop("matchConditions", None)
        return things

    def apply(self) -> None:
        self.cluster.apply_all(self.objects())

    def start(self) -> Replica:
        self._started += 1
        port, probes = free_port(), free_port()
        log = self.folder / f"replica{self._started}.log"
        command = [
            sys.executable,
            "-m",
            "mpsd",
            "webhook",
            "--kubeconfig",
            str(self.folder / "kubeconfig"),
            "--address",
            "127.0.0.1",
            "--port",
            str(port),
            "--metrics-port",
            str(probes),
            "--url",
            self.url,
            *_LIVES,
        ]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        replica = Replica(process, Backend(port, probes), log)
        self.replicas.append(replica)

        def is_ready() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"the replica ended by itself: {log.read_text()[-4000:]}")
            return replica.backend.is_ready

        try:
            eventually(is_ready, "the replica is ready")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{log.read_text()[-4000:]}") from None
        return replica

    def backends(self) -> list[Backend]:
        return [replica.backend for replica in self.replicas if replica.process.poll() is None]

    def kill_all(self) -> None:
        for replica in self.replicas:
            replica.kill()
        self.replicas.clear()

    def configurations(self) -> list[Object]:
        return [self.cluster.get(kind, NAME)["webhooks"][0] for kind in KINDS]

    def secret(self) -> dict[str, bytes]:
        data = self.cluster.get("secret", f"{NAME}-certificates", "-n", SYSTEM)["data"]
        return {name: base64.b64decode(value) for name, value in data.items()}

    def fingerprint(self, part: str) -> str:
        return (
            x509.load_pem_x509_certificate(self.secret()[f"{part}.crt"])
            .fingerprint(hashes.SHA256())
            .hex()
        )

    def wait_until_registered(self) -> None:
        def is_said() -> bool:
            return [one["failurePolicy"] for one in self.configurations()] == ["Fail", "Fail"]

        try:
            eventually(is_said, "both configurations fail closed")
        except AssertionError as error:
            logs = "\n".join(replica.log.read_text()[-4000:] for replica in self.replicas)
            raise AssertionError(f"{error}\n{logs}") from None


@contextmanager
def running_webhook(cluster: Cluster, folder: Path, host: str) -> Iterator[Webhook]:
    webhook = Webhook(cluster, folder)
    with ExitStack() as undo:
        port = undo.enter_context(balancing(host, webhook.backends))
        webhook.url = f"https://{host}:{port}"
        ours = listed(webhook.objects())
        undo.callback(
            cluster.kubectl, "delete", "-f", "-", "--ignore-not-found", given=ours, within_s=120
        )
        undo.callback(webhook.kill_all)
        webhook.apply()
        shipped = [configuration["failurePolicy"] for configuration in webhook.configurations()]
        assert shipped == ["Ignore", "Ignore"], "nothing depends on the webhook before it serves"
        (folder / "kubeconfig").write_text(as_service_account(cluster, NAME))
        for _each in range(2):
            webhook.start()
        webhook.wait_until_registered()
        yield webhook


def as_service_account(cluster: Cluster, name: str, *bound: str) -> str:
    """A kubeconfig with the token of this service account of mpsd's in place of the admin's.

    bound: options of `kubectl create token` with the pod that it is for.
    """
    view = json.loads(cluster.do("config", "view", "--raw", "--minify", "-o", "json").out)
    eventually(
        lambda: cluster.kubectl("get", "serviceaccount", name, "-n", SYSTEM).ok,
        "the service account",
    )
    token = cluster.do(
        "create", "token", name, "-n", SYSTEM, "--duration", "2h", *bound
    ).out.strip()
    view["users"] = [{"name": view["users"][0]["name"], "user": {"token": token}}]
    return yaml.safe_dump(view)
