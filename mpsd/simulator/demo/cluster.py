"""A simulated cluster of one node for the demo: the real programs of mpsd with a simulated API
server and kubelet.

It starts, asks and stops; what should happen is checked by the acts.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import yaml

import mpsd
from mpsd.model.node_report import GrantReport, NodeReport
from mpsd.model.policy import Resources
from mpsd.platform import local_api
from mpsd.platform.limits_files import load_limits
from mpsd.platform.settings import Settings, settings
from mpsd.simulator import own_mpsd
from mpsd.simulator.api_server.kinds import Kinds
from mpsd.simulator.demo.story import DemoFailed
from mpsd.simulator.kubelet.sources import read_kubeconfig
from mpsd.simulator.programs import wait_until

Object = dict[str, Any]

_KINDS = Kinds()
_ANSWER_S = 10.0
_TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"


class RequestRefused(DemoFailed):
    """The API server's error message; where it was not expected, the demo ends."""


@dataclass(frozen=True, slots=True)
class Applied:
    """warnings: of admission, as kubectl prints them."""

    thing: Object
    warnings: tuple[str, ...]


class DemoApi:
    """The simulated API server, asked only for what kubectl asks for."""

    def __init__(self, kubeconfig: Path) -> None:
        access = read_kubeconfig(kubeconfig)
        self._headers = {
            "Authorization": f"Bearer {access.token}",
            "Content-Type": "application/json",
        }
        place = urlsplit(access.url)
        self._connection = http.client.HTTPSConnection(
            place.hostname or "", place.port, timeout=_ANSWER_S, context=access.trusted
        )

    def apply(self, thing: Object) -> Applied:
        """RequestRefused where the API server or admission refuses it."""
        answer, said = self._ask("POST", _collection(thing), thing)
        warnings = answer.headers.get_all("Warning") or ()
        return Applied(said, tuple(json.loads(warning.split(" ", 2)[2]) for warning in warnings))

    def get(self, path: str) -> Object:
        return self._ask("GET", path)[1]

    def found(self, path: str) -> Object:
        """As `get`; empty where there is no such object."""
        try:
            return self.get(path)
        except RequestRefused:
            return {}

    def items(self, path: str, selector: str = "") -> Sequence[Object]:
        """selector: of labels."""
        query = f"?labelSelector={quote(selector)}" if selector else ""
        items: Sequence[Object] = self.get(path + query)["items"]
        return items

    def table(self, path: str) -> list[list[str]]:
        """What `kubectl get` prints, the columns' names first."""
        said = self._ask("GET", path, headers={"Accept": _TABLE})[1]
        shown = [
            n for n, column in enumerate(said["columnDefinitions"]) if not column.get("priority")
        ]
        names = [said["columnDefinitions"][n]["name"].upper() for n in shown]
        rows = [[_cell(row["cells"][n]) for n in shown] for row in said["rows"]]
        return [names, *rows]

    def _ask(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[http.client.HTTPResponse, Object]:
        sent = None if body is None else json.dumps(body)
        self._connection.request(method, path, sent, {**self._headers, **(headers or {})})
        answer = self._connection.getresponse()
        said: Object = json.loads(answer.read())
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise RequestRefused(said.get("message", f"{method} {path}: {answer.status}"))
        return answer, said


def _collection(thing: Object) -> str:
    """The path that it is created at."""
    kind = _KINDS.named(thing["apiVersion"], thing["kind"])
    assert kind, f"the simulated API server has no {thing['kind']}"
    root = f"/apis/{kind.api()}" if kind.group else f"/api/{kind.api()}"
    return f"{root}{'/namespaces/default' if kind.namespaced else ''}/{kind.plural}"


def _cell(value: object) -> str:
    return "" if value is None else str(value)


NODE = "gpu-node"
NODE_PATH = f"/api/v1/nodes/{NODE}"
MPSNODES = "/apis/mpsd.io/v1alpha1/mpsnodes"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
# What of manifests/install.yaml has an effect without kubelets' containers and controllers.
_APPLIED = {
    *("Namespace", "CustomResourceDefinition"),
    *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
}
_STOP_TOGETHER = (("webhook", "agent"), ("control", "kubelet"), ("API server",))
_DEADLINE_S = 30.0
_POLL_S = 0.02
_CHECK_S = 1.0  # between two checks that the programs of a kept cluster run
_LOG_TAIL = 2000  # characters of a log

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Service:
    """A program of the cluster. log: all that it writes."""

    process: subprocess.Popen[bytes]
    log: Path


class DemoCluster:
    """Everything of it lies in `folder`, and in one cgroup of the folder's name, where there can be
    cgroups."""

    def __init__(self, folder: Path, gpus: str) -> None:
        self.folder = folder
        self._settings: Settings = settings(run_directory=str(folder / "run"), environment={})
        self.kubeconfig = folder / "api" / "kubeconfig"
        self._kubelet_folder = folder / "kubelet"
        ours = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CUDA_", "MPSD_", "NVIDIA_"))
        }
        self._environment: Mapping[str, str] = ours | {
            "MPSD_RUN_DIR": str(self._settings.run_directory),
            "MPSD_SIMULATE": gpus,
            "MPSD_LOG_FORMAT": "json",
        }
        self._services: dict[str, Service] = {}
        self._api: DemoApi | None = None  # None until it serves
        self.resources: Resources = load_limits(None).policy.resources

    @property
    def cgroup(self) -> str:
        """The name of the cgroup that all pods are in."""
        return self.folder.name

    @property
    def run_directory(self) -> Path:
        """Of mpsd on the node."""
        return self._settings.run_directory

    @property
    def has_cgroups(self) -> bool:
        """Whether kubelet has made any."""
        return bool(own_mpsd.cgroups(self.cgroup))

    @property
    def api(self) -> DemoApi:
        assert self._api, "it is asked once it serves"
        return self._api

    # -- programs

    def start(self) -> None:
        """Starts everything, and waits until the node offers its GPUs and admission is asked about
        pods."""
        self._start(
            "API server",
            [*_MODULE, "mpsd.simulator.api_server.server", "--dir", str(self.kubeconfig.parent)],
        )
        self._start("control", [*_MPSD, "control"])
        self.until(self.kubeconfig.exists, "the API server serves")
        self._api = DemoApi(self.kubeconfig)
        for document in yaml.safe_load_all(_shipped_manifests().read_text()):
            if document["kind"] in _APPLIED:
                self._api.apply(document)
        self._start(
            "kubelet", [*_MODULE, "mpsd.simulator.kubelet.kubelet", *self._kubelet_arguments()]
        )
        self.start_agent()
        self._start("webhook", [*_MPSD, "webhook", *self._webhook_arguments()])
        self.until(self._admission_is_asked, "the API server asks mpsd webhook about every pod")
        self.until(
            lambda: self.offered(self.resources.percent),
            "kubelet offers what mpsd agent has registered",
        )
        self.until(
            lambda: self.api.found(f"{MPSNODES}/{NODE}").get("status"),
            "mpsd agent reports the node",
        )

    def start_agent(self) -> None:
        kubelet = [
            "--node",
            NODE,
            "--kubelet-dir",
            str(self._kubelet_folder),
            "--kubeconfig",
            str(self.kubeconfig),
        ]
        self._start(
            "agent", [*_MPSD, "agent", *kubelet, "--address", "127.0.0.1", "--metrics-port", "0"]
        )

    def _kubelet_arguments(self) -> Sequence[str]:
        own = ["--dir", str(self._kubelet_folder), "--node", NODE, "--cgroup-root", self.cgroup]
        return [*own, "--kubeconfig", str(self.kubeconfig)]

    def _webhook_arguments(self) -> Sequence[str]:
        port = str(_free_port())
        here = [
            "--address",
            "127.0.0.1",
            "--port",
            port,
            "--metrics-port",
            "0",
            "--url",
            f"https://127.0.0.1:{port}",
        ]
        return [*here, "--kubeconfig", str(self.kubeconfig), "--drain", "0s"]

    def _start(self, name: str, command: Sequence[str]) -> None:
        log = self.folder / f"{name.replace(' ', '-')}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that Ctrl-C in the terminal reaches the demo alone
            )
        self._services[name] = Service(process, log)

    def pid(self, name: str) -> int:
        return self._services[name].process.pid

    def kill(self, name: str) -> None:
        """SIGKILL, and waits for its end."""
        service = self._services.pop(name)
        service.process.kill()
        service.process.wait(_DEADLINE_S)

    def stop(self) -> Mapping[str, int]:
        """As a machine that goes down, one after the other: SIGTERM; the exit codes."""
        codes = {}
        for names in _STOP_TOGETHER:
            for name in names:
                self._services[name].process.send_signal(signal.SIGTERM)
            for name in names:
                codes[name] = self._services.pop(name).process.wait(_DEADLINE_S)
        return codes

    def wait(self) -> None:
        """Until a signal. EOFError where a program ends by itself."""
        while True:
            self._check_programs()
            time.sleep(_CHECK_S)

    def until(self, look: Callable[[], Found], what: str) -> Found:
        """What `look` gives once it is true. TimeoutError; EOFError where a program has ended by
        itself."""
        seen: list[Found] = []

        def is_so() -> bool:
            self._check_programs()
            seen[:] = [look()]
            return bool(seen[0])

        wait_until(is_so, _DEADLINE_S, what, _POLL_S)
        return seen[0]

    def _check_programs(self) -> None:
        for name, service in self._services.items():
            if service.process.poll() is not None:
                tail = service.log.read_text()[-_LOG_TAIL:]
                raise EOFError(f"{name} ended with code {service.process.returncode}: {tail}")

    # -- its state

    def offered(self, resource: str) -> int:
        """How much of a resource pods may ask for."""
        status = self.api.found(NODE_PATH).get("status", {})
        return int(status.get("allocatable", {}).get(resource, 0))

    def _admission_is_asked(self) -> bool:
        configurations = [
            self.api.get(f"{_WEBHOOKS}/{kind}webhookconfigurations/mpsd-webhook")
            for kind in ("mutating", "validating")
        ]
        webhooks: list[Object] = [
            one for configuration in configurations for one in configuration["webhooks"]
        ]
        return all(webhook["failurePolicy"] == "Fail" for webhook in webhooks)

    def node(self) -> NodeReport:
        """What `mpsd status` asks for. NotRunning where no agent runs."""
        _status, body = local_api.ask(self._settings.socket, "GET", "/v1/node")
        return msgspec.json.decode(body, type=NodeReport)

    def grants(self) -> Mapping[str, GrantReport]:
        """By the name of the pod."""
        return {
            grant.pod.rpartition("/")[2]: grant for grant in self.node().grants or () if grant.pod
        }

    def containers(self, pod: Object) -> Path:
        """Kubelet's folder of a pod's containers."""
        return self._kubelet_folder / "containers" / str(pod["metadata"]["uid"])


def _shipped_manifests() -> Path:
    """Those that came with mpsd: inside an installed wheel, else beside the package in a
    checkout."""
    package = Path(mpsd.__file__).parent
    packaged = package / "_manifests/install.yaml"
    return packaged if packaged.is_file() else package.parent / "manifests/install.yaml"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_MODULE = (sys.executable, "-P", "-m")  # -P: what lies in the current folder is not imported
_MPSD = (*_MODULE, "mpsd")
