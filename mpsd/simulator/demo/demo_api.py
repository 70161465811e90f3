"""The simulated API server, as a user of the demo's cluster asks it.

One rule: only what kubectl does too: apply, get, delete.
"""

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from mpsd.simulator.demo.story import NotAsTold
from mpsd.simulator.kubelet.api_source import read_kubeconfig

Object = dict[str, Any]

# apiVersion and kind of what is applied -> where, from the API's root on.
_COLLECTIONS = {
    ("v1", "Namespace"): "/api/v1/namespaces",
    ("batch/v1", "Job"): "/apis/batch/v1/namespaces/default/jobs",
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"): (
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    ),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"): (
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    ),
}
_ANSWER_S = 10.0
_TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"


class Refused(NotAsTold):
    """The API server says no, with its words; where that was not meant to be, the story ends."""


@dataclass(frozen=True, slots=True)
class Applied:
    """warnings: of admission, as kubectl prints them."""

    thing: Object
    warnings: tuple[str, ...]


class DemoApi:
    def __init__(self, kubeconfig: Path) -> None:
        access = read_kubeconfig(kubeconfig)
        self._headers = {"Authorization": f"Bearer {access.token}", "Content-Type": "application/json"}
        place = urlsplit(access.url)
        self._connection = http.client.HTTPSConnection(
            place.hostname or "", place.port, timeout=_ANSWER_S, context=access.trusted
        )

    def apply(self, thing: Object) -> Applied:
        """Refused where somebody says no."""
        answer, said = self._ask("POST", _COLLECTIONS[thing["apiVersion"], thing["kind"]], thing)
        warnings = answer.headers.get_all("Warning") or ()
        return Applied(said, tuple(json.loads(warning.split(" ", 2)[2]) for warning in warnings))

    def get(self, path: str) -> Object:
        return self._ask("GET", path)[1]

    def found(self, path: str) -> Object:
        """As `get`; empty where there is no such object."""
        try:
            return self.get(path)
        except Refused:
            return {}

    def items(self, path: str, selector: str = "") -> Sequence[Object]:
        """selector: of labels."""
        query = f"?labelSelector={quote(selector)}" if selector else ""
        items: Sequence[Object] = self.get(path + query)["items"]
        return items

    def table(self, path: str) -> list[list[str]]:
        """What `kubectl get` prints, the columns' names first."""
        said = self._ask("GET", path, headers={"Accept": _TABLE})[1]
        shown = [n for n, column in enumerate(said["columnDefinitions"]) if not column.get("priority")]
        names = [said["columnDefinitions"][n]["name"].upper() for n in shown]
        rows = [[_cell(row["cells"][n]) for n in shown] for row in said["rows"]]
        return [names, *rows]

    def _ask(
        self, method: str, path: str, body: Object | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[http.client.HTTPResponse, Object]:
        sent = None if body is None else json.dumps(body)
        self._connection.request(method, path, sent, {**self._headers, **(headers or {})})
        answer = self._connection.getresponse()
        said: Object = json.loads(answer.read())
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise Refused(said.get("message", f"{method} {path}: {answer.status}"))
        return answer, said


def _cell(value: object) -> str:
    return "" if value is None else str(value)
