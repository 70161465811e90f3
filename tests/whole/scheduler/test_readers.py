"""What `mpsd scheduler` tells readers, and whom."""

import asyncio
import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mpsd.platform.kube import Object, Resource
from mpsd.platform.kube_access import open_kube
from mpsd.simulator.programs import wait_until
from tests.served import DEADLINE_S, Answer, ask
from tests.simulated_api import SimulatedApi
from tests.whole.scheduler.process import Extender, extender

ACCOUNTS = Resource("v1", "serviceaccounts")
ROLES, BINDINGS = (
    Resource("rbac.authorization.k8s.io/v1", f"clusterrole{end}") for end in ("s", "bindings")
)
_TEMPLATES = Path(__file__).parents[3] / "manifests/chart/templates"
READER: Object = yaml.safe_load((_TEMPLATES / "readers.yaml").read_text())


@pytest.fixture
def running(api: SimulatedApi, tmp_path: Path) -> Iterator[Extender]:
    kubeconfig = api.kubeconfig(tmp_path)
    with extender(tmp_path / "scheduler", kubeconfig, listen="127.0.0.1:0,0.0.0.0:0") as made:
        yield made


async def reader_of(kubeconfig: Path) -> str:
    """A token of the account of a Prometheus that an operator has let read."""
    account: Object = {"metadata": {"name": "prometheus"}}
    subject = {"kind": "ServiceAccount", "name": "prometheus", "namespace": "default"}
    role = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": READER["metadata"]["name"],
    }
    kube = open_kube(kubeconfig)
    try:
        await kube.create(ROLES, READER)
        await kube.create(
            BINDINGS, {"metadata": {"name": "reads"}, "roleRef": role, "subjects": [subject]}
        )
        await kube.create(ACCOUNTS, account, "default")
        answer = await kube.create(ACCOUNTS, {**account, "spec": {}}, "default", "token")
        return str(answer["status"]["token"])
    finally:
        kube.close()


def ports(running: Extender) -> tuple[int, int]:
    """On loopback, and for others."""
    wait_until(
        lambda: len(running.log("serving readers")) == 2,
        DEADLINE_S,
        f"readers are served:\n{running.log_text}",
    )
    home, others = running.log("serving readers")
    assert (home["tls"], others["tls"]) == (False, True)
    return home["port"], others["port"]


def over_tls(port: int, path: str, token: str) -> Answer:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE_S, context=context)
    return ask(
        connection,
        "GET",
        path,
        headers={"Authorization": f"Bearer {token}"} if token else {"Accept": "*/*"},
    )


def test_this_machine_reads_without_a_token_and_others_with_one(
    running: Extender, tmp_path: Path
) -> None:
    home, others = ports(running)
    here = ask(http.client.HTTPConnection("127.0.0.1", home, timeout=DEADLINE_S), "GET", "/metrics")
    assert "mpsd_scheduler_nodes" in here.text
    assert over_tls(others, "/metrics", "").status == 401
    assert over_tls(others, "/metrics", "made-up").status == 401
    token = asyncio.run(reader_of(tmp_path / "kubeconfig"))
    assert "mpsd_scheduler_nodes" in over_tls(others, "/metrics", token).text
    assert token not in running.log_text
    for path in ("/bind", "/filter", "/gpushare-scheduler/bind"):
        connection = http.client.HTTPConnection("127.0.0.1", home, timeout=DEADLINE_S)
        assert ask(connection, "POST", path, b"{}").status == 404
