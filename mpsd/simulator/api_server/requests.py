"""What a request to the simulated API server is about, read from its path and its query.

Nothing here looks at an object.
"""

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mpsd.simulator.api_server.kinds import (
    EVENTS,
    NAMESPACES,
    PODS,
    ApiRefusal,
    Kinds,
    Object,
    ObjectKind,
    Test,
    bad_request,
    selected,
)
from mpsd.simulator.api_server.objects import ObjectKey, Store, Stored


@dataclass(frozen=True, slots=True)
class Target:
    """name: empty for a collection. namespace: empty for all, and for kinds that have none."""

    kind: ObjectKind
    version: str
    namespace: str
    name: str
    subresource: str

    @property
    def at(self) -> tuple[ObjectKind, str, str]:
        return self.kind, self.version, self.namespace

    @property
    def path(self) -> tuple[str, str]:
        return self.name, self.subresource

    @property
    def place(self) -> tuple[ObjectKind, str, str]:
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
    if (
        steps[0] == NAMESPACES.plural
        and len(steps) > 2
        and (group or steps[2] not in {"status", "finalize"})
    ):
        _namespaces, namespace, *steps = steps
    plural, name, subresource, *more = [*steps, "", ""]
    kind = kinds.find(group, version, plural)
    if (
        kind is None
        or any(more)
        or not _has(kind, subresource)
        or (namespace and not kind.namespaced)
    ):
        return None
    if name and kind.namespaced and not namespace:
        return None
    return Target(kind, version, namespace, name, subresource)


def _has(kind: ObjectKind, subresource: str) -> bool:
    return (
        not subresource
        or subresource in kind.subresources
        or (subresource == "status" and kind.has_status)
    )


@dataclass(frozen=True, slots=True)
class ListOptions:
    """version None: the newest there is. is_exact: that very version is listed, else none that is
    older. after, first_version: of a list that goes on. limit 0: everything."""

    fields: str
    labels: str
    watch: bool
    bookmarks: bool
    version: int | None
    is_exact: bool
    timeout_s: float
    limit: int
    after: ObjectKey | None
    first_version: int | None

    def test(self, kind: ObjectKind) -> Test:
        return selected(kind, self.fields, self.labels)

    def token(self, version: int, last: ObjectKey) -> str:
        """What a client sends to go on after this object."""
        said = [version, last.group, last.plural, last.namespace, last.name]
        return base64.urlsafe_b64encode(json.dumps(said).encode()).decode()


def list_options(query: Mapping[str, str]) -> ListOptions:
    """Refused for a number that is none."""
    version = _number(query, "resourceVersion")
    after = query.get("continue")
    first_version, last = _going_on(after) if after else (None, None)
    if after and version:
        raise bad_request("specifying resource version is not allowed when using continue")
    match = query.get("resourceVersionMatch", "")
    limit = _number(query, "limit") or 0
    if version == 0:  # from the server's memory, which takes no limit
        limit = 0
    if match and (after or version is None):
        raise bad_request(
            "resourceVersionMatch is forbidden unless resourceVersion is provided, and with"
            " continue"
        )
    return ListOptions(
        fields=query.get("fieldSelector", ""),
        labels=query.get("labelSelector", ""),
        watch=query.get("watch", "").lower() in {"1", "true"},
        bookmarks=query.get("allowWatchBookmarks", "").lower() in {"1", "true"},
        version=version,
        # as servers have always taken a limit
        is_exact=match == "Exact" or (not match and bool(version and limit)),
        timeout_s=float(_number(query, "timeoutSeconds") or 0),
        limit=limit,
        after=last,
        first_version=first_version,
    )


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if text and not text.isdecimal():
        raise bad_request(f"{name}: {text!r} is not a number")
    return int(text) if text else None


def _going_on(token: str) -> tuple[int, ObjectKey]:
    try:
        version, *key = json.loads(base64.urlsafe_b64decode(token))
        return int(version), ObjectKey(*key)
    except (ValueError, TypeError):
        raise ApiRefusal(
            410, "Expired", "The provided continue parameter is too old or cannot be read"
        ) from None


# -- what the server says of itself, so that kubectl finds its way
# It lists what there is now, custom resources among it.

_VERSION = {
    "major": "1",
    "minor": "20",
    "gitVersion": "v1.20.2-mpsd-simulated",
    "platform": "simulated/simulated",
}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def discovery(path: str, kinds: Kinds) -> dict[str, Any] | None:
    """None for a path that is about objects, or about nothing."""
    match path.strip("/").split("/"):
        case ["version"]:
            return _VERSION
        case ["api"]:
            return {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]}
        case ["api", "v1"]:
            return _resources("v1", (kind for kind in kinds if not kind.group))
        case ["apis"]:
            groups = dict.fromkeys(kind.group for kind in kinds if kind.group)
            return {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [_group(name, kinds) for name in groups],
            }
        case ["apis", group, version]:
            found = [kind for kind in kinds if kind.group == group and version in kind.versions]
            return _resources(f"{group}/{version}", found) if found else None
        case _:
            return None


def _group(name: str, kinds: Kinds) -> dict[str, Any]:
    versions = dict.fromkeys(
        version for kind in kinds if kind.group == name for version in kind.versions
    )
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resources(api: str, kinds: Iterable[ObjectKind]) -> dict[str, Any]:
    resources = []
    for kind in kinds:
        named = {
            "kind": kind.name,
            "namespaced": kind.namespaced,
            "singularName": kind.name.lower(),
        }
        resources.append(
            {**named, "name": kind.plural, "shortNames": list(kind.short_names), "verbs": _VERBS}
        )
        subresources = (*kind.subresources, *(("status",) if kind.has_status else ()))
        for subresource in subresources:
            verbs = ["get", "patch", "update"] if subresource == "status" else ["create"]
            resources.append({**named, "name": f"{kind.plural}/{subresource}", "verbs": verbs})
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api,
        "resources": resources,
    }


# -- objects as the table that `kubectl get` shows
# A custom resource has the columns of its definition, whose JSON paths are read as far as mpsd uses
# them; pods and events have the columns that people look at; every other kind has what kubectl
# makes of it by itself.

_STEP = re.compile(
    r"\.(?P<field>[A-Za-z0-9]+)(?:\[\?\(@\.(?P<key>\w+)==\"(?P<value>[^\"]*)\"\)\])?"
)
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_POD_COLUMNS = (
    {"name": "Status", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Reason", "type": "string", "jsonPath": ".status.reason"},
    {"name": "Node", "type": "string", "jsonPath": ".spec.nodeName"},
    _AGE,
)
_EVENT_COLUMNS = (
    {"name": "Last Seen", "type": "date", "jsonPath": ".lastTimestamp"},
    {"name": "Reason", "type": "string", "jsonPath": ".reason"},
    {"name": "Object", "type": "string", "jsonPath": ".involvedObject.name"},
    {"name": "Message", "type": "string", "jsonPath": ".message"},
)
_COLUMNS = {PODS.plural: _POD_COLUMNS, EVENTS.plural: _EVENT_COLUMNS}


def is_wanted(accept: str) -> bool:
    """Whether a client would rather have a table."""
    return "as=Table" in accept


def table(kind: ObjectKind, things: Iterable[Object], metadata: Object) -> Object | None:
    """None for a kind that kubectl makes its own table of."""
    columns = _COLUMNS.get(kind.plural, kind.columns)
    if not columns:
        return None
    name = {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0}
    described = [
        {"format": "", "description": "", "priority": 0}
        | {key: value for key, value in column.items() if key != "jsonPath"}
        for column in columns
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [name, *described],
        "rows": [{"cells": _cells(thing, columns), "object": _partial(thing)} for thing in things],
    }


def _cells(thing: Object, columns: Iterable[Object]) -> list[Any]:
    return [thing["metadata"]["name"], *(_cell(thing, column) for column in columns)]


def _cell(thing: Object, column: Object) -> Any:
    """What is at the column's path; None, which kubectl leaves blank, where there is nothing."""
    found: Any = thing
    for step in _STEP.finditer(column["jsonPath"]):
        found = found.get(step["field"]) if isinstance(found, dict) else None
        if step["key"] and isinstance(found, list):
            found = next((one for one in found if one.get(step["key"]) == step["value"]), None)
    if column["type"] == "date" and found:
        return _age(str(found))
    return str(found) if isinstance(found, list | dict) else found


def _age(time: str) -> str:
    """How long ago that was, in kubectl's short way."""
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(0, seconds)}s"


def _partial(thing: Object) -> Object:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": thing["metadata"],
    }


# -- tells one client what changes: the body of a watch, a line a change
# Every change after the version asked for is sent, in order and once, or the client is told to list
# again.


@dataclass(frozen=True, slots=True)
class Watched:
    """since None: tell what is there first. bookmark_s: between two bookmarks; None: none are
    wanted."""

    kind: ObjectKind
    version: str
    namespace: str
    test: Test
    since: int | None
    lasting_s: float
    bookmark_s: float | None


async def changes(store: Store, watched: Watched) -> AsyncIterator[Object]:
    """The lines, as objects, until the watch has lasted as long as it was asked to."""
    now = time.monotonic()
    ends = now + watched.lasting_s
    bookmark_at = now + (watched.bookmark_s or watched.lasting_s)
    position = store.version if watched.since is None else watched.since
    if watched.since is None:
        for _key, thing in store.all(watched.kind, watched.namespace):
            if watched.test(thing):
                yield _line("ADDED", thing, watched)
    while True:
        try:
            for change in store.since(position):
                line = _event_line(change, watched)
                if line:
                    yield line
                position = change.version
        except ApiRefusal as error:
            yield {"type": "ERROR", "object": error.status()}
            return
        now = time.monotonic()
        if watched.bookmark_s is not None and now >= min(bookmark_at, ends):
            bookmark_at = now + watched.bookmark_s
            yield _line("BOOKMARK", {"metadata": {"resourceVersion": str(position)}}, watched)
        if now >= ends:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(min(bookmark_at, ends) - now):
                await store.changed(position)


def _event_line(change: Stored, watched: Watched) -> Object | None:
    """The line for one change; None where it is of no concern here. What no longer matches is gone
    for this client."""
    key = change.key
    if (key.group, key.plural) != (watched.kind.group, watched.kind.plural):
        return None
    if watched.namespace not in ("", key.namespace):
        return None
    was = change.before is not None and watched.test(change.before)
    if change.now is not None and watched.test(change.now):
        return _line("MODIFIED" if was and change.before else "ADDED", change.now, watched)
    if was and change.before:
        metadata = {**change.before["metadata"], "resourceVersion": str(change.version)}
        return _line("DELETED", {**change.before, "metadata": metadata}, watched)
    return None


def _line(kind: str, thing: Object, watched: Watched) -> Object:
    typed = {"kind": watched.kind.name, "apiVersion": watched.kind.api(watched.version)}
    return {"type": kind, "object": {**thing, **typed}}
