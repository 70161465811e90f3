"""Who reads metrics and pages over TLS: the account of a Prometheus that an operator has let."""

import http.client
import ssl
from pathlib import Path

import yaml

from mpsd.platform.kube import Kube, Object, Resource
from tests.served import DEADLINE_S, Answer, ask

_ACCOUNTS = Resource("v1", "serviceaccounts")
_ROLES, _BINDINGS = (
    Resource("rbac.authorization.k8s.io/v1", f"clusterrole{end}") for end in ("s", "bindings")
)
_TEMPLATES = Path(__file__).parents[2] / "manifests/chart/templates"
_READER: Object = yaml.safe_load((_TEMPLATES / "readers.yaml").read_text())


async def reader(kube: Kube) -> str:
    """Its token."""
    account = {"name": "prometheus"}
    subject = {"kind": "ServiceAccount", "namespace": "default", **account}
    api, name = "rbac.authorization.k8s.io", _READER["metadata"]["name"]
    role = {"apiGroup": api, "kind": "ClusterRole", "name": name}
    binding = {"metadata": {"name": "reads"}, "roleRef": role, "subjects": [subject]}
    await kube.create(_ROLES, _READER)
    await kube.create(_BINDINGS, binding)
    await kube.create(_ACCOUNTS, {"metadata": account}, "default")
    asked = {"metadata": account, "spec": {}}
    return (await kube.create(_ACCOUNTS, asked, "default", "token"))["status"]["token"]


def over_tls(port: int, path: str, token: str = "") -> Answer:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE_S, context=context)
    headers = {"Authorization": f"Bearer {token}"} if token else {"Accept": "*/*"}
    return ask(connection, "GET", path, headers=headers)
