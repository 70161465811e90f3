"""The Kubernetes API: plain objects in and out, each call with a deadline.

What comes back is what the API server wrote, or one of the errors below, which say what was asked and, where
a right is missing, which one.
"""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mpsd.model.mpsnode import API
from mpsd.platform.kube_access import access, access_of_user
from mpsd.platform.kube_transport import (
    Access,
    Ask,
    ChangeKind,
    Conflict,
    Expired,
    Forbidden,
    KubeError,
    NotFound,
    Object,
    Rejected,
    Resource,
    Throttled,
    Transport,
    Unavailable,
    Watch,
    WatchEvent,
    read_answer,
)

NODES = Resource("v1", "nodes")


MPS_NODES = Resource(API, "mpsnodes")


__all__ = [
    "ChangeKind",
    "Conflict",
    "Expired",
    "Forbidden",
    "Kube",
    "KubeError",
    "Listing",
    "NotFound",
    "Object",
    "PatchKind",
    "Rejected",
    "Resource",
    "Throttled",
    "Unavailable",
    "WatchEvent",
    "open_kube",
    "open_kube_of_user",
]

PODS = Resource("v1", "pods")
_DELETABLE = frozenset({"list", "delete"})
_USER_DEADLINE_S = 15.0  # of a call: people ask from far away, and of thousands of nodes at once
_PAGE = 500  # objects a page of a list, as kubectl asks
_WATCH_S = (240, 300)  # what a watch is asked to last: not the same for all, or all would come again together
_SILENCE_S = 90.0  # servers send a bookmark about once a minute
_EVICTIONS = ("policy/v1", "policy/v1beta1")  # the second for Kubernetes before 1.22
_LOG_LINES, _LOG_BYTES = 20_000, 16 * 1024**2  # the server cuts the first lines off, and then the last bytes
_EVICTION_S = 20.0  # 1.20 tries a conflict, such as another uid, again for 10 s before it says so


class PatchKind(StrEnum):
    """How a patch is meant. The value is its content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects, and the resourceVersion of which a watch may start."""

    items: Sequence[Object]
    version: str


class Kube:
    """A connection to one API server. Calls run in threads of their own, so that a slow server holds nobody else up."""

    def __init__(self, access: Access, *, deadline_s: float = 5.0, threads: int = 4) -> None:
        self._transport = Transport(access)
        self._deadline_s = deadline_s
        self._threads = ThreadPoolExecutor(threads, "kube")
        self._watches: set[Watch] = set()
        self._eviction = _EVICTIONS[0]

    async def get(self, resource: Resource, name: str, namespace: str = "", deadline_s: float | None = None) -> Object:
        return await self._object(Ask("get", resource, name, namespace), deadline_s)

    async def read(self, path: str) -> Object:
        """What stands at a path that is about no object, such as /apis."""
        return await self._object(Ask("get", PODS, said=path))

    async def date(self) -> str:
        """The API server's clock, as HTTP writes it; empty where the answer does not say."""
        ask, loop = Ask("get", PODS, said="/version"), asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._transport.date, ask, self._deadline_s)

    async def log(self, pod: str, namespace: str, container: str, *, previous: bool, most_bytes: int) -> str:
        """The end of a container's log. previous: of the one before its last restart."""
        query = {"container": container, "tailLines": str(_LOG_LINES), "limitBytes": str(_LOG_BYTES)}
        query |= {"previous": "true"} if previous else {}
        ask, loop = Ask("get", PODS, pod, namespace, "log", query=query), asyncio.get_running_loop()
        exchange = self._transport.exchange
        status, body = await loop.run_in_executor(self._threads, exchange, ask, self._deadline_s)
        if status != 200:
            read_answer(ask, status, body)
        return body[-most_bytes:].decode(errors="replace")

    async def list(
        self, resource: Resource, namespace: str = "", query: Mapping[str, str] | None = None
    ) -> Sequence[Object]:
        """All objects of this kind. query: such as `{"labelSelector": "a=b"}`."""
        return (await self.listing(resource, namespace, query)).items

    async def listing(self, resource: Resource, namespace: str = "", query: Mapping[str, str] | None = None) -> Listing:
        """As `list`. Expired where the server cannot go on with many pages, or lacks the version asked for."""
        found: list[Object] = []
        version = ""
        async for page in self.pages(resource, namespace, query):
            found += page.items
            version = page.version
        return Listing(found, version)

    async def pages(
        self, resource: Resource, namespace: str = "", query: Mapping[str, str] | None = None
    ) -> AsyncIterator[Listing]:
        """As `listing`, piece by piece, so that all objects of a large cluster need not be in memory at once.

        The last page's version is the one to watch from.
        """
        asked = {**(query or {}), "limit": str(_PAGE)}
        while True:
            answer = await self._object(Ask("list", resource, "", namespace, query=asked), None)
            metadata = answer.get("metadata") or {}
            yield Listing(answer.get("items") or [], str(metadata.get("resourceVersion", "")))
            if not metadata.get("continue"):
                return
            asked["continue"] = metadata["continue"]
            asked.pop("resourceVersion", None)  # said by the token; servers refuse both

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        query: Mapping[str, str] | None = None,
        since: str = "",
        silence_s: float = _SILENCE_S,
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """The changes after the resourceVersion `since`, once the server has agreed to tell them.

        They end when the server ends them; Expired: list again; Unavailable: nothing came for `silence_s`, or it broke.
        """
        lasting_s = str(random.randint(*_WATCH_S))  # noqa: S311 - no secret
        wanted = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": lasting_s, "resourceVersion": since}
        ask = Ask("watch", resource, "", namespace, query={**(query or {}), **wanted})
        watch = Watch(self._transport, ask, self._deadline_s, silence_s)
        self._watches.add(watch)
        try:
            await watch.open()
            yield watch.changes()
        finally:
            watch.close()
            self._watches.discard(watch)

    async def create(self, resource: Resource, value: Object, namespace: str = "", subresource: str = "") -> Object:
        """Conflict where it exists already. subresource: such as a pod's `binding`."""
        name = value["metadata"].get("name", "")
        body = json.dumps(value).encode()
        return await self._object(Ask("create", resource, name, namespace, subresource, body=body))

    async def replace(self, resource: Resource, value: Object, namespace: str = "", subresource: str = "") -> Object:
        """Conflict where the object has changed since the resourceVersion in `value`."""
        name = value["metadata"]["name"]
        body = json.dumps(value).encode()
        return await self._object(Ask("update", resource, name, namespace, subresource, body=body))

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: object,
        kind: PatchKind,
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        """Conflict where the patch names a resourceVersion or a uid and the object has another."""
        body = json.dumps(patch).encode()
        return await self._object(
            Ask("patch", resource, name, namespace, subresource, body=body, content_type=kind.value)
        )

    async def delete(self, resource: Resource, name: str, namespace: str = "", uid: str = "") -> Object:
        """With what belongs to it. uid: of the one that is meant, Conflict where another has its name by now; empty for
        whichever is there."""
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        options |= {"preconditions": {"uid": uid}} if uid else {}
        return await self._object(Ask("delete", resource, name, namespace, body=json.dumps(options).encode()))

    async def evict(self, name: str, namespace: str, uid: str = "") -> None:
        """Asks for the end of a pod as a drain does. Throttled while a disruption budget forbids it."""
        options = {"preconditions": {"uid": uid}} if uid else {}
        for api in _EVICTIONS[_EVICTIONS.index(self._eviction) :]:
            eviction = {
                "apiVersion": api,
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": namespace},
                "deleteOptions": options,
            }
            ask = Ask("create", PODS, name, namespace, "eviction", body=json.dumps(eviction).encode())
            try:
                await self._object(ask, _EVICTION_S)
            except Rejected:  # a version that this server does not know
                if api == _EVICTIONS[-1]:
                    raise
            else:
                self._eviction = api
                return

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._transport.close()

    async def _object(self, ask: Ask, deadline_s: float | None = None) -> Object:
        deadline_s = deadline_s or self._deadline_s
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(deadline_s):
                status, body = await loop.run_in_executor(self._threads, self._transport.exchange, ask, deadline_s)
        except TimeoutError:
            raise Unavailable(f"{ask}: no answer from the Kubernetes API in {deadline_s:g} s") from None
        return read_answer(ask, status, body)


def open_kube(kubeconfig: Path | None) -> Kube:
    """Connects with a kubeconfig file, or None for the service account of the pod this runs in.

    Unavailable where neither can be read; no request is made yet.
    """
    return Kube(access(kubeconfig))


def open_kube_of_user(kubeconfig: str | None, context: str | None, environment: Mapping[str, str] = os.environ) -> Kube:
    """Connects to the cluster that kubectl would ask: for the programs of people, not for those of a node.

    kubeconfig: a path, or several with colons between them. None: as kubectl finds it. InvalidInput where there is no
    such file or no such context; no request is made yet.
    """
    return Kube(access_of_user(kubeconfig, context, environment), deadline_s=_USER_DEADLINE_S)


# -- kinds of objects --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResourceKind:
    resource: Resource
    name: str
    namespaced: bool

    @property
    def group(self) -> str:
        return self.resource.api.rpartition("/")[0]


async def deletable_kinds(kube: Kube) -> tuple[Sequence[ResourceKind], Sequence[str]]:
    """The kinds, and why groups are missing, a sentence each: an API service behind the server may be down."""
    groups = (await kube.read("/apis")).get("groups") or []
    places = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    answers = await asyncio.gather(*(_listed(kube, place) for place in places))
    kinds = [kind for answer in answers if not isinstance(answer, str) for kind in _kinds(answer)]
    return kinds, [answer for answer in answers if isinstance(answer, str)]


async def _listed(kube: Kube, place: str) -> Object | str:
    try:
        return await kube.read(place)
    except (Unavailable, NotFound) as error:
        return str(error)


def _kinds(answer: Object) -> Iterator[ResourceKind]:
    for entry in answer.get("resources") or []:
        if "/" not in entry["name"] and _DELETABLE.issubset(entry.get("verbs") or ()):
            yield ResourceKind(
                Resource(answer["groupVersion"], entry["name"]), entry["kind"], bool(entry["namespaced"])
            )
