"""Which kinds of objects a cluster has that can be listed and deleted, of whomever they are.

One rule: each kind in the version that its group prefers; a group that does not answer is named, not passed over.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpsd.edge.kube import Away, Kube, NotFound, Object, Resource

_VERBS = frozenset({"list", "delete"})


@dataclass(frozen=True, slots=True)
class Kind:
    resource: Resource
    name: str
    namespaced: bool

    @property
    def group(self) -> str:
        return self.resource.api.rpartition("/")[0]


async def deletable_kinds(kube: Kube) -> tuple[Sequence[Kind], Sequence[str]]:
    """The kinds, and why groups are missing, a sentence each: an API service behind the server may be down."""
    groups = (await kube.read("/apis")).get("groups") or []
    places = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    answers = await asyncio.gather(*(_listed(kube, place) for place in places))
    kinds = [kind for answer in answers if not isinstance(answer, str) for kind in _kinds(answer)]
    return kinds, [answer for answer in answers if isinstance(answer, str)]


async def _listed(kube: Kube, place: str) -> Object | str:
    try:
        return await kube.read(place)
    except (Away, NotFound) as error:
        return str(error)


def _kinds(answer: Object) -> Iterator[Kind]:
    for entry in answer.get("resources") or []:
        if "/" not in entry["name"] and _VERBS.issubset(entry.get("verbs") or ()):
            yield Kind(Resource(answer["groupVersion"], entry["name"]), entry["kind"], bool(entry["namespaced"]))
