"""A simulated cluster of one node with its webhook and scheduler, and a real Prometheus that
scrapes all three.

The webhook has an API server of its own, which a test can make slow.
"""

import itertools
import signal
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpsd.model.metrics import Exporter
from mpsd.simulator.programs import wait_until
from tests.manifests.rendering import rendered
from tests.prometheus.meanwhile import beside
from tests.prometheus.server import DEADLINE_S, Prometheus
from tests.served import free_port
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import NODE, Cluster, pod
from tests.whole.scheduler.process import Extender, extender
from tests.whole.webhook.api_server import ApiServer, api_server
from tests.whole.webhook.world import (
    Webhook,
    bundles,
    gpu_pod,
    is_registered,
    put_shipped_objects,
    review_of,
    webhook,
)

LISTEN = "MPSD_LISTEN"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
WEBHOOK, SCHEDULER = "webhook-0", "scheduler-0"
POLICY: Mapping[str, Any] = {
    # who lingers is let
    "graces": {"command_s": 2, "start_s": 5, "drain_s": 30, "fault_grace_s": 60}
}
_COUNT = itertools.count()


class ScrapedCluster(Cluster):
    """Its agent serves readers on two ports, as the manifests have it: one is open, the other wants
    a token."""

    def __init__(self) -> None:
        self.port, self.tls_port = free_port(), free_port()
        super().__init__("A30×2")
        self.set_policy(**POLICY)

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {LISTEN: f"127.0.0.1:{self.port},0.0.0.0:{self.tls_port}"}

    @property
    def kubeconfig(self) -> Path:
        return self._api_folder / "kubeconfig"

    def token_of_the_chart(self) -> str:
        """What the Secret of its PodMonitors would hold, once its account and rights are there."""
        account = "/api/v1/namespaces/mpsd-system/serviceaccounts"
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "mpsd-system"}})
        paths = {"ServiceAccount": account, "ClusterRole": f"{RBAC}/clusterroles"}
        paths["ClusterRoleBinding"] = f"{RBAC}/clusterrolebindings"
        for thing in rendered("prometheus"):
            if thing["kind"] in paths and thing["metadata"]["name"] == "mpsd-prometheus":
                self.ask("POST", paths[thing["kind"]], thing)
        return str(
            self.ask("POST", f"{account}/mpsd-prometheus/token", {"spec": {}})["status"]["token"]
        )


@dataclass
class World:
    """folder: for what a test writes. api: that of the webhook."""

    folder: Path
    prometheus: Prometheus
    cluster: ScrapedCluster
    api: ApiServer
    webhook: Webhook
    scheduler: Extender

    def review(self, thing: Mapping[str, Any] | None = None) -> bool:
        """Whether this, or a pod that asks for a GPU, would be let into a namespace that nobody has
        asked about."""
        review = review_of(dict(thing or gpu_pod()), namespace=f"team-{next(_COUNT)}")
        answers = [
            self.webhook.review(path, review, bundles(self.api)[0])
            for path in ("/mutate", "/validate")
        ]
        return all(answer["allowed"] for answer in answers)

    def scrapes(self) -> Iterator[str]:
        for port in (self.cluster.port, self.webhook.metrics_port, self.scheduler.metrics_port):
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S
            ) as answer:
                yield answer.read().decode()

    def ask_scheduler(self) -> None:
        """What kube-scheduler would, of a pod that is gone by then."""
        asked = pod(f"asked-{next(_COUNT)}", 2)
        asked["metadata"]["uid"] = asked["metadata"]["name"]
        self.scheduler.filter(asked, NODE)
        self.scheduler.bind(asked, NODE)

    @contextmanager
    def churn(self) -> Iterator[None]:
        stop = threading.Event()

        def come_and_go() -> None:
            while not stop.wait(0.1):
                name = f"churn-{next(_COUNT)}"
                self.cluster.running(name, 2, actions=("alloc=500", "hold"))
                self.review()
                self.review(gpu_pod(host_ipc=False))
                self.ask_scheduler()
                self.cluster.delete(name)
                eventually(lambda name=name: self.cluster.is_gone(name), f"{name} is gone")

        with beside(come_and_go, stop):
            yield

    def put_back(self) -> None:
        """Whatever a trial that failed has left."""
        self.api.away, self.api.delay_s, self.api.forbidden = False, 0.0, set()
        for one in (
            self.webhook,
            self.scheduler,
            self.cluster.api,
            self.cluster.kubelet,
            self.cluster.agent,
        ):
            one.process.send_signal(signal.SIGCONT)
        self.cluster.set_policy(**POLICY)
        self.cluster.empty()


@contextmanager
def world(folder: Path, prometheus: Prometheus) -> Iterator[World]:
    cluster = ScrapedCluster()
    try:
        cluster.begin()
        with (
            api_server() as api,
            _registered(folder, api) as one,
            extender(folder, cluster.kubeconfig) as scheduler,
        ):
            scheduler.wait_until_ready()
            prometheus.scrape(Exporter.AGENT, NODE, cluster.port)
            prometheus.scrape(Exporter.WEBHOOK, WEBHOOK, one.metrics_port)
            prometheus.scrape(Exporter.SCHEDULER, SCHEDULER, scheduler.metrics_port)
            prometheus.until_up(3)
            yield World(folder, prometheus, cluster, api, one, scheduler)
        cluster.stop()
    finally:
        cluster.destroy()


@contextmanager
def _registered(folder: Path, api: ApiServer) -> Iterator[Webhook]:
    put_shipped_objects(api)
    with webhook(folder, kubeconfig=str(api.kubeconfig(folder))) as one:
        wait_until(lambda: is_registered(api), DEADLINE_S, "registered", 0.02)
        yield one
