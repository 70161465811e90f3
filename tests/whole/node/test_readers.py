"""What an agent of a cluster tells readers on its ports, and whom."""

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.whole.machine.machine import SOON_S, eventually
from tests.whole.node.cluster import Cluster, Object

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
READER: Object = yaml.safe_load(
    (Path(__file__).parents[3] / "manifests/chart/templates/readers.yaml").read_text()
)


class Read(Cluster):
    """One whose agent serves readers as the manifests have it, on ports of the kernel's choice."""

    @property
    def agent_words(self) -> list[str]:
        return [*super().agent_words, "--listen", "127.0.0.1:0,0.0.0.0:0"]


CLUSTER = Read


@pytest.fixture(scope="module")
def reader(running_cluster: Cluster) -> str:
    """The token of an account that an operator has let read."""
    role = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": READER["metadata"]["name"],
    }
    subject = {"kind": "ServiceAccount", "name": "prometheus", "namespace": "default"}
    binding = {"metadata": {"name": "reads"}, "roleRef": role, "subjects": [subject]}
    running_cluster.ask("POST", f"{RBAC}/clusterroles", READER)
    running_cluster.ask("POST", f"{RBAC}/clusterrolebindings", binding)
    return token_of(running_cluster, "prometheus")


def token_of(cluster: Cluster, name: str) -> str:
    cluster.ask("POST", ACCOUNTS, {"metadata": {"name": name}})
    return str(cluster.ask("POST", f"{ACCOUNTS}/{name}/token", {"spec": {}})["status"]["token"])


def port(cluster: Cluster, *, tls: bool) -> int:
    (line,) = cluster.agent.logged("serving readers", tls=tls)
    return int(line["port"])


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def over_tls(cluster: Cluster, path: str, token: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    asked = urllib.request.Request(
        f"https://127.0.0.1:{port(cluster, tls=True)}{path}", headers=headers
    )
    try:
        with urllib.request.urlopen(asked, timeout=SOON_S, context=unverified()) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def foreign_processes(page: str) -> list[str]:
    slices = [one for gpu in json.loads(page)["gpus"] for one in gpu["slices"]]
    return [one["name"] for one in slices if one["holder"] == "foreign"]


def test_a_reader_reads_pods_by_name_and_no_arguments(cluster: Cluster, reader: str) -> None:
    cluster.running("read", 2)
    eventually(lambda: 'pod="read"' in over_tls(cluster, "/metrics", reader)[1], "its pod is told")
    assert over_tls(cluster, "/metrics")[0] == 401
    eventually(
        lambda: any("hold" in one.command for one in cluster.node().clients or ()),
        "the machine's own see the arguments",
    )
    environment = {
        "MPSD_SIMULATION": str(cluster.simulation.folder),
        "CUDA_MPS_PIPE_DIRECTORY": str(cluster.folder_of().client),
    }
    foreign = cluster.start([cluster.program("sim-cuda"), "hold"], environment)
    try:
        foreign.heard("ready")
        names = eventually(
            lambda: foreign_processes(over_tls(cluster, "/v1/page", reader)[1]), "it is seen"
        )
        node = json.loads(over_tls(cluster, "/v1/node", reader)[1])
    finally:
        foreign.kill()
    assert [grant["pod"] for grant in node["grants"]] == ["default/read"]
    commands = [*names, *(one["command"] for one in node["clients"])]
    assert {one.partition(" ")[2] for one in commands} == {"[arguments redacted]"}
