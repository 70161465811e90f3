"""Where the simulated kubelet hears of its pods and says how they are: an API server.

Objects pass as the API has them, decoded JSON.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Any, Protocol

import aiohttp
import yaml

from mpsd.simulator.kubelet.pods import Json, SimPod


class SourceUnavailable(Exception):
    """The API server does not answer now."""


class PodSource(Protocol):
    """Every method may raise SourceUnavailable; what is gone meanwhile is no error."""

    async def pods(self) -> Sequence[Json]:
        """All pods of this node, the oldest first."""

    async def write_status(self, pod: SimPod, status: Json) -> None: ...

    async def remove(self, pod: SimPod) -> None:
        """Of this pod nothing runs any more: its deletion can be completed."""

    async def write_amounts(
        self, capacity: Mapping[str, int], allocatable: Mapping[str, int]
    ) -> None:
        """What the node has of each resource of a device plugin."""

    async def claim(self, namespace: str, name: str) -> Json:
        """The resource claim; empty where there is none."""

    async def remove_slices(self) -> None:
        """Those of this node, whose drivers write them anew."""


# -- pods from an API server, simulated or real
# It asks for what any API server has: lists by field selector, patches of a status, deletions.

_ANSWER_S = 10.0
_GONE = {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}  # the pod, or the one that was meant


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """How an API server is reached. token: empty for none. trusted: None where it is no matter, or
    well known."""

    url: str
    token: str = ""
    trusted: SSLContext | None = None


def read_kubeconfig(file: Path) -> ApiAccess:
    """Of its current context; only a token lets in, no client certificate."""
    read = yaml.safe_load(file.read_text())

    def named(kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in read[f"{kind}s"] if each["name"] == name)[
            kind
        ]
        return found

    context = named("context", read["current-context"])
    cluster = named("cluster", context["cluster"])
    user = named("user", context["user"])
    authority = base64.b64decode(cluster.get("certificate-authority-data", "")).decode()
    trusted = create_default_context(cadata=authority) if authority else None
    return ApiAccess(cluster["server"], user.get("token", ""), trusted)


class ApiServerSource:
    """Closed by `close`. labels: of the node, which is made where there is none."""

    def __init__(
        self, access: ApiAccess, node: str, labels: Mapping[str, str] | None = None
    ) -> None:
        self._url = access.url.rstrip("/")
        self._node = node
        self._labels = {"kubernetes.io/hostname": node, **(labels or {})}
        self._trusted = access.trusted
        self._written: set[str] = set()  # resources of the node's status that are ours
        headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
        self._session = aiohttp.ClientSession(
            headers=headers, timeout=aiohttp.ClientTimeout(_ANSWER_S)
        )

    async def close(self) -> None:
        await self._session.close()

    async def pods(self) -> Sequence[Json]:
        listed = await self._ask(
            "GET", "/api/v1/pods", params={"fieldSelector": f"spec.nodeName={self._node}"}
        )
        return sorted(
            listed.get("items") or (),
            key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")),
        )

    async def write_status(self, pod: SimPod, status: Json) -> None:
        # another pod of this name is not written to
        body = {"metadata": {"uid": pod.uid}, "status": status}
        await self._patch(f"{_path(pod)}/status", body)

    async def remove(self, pod: SimPod) -> None:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        await self._ask("DELETE", _path(pod), json=body)

    async def write_amounts(
        self, capacity: Mapping[str, int], allocatable: Mapping[str, int]
    ) -> None:
        self._written |= capacity.keys()
        amounts = {
            # never taken out, as kubelet's
            name: {resource: str(of.get(resource, 0)) for resource in self._written}
            for name, of in (("capacity", capacity), ("allocatable", allocatable))
        }
        path = f"/api/v1/nodes/{self._node}"
        if not await self._patch(f"{path}/status", {"status": amounts}):
            node = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": self._node, "labels": self._labels},
            }
            await self._ask("POST", "/api/v1/nodes", json=node)
            ready = {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "simulated",
            }
            await self._patch(f"{path}/status", {"status": {**amounts, "conditions": [ready]}})

    async def claim(self, namespace: str, name: str) -> Json:
        return await self._ask(
            "GET", f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
        )

    async def remove_slices(self) -> None:
        path = "/apis/resource.k8s.io/v1/resourceslices"
        query = {"fieldSelector": f"spec.nodeName={self._node}"}
        for one in (await self._ask("GET", path, params=query)).get("items") or ():
            await self._ask("DELETE", f"{path}/{one['metadata']['name']}")

    async def _patch(self, path: str, body: object) -> Mapping[str, Any]:
        """Empty where there is no such object."""
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        return await self._ask("PATCH", path, json=body, headers=headers)

    async def _ask(self, method: str, path: str, **how: Any) -> Mapping[str, Any]:
        """What was answered; empty where what was asked for is gone."""
        try:
            async with self._session.request(
                method, self._url + path, ssl=self._trusted or True, **how
            ) as answer:
                if answer.status in _GONE:
                    return {}
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    raise SourceUnavailable(
                        f"{method} {path}: {answer.status} {(await answer.text())[:300]}"
                    )
                read: Mapping[str, Any] = await answer.json()
                return read
        except (aiohttp.ClientError, TimeoutError) as error:
            raise SourceUnavailable(f"{method} {path}: {type(error).__name__} {error}") from None


def _path(pod: SimPod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
