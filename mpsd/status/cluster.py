"""The MPSNodes of a cluster, read once or watched; and the policy that its pods are under.

Rights of whoever looks: get, list, and to go on looking watch, of mpsnodes.mpsd.io.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial

from mpsd.model.cluster_status import ClusterStatus
from mpsd.model.mpsnode import cluster_status
from mpsd.model.names import LIMITS, NAMESPACE
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput, Problem, shortened, shown
from mpsd.platform.kube import (
    MPS_NODES,
    Expired,
    Forbidden,
    Kube,
    KubeError,
    NotFound,
    Object,
    Resource,
    Unavailable,
)
from mpsd.platform.kube_mirror import Mirror, Selection, following
from mpsd.platform.limits_files import (
    POLICY_FILE,
    load_limits,
    read_policy,
)
from mpsd.platform.yaml_files import parse_yaml

_PAUSE_S, _FIRST_PAUSE_S = 1.0, 0.05  # between two looks at what was heard
_NO_SUCH_KIND = "this cluster knows no MPSNodes (mpsnodes.mpsd.io)"
_MOST_NAMED = 8  # of the nodes that there are, where another was asked for


class NotInstalled(KubeError):
    """The cluster knows no MPSNodes."""


async def mpsnodes(kube: Kube, names: Sequence[str]) -> Sequence[Object]:
    """Those of these names, all where none is named. NotInstalled; InvalidInput where one is not
    there."""
    if not names:
        return await _all(kube)
    each = dict.fromkeys(names)
    found = [*filter(None, await asyncio.gather(*map(partial(_one, kube), each)))]
    if len(found) < len(each):
        raise await _unknown(each.keys() - {thing["metadata"]["name"] for thing in found}, kube)
    return found


async def look(kube: Kube, names: Sequence[str]) -> ClusterStatus:
    return cluster_status(await mpsnodes(kube, names), kube.now)


async def _one(kube: Kube, name: str) -> Object | None:
    try:
        return await kube.get(MPS_NODES, name)
    except NotFound:
        return None


async def _all(kube: Kube) -> Sequence[Object]:
    try:
        return await kube.list(MPS_NODES)
    except NotFound:
        raise NotInstalled(_NO_SUCH_KIND) from None


async def _unknown(missing: Iterable[str], kube: Kube) -> InvalidInput:
    known: list[str] | None = None  # None where one may not ask for them
    with suppress(Forbidden):
        known = [str(thing["metadata"]["name"]) for thing in await _all(kube)]
    problems = [
        Problem("node-unknown", f"node {shown(name)}", "", "has no MPSNode", _there(name, known))
        for name in sorted(missing)
    ]
    return InvalidInput("the cluster", problems)


def _there(name: str, known: Sequence[str] | None) -> str:
    if known is None:
        return "name one that has; you may not list them (right: list mpsnodes.mpsd.io)"
    if not known:
        return (
            "no node of this cluster has one: see whether the pods of the DaemonSet mpsd-agent run"
        )
    near = get_close_matches(name, known, _MOST_NAMED, 0.4)
    return f"name one of {shortened([*dict.fromkeys([*near, *sorted(known)])], _MOST_NAMED)}"


# -- watching


@dataclass(frozen=True, slots=True)
class Picture:
    """away: why nothing is heard since `away_since`, None while the API server answers. gone: nodes
    that were asked for and are no more."""

    status: ClusterStatus
    away: str | None
    away_since: float | None
    gone: tuple[str, ...]


async def pictures(
    kube: Kube, names: Sequence[str], beat_s: float = math.inf
) -> AsyncGenerator[Picture]:
    """The nodes now, then at every change, at most once a second, and after `beat_s` without one,
    without end. An API server that goes away is waited for. Raises as `mpsnodes`, later too.
    """
    changed = asyncio.Event()
    selected = {}
    if len(names) == 1:
        selected = {"fieldSelector": f"metadata.name={names[0]}"}

    def wanted(thing: Object) -> Object | None:
        return thing if not names or thing["metadata"]["name"] in names else None

    mirror = Mirror(kube, Selection(MPS_NODES, query=selected), wanted, changed.set)
    given: Picture | None = None
    given_at = 0.0
    async with following(mirror):
        while True:
            picture = await _picture(kube, mirror, names, begun=given is not None)
            now = time.monotonic()
            other = picture and (
                given is None or picture.away != given.away or now - given_at >= beat_s
            )
            if picture and (other or changed.is_set()):
                changed.clear()
                given = picture
                given_at = now
                yield picture
            await asyncio.sleep(_PAUSE_S if given else _FIRST_PAUSE_S)


async def _picture(
    kube: Kube, mirror: Mirror[Object], names: Sequence[str], *, begun: bool
) -> Picture | None:
    """None before the first one. What will not pass by waiting is raised, before it everything."""
    trouble = mirror.trouble
    if isinstance(trouble, NotFound):
        raise NotInstalled(_NO_SUCH_KIND)
    if trouble and not (mirror.synced and isinstance(trouble, Unavailable | Expired)):
        raise trouble
    if not mirror.synced:
        return None
    objects = mirror.objects()
    gone = tuple(sorted(set(names) - {thing["metadata"]["name"] for thing in objects}))
    if gone and not begun:
        raise await _unknown(gone, kube)
    status = cluster_status(objects, kube.now)
    if trouble:
        return Picture(status, str(trouble), mirror.out_of_sync_since, gone)
    return Picture(status, None, None, gone)


# -- the policy

OF_CLUSTER = f"ConfigMap {NAMESPACE}/{LIMITS}"
SHIPPED = "shipped with this mpsd"


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """source: OF_CLUSTER or SHIPPED. why: it is not the cluster's; empty where it is."""

    policy: Policy
    source: str
    why: str


async def policy_in_force(kube: Kube) -> PolicyInForce:
    """The cluster's own, else the one that was shipped, as without the right to get the
    ConfigMap."""
    try:
        thing = await kube.get(Resource("v1", "configmaps"), LIMITS, NAMESPACE)
        policy = read_policy(_value(thing, POLICY_FILE), f"{OF_CLUSTER}, {POLICY_FILE}")
        return PolicyInForce(policy, OF_CLUSTER, "")
    except (KubeError, InvalidInput) as error:
        return PolicyInForce(load_limits(None).policy, SHIPPED, str(error))


def _value(thing: Object, file: str) -> object:
    text = (thing.get("data") or {}).get(file) or ""
    documents = parse_yaml(text.encode(), f"{OF_CLUSTER}, {file}")
    return documents[0].value if documents else None
