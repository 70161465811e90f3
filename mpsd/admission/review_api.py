"""Answers AdmissionReviews over HTTP: reads the body, looks up what the rules need, measures.

What cannot be read is answered with a 4xx and the reason; the rest is answered at once. Only what the rules ask for is
looked up, and not for long.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from typing import TypeVar

import msgspec
from aiohttp import web
from prometheus_client import Gauge

from mpsd.admission.registration import NAMESPACES
from mpsd.admission.rules.review import (
    AdmissionAnswer,
    AdmissionContext,
    MalformedReview,
    Review,
    ReviewNeeds,
    mutate,
    needed_to_mutate,
    needed_to_validate,
    read_review,
    validate,
)
from mpsd.model import metrics as names
from mpsd.platform.kube import Kube, KubeError, NotFound, Resource
from mpsd.platform.limits_files import Limits
from mpsd.platform.listener import BodyRefused, json_answer, read_body
from mpsd.platform.server_metrics import ServerMetrics

_ANSWERED, _UNKNOWN = "answered", "unknown"


class Lookup(StrEnum):
    """What is asked of the Kubernetes API."""

    NAMESPACE = "namespace"
    CONFIG_MAP = "config map"


class WebhookMetrics(ServerMetrics):
    """Its labels come from closed sets (rules, modes, parts, statuses), never from what somebody sent."""

    def __init__(self) -> None:
        super().__init__()
        self._reviews = self.counter(names.ADMISSION_REVIEWS)
        self._findings = self.counter(names.ADMISSION_FINDINGS)
        self._refused = self.counter(names.ADMISSION_REFUSED)
        self._seconds = self.histogram(names.ADMISSION_SECONDS)
        # Finding a metric by its labels costs more than counting; there are few labels, so each is found once.
        self._reviews_of = cache(self._reviews.labels)
        self._seconds_of = cache(self._seconds.labels)
        self._findings_of = cache(self._findings.labels)
        self._lookups = self.counter(names.ADMISSION_LOOKUPS)
        for what in Lookup:
            for outcome in (_ANSWERED, _UNKNOWN):  # from the beginning, so that the first one is seen as an increase
                self._lookups.labels(what.value, outcome)

    def reviewed(self, webhook: str, answer: AdmissionAnswer, took_s: float) -> None:
        self._reviews_of(webhook, _verdict(answer)).inc()
        self._seconds_of(webhook).observe(took_s)
        for rule, mode in answer.verdicts:
            self._findings_of(rule, mode).inc()

    def refused(self, webhook: str, status: int) -> None:
        self._refused.labels(webhook, str(status)).inc()

    def looked_up(self, what: Lookup, *, found: bool) -> None:
        """found: whether the API answered, were it only that there is no such object."""
        self._lookups.labels(what.value, _ANSWERED if found else _UNKNOWN).inc()

    @cached_property
    def _registered(self) -> Gauge:
        """Made when it is first set: a webhook that registers nowhere does not report it, which is no alarm."""
        return self.gauge(names.ADMISSION_REGISTERED)

    def registered(self, *, well: bool) -> None:
        self._registered.set(well)


def _verdict(answer: AdmissionAnswer) -> str:
    if not answer.allowed:
        return "refused"
    if answer.patch:
        return "patched"
    return "warned" if answer.warnings else "allowed"


# -- what a review needs to know beyond the object: its namespace's labels, the keys of its ConfigMaps ---------------
# It is advice: nothing waits longer than its deadline for it, and what is not known in time is unknown, never empty.

CONFIG_MAPS = Resource("v1", "configmaps")
LONGEST_S = 1.0  # of the 5 s that an API server waits for us
_FRESH_S = 10.0  # a changed label counts after this at the latest
_STALE_S = 600.0  # labels this old are better than none while the API is away
_MOST_NAMESPACES = 4096
_MOST_CONFIG_MAPS = 32  # of one object; what is beyond is unknown

Name = tuple[str, str]  # namespace, name
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _KnownNamespace:
    labels: Labels
    at: float


class Lookups:
    """kube None: there is no API server, so nothing is ever known."""

    def __init__(self, kube: Kube | None, metrics: WebhookMetrics) -> None:
        self._kube = kube
        self._metrics = metrics
        self._known: OrderedDict[str, _KnownNamespace] = OrderedDict()
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
        self._known[name] = _KnownNamespace(labels, time.monotonic())
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


# -- one review ----------------------------------------------------------------------------------------------------

LONGEST_BODY = 3 * 1024**2  # the API server's own limit on a request
_BODY_S = 3.0  # an API server waits 5 s for all of it
_LARGE_BODY = 128 * 1024  # of this size a review takes 0.2 s at the very worst; of 3 MiB, half a second
_NOTHING_SEEN = AdmissionContext()
Decided = TypeVar("Decided")


@dataclass(frozen=True, slots=True)
class _Webhook:
    """One of the two webhooks. name: as its path and its metrics have it."""

    name: str
    needed: Callable[[Review, Limits], ReviewNeeds]
    answer: Callable[[Review, Limits, AdmissionContext], AdmissionAnswer]


_VALIDATE = _Webhook(
    "validate",
    lambda review, limits: needed_to_validate(review, limits.policy, limits.facts),
    lambda review, limits, seen: validate(review, limits.policy, limits.facts, seen),
)
_MUTATE = _Webhook(
    "mutate",
    lambda review, limits: needed_to_mutate(review, limits.policy),
    lambda review, limits, seen: mutate(review, limits.policy, seen),
)


class ReviewApi:
    """limits: those in force now."""

    def __init__(self, limits: Callable[[], Limits], lookups: Lookups, metrics: WebhookMetrics) -> None:
        self._limits = limits
        self._lookups = lookups
        self._metrics = metrics
        self._aside = ThreadPoolExecutor(1, "large-reviews")  # one, so that large ones wait for each other

    async def validate(self, request: web.Request) -> web.Response:
        return await self._respond(_VALIDATE, request)

    async def mutate(self, request: web.Request) -> web.Response:
        return await self._respond(_MUTATE, request)

    async def _respond(self, webhook: _Webhook, request: web.Request) -> web.Response:
        """200 with the answer; 4xx with the reason for what is no review."""
        began = time.perf_counter()
        try:
            body = await read_body(request, "application/json", LONGEST_BODY, _BODY_S)
            answer = await self._answer(webhook, body)
        except BodyRefused as refused:
            return self._refuse(webhook, refused.status, str(refused))
        except MalformedReview as error:
            return self._refuse(webhook, 400, str(error))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self._refuse(webhook, 400, f"the body is not JSON: {error}")
        except RecursionError:
            return self._refuse(webhook, 400, "the body is nested too deeply")
        self._metrics.reviewed(webhook.name, answer, time.perf_counter() - began)
        return json_answer(answer.record())

    async def _answer(self, webhook: _Webhook, body: bytes) -> AdmissionAnswer:
        limits = self._limits()
        review, needs = await self._think(body, lambda: self._read(webhook, body, limits))
        seen = await self._look_up(needs)
        return await self._think(body, lambda: webhook.answer(review, limits, seen))

    def _read(self, webhook: _Webhook, body: bytes, limits: Limits) -> tuple[Review, ReviewNeeds]:
        review = read_review(msgspec.json.decode(body))
        return review, webhook.needed(review, limits)

    async def _think(self, body: bytes, decide: Callable[[], Decided]) -> Decided:
        """Decides at once, or beside the loop where that may take long and small reviews would wait for it."""
        if len(body) <= _LARGE_BODY:
            return decide()
        return await asyncio.get_running_loop().run_in_executor(self._aside, decide)

    async def _look_up(self, needs: ReviewNeeds) -> AdmissionContext:
        """Everything at once; nothing for an object that needs nothing."""
        if not needs.namespace and not needs.config_maps:
            return _NOTHING_SEEN
        if not needs.config_maps:  # the labels are known most of the time, and then nothing is waited for
            return AdmissionContext(await self._lookups.namespace_labels(needs.namespace))
        labels, config_maps = await asyncio.gather(
            self._lookups.namespace_labels(needs.namespace), self._lookups.config_map_keys(needs.config_maps)
        )
        return AdmissionContext(labels, config_maps)

    def _refuse(self, webhook: _Webhook, status: int, reason: str) -> web.Response:
        self._metrics.refused(webhook.name, status)
        return web.Response(status=status, text=f"{reason}\n")
