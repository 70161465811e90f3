"""The Kubernetes API over HTTP: plain objects in and out, each call with a deadline."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from msgspec.json import encode

from mpsd.model.fields import as_mapping
from mpsd.model.mpsnode import API
from mpsd.model.times import clocks_apart, http_seconds, stamp
from mpsd.platform import clock

Object = dict[str, Any]

ANY_VERSION = "0"  # of a list: whatever the server has in memory, which costs it least
_PAGE = 500  # objects a page of a list, as kubectl asks
_PAGE_BYTES = 2 * 1024**2  # of a page of several objects; else one of _FEWER as many is asked
_FEWER = 4
# of any other answer, and of a change: etcd holds 1.5 MiB of an object, each byte of which may be
# written as six in JSON (\\u003c)
LARGEST = 16 * 1024**2
PIECE = 1 << 16  # bytes that are read at once
_DEEPEST = 12_000  # Go neither writes nor reads JSON that is nested deeper than 10 000
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


class TooLarge(KubeError):
    """The answer has more bytes than are read."""


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

    def send(self, ask: Ask, deadline_s: float, most_bytes: int = LARGEST) -> "HttpAnswer":
        """The answer, whatever it is. Blocks its thread. Unavailable where nobody answers; TooLarge
        once more than `most_bytes` have come, of which the rest stays unread."""
        answer = self.open(ask, deadline_s)
        body = bytearray()
        try:
            for piece in answer.stream(PIECE):
                body += piece
                if len(body) > most_bytes:
                    answer.close()
                    raise TooLarge(f"{ask}: the answer has more than {most_bytes} bytes")
        except UNREACHED as error:
            raise _unanswered(ask, error) from None
        answer.release_conn()
        return HttpAnswer(answer.status, body, str(answer.headers.get("Date", "")))

    def open(self, ask: Ask, deadline_s: float) -> urllib3.BaseHTTPResponse:
        """The answer with its body unread, as `send`."""
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
                preload_content=False,
            )
        except UNREACHED as error:
            raise _unanswered(ask, error) from None


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: bytearray
    date: str  # the server's clock, as HTTP writes it; empty where it does not say


def _unanswered(ask: Ask, error: Exception) -> Unavailable:
    why = f"{error}{_own_clock(error)}"
    return Unavailable(f"{ask}: the Kubernetes API does not answer: {why}")


_OF_ANOTHER_TIME = ("certificate is not yet valid", "certificate has expired")  # OpenSSL's words


def _own_clock(error: Exception) -> str:
    """The time here, where a certificate is refused for it: that may be what is wrong."""
    if any(words in str(error) for words in _OF_ANOTHER_TIME):
        return f"; the clock of this machine says {stamp(clock.wall_s())}: see that it is right"
    return ""


def _read_answer(ask: Ask, answer: HttpAnswer) -> Object:
    """The object in an answer, or what a refusal is called."""
    found = decoded(_accepted(ask, answer))
    if isinstance(found, dict):
        return found
    raise Unavailable(f"{ask}: the answer is not a JSON object")


def _accepted(ask: Ask, answer: HttpAnswer) -> bytearray:
    """The body, or what a refusal is called."""
    if not 200 <= answer.status < 300:
        raise refusal(ask, answer.status, decoded(answer.body), answer.date)
    return answer.body


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


_recursion = Lock()  # the limit is the process's


def decoded(body: Any, kind: Any = object) -> Any:
    """None for what is no JSON. body: bytes, or what msgspec takes for them. kind: of what is
    wanted; another shape is decoded whole."""
    for one in dict.fromkeys((kind, object)):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            try:
                return msgspec.json.decode(body, type=one)
            except RecursionError:
                return _decoded_deep(body, one)
    return None


def _decoded_deep(body: Any, kind: Any) -> Any:
    """As a tenant may nest the managed fields of a pod, which every reader has to get past."""
    with _recursion:
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(_DEEPEST)
        try:
            return msgspec.json.decode(body, type=kind)
        finally:
            sys.setrecursionlimit(usual)


class _ListMetadata(msgspec.Struct, frozen=True):
    version: str = msgspec.field(default="", name="resourceVersion")
    more: str | None = msgspec.field(default=None, name="continue")


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMetadata = _ListMetadata()
    items: Sequence[msgspec.Raw] | None = None


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
    """items: each is decoded when its turn comes."""

    items: Iterator[Any]
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
        return answer.date

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
        return [one async for one in self.each(resource, namespace, query)]

    async def each(
        self,
        resource: Resource,
        namespace: str = "",
        query: Mapping[str, str] | None = None,
        fields: type[Any] | None = None,
    ) -> AsyncIterator[Any]:
        """As `list`, of which no more than a page is held. fields: as in `pages`."""
        async for page in self.pages(resource, namespace, query, fields):
            for one in page.items:
                yield one

    async def pages(
        self,
        resource: Resource,
        namespace: str = "",
        query: Mapping[str, str] | None = None,
        fields: type[Any] | None = None,
    ) -> AsyncIterator[Listing]:
        """As `list`, piece by piece, of few MiB each. fields: a TypedDict or struct of what is
        wanted of each object; None: everything. A watch starts from the last page's version.
        Expired where the server cannot go on with many pages, or lacks the version asked for."""
        asked = dict(query or {})
        most = _PAGE
        while True:
            asked["limit"] = str(most)
            ask = Ask("list", resource, "", namespace, query=dict(asked))
            most_bytes = _PAGE_BYTES if most > 1 else LARGEST
            try:
                body = _accepted(ask, await self._send(ask, self.deadline_s, most_bytes))
            except TooLarge:
                if asked.get("resourceVersion") == ANY_VERSION:
                    _drop_version(asked)  # with which servers take no limit
                elif most > 1:
                    most = max(1, most // _FEWER)
                else:
                    raise
                continue
            page = decoded(body, _Page)
            if not isinstance(page, _Page):
                raise Unavailable(f"{ask}: the answer is not a list")
            items = page.items or ()
            yield Listing((_item(ask, one, fields) for one in items), page.metadata.version)
            if not page.metadata.more:
                return
            asked["continue"] = page.metadata.more
            _drop_version(asked)  # in the token; servers refuse both
            if len(body) * _FEWER < _PAGE_BYTES:
                most = min(_PAGE, 2 * most)

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

    async def _bytes(self, ask: Ask) -> bytearray:
        return _accepted(ask, await self._send(ask, self.deadline_s))

    async def _object(self, ask: Ask, deadline_s: float | None = None) -> Object:
        return _read_answer(ask, await self._send(ask, deadline_s or self.deadline_s))

    async def _send(self, ask: Ask, deadline_s: float, most_bytes: int = LARGEST) -> HttpAnswer:
        async with within(deadline_s, ask):
            try:
                loop = asyncio.get_running_loop()
                sent = loop.run_in_executor(
                    self._threads, self.access.send, ask, deadline_s, most_bytes
                )
            except RuntimeError as error:  # no thread, for want of processes or memory
                raise Unavailable(f"{ask}: {error}") from None
            answer = await sent
        self.heard_at = time.monotonic()
        self._date = (answer.date, clock.boot_s())
        return answer


def _drop_version(asked: dict[str, str]) -> None:
    asked.pop("resourceVersion", None)
    asked.pop("resourceVersionMatch", None)


def _item(ask: Ask, raw: msgspec.Raw, fields: type[Any] | None) -> Any:
    found = decoded(raw, fields or object)
    if found is None:
        raise Unavailable(f"{ask}: an object in the answer cannot be read")
    return found


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
