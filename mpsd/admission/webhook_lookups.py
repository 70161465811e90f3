"""What a review needs to know beyond the object itself: its namespace's labels, the keys of its ConfigMaps.

One rule: it is advice. Nothing waits longer than its deadline for it, and what is not known in time is said to be
unknown, never to be empty.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mpsd.admission.metrics import Lookup, WebhookMetrics
from mpsd.admission.registration import NAMESPACES
from mpsd.platform.kube import Kube, KubeError, NotFound, Resource

CONFIG_MAPS = Resource("v1", "configmaps")
LONGEST_S = 1.0  # of the 5 s that an API server waits for us
_FRESH_S = 10.0  # a changed label counts after this at the latest
_STALE_S = 600.0  # labels this old are better than none while the API is away
_MOST_NAMESPACES = 4096
_MOST_CONFIG_MAPS = 32  # of one object; what is beyond is unknown

Name = tuple[str, str]  # namespace, name
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Known:
    labels: Labels
    at: float


class Lookups:
    """kube None: there is no API server, so nothing is ever known."""

    def __init__(self, kube: Kube | None, metrics: WebhookMetrics) -> None:
        self._kube = kube
        self._metrics = metrics
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Labels | None]] = {}

    async def namespace_labels(self, name: str) -> Labels | None:
        """None where they are not known. At once where they were asked for a moment ago."""
        known = self._known.get(name)
        now = time.monotonic()
        if known and now - known.at < _FRESH_S:
            return known.labels
        if self._kube is None or not name:
            return None
        task = self._under_way.get(name)
        if task is None:  # many pods of one Job ask at once; one question is enough
            task = self._under_way[name] = asyncio.create_task(self._ask_labels(self._kube, name))
            task.add_done_callback(lambda _task: self._under_way.pop(name, None))
        labels = await asyncio.shield(task)
        if labels is None and known and now - known.at < _STALE_S:
            return known.labels
        return labels

    async def config_map_keys(self, names: Iterable[Name]) -> dict[Name, frozenset[str]]:
        """The keys of those that are known; one that does not exist is not."""
        if self._kube is None:
            return {}
        wanted = list(dict.fromkeys(names))[:_MOST_CONFIG_MAPS]
        tasks = {name: asyncio.create_task(self._ask_keys(self._kube, *name)) for name in wanted}
        if not tasks:
            return {}
        _done, late = await asyncio.wait(tasks.values(), timeout=LONGEST_S)
        for task in late:
            task.cancel()
        answers = {name: task.result() for name, task in tasks.items() if task not in late}
        return {name: keys for name, keys in answers.items() if keys is not None}

    async def _ask_labels(self, kube: Kube, name: str) -> Labels | None:
        try:
            found = await kube.get(NAMESPACES, name, deadline_s=LONGEST_S)
        except KubeError as error:
            self._metrics.looked_up(Lookup.NAMESPACE, found=isinstance(error, NotFound))
            return None
        self._metrics.looked_up(Lookup.NAMESPACE, found=True)
        labels: Labels = (found.get("metadata") or {}).get("labels") or {}
        self._known[name] = _Known(labels, time.monotonic())
        self._known.move_to_end(name)
        while len(self._known) > _MOST_NAMESPACES:
            self._known.popitem(last=False)
        return labels

    async def _ask_keys(self, kube: Kube, namespace: str, name: str) -> frozenset[str] | None:
        try:
            found = await kube.get(CONFIG_MAPS, name, namespace, deadline_s=LONGEST_S)
        except KubeError as error:
            self._metrics.looked_up(Lookup.CONFIG_MAP, found=isinstance(error, NotFound))
            return None
        self._metrics.looked_up(Lookup.CONFIG_MAP, found=True)
        return frozenset({**(found.get("data") or {}), **(found.get("binaryData") or {})})
