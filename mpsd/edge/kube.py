"""The Kubernetes API: plain objects in and out, each call with a deadline.

One rule: what comes back is what the API server wrote, or one of the errors below, which say what was asked and, where
a right is missing, which one.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import urllib3

Object = dict[str, Any]

_PAGE = 500  # objects a page of a list, as kubectl asks


class KubeError(Exception):
    """The API server did not do what was asked."""


class NotFound(KubeError):
    """There is no such object."""


class Conflict(KubeError):
    """Somebody else was first: the object exists already, or has changed since it was read."""


class Forbidden(KubeError):
    """A right is missing."""


class Rejected(KubeError):
    """The API server, or an admission webhook, finds something wrong with what was sent."""


class Away(KubeError):
    """No answer in time, no connection, or a server that cannot answer now."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object. api: group and version, `v1` for the core group."""

    api: str
    plural: str

    def path(self, name: str = "", namespace: str = "") -> str:
        parts = ["apis" if "/" in self.api else "api", self.api]
        parts += ["namespaces", quote(namespace, safe="")] if namespace else []
        parts += [self.plural, quote(name, safe="")] if name else [self.plural]
        return "/" + "/".join(parts)


class PatchKind(StrEnum):
    """How a patch is meant. The value is its content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class _Ask:
    """One request. verb: as RBAC names it. path_query: with what follows the question mark."""

    verb: str
    resource: Resource
    name: str
    namespace: str
    query: Mapping[str, str]
    body: bytes | None = None  # None: the request has none
    content_type: str = "application/json"

    def __str__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {self.resource.plural}{name}" + (f" in {self.namespace}" if self.namespace else "")


_METHODS = {"get": "GET", "list": "GET", "create": "POST", "update": "PUT", "patch": "PATCH"}
_ERRORS: Mapping[int, type[KubeError]] = {404: NotFound, 409: Conflict, 429: Away}


class Kube:
    """A connection to one API server. Calls run in threads of their own, so that a slow server holds nobody else up."""

    def __init__(self, client: Any, *, deadline_s: float = 5.0, threads: int = 4) -> None:
        """client: an ApiClient of the `kubernetes` package, of which the address, the TLS pool and the token are used:
        its typed objects cost three times the time and memory of raw ones."""
        self._configuration = client.configuration
        self._pool: urllib3.PoolManager = client.rest_client.pool_manager
        self._deadline_s = deadline_s
        self._threads = ThreadPoolExecutor(threads, "kube")

    async def get(self, resource: Resource, name: str, namespace: str = "", deadline_s: float | None = None) -> Object:
        return await self._object(_Ask("get", resource, name, namespace, {}), deadline_s)

    async def list(
        self, resource: Resource, namespace: str = "", query: Mapping[str, str] | None = None
    ) -> Sequence[Object]:
        """All objects of this kind. query: such as `{"labelSelector": "a=b"}`."""
        found: list[Object] = []
        page = {**(query or {}), "limit": str(_PAGE)}
        while True:
            answer = await self._object(_Ask("list", resource, "", namespace, page), None)
            found += answer.get("items") or []
            more = (answer.get("metadata") or {}).get("continue")
            if not more:
                return found
            page["continue"] = more

    async def create(self, resource: Resource, value: Object, namespace: str = "") -> Object:
        """Conflict where it exists already."""
        name = value["metadata"].get("name", "")
        return await self._object(_Ask("create", resource, name, namespace, {}, json.dumps(value).encode()), None)

    async def replace(self, resource: Resource, value: Object, namespace: str = "") -> Object:
        """Conflict where the object has changed since the resourceVersion in `value`."""
        name = value["metadata"]["name"]
        return await self._object(_Ask("update", resource, name, namespace, {}, json.dumps(value).encode()), None)

    async def patch(self, resource: Resource, name: str, patch: object, kind: PatchKind, namespace: str = "") -> Object:
        """Conflict where the patch names a resourceVersion and the object has another."""
        body = json.dumps(patch).encode()
        return await self._object(_Ask("patch", resource, name, namespace, {}, body, kind.value), None)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.clear()

    async def _object(self, ask: _Ask, deadline_s: float | None) -> Object:
        deadline_s = deadline_s or self._deadline_s
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(deadline_s):
                status, body = await loop.run_in_executor(self._threads, self._exchange, ask, deadline_s)
        except TimeoutError:
            raise Away(f"{ask}: no answer from the Kubernetes API in {deadline_s:g} s") from None
        return _read(ask, status, body)

    def _exchange(self, ask: _Ask, deadline_s: float) -> tuple[int, bytes]:
        """Blocks; runs in a thread."""
        collection = "" if ask.verb == "create" else ask.name
        query = f"?{urlencode(ask.query)}" if ask.query else ""
        url = f"{self._configuration.host}{ask.resource.path(collection, ask.namespace)}{query}"
        try:
            answer = self._pool.request(
                _METHODS[ask.verb],
                url,
                body=ask.body,
                headers={"Accept": "application/json", "Content-Type": ask.content_type, **self._authorization()},
                timeout=urllib3.Timeout(connect=deadline_s, read=deadline_s),
                retries=False,
                redirect=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Away(f"{ask}: the Kubernetes API does not answer: {error}") from None
        return answer.status, answer.data

    def _authorization(self) -> dict[str, str]:
        """The token as it is now: a pod's is replaced every hour."""
        settings = self._configuration.auth_settings().values()
        return {entry["key"]: entry["value"] for entry in settings if entry["in"] == "header" and entry["value"]}


def _read(ask: _Ask, status: int, body: bytes) -> Object:
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = None
    if 200 <= status < 300:
        if isinstance(answer, dict):
            return answer
        raise Away(f"{ask}: the answer is not a JSON object")
    said = answer.get("message", "") if isinstance(answer, dict) else ""
    if status in {401, 403}:
        who = "is not known to the API server" if status == 401 else f"lacks the right to {ask}"
        raise Forbidden(f"mpsd {who}: {said}")
    error = Away if status >= 500 else _ERRORS.get(status, Rejected)
    raise error(f"{ask}: {said or f'HTTP {status}'}")


def open_kube(kubeconfig: Path | None) -> Kube:
    """Connects with a kubeconfig file, or None for the service account of the pod this runs in.

    Away where neither can be read; no request is made yet. The package is imported here because most of mpsd runs
    without it.
    """
    from kubernetes import config
    from kubernetes.client.api_client import ApiClient
    from kubernetes.client.configuration import Configuration

    configuration = Configuration()
    try:
        if kubeconfig:
            config.load_kube_config(str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except Exception as error:  # the package lets through whatever a file that is no kubeconfig makes it stumble over
        raise Away(f"the Kubernetes API cannot be reached: {error}") from error
    return Kube(ApiClient(configuration))
