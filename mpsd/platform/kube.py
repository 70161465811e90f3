"""The Kubernetes API over HTTP: plain objects in and out, each call with a deadline."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypedDict, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from msgspec.json import encode

from mpsd.model.fields import as_mapping
from mpsd.model.mpsnode import API
from mpsd.model.times import clocks_apart, http_seconds, stamp
from mpsd.platform import clock

Object = dict[str, Any]
Fields = TypeVar("Fields")

_PAGE = 500  # objects a page of a list, as kubectl asks
_EVICTIONS = ("policy/v1", "policy/v1beta1")  # the second for Kubernetes before 1.22
_CALLS_AT_ONCE = 16
# 1.20 tries a conflict, such as another uid, again for 10 s before it reports it
_EVICTION_S = 20.0
_DRY_RUN_S = 10.0  # the API server waits for webhooks meanwhile, for 5 s for mpsd's
# the server cuts the first lines off, and then the last bytes
_LOG_LINES = 20_000
_LOG_BYTES = 16 * 1024**2
UNREACHED = (urllib3.exceptions.HTTPError, OSError)  # what an exchange that came to nothing raises
# every other verb: GET
_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}


class KubeError(Exception):
    """The API server did not do what was asked."""


class NotFound(KubeError):
    """There is no such object, or no such kind of objects."""


class Conflict(KubeError):
    """The object exists already, or has changed since it was read."""


class Forbidden(KubeError):
    """A right is missing."""


class Rejected(KubeError):
    """The API server, or an admission webhook, refuses what was sent."""


class Expired(KubeError):
    """The server does not know the resourceVersion asked for, any more or yet: list again."""


class Unavailable(KubeError):
    """No answer in time, no connection, or a server that cannot answer now."""


# 429: it has too much to do, or a disruption budget forbids an eviction for the time being
_ERRORS = {404: NotFound, 409: Conflict, 410: Expired, 429: Unavailable}


class PatchKind(StrEnum):
    """How a patch is meant; the value is its content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class Resource:
    api: str  # group and version; `v1` for the core group
    plural: str

    def path(self, name: str = "", namespace: str = "", subresource: str = "") -> str:
        parts = ["api", self.api]
        if "/" in self.api:
            parts[0] = "apis"
        if namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts += [self.plural, quote(name, safe=""), subresource]
        return "/" + "/".join(filter(None, parts))


NODES = Resource("v1", "nodes")
PODS = Resource("v1", "pods")
MPS_NODES = Resource(API, "mpsnodes")
EVENTS = Resource("v1", "events")
RESOURCE_CLAIMS, CLAIM_TEMPLATES, DEVICE_CLASSES, RESOURCE_SLICES = (
    Resource("resource.k8s.io/v1", plural)
    for plural in ("resourceclaims", "resourceclaimtemplates", "deviceclasses", "resourceslices")
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    verb: str  # as RBAC names it
    resource: Resource
    name: str = ""  # empty for a collection
    namespace: str = ""
    subresource: str = ""
    query: Mapping[str, str] | None = None
    body: bytes | None = None
    content_type: str = "application/json"
    place: str = ""  # a path that is about no object, such as /apis; empty: that of the resource

    def __str__(self) -> str:
        kind = "/".join(filter(None, (self.resource.plural, self.subresource)))
        words = [self.verb, self.place or kind, self.name]
        if self.namespace:
            words += ["in", self.namespace]
        return " ".join(filter(None, words))

    @property
    def path(self) -> str:
        name = self.name
        if self.verb == "create" and not self.subresource:
            name = ""  # what is to be named so goes to the collection
        path = self.place or self.resource.path(name, self.namespace, self.subresource)
        return f"{path}?{urlencode(self.query)}" if self.query else path


@dataclass(frozen=True, slots=True)
class Access:
    host: str  # with the scheme and no slash at its end
    pool: urllib3.PoolManager
    authorization: Callable[[], Mapping[str, str]]  # the headers that let us in, as they are now

    def send(
        self, ask: Ask, deadline_s: float, *, streaming: bool = False
    ) -> urllib3.BaseHTTPResponse:
        """The answer, whatever it is. Blocks its thread. Unavailable where nobody answers."""
        headers = {"Accept": "application/json", "Content-Type": ask.content_type}
        try:
            headers |= self.authorization()
            return self.pool.request(
                _METHODS.get(ask.verb, "GET"),
                f"{self.host}{ask.path}",
                body=ask.body,
                headers=headers,
                timeout=urllib3.Timeout(connect=deadline_s, read=deadline_s),
                retries=False,
                redirect=False,
                preload_content=not streaming,
            )
        except UNREACHED as error:
            why = f"{error}{_own_clock(error)}"
            raise Unavailable(f"{ask}: the Kubernetes API does not answer: {why}") from None


_OF_ANOTHER_TIME = ("certificate is not yet valid", "certificate has expired")  # OpenSSL's words


def _own_clock(error: Exception) -> str:
    """The time here, where a certificate is refused for it: that may be what is wrong."""
    if any(words in str(error) for words in _OF_ANOTHER_TIME):
        return f"; the clock of this machine says {stamp(clock.wall_s())}: see that it is right"
    return ""


def _read_answer(ask: Ask, response: urllib3.BaseHTTPResponse, kind: Any = object) -> Object:
    """The object in an answer, or what a refusal is called. kind: as for `decoded`."""
    if not 200 <= response.status < 300:
        date = str(response.headers.get("Date", ""))
        raise refusal(ask, response.status, decoded(response.data), date)
    answer = decoded(response.data, kind)
    if isinstance(answer, dict):
        return answer
    raise Unavailable(f"{ask}: the answer is not a JSON object")


def refusal(ask: Ask, status: int, answer: object, date: str = "") -> KubeError:
    """answer: the Status object, if one came. date: the API server's clock, as HTTP writes it."""
    why = as_mapping(answer).get("message", "")
    if status == 401:
        theirs = http_seconds(date)
        if theirs is not None and (apart := clocks_apart(theirs, clock.wall_s())):
            why += f"; its clock says {stamp(theirs)}{apart}"
        return Forbidden(f"the API server does not know mpsd's credentials: {why}")
    said = f"{ask}: {why or f'HTTP {status}'}"
    if status == 403 and why.startswith("admission webhook "):
        return Rejected(said)
    if status == 403 and "is being terminated" in why:  # a namespace, which takes nothing new
        return Forbidden(said)
    if status == 403:
        return Forbidden(f"mpsd lacks the right to {ask}: {why}")
    # this server's cache lags behind
    if status == 504 and "ResourceVersionTooLarge" in str(answer):
        return Expired(said)
    if status in _ERRORS:
        return _ERRORS[status](said)
    if status >= 500:
        return Unavailable(said)
    return Conflict(said) if _changes_uid(as_mapping(answer)) else Rejected(said)


def _changes_uid(answer: Object) -> bool:
    """What servers call it where a patch names a uid and another object has the name by now."""
    causes = as_mapping(answer.get("details")).get("causes") or ()
    return any(as_mapping(one).get("field") == "metadata.uid" for one in causes)


def decoded(body: bytes, kind: Any = object) -> object:
    """None for what is no JSON. kind: of what is wanted; another shape is decoded whole."""
    for one in dict.fromkeys((kind, object)):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(body, type=one)
    return None


class _Page(TypedDict, Generic[Fields], total=False):
    metadata: Any
    items: list[Fields] | None


@asynccontextmanager
async def within(deadline_s: float, ask: Ask) -> AsyncIterator[None]:
    """Unavailable where this block takes longer."""
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except TimeoutError:
        raise Unavailable(f"{ask}: no answer from the Kubernetes API in {deadline_s:g} s") from None


# -- calls


@dataclass(frozen=True, slots=True)
class Listing:
    items: Sequence[Object]
    version: str


class Kube:
    """A connection to one API server. Calls run in threads."""

    def __init__(self, access: Access, *, deadline_s: float = 5.0) -> None:
        self.access = access
        self.deadline_s = deadline_s
        self._threads = ThreadPoolExecutor(_CALLS_AT_ONCE, "kube")
        self._eviction = _EVICTIONS[0]
        self.heard_at = time.monotonic()  # when anything came last, in a call or in a watch
        # the Date of the last answer, and when it came, by CLOCK_BOOTTIME
        self._date = ("", 0.0)

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.heard_at

    @property
    def now(self) -> float:
        """Seconds since 1970 by the API server's clock, as of its last answer; by ours where that
        says none."""
        date, came_s = self._date
        told = http_seconds(date)
        if told is None:
            return clock.wall_s()
        return told + clock.boot_s() - came_s

    async def get(
        self, resource: Resource, name: str, namespace: str = "", deadline_s: float | None = None
    ) -> Object:
        return await self._object(Ask("get", resource, name, namespace), deadline_s)

    async def read(self, path: str) -> Object:
        """What is at a path that is about no object, such as /apis."""
        return await self._object(Ask("get", PODS, place=path))

    async def date(self, deadline_s: float | None = None) -> str:
        """The API server's clock, as HTTP writes it; empty where it does not say."""
        answer = await self._send(Ask("get", PODS, place="/version"), deadline_s or self.deadline_s)
        return str(answer.headers.get("Date", ""))

    async def log(
        self, pod: str, namespace: str, container: str, *, previous: bool, most_bytes: int
    ) -> str:
        """The end of a log. previous: of the container before its last restart."""
        query = {"tailLines": str(_LOG_LINES), "limitBytes": str(_LOG_BYTES)}
        query |= {"container": container, "previous": str(previous).lower()}
        found = await self._bytes(Ask("get", PODS, pod, namespace, "log", query=query))
        return found[-most_bytes:].decode(errors="replace")

    async def list(
        self, resource: Resource, namespace: str = "", query: Mapping[str, str] | None = None
    ) -> Sequence[Object]:
        """query: such as `{"labelSelector": "a=b"}`. Expired."""
        return [one async for page in self.pages(resource, namespace, query) for one in page.items]

    async def pages(
        self,
        resource: Resource,
        namespace: str = "",
        query: Mapping[str, str] | None = None,
        fields: type[Any] | None = None,
    ) -> AsyncIterator[Listing]:
        """As `list`, piece by piece. fields: a TypedDict or struct of what is wanted of each
        object; None: everything. A watch starts from the last page's version. Expired where the
        server cannot go on with many pages, or lacks the version asked for."""
        asked = {**(query or {}), "limit": str(_PAGE)}
        kind = cast("Any", _Page)[fields or Any]

        def begun() -> asyncio.Task[Object]:
            ask = Ask("list", resource, "", namespace, query={**asked})
            return asyncio.create_task(self._object(ask, kind=kind))

        coming = begun()
        try:
            while True:
                answer = await coming
                metadata = answer.get("metadata") or {}
                if more := metadata.get("continue"):  # asked for while this piece is read
                    asked["continue"] = more
                    asked.pop("resourceVersion", None)  # in the token; servers refuse both
                    asked.pop("resourceVersionMatch", None)
                    coming = begun()
                yield Listing(answer.get("items") or [], str(metadata.get("resourceVersion", "")))
                if not more:
                    return
        finally:
            coming.cancel()

    async def create(
        self,
        resource: Resource,
        value: Object,
        namespace: str = "",
        subresource: str = "",
        *,
        dry_run: bool = False,
    ) -> Object:
        """Conflict where it exists. dry_run: admission judges it, and nothing is stored."""
        name = value["metadata"].get("name", "")
        query = {}
        deadline_s = self.deadline_s
        if dry_run:
            query["dryRun"] = "All"
            deadline_s = _DRY_RUN_S
        ask = Ask("create", resource, name, namespace, subresource, query, encode(value))
        return await self._object(ask, deadline_s)

    async def replace(
        self, resource: Resource, value: Object, namespace: str = "", subresource: str = ""
    ) -> Object:
        """Conflict where it has changed since the resourceVersion in `value`."""
        name = value["metadata"]["name"]
        ask = Ask("update", resource, name, namespace, subresource, body=encode(value))
        return await self._object(ask)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: object,
        kind: PatchKind,
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        """Conflict where the patch names another resourceVersion or uid than the object has."""
        ask = Ask("patch", resource, name, namespace, subresource, None, encode(patch), kind.value)
        return await self._object(ask)

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", **meant: str
    ) -> Object:
        """Deletes also what belongs to it. meant: its `uid`, and its `resourceVersion` where it may
        not have changed; Conflict where another is there by now."""
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1"}
        options["propagationPolicy"] = "Background"
        if wanted := {key: value for key, value in meant.items() if value}:
            options["preconditions"] = wanted
        return await self._object(Ask("delete", resource, name, namespace, body=encode(options)))

    async def evict(self, name: str, namespace: str, uid: str = "") -> None:
        """Evicts as a drain does. Unavailable while a disruption budget forbids it."""
        eviction: Object = {"kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        if uid:
            eviction["deleteOptions"] = {"preconditions": {"uid": uid}}
        for api in _EVICTIONS[_EVICTIONS.index(self._eviction) :]:
            body = encode({"apiVersion": api, **eviction})
            ask = Ask("create", PODS, name, namespace, "eviction", body=body)
            try:
                await self._object(ask, _EVICTION_S)
            except Rejected:  # a version that this server does not know
                if api == _EVICTIONS[-1]:
                    raise
            else:
                self._eviction = api
                return

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.access.pool.clear()

    async def _bytes(self, ask: Ask) -> bytes:
        answer = await self._send(ask, self.deadline_s)
        if answer.status != 200:
            _read_answer(ask, answer)
        return answer.data

    async def _object(
        self, ask: Ask, deadline_s: float | None = None, kind: Any = object
    ) -> Object:
        return _read_answer(ask, await self._send(ask, deadline_s or self.deadline_s), kind)

    async def _send(self, ask: Ask, deadline_s: float) -> urllib3.BaseHTTPResponse:
        async with within(deadline_s, ask):
            try:
                loop = asyncio.get_running_loop()
                sent = loop.run_in_executor(self._threads, self.access.send, ask, deadline_s)
            except RuntimeError as error:  # no thread, for want of processes or memory
                raise Unavailable(f"{ask}: {error}") from None
            answer = await sent
        self.heard_at = time.monotonic()
        self._date = (str(answer.headers.get("Date", "")), clock.boot_s())
        return answer


# -- kinds of objects


@dataclass(frozen=True, slots=True)
class ResourceKind:
    resource: Resource
    name: str

    @property
    def group(self) -> str:
        return self.resource.api.rpartition("/")[0]


async def deletable_kinds(kube: Kube) -> tuple[Sequence[ResourceKind], Sequence[str]]:
    """The kinds, and why groups are missing, a sentence each: an API service may be down."""
    groups = (await kube.read("/apis")).get("groups") or []
    places = ["/api/v1"]
    places += [f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups]
    answers = await asyncio.gather(*map(kube.read, places), return_exceptions=True)
    kinds = []
    missing = []
    for answer in answers:
        if isinstance(answer, Unavailable | NotFound):
            missing.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            for entry in answer.get("resources") or []:
                deletable = {"list", "delete"} <= set(entry.get("verbs") or ())
                if deletable and "/" not in entry["name"]:
                    resource = Resource(answer["groupVersion"], entry["name"])
                    kinds.append(ResourceKind(resource, entry["kind"]))
    return kinds, missing
