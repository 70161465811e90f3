"""A cluster of one node on this machine: the simulated API server and kubelet, and mpsd's own
programs beside them.

mpsd is run by its command line; a test changes the cluster only as a user would, through the API,
or as accidents do, by signals and lost files.
"""

import json
import shutil
import signal
import ssl
import sys
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from mpsd.model.client_limits import DENY_MIB
from mpsd.model.node_report import GrantReport
from tests.whole.machine.machine import MPSD, SOON_S, Machine, Service, eventually

NODE = "node1"
MEMORY, PERCENT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
Object = dict[str, Any]

_DEFINITION = Path(__file__).parents[3] / "manifests/chart/templates/crd/mpsnode.yaml"
_PODS = "/api/v1/namespaces/default/pods"


class Cluster(Machine):
    """API server, kubelet, control and agent, all running and registered."""

    def __init__(self, gpus: str = "A30") -> None:
        super().__init__(gpus)
        self.kubelet_folder = self._folder / "kubelet"
        self._api_folder = self._folder / "api"
        self._api_folder.mkdir()

    def begin(self) -> None:
        self.api = self.simulator("mpsd.simulator.api_server.server", "--dir", self._api_folder)
        eventually((self._api_folder / "kubeconfig").exists, "the API server serves")
        self._find_api()
        definition = yaml.safe_load(_DEFINITION.read_text())
        self.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        self.kubelet = self.start_kubelet()
        self.control = self.service("control")
        self.agent = self.start_agent()
        self.until_offered()

    def _find_api(self) -> None:
        config = yaml.safe_load((self._api_folder / "kubeconfig").read_text())
        cluster = config["clusters"][0]["cluster"]
        self._url = cluster["server"]
        self._trusted = ssl.create_default_context(
            cadata=b64decode(cluster["certificate-authority-data"]).decode()
        )
        self._token = config["users"][0]["user"]["token"]

    def simulator(self, module: str, *arguments: object) -> Service:
        argv = [sys.executable, "-m", module, *map(str, arguments)]
        return self._started(Service(argv, self.environment, self._said))

    def start_kubelet(self) -> Service:
        config = self._api_folder / "kubeconfig"
        return self.simulator(
            "mpsd.simulator.kubelet.kubelet",
            "--dir",
            self.kubelet_folder,
            "--node",
            NODE,
            "--kubeconfig",
            config,
            "--seed",
            1,
            *self.kubelet_words,
        )

    def launch_agent(self, environment: Mapping[str, str] | None = None) -> Service:
        environment = environment or self.environment
        return self._started(Service([str(MPSD), *self.agent_words], environment, self._said))

    def start_agent(self) -> Service:
        """The agent, once kubelet has both resources from it."""
        agent = self.launch_agent()
        eventually(
            lambda: agent.logged("registered") or not agent.running, "the agent is registered"
        )
        return agent

    def restart_agent(self) -> Service:
        """By SIGKILL."""
        self.agent.kill()
        self.agent = self.start_agent()
        return self.agent

    @property
    def kubelet_words(self) -> list[str]:
        return []

    @property
    def kubeconfig(self) -> Path:
        return self._api_folder / "kubeconfig"

    @property
    def agent_words(self) -> list[str]:
        words = [
            "agent",
            "--node",
            NODE,
            "--kubelet-dir",
            str(self.kubelet_folder),
            "--metrics-port",
            "0",
        ]
        return [*words, "--kubeconfig", str(self.kubeconfig), "--address", "127.0.0.1"]

    # -- the API

    def ask(
        self, method: str, path: str, body: Object | None = None, kind: str = "application/json"
    ) -> Object:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=SOON_S, context=self._trusted) as answer:
            return json.load(answer)

    def apply(self, pod: Object) -> Object:
        """As the API server has it then."""
        return self.ask("POST", _PODS, pod)

    def pods(self) -> list[Object]:
        return self.ask("GET", _PODS)["items"]

    def pod(self, name: str) -> Object:
        return self.ask("GET", f"{_PODS}/{name}")

    def annotations(self, name: str) -> Mapping[str, str]:
        return self.pod(name)["metadata"].get("annotations", {})

    def delete(self, name: str, grace_s: int = 0) -> None:
        self.ask("DELETE", f"{_PODS}/{name}?gracePeriodSeconds={grace_s}")

    def ended(self, *names: str) -> None:
        for name in names:
            self.delete(name)
        eventually(lambda: all(self.is_gone(name) for name in names), f"{names} are gone")

    def is_gone(self, name: str) -> bool:
        with suppress(urllib.error.HTTPError):
            self.pod(name)
            return False
        return True

    def mpsnode(self) -> Object:
        return self.ask("GET", f"/apis/mpsd.io/v1alpha1/mpsnodes/{NODE}")

    def patch(self, path: str, body: Object) -> None:
        self.ask("PATCH", path, body, "application/merge-patch+json")

    def patch_node(self, body: Object) -> None:
        self.patch(f"/api/v1/nodes/{NODE}", body)

    def cordon(self, *gpus: str) -> None:
        path = f"/apis/mpsd.io/v1alpha1/mpsnodes/{NODE}"
        self.patch(path, {"spec": {"cordoned": list(gpus)}})

    def label(self, labels: Mapping[str, str]) -> None:
        self.patch_node({"metadata": {"labels": labels}})

    def conditions(self) -> list[Object]:
        """Of the Node, ours among them."""
        found: list[Object] = self.node_object().get("status", {}).get("conditions", [])
        return [one for one in found if one["type"] == "MPSReady"]

    def node_object(self) -> Object:
        return self.ask("GET", f"/api/v1/nodes/{NODE}")

    def offered(self) -> Mapping[str, str]:
        return self.node_object().get("status", {}).get("allocatable", {})

    def until_offered(self) -> None:
        def is_offered() -> bool:
            with suppress(urllib.error.HTTPError):
                return (
                    self.offered().get(MEMORY, "0") != "0"
                    and self.offered().get(PERCENT, "0") != "0"
                )
            return False

        eventually(is_offered, "kubelet offers both resources")

    def events(self, reason: str = "", name: str = "") -> list[str]:
        """Their messages; empty: of any."""
        return [
            event["message"]
            for event in self.ask("GET", "/api/v1/namespaces/default/events")["items"]
            if reason in {"", event["reason"]} and name in {"", event["involvedObject"]["name"]}
        ]

    # -- pods

    def running(
        self, name: str, units: int, percent: int | None = None, **more: Any
    ) -> "PodProgram":
        """Once it holds its GPU."""
        self.apply(pod(name, units, percent, **more))
        return self.program_of(name)

    def program_of(self, name: str, container: str = "main") -> "PodProgram":
        """Once it says that it is ready."""
        program = PodProgram(self, name, container)
        eventually(
            lambda: program.heard("ready"),
            f"{name} holds its context: {self.pod(name).get('status')}",
        )
        return program

    def phase(self, name: str) -> str:
        return str(self.pod(name).get("status", {}).get("phase", ""))

    def grant(self, name: str) -> GrantReport:
        return eventually(
            lambda: [one for one in self.node().grants if one.pod == f"default/{name}"],
            f"{name} has a grant",
        )[0]

    def empty(self) -> None:
        """Deletes every pod; the ledger must be at zero then."""
        for item in self.pods():
            with suppress(urllib.error.HTTPError):  # it is gone meanwhile
                self.delete(item["metadata"]["name"])
        eventually(lambda: not self.pods(), "every pod is gone")
        self.until_denied()

    def stop(self) -> None:
        self.empty()
        for service in (self.agent, self.control, self.kubelet, self.api):
            if service.running:
                service.send(signal.SIGCONT)
                service.send(signal.SIGTERM)
                assert service.exit_code() == 0, str(service)
        self.until_nothing_runs()

    def until_denied(self) -> None:
        """Until the ledger is at zero, and nobody is let in any more."""
        self.until_no_grants()
        for domain in self.node().domains:
            eventually(
                lambda name=domain.name: self.limit_mib(name) == DENY_MIB,
                f"{domain.name} lets nobody in",
            )

    def lose_run_directory(self) -> None:
        """As a reboot does: nothing of /run is left."""
        for folder in self.run_directory.iterdir():
            if folder.name != "simulation":
                shutil.rmtree(folder, ignore_errors=True)


class PodProgram:
    """sim-cuda in a container: what it said, by kubelet's log of it."""

    def __init__(self, cluster: Cluster, pod: str, container: str) -> None:
        self._cluster = cluster
        self._pod = pod
        self._container = container
        self._uid = cluster.pod(pod)["metadata"]["uid"]

    @property
    def lines(self) -> list[Mapping[str, Any]]:
        return [
            json.loads(line) for line in self.text.splitlines(keepends=True) if line.endswith("}\n")
        ]

    @property
    def runs(self) -> list[Path]:
        """What each run of the container has said, the first run first."""
        folder = self._cluster.kubelet_folder / "containers" / self._uid / self._container
        return sorted(folder.glob("*/log"), key=lambda path: int(path.parent.name))

    @property
    def text(self) -> str:
        return self.runs[-1].read_text() if self.runs else ""

    def heard(self, key: str) -> list[Any]:
        return [line[key] for line in self.lines if key in line]


def pod(
    name: str,
    units: int,
    percent: int | None = None,
    actions: Sequence[str] = ("info", "hold"),
    **spec: Any,
) -> Object:
    labels, annotations = spec.pop("labels", {}), spec.pop("annotations", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [container("main", units, percent, actions)],
            **spec,
        },
    }


def container(
    name: str, units: int, percent: int | None = None, actions: Sequence[str] = ("info", "hold")
) -> Object:
    asked = {MEMORY: str(units)} | ({} if percent is None else {PERCENT: str(percent)})
    argv = [sys.executable, "-m", "mpsd.simulator.cuda_client", *actions]
    return {"name": name, "image": "none", "command": argv, "resources": {"limits": asked}}
