"""What a request to the simulated API server is about, read from its path and its query.

One rule: nothing here looks at an object.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from mpsd.simulator.api_server.api_kinds import NAMESPACES, Kind, Kinds
from mpsd.simulator.api_server.api_store import Key
from mpsd.simulator.api_server.refusals import Refused, bad_request
from mpsd.simulator.api_server.selectors import Test, selected


@dataclass(frozen=True, slots=True)
class Target:
    """name: empty for a collection. namespace: empty for all, and for kinds that have none."""

    kind: Kind
    version: str
    namespace: str
    name: str
    subresource: str

    @property
    def at(self) -> tuple[Kind, str, str]:
        return self.kind, self.version, self.namespace

    @property
    def path(self) -> tuple[str, str]:
        return self.name, self.subresource

    @property
    def place(self) -> tuple[Kind, str, str]:
        return self.kind, self.namespace, self.name


def read_target(path: str, kinds: Kinds) -> Target | None:
    """None for what no kind of object is behind."""
    root, *steps = path.strip("/").split("/")
    if root == "apis" and len(steps) >= 3:
        group, version, *steps = steps
    elif root == "api" and len(steps) >= 2:
        group, (version, *steps) = "", steps
    else:
        return None
    namespace = ""
    if steps[0] == NAMESPACES.plural and len(steps) > 2 and (group or steps[2] not in {"status", "finalize"}):
        _namespaces, namespace, *steps = steps
    plural, name, subresource, *more = [*steps, "", ""]
    kind = kinds.find(group, version, plural)
    if kind is None or any(more) or not _has(kind, subresource) or (namespace and not kind.namespaced):
        return None
    if name and kind.namespaced and not namespace:
        return None
    return Target(kind, version, namespace, name, subresource)


def _has(kind: Kind, subresource: str) -> bool:
    return not subresource or subresource in kind.subresources or (subresource == "status" and kind.has_status)


@dataclass(frozen=True, slots=True)
class ListOptions:
    """version None: the newest there is. after, first_version: of a list that goes on. limit 0: everything."""

    fields: str
    labels: str
    watch: bool
    bookmarks: bool
    version: int | None
    timeout_s: float
    limit: int
    after: Key | None
    first_version: int | None

    def test(self, kind: Kind) -> Test:
        return selected(kind, self.fields, self.labels)

    def token(self, version: int, last: Key) -> str:
        """What a client sends to go on after this object."""
        said = [version, last.group, last.plural, last.namespace, last.name]
        return base64.urlsafe_b64encode(json.dumps(said).encode()).decode()


def list_options(query: Mapping[str, str]) -> ListOptions:
    """Refused for a number that is none."""
    version, after = _number(query, "resourceVersion"), query.get("continue")
    first_version, last = _going_on(after) if after else (None, None)
    if after and version:
        raise bad_request("specifying resource version is not allowed when using continue")
    return ListOptions(
        fields=query.get("fieldSelector", ""),
        labels=query.get("labelSelector", ""),
        watch=query.get("watch", "").lower() in {"1", "true"},
        bookmarks=query.get("allowWatchBookmarks", "").lower() in {"1", "true"},
        version=version,
        timeout_s=float(_number(query, "timeoutSeconds") or 0),
        limit=_number(query, "limit") or 0,
        after=last,
        first_version=first_version,
    )


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if text and not text.isdecimal():
        raise bad_request(f"{name}: {text!r} is not a number")
    return int(text) if text else None


def _going_on(token: str) -> tuple[int, Key]:
    try:
        version, *key = json.loads(base64.urlsafe_b64decode(token))
        return int(version), Key(*key)
    except (ValueError, TypeError):
        raise Refused(410, "Expired", "The provided continue parameter is too old or cannot be read") from None
