"""One HTTP exchange with the Kubernetes API: what is asked, and what each refusal is called.

One rule: everything here blocks its thread for no longer than the deadline it is given.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import urllib3

from mpsd.edge.kube_access import Access

Object = dict[str, Any]

UNREACHED = (urllib3.exceptions.HTTPError, OSError)  # what an exchange that came to nothing raises


class KubeError(Exception):
    """The API server did not do what was asked."""


class NotFound(KubeError):
    """There is no such object, or no such kind of objects."""


class Conflict(KubeError):
    """Somebody else was first: the object exists already, or has changed since it was read."""


class Forbidden(KubeError):
    """A right is missing."""


class Rejected(KubeError):
    """The API server, or an admission webhook, finds something wrong with what was sent."""


class Expired(KubeError):
    """The server no longer knows, or does not know yet, the resourceVersion asked for: list again."""


class Away(KubeError):
    """No answer in time, no connection, or a server that cannot answer now."""


class NotNow(Away):
    """The server has too much to do, or a disruption budget forbids an eviction for the time being."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object. api: group and version, `v1` for the core group."""

    api: str
    plural: str

    def path(self, name: str = "", namespace: str = "", subresource: str = "") -> str:
        parts = ["apis" if "/" in self.api else "api", self.api]
        parts += ["namespaces", quote(namespace, safe="")] if namespace else []
        parts += [self.plural, quote(name, safe="")] if name else [self.plural]
        parts += [subresource] if subresource else []
        return "/" + "/".join(parts)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. verb: as RBAC names it. name: empty for a collection. body None: the request has none.

    said: a path that is about no object, such as /apis; empty for the path of the resource.
    """

    verb: str
    resource: Resource
    name: str = ""
    namespace: str = ""
    subresource: str = ""
    query: Mapping[str, str] | None = None
    body: bytes | None = None
    content_type: str = "application/json"
    said: str = ""

    def __str__(self) -> str:
        if self.said:
            return f"{self.verb} {self.said}"
        plural = self.resource.plural + (f"/{self.subresource}" if self.subresource else "")
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {plural}{name}" + (f" in {self.namespace}" if self.namespace else "")

    @property
    def path(self) -> str:
        if self.said:
            return self.said
        creates_itself = self.verb == "create" and not self.subresource
        name = "" if creates_itself else self.name
        query = f"?{urlencode(self.query)}" if self.query else ""
        return self.resource.path(name, self.namespace, self.subresource) + query


_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
_ERRORS: Mapping[int, type[KubeError]] = {404: NotFound, 409: Conflict, 410: Expired, 429: NotNow}
_ENDING = "is being terminated"  # in a 403 about a namespace that takes nothing new
_TOO_NEW = "ResourceVersionTooLarge"  # the cause in a 504 to whom this server's cache lags behind


class Transport:
    """Sends to one API server."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def exchange(self, ask: Ask, deadline_s: float) -> tuple[int, bytes]:
        """The status and the whole body. Away where nobody answers."""
        try:
            answer = self._send(ask, deadline_s, streaming=False)
        except UNREACHED as error:
            raise Away(f"{ask}: the Kubernetes API does not answer: {error}") from None
        return answer.status, answer.data

    def date(self, ask: Ask, deadline_s: float) -> str:
        """The header Date of an answer, whatever else it says. Away where nobody answers."""
        try:
            return str(self._send(ask, deadline_s, streaming=False).headers.get("Date", ""))
        except UNREACHED as error:
            raise Away(f"{ask}: the Kubernetes API does not answer: {error}") from None

    def stream(self, ask: Ask, deadline_s: float, silence_s: float) -> urllib3.BaseHTTPResponse:
        """An answer whose body is still to come: its head within the deadline, then never `silence_s` without a byte.

        Raises what the server's refusal is called.
        """
        try:
            answer = self._send(ask, deadline_s, streaming=True)
        except UNREACHED as error:
            raise Away(f"{ask}: the Kubernetes API does not answer: {error}") from None
        if answer.status != 200:
            with_body = answer.data
            answer.release_conn()
            raise refusal(ask, answer.status, _decoded(with_body))
        socket = getattr(answer.connection, "sock", None)  # None where the whole answer has come already
        if socket is not None:
            socket.settimeout(silence_s)
        return answer

    def close(self) -> None:
        self._access.pool.clear()

    def _send(self, ask: Ask, deadline_s: float, *, streaming: bool) -> urllib3.BaseHTTPResponse:
        return self._access.pool.request(
            _METHODS[ask.verb],
            f"{self._access.host}{ask.path}",
            body=ask.body,
            headers={"Accept": "application/json", "Content-Type": ask.content_type, **self._access.authorization()},
            timeout=urllib3.Timeout(connect=deadline_s, read=deadline_s),
            retries=False,
            redirect=False,
            preload_content=not streaming,
        )


def read_answer(ask: Ask, status: int, body: bytes) -> Object:
    """The object in an answer; raises what a refusal is called."""
    answer = _decoded(body)
    if not 200 <= status < 300:
        raise refusal(ask, status, answer)
    if isinstance(answer, dict):
        return answer
    raise Away(f"{ask}: the answer is not a JSON object")


def refusal(ask: Ask, status: int, answer: object) -> KubeError:
    """answer: the Status object that came with it, if one did."""
    said = answer.get("message", "") if isinstance(answer, dict) else ""
    if status == 401:
        return Forbidden(f"mpsd is not known to the API server: {said}")
    if status == 403 and said.startswith("admission webhook "):
        return Rejected(f"{ask}: {said}")
    if status == 403:
        return Forbidden(f"{ask}: {said}" if _ENDING in said else f"mpsd lacks the right to {ask}: {said}")
    if status == 504 and _TOO_NEW in str(answer):
        return Expired(f"{ask}: {said}")
    error = _ERRORS.get(status, Away if status >= 500 else Rejected)
    if error is Rejected and _is_of_another(answer):
        error = Conflict
    return error(f"{ask}: {said or f'HTTP {status}'}")


def _is_of_another(answer: object) -> bool:
    """Whether a patch named a uid and another object has the name: servers call that an attempt to change the uid."""
    details = answer.get("details") if isinstance(answer, dict) else None
    causes = details.get("causes") if isinstance(details, dict) else None
    return any(isinstance(cause, dict) and cause.get("field") == "metadata.uid" for cause in causes or ())


def _decoded(body: bytes) -> object:
    """None for what is no JSON."""
    try:
        found: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found
