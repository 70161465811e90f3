"""The pods of the simulated kubelet's node, from an API server, simulated or real.

One rule: it asks for what any API server has: lists by field selector, merge patches of a status, deletions.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from ssl import SSLContext
from typing import Any

import aiohttp

from mpsd.sim.kubelet_pod import Json, SimPod
from mpsd.sim.kubelet_source import SourceAway

_ANSWER_S = 10.0
_GONE = {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}  # the pod, or the one that was meant


class ApiServer:
    """Closed by `close`. token: empty for none. ssl: None for plain HTTP, or where the machine's certificates do."""

    def __init__(self, url: str, node: str, token: str = "", ssl: SSLContext | None = None) -> None:
        self._url = url.rstrip("/")
        self._node = node
        self._ssl = ssl
        self._written: set[str] = set()  # resources of the node's status that are ours
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(_ANSWER_S))

    async def close(self) -> None:
        await self._session.close()

    async def pods(self) -> Sequence[Json]:
        listed = await self._ask("GET", "/api/v1/pods", params={"fieldSelector": f"spec.nodeName={self._node}"})
        return sorted(listed.get("items") or (), key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))

    async def write_status(self, pod: SimPod, status: Json) -> None:
        body = {"metadata": {"uid": pod.uid}, "status": status}  # another pod of this name is not written to
        await self._patch(f"{_path(pod)}/status", body)

    async def remove(self, pod: SimPod) -> None:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        await self._ask("DELETE", _path(pod), json=body)

    async def write_amounts(self, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> None:
        self._written |= capacity.keys()
        amounts = {
            name: {resource: str(of.get(resource, 0)) for resource in self._written}  # never taken out, as kubelet's
            for name, of in (("capacity", capacity), ("allocatable", allocatable))
        }
        path = f"/api/v1/nodes/{self._node}"
        if not await self._patch(f"{path}/status", {"status": amounts}):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._node}}
            await self._ask("POST", "/api/v1/nodes", json=node)
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated"}
            await self._patch(f"{path}/status", {"status": {**amounts, "conditions": [ready]}})

    async def _patch(self, path: str, body: object) -> Mapping[str, Any]:
        """Empty where there is no such object."""
        headers = {"Content-Type": "application/merge-patch+json"}
        return await self._ask("PATCH", path, json=body, headers=headers)

    async def _ask(self, method: str, path: str, **how: Any) -> Mapping[str, Any]:
        """What was answered; empty where what was asked for is gone."""
        try:
            async with self._session.request(method, self._url + path, ssl=self._ssl or True, **how) as answer:
                if answer.status in _GONE:
                    return {}
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    raise SourceAway(f"{method} {path}: {answer.status} {(await answer.text())[:300]}")
                read: Mapping[str, Any] = await answer.json()
                return read
        except (aiohttp.ClientError, TimeoutError) as error:
            raise SourceAway(f"{method} {path}: {type(error).__name__} {error}") from None


def _path(pod: SimPod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
