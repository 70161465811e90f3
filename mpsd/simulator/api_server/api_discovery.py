"""What the simulated API server says of itself, so that kubectl finds its way.

One rule: it lists what there is now, custom resources among it.
"""

from collections.abc import Iterable
from typing import Any

from mpsd.simulator.api_server.api_kinds import Kind, Kinds

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
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name, kinds) for name in groups]}
        case ["apis", group, version]:
            found = [kind for kind in kinds if kind.group == group and version in kind.versions]
            return _resources(f"{group}/{version}", found) if found else None
        case _:
            return None


def _group(name: str, kinds: Kinds) -> dict[str, Any]:
    versions = dict.fromkeys(version for kind in kinds if kind.group == name for version in kind.versions)
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resources(api: str, kinds: Iterable[Kind]) -> dict[str, Any]:
    resources = []
    for kind in kinds:
        named = {"kind": kind.name, "namespaced": kind.namespaced, "singularName": kind.name.lower()}
        resources.append({**named, "name": kind.plural, "shortNames": list(kind.short_names), "verbs": _VERBS})
        subresources = (*kind.subresources, *(("status",) if kind.has_status else ()))
        for subresource in subresources:
            verbs = ["get", "patch", "update"] if subresource == "status" else ["create"]
            resources.append({**named, "name": f"{kind.plural}/{subresource}", "verbs": verbs})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api, "resources": resources}
